//! Hosts that are lost, whose VMs have their disks in a store of Ceph: the store refuses them, their VMs start elsewhere from what
//! the disks have, and what the lost one still has writes nothing any more.

use std::time::{Duration, Instant};

use berth_testkit::{Caller, Ceph, HostProcess, Service};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::guest::{ready, says, with_login};
use crate::place::{Lan, Place, address};
use crate::site::{GUESTS, joined, one_at_a_time};
use crate::{BERTH, CLIENT, block_on, has};

/// The machines, by the last byte of their addresses.
const ALPHA: u8 = 1;
const GAMMA: u8 = 3;
const STORE: u8 = 8;
/// Seconds after which a host that is lost is shut out.
const AFTER: u32 = 30;
/// Seconds until a host that is back has ended what it had.
const SETTLED: u64 = 120;
/// What a guest notes without end: each line says of which boot it is, and is on the disk before the next one.
const NOTES: &str = "boot=$(cat /proc/sys/kernel/random/boot_id); \
     (n=0; while n=$((n+1)); do echo $boot $n >>notes || exit; sync; sleep 0.1; done) >/dev/null 2>&1 </dev/null & \
     until grep -q $boot notes; do sleep 0.1; done";

/// A service and a host that joined, which reach a store.
struct World {
    lan: Lan,
    alpha: Service,
    gamma: HostProcess,
    admin: Caller,
    ceph: Ceph,
    _places: [Place; 3],
}

#[test]
fn a_vm_goes_on_elsewhere_from_its_disks_and_its_lost_host_writes_to_them_no_more() {
    if !has(&["/usr/sbin/nft", "/usr/bin/nsenter", "/usr/bin/ceph-osd"]) {
        return;
    }
    block_on(async {
        let _turn = one_at_a_time().await;
        let mut world = World::new().await;
        let id = world.runs_on_gamma().await;
        // Whoever serves the host stands still, while its machine goes on and reaches the store. The service dies at each step.
        world.alpha.add_faults("fence.make.done=kill");
        world.signals(Signal::STOP);
        world.dies_at("fence.make.done", "");
        let (_, boot) = world.goes_on(&id).await;
        world.alpha.add_faults("fence.settle.done=kill");
        world.signals(Signal::CONT);
        world.dies_at("fence.settle.done", "fence.lift.done=kill");
        world.dies_at("fence.lift.done", "");
        world.is_settled(&id, &boot).await;
        // A host that is off the switch reaches nothing at all.
        world.leaves_for_gamma(&id).await;
        world.lan.cut(GAMMA);
        let (seconds, boot) = world.goes_on(&id).await;
        println!("{seconds:.1} s from a host that is cut off until its VM's guest is back");
        world.lan.join(GAMMA);
        world.is_settled(&id, &boot).await;
        let root = world.vm(&id).await["root_disk"]["id"].as_str().expect("a disk").to_owned();
        assert_eq!(world.admin.delete(&format!("/vms/{id}")).await.status, 202);
        world.admin.gone(&id).await;
        assert_eq!(world.admin.delete(&format!("/root_disks/{root}")).await.status, 202);
        world.within(SETTLED, "nothing in the store", async |world| world.ceph.images().is_empty()).await;
    });
}

impl World {
    async fn new() -> Self {
        let lan = Lan::around(CLIENT);
        let places = [ALPHA, GAMMA, STORE].map(|number| lan.host(number));
        let ceph = places[2].run(|| Ceph::started_at(address(STORE).parse().expect("an address")));
        let mut alpha = Service::new(BERTH, &["micro"]);
        alpha.listen_at(format!("{}:8470", address(ALPHA)).parse().expect("an address"));
        let dir = alpha.dir.path();
        let store = ceph.store();
        std::fs::write(dir.join("ceph.key"), store.key.reveal()).expect("a file");
        std::fs::write(dir.join("fence.key"), ceph.fence_key()).expect("a file");
        alpha.configure(&format!(
            "[[disk_stores]]\nname = \"pool-a\"\nregions = [\"local\"]\nmonitors = {:?}\npool = {:?}\nuser = {:?}\n\
             key_file = \"ceph.key\"\nrestart_elsewhere_seconds = {AFTER}\nfence_user = \"fence\"\n\
             fence_key_file = \"fence.key\"\n",
            store.monitors, store.pool, store.user
        ));
        alpha.set("BERTH_LOG", "info,berth_server::requests=warn");
        let launcher = places[0].launcher();
        alpha.launch_by(&launcher.iter().map(String::as_str).collect::<Vec<_>>());
        alpha.start();
        let admin = alpha.admin().await;
        let gamma = joined(&admin, places[1].launcher()).await;
        let world = Self { lan, alpha, gamma, admin, ceph, _places: places };
        world.within(SETTLED, "both hosts", Self::is_whole).await;
        let image = world.gamma.dir.path().join("images/micro/image.json");
        world.within(SETTLED, "the image", async |_| image.exists()).await;
        world
    }

    /// Whether both hosts are there, and reach the store.
    async fn is_whole(&self) -> bool {
        let reaches = |host: &Value| host["state"] == "ready" && host["stores"][0]["reached"] == true;
        let hosts = self.hosts().await;
        hosts.len() == 2 && hosts.iter().all(reaches)
    }

    /// A VM on the joined host, whose guest takes notes.
    async fn runs_on_gamma(&self) -> String {
        let own = self.host(ALPHA).await;
        self.does(&format!("/api/v1/admin/hosts/{own}/cordon")).await;
        let id = self.admin.create_vm(with_login(&self.alpha)).await;
        ready(&self.admin, &id).await;
        self.does(&format!("/api/v1/admin/hosts/{own}/uncordon")).await;
        assert!(self.gamma.machine(&id).is_some());
        self.says(&id, NOTES).await;
        id
    }

    /// Has a VM go back to the joined host.
    async fn leaves_for_gamma(&self, id: &str) {
        let own = self.host(ALPHA).await;
        self.within(SETTLED, "both hosts", Self::is_whole).await;
        self.does(&format!("/api/v1/admin/hosts/{own}/drain?restart=true")).await;
        self.within(GUESTS, "it is there", async |world| {
            let vm = world.vm(id).await;
            world.gamma.machine(id).is_some() && vm["status"] == "running" && vm["guest_ready"] == true
        })
        .await;
        self.does(&format!("/api/v1/admin/hosts/{own}/uncordon")).await;
        self.says(id, NOTES).await;
    }

    /// Waits until the VM of the lost host is back on the other one, with what was acknowledged; after how many seconds, and by
    /// which boot. Its guest takes notes again.
    async fn goes_on(&self, id: &str) -> (f64, String) {
        let (began, own) = (Instant::now(), self.host(ALPHA).await);
        let is_here = async |world: &Self| world.vm(id).await["host_id"] == own.as_str();
        self.within(SETTLED, "its other host", is_here).await;
        self.within(GUESTS, "its guest", async |world| world.vm(id).await["guest_ready"] == true).await;
        let seconds = began.elapsed().as_secs_f64();
        assert!(self.alpha.machine(id).is_some() && self.ceph.shut_out().contains(&format!("{}:0/0", address(GAMMA))));
        let notes = self.says(id, "tail -n 1 notes").await;
        assert!(notes.split_whitespace().count() == 2, "{notes}");
        self.says(id, NOTES).await;
        (seconds, self.says(id, "cat /proc/sys/kernel/random/boot_id").await)
    }

    /// Waits until the host that was lost has ended what it had; since another one has the disks, nothing of it is on them.
    async fn is_settled(&self, id: &str, boot: &str) {
        self.within(SETTLED, "its former machine's end", async |world| world.gamma.machine(id).is_none()).await;
        self.within(SETTLED, "the end of the fence", async |world| !world.ceph.shut_out().contains(":0/0")).await;
        assert_eq!(self.gamma.processes("served"), [] as [i32; 0]);
        let notes = self.says(id, "cat notes").await;
        let boots: Vec<_> = notes.lines().filter_map(|line| line.split_once(' ')).map(|(boot, _)| boot).collect();
        let first = boots.iter().position(|one| *one == boot).expect("what it noted");
        assert!(boots[first..].iter().all(|one| *one == boot), "the former machine wrote after the present one began");
        assert_eq!(self.vm(id).await["status"], "running");
    }

    /// Waits until the service died at a point, and has another one begin, with other faults.
    fn dies_at(&mut self, point: &str, faults: &str) {
        self.alpha.died_at(point);
        self.alpha.set("BERTH_FAULT", faults);
        self.alpha.start();
    }

    /// Sends the joined host's program a signal.
    fn signals(&self, signal: Signal) {
        let pid = i32::try_from(self.gamma.pid()).ok().and_then(Pid::from_raw).expect("a process");
        kill_process(pid, signal).expect("a signal");
    }

    async fn says(&self, id: &str, command: &str) -> String {
        says(&self.alpha, &self.vm(id).await, command)
    }

    async fn vm(&self, id: &str) -> Value {
        self.admin.get(&format!("/vms/{id}")).await.body
    }

    async fn hosts(&self) -> Vec<Value> {
        self.admin.get("/api/v1/admin/hosts").await.body["data"].as_array().cloned().unwrap_or_default()
    }

    /// The id of a machine's host.
    async fn host(&self, number: u8) -> String {
        let at = format!("{}:", address(number));
        let is_at = |host: &&Value| host["addresses"][0].as_str().is_some_and(|text| text.starts_with(&at));
        let hosts = self.hosts().await;
        hosts.iter().find(is_at).and_then(|host| host["id"].as_str()).expect("a host").to_owned()
    }

    async fn does(&self, path: &str) {
        let answer = self.admin.post(path, json!({})).await;
        assert_eq!(answer.status, 202, "{path}: {answer:?}");
    }

    async fn within(&self, seconds: u64, what: &str, is_so: impl AsyncFn(&Self) -> bool) {
        let began = Instant::now();
        while !is_so(self).await {
            let told = || format!("{what}: not within {seconds} s; {}\n{}", self.alpha.log(), self.gamma.log());
            assert!(began.elapsed() < Duration::from_secs(seconds), "{}", told());
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}
