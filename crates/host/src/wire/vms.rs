//! [`Engine`] by bytes.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use berth_domain::host::ask::{
    Ask, disk, disk_snapshot, export, host, image, migration, shared_disk, shared_snapshot, stream, vm,
};
use berth_domain::ids::{DiskId, DiskSnapshotId, ImageId, MachineId};
use berth_domain::vm::plan::Machine;
use tokio::io::AsyncReadExt;
use tokio::sync::broadcast;
use uuid::Uuid;

use super::message;
use super::remote::{Remote, read};
use crate::vm::{
    Aim, Arrival, BroughtDisk, Capacity, Channel, Console, Content, DiskSnapshotSpec, DiskSpec, Edition, Engine,
    ExportSource, Exported, Found, Gpu, GuestKeys, ImageFile, ImageImport, ImageInfo, ImageOfSnapshot, Likeness,
    MachineSpec, Open, Part, Reached, Started, Store, Usage, VmNetwork,
};
use crate::{EngineError, Result, lost};

#[async_trait]
impl Engine for Remote {
    fn ready(&self) -> std::result::Result<(), String> {
        self.cache.about().vm.missing.map_or(Ok(()), Err)
    }

    async fn capacity(&self) -> Result<Capacity> {
        self.ask(host::VmCapacity {}).await
    }

    async fn gpus(&self) -> Result<Vec<Gpu>> {
        self.ask(host::Gpus {}).await
    }

    fn ssh_port(&self) -> u16 {
        self.cache.about().vm.ssh_port
    }

    fn network(&self) -> VmNetwork {
        self.cache.about().vm.network
    }

    async fn ports_free(&self, first: SocketAddr, count: u16) -> bool {
        self.ask(host::PortsFree { first, count }).await.unwrap_or(false)
    }

    fn host_boot(&self) -> String {
        self.cache.about().vm.boot
    }

    async fn make_disk(&self, disk: &DiskSpec) -> Result<()> {
        self.ask(disk::Make { disk: disk.clone() }).await
    }

    async fn bring_disk(&self, file: &Path, disk: &BroughtDisk) -> Result<()> {
        self.send(file, |bytes| Ask::Stream(stream::Stage { image: disk.id.to_string(), bytes }.into())).await?;
        self.ask(disk::Bring { disk: disk.clone() }).await
    }

    async fn grow_disk(&self, id: DiskId, size_gb: i64, of: Option<Aim>) -> Result<()> {
        self.ask(disk::Grow { id, size_gb, of }).await
    }

    async fn remove_disk(&self, id: DiskId) -> Result<()> {
        self.ask(disk::Remove { id }).await
    }

    async fn set_aside_disk(&self, id: DiskId, into: &Path) -> Result<()> {
        self.ask(disk::SetAside { id, at: lost::day(into)? }).await
    }

    async fn reach_store(&self, store: &Store) -> Result<Reached> {
        self.ask(shared_disk::Reach { store: store.clone() }).await
    }

    async fn shut_out(&self, _: &Store, _: &[IpAddr]) -> Result<()> {
        Err(not_asked())
    }

    async fn refuses(&self, _: &Store, _: &[IpAddr]) -> Result<bool> {
        Err(not_asked())
    }

    async fn let_in(&self, _: &Store, _: &[IpAddr]) -> Result<()> {
        Err(not_asked())
    }

    async fn openers(&self, _: &Store, _: DiskId) -> Result<Vec<IpAddr>> {
        Err(not_asked())
    }

    async fn make_shared_disk(&self, disk: &DiskSpec, store: &Store) -> Result<()> {
        self.ask(shared_disk::Make { disk: disk.clone(), store: store.clone() }).await
    }

    async fn grow_shared_disk(&self, id: DiskId, size_gb: i64, store: &Store) -> Result<()> {
        self.ask(shared_disk::Grow { id, size_gb, store: store.clone() }).await
    }

    async fn remove_shared_disk(&self, id: DiskId, store: &Store) -> Result<()> {
        self.ask(shared_disk::Remove { id, store: store.clone() }).await
    }

    async fn attach_shared_disk(&self, aim: Aim, disk: DiskId, store: &Store) -> Result<()> {
        self.ask(shared_disk::Attach { aim, disk, store: store.clone() }).await
    }

    async fn snapshot_shared_disk(&self, snapshot: &DiskSnapshotSpec, of: Option<Aim>, store: &Store) -> Result<u64> {
        self.ask(shared_snapshot::Make { snapshot: *snapshot, of, store: store.clone() }).await
    }

    async fn copy_shared_disk(&self, snapshot: &DiskSnapshotSpec, of: Option<Aim>, store: &Store) -> Result<u64> {
        self.ask(shared_snapshot::Copy { snapshot: *snapshot, of, store: store.clone() }).await
    }

    async fn restore_shared_disk(&self, disk: &DiskSpec, store: &Store) -> Result<()> {
        self.ask(shared_snapshot::Restore { disk: disk.clone(), store: store.clone() }).await
    }

    async fn remove_shared_snapshot(&self, snapshot: &DiskSnapshotSpec, store: &Store) -> Result<()> {
        self.ask(shared_snapshot::Remove { snapshot: *snapshot, store: store.clone() }).await
    }

    async fn snapshot_disk(&self, snapshot: &DiskSnapshotSpec, of: Option<Aim>) -> Result<Option<u64>> {
        self.ask(disk_snapshot::Make { snapshot: *snapshot, of }).await
    }

    async fn remove_snapshot(&self, id: DiskSnapshotId, of: Option<Aim>) -> Result<()> {
        self.ask(disk_snapshot::Remove { id, of }).await
    }

    async fn set_aside_snapshot(&self, id: DiskSnapshotId, into: &Path) -> Result<()> {
        self.ask(disk_snapshot::SetAside { id, at: lost::day(into)? }).await
    }

    async fn export(&self, of: &ExportSource) -> Result<Exported> {
        self.ask(export::Make { of: *of }).await
    }

    async fn exported(&self, of: &ExportSource, sha256: &str, part: Part) -> Result<Box<dyn Content>> {
        let asked = stream::Exported { of: *of, sha256: sha256.to_owned(), part };
        let mut stream = self.begin(Ask::Stream(asked.into())).await?;
        self.hear(&mut stream).await?;
        Ok(Box::new(stream.take(part.bytes)))
    }

    async fn observe(&self, id: MachineId) -> Result<Machine> {
        let machine = self.ask(vm::Observe { id }).await?;
        if machine == Machine::Absent {
            // Whether it ended with a boot of the host is judged by the boot in which it is missed.
            self.describe().await?;
        }
        Ok(machine)
    }

    async fn guest_ready(&self, id: MachineId) -> bool {
        self.ask(vm::GuestReady { id }).await.unwrap_or(false)
    }

    async fn has_network(&self, id: MachineId) -> bool {
        // What cannot be told is taken for carried: a second program would cut its connections.
        self.ask(vm::HasNetwork { id }).await.unwrap_or(true)
    }

    async fn start(&self, spec: &MachineSpec) -> Result<Option<Started>> {
        self.ask(vm::Start { spec: spec.clone() }).await
    }

    async fn suspend(&self, spec: &MachineSpec) -> Result<()> {
        self.ask(vm::Suspend { spec: spec.clone() }).await
    }

    async fn forget_memory(&self, aim: Aim) -> Result<()> {
        self.ask(vm::ForgetMemory { aim }).await
    }

    async fn resume(&self, aim: Aim) -> Result<()> {
        self.ask(vm::Resume { aim }).await
    }

    async fn press_power(&self, aim: Aim) -> Result<()> {
        self.ask(vm::PressPower { aim }).await
    }

    async fn power_off(&self, aim: Aim) -> Result<()> {
        self.ask(vm::PowerOff { aim }).await
    }

    async fn discard(&self, aim: Aim) -> Result<()> {
        self.ask(vm::Discard { aim }).await
    }

    async fn set_ports(&self, spec: &MachineSpec, before: Open) -> Result<Started> {
        self.ask(vm::SetPorts { spec: spec.clone(), before }).await
    }

    async fn set_keys(&self, aim: Aim, keys: &GuestKeys) -> Result<bool> {
        self.ask(vm::SetKeys { aim, keys: keys.clone() }).await
    }

    async fn attach_disk(&self, aim: Aim, disk: DiskId) -> Result<()> {
        self.ask(vm::AttachDisk { aim, disk }).await
    }

    async fn detach_disk(&self, aim: Aim, disk: DiskId) -> Result<bool> {
        self.ask(vm::DetachDisk { aim, disk }).await
    }

    async fn remake_disk(&self, aim: Aim, disk: &DiskSpec) -> Result<()> {
        self.ask(vm::RemakeDisk { aim, disk: disk.clone() }).await
    }

    async fn likeness(&self, spec: &MachineSpec) -> Result<Likeness> {
        // Nothing that waits passes before somebody upgrades it.
        if !message::has(self.carrier.spoken(), "migration.describe") {
            return Err(EngineError::Permanent(
                "its host's Berth is older than this service's; upgrade it there".into(),
            ));
        }
        self.ask(migration::Describe { spec: spec.clone() }).await
    }

    async fn expect_machine(&self, spec: &MachineSpec, likeness: &Likeness) -> Result<Started> {
        self.ask(migration::Expect { spec: spec.clone(), likeness: likeness.clone() }).await
    }

    async fn send_machine(&self, aim: Aim, channel: Channel) -> Result<Box<dyn Console>> {
        let mut stream = self.begin(Ask::Stream(stream::Send { aim, channel }.into())).await?;
        self.hear(&mut stream).await?;
        Ok(stream)
    }

    async fn fill_machine(&self, aim: Aim, channel: Channel) -> Result<Box<dyn Console>> {
        let mut stream = self.begin(Ask::Stream(stream::Fill { aim, channel }.into())).await?;
        self.hear(&mut stream).await?;
        Ok(stream)
    }

    async fn mirrored(&self, aim: Aim) -> Result<()> {
        self.ask(migration::Mirrored { aim }).await
    }

    async fn hand_over(&self, aim: Aim) -> Result<()> {
        self.ask(migration::HandOver { aim }).await
    }

    async fn taken(&self, aim: Aim) -> Result<()> {
        self.ask(migration::Taken { aim }).await
    }

    async fn call_off(&self, aim: Aim) -> Result<()> {
        self.ask(migration::CallOff { aim }).await
    }

    async fn console_log(&self, id: MachineId, bytes: usize) -> Result<Vec<u8>> {
        self.ask(vm::ConsoleLog { id, bytes }).await
    }

    async fn console(&self, id: MachineId) -> Result<Box<dyn Console>> {
        let mut stream = self.begin(Ask::Stream(stream::Console { id }.into())).await?;
        self.hear(&mut stream).await?;
        Ok(stream)
    }

    async fn screen(&self, id: MachineId) -> Result<Box<dyn Console>> {
        let mut stream = self.begin(Ask::Stream(stream::Screen { id }.into())).await?;
        self.hear(&mut stream).await?;
        Ok(stream)
    }

    async fn picture(&self, id: MachineId) -> Result<Vec<u8>> {
        let mut stream = self.begin(Ask::Stream(stream::Picture { id }.into())).await?;
        let said = self.hear(&mut stream).await?;
        self.receive(&mut stream, read::<stream::Picture>(said)?).await
    }

    async fn usage(&self, id: MachineId) -> Option<Usage> {
        self.ask(vm::Usage { id }).await.ok().flatten()
    }

    async fn images(&self) -> Result<Vec<ImageInfo>> {
        self.ask(image::List {}).await
    }

    async fn image(&self, id: &str) -> Result<Option<ImageInfo>> {
        self.ask(image::Find { id: id.to_owned() }).await
    }

    async fn editions(&self) -> Result<Vec<Edition>> {
        self.ask(image::Editions {}).await
    }

    async fn image_files(&self, edition: &Edition) -> Result<Vec<ImageFile>> {
        self.ask(image::Files { edition: edition.clone() }).await
    }

    async fn image_file(&self, edition: &Edition, file: &ImageFile) -> Result<Box<dyn Content>> {
        let asked = stream::ImageFile { edition: edition.clone(), file: file.clone() };
        let mut stream = self.begin(Ask::Stream(asked.into())).await?;
        self.hear(&mut stream).await?;
        Ok(Box::new(stream.take(file.bytes)))
    }

    async fn expect_image(&self, arrival: &Arrival) -> Result<()> {
        self.ask(image::Expect { arrival: arrival.clone() }).await
    }

    async fn take_image_file(
        &self,
        travel: Uuid,
        image: &str,
        file: &ImageFile,
        content: Box<dyn Content>,
    ) -> Result<()> {
        let asked = stream::Take { travel, image: image.to_owned(), file: file.clone() };
        self.pass_on(content, file.bytes, Ask::Stream(asked.into())).await
    }

    async fn adopt_image(&self, arrival: &Arrival) -> Result<()> {
        self.ask(image::Adopt { arrival: arrival.clone() }).await
    }

    async fn staging(&self) -> Result<PathBuf> {
        let staging = self.spool.join("staging");
        tokio::fs::create_dir_all(&staging).await.map_err(|error| EngineError::Transient(error.to_string()))?;
        Ok(staging)
    }

    async fn import_image(&self, file: &Path, import: &ImageImport) -> Result<ImageInfo> {
        self.send(file, |bytes| Ask::Stream(stream::Stage { image: import.id.clone(), bytes }.into())).await?;
        self.ask(image::Import { import: import.clone() }).await
    }

    async fn make_image(&self, image: &ImageOfSnapshot) -> Result<ImageInfo> {
        self.ask(image::Make { image: image.clone() }).await
    }

    async fn set_aside_image(&self, id: ImageId, into: &Path) -> Result<()> {
        self.ask(image::SetAside { id, at: lost::day(into)? }).await
    }

    async fn remove_image(&self, id: &str) -> Result<()> {
        self.ask(image::Remove { id: id.to_owned() }).await
    }

    async fn scan(&self) -> Result<Found> {
        self.ask(host::ScanVms {}).await
    }

    fn watch(&self) -> broadcast::Receiver<MachineId> {
        self.cache.vms.subscribe()
    }
}

/// What is said of a question that is never sent.
fn not_asked() -> EngineError {
    EngineError::Permanent("only the service's own host has a store shut others out".into())
}
