//! Two hosts, and what a service does between them.

use std::time::Instant;

use berth_domain::ids::{DiskId, MachineId};
use berth_host::Result;
use berth_host::vm::{Channel, DataDisk, DiskSource, DiskSpec, Engine};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::host::{Host, Key};

/// Gives a machine that runs a data disk.
async fn attach(host: &mut Host) {
    let id = DiskId(Uuid::now_v7());
    let disk = DiskSpec { id, source: DiskSource::Empty, size_gb: 1 };
    host.engine.make_disk(&disk).await.expect("a disk");
    host.engine.attach_disk(host.spec.aim(), id).await.expect("a disk");
    host.spec.data_disks.push(DataDisk { id, mount: None });
}

/// A machine that runs on the first of two hosts, and has two data disks, one of them since it runs.
pub struct World {
    pub from: Host,
    pub to: Host,
    key: Key,
}

impl World {
    pub async fn new() -> Self {
        let key = Key::new();
        let (id, root) = (MachineId(Uuid::now_v7()), DiskId(Uuid::now_v7()));
        let [mut from, mut to] = [(); 2].map(|()| Host::new(id, root, &key.public()));
        let disk = DiskSpec { id: root, source: DiskSource::Image("micro".into()), size_gb: 20 };
        from.engine.make_disk(&disk).await.expect("a disk");
        from.start().await;
        for _ in 0..2 {
            attach(&mut from).await;
        }
        to.spec.data_disks.clone_from(&from.spec.data_disks);
        Self { from, to, key }
    }

    /// What a command says in the guest, once that lets it in.
    pub async fn says(&self, host: &Host, command: &str) -> String {
        self.key.says(host, command).await
    }

    /// Asserts that the guest goes on, on this host.
    pub async fn counts(&self, host: &Host) {
        let count = "n=$(cat /tmp/count); for i in $(seq 200); do [ \"$(cat /tmp/count)\" -gt \"$n\" ] && exit; sleep 0.05; done; exit 1";
        self.says(host, count).await;
    }

    /// Has a machine wait on the other host.
    pub async fn expect(&self) -> Result<()> {
        let likeness = self.from.engine.likeness(&self.from.spec).await?;
        self.to.engine.expect_machine(&self.to.spec, &likeness).await.map(drop)
    }

    /// Carries a channel from the one host to the other.
    pub async fn carry(&self, channel: Channel) -> Result<JoinHandle<()>> {
        let mut from = self.from.engine.send_machine(self.from.spec.aim(), channel).await?;
        let mut to = self.to.engine.fill_machine(self.to.spec.aim(), channel).await?;
        Ok(tokio::spawn(async move {
            let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
        }))
    }

    /// Has a machine wait on the other host, and its disks be mirrored there.
    pub async fn mirror(&self) -> Result<Vec<JoinHandle<()>>> {
        self.expect().await?;
        let mut carried = Vec::new();
        let data = self.from.spec.data_disks.iter().map(|disk| disk.id);
        for id in std::iter::once(self.from.spec.root_disk).chain(data) {
            carried.push(self.carry(Channel::Disk(id)).await?);
        }
        self.from.engine.mirrored(self.from.spec.aim()).await.map(|()| carried)
    }

    /// Has the machine go on on the other host.
    pub async fn go(&self) -> Result<()> {
        let began = Instant::now();
        let mut carried = self.mirror().await?;
        let mirrored = began.elapsed();
        carried.push(self.carry(Channel::Memory).await?);
        self.from.engine.hand_over(self.from.spec.aim()).await?;
        let handed = began.elapsed();
        self.to.engine.taken(self.to.spec.aim()).await?;
        self.to.engine.resume(self.to.spec.aim()).await?;
        println!("mirrored after {mirrored:?}, handed over after {handed:?}, goes on after {:?}", began.elapsed());
        Ok(())
    }
}
