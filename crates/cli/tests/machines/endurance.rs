//! Random operations on many machines, whose service is killed now and then: afterwards the host has what the rows say.
//!
//! What is under way when the next operation comes, or the service ends, is left to chance. `BERTH_TEST_SECONDS`,
//! `BERTH_TEST_MACHINES`, `BERTH_TEST_NETWORK` and `BERTH_TEST_SEED` ask for another run than the usual one, as
//! `script/soak` does. On a bridge guests call each other all the time, and somebody listens whether one is heard.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use berth_testkit::{Caller, Chance, Service, eventually, vm};
use reqwest::Method;
use serde_json::{Value, json};

use crate::BERTH;
use crate::bridge::{found, on_a_host, reconfigure};
use crate::listener::Listener;
use crate::shared::{HOST, Other};

/// Operations of the usual run.
const OPERATIONS: u64 = 60;
/// Machines at the same time.
const MOST: usize = 4;
/// Machines for which something is under way when the next operation begins.
const UNDER_WAY: usize = 3;
/// Data disks beside those that VMs have.
const FREE_DISKS: usize = 3;
/// Snapshots of disks.
const SNAPSHOTS: usize = 3;
/// How long a wait may take before it says what it waits for, and again.
const SAY: Duration = Duration::from_secs(45);
/// Statuses in which nothing is under way.
const AT_REST: [&str; 4] = ["running", "stopped", "suspended", "failed"];

/// A setting of this run.
fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

/// How a VM's network reaches the outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    User,
    Shared,
    Pool,
    Bridge,
}

impl Mode {
    const ALL: [Self; 4] = [Self::User, Self::Shared, Self::Pool, Self::Bridge];

    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// The one that is asked for; else chance says.
    fn of(seed: u64) -> Self {
        let Ok(name) = std::env::var("BERTH_TEST_NETWORK") else {
            // A bridge is root's alone.
            let most = if rustix::process::geteuid().is_root() { 4 } else { 3 };
            return Self::ALL[usize::try_from(seed % most).expect("small")];
        };
        let mode = Self::ALL.into_iter().find(|mode| mode.name() == name);
        mode.unwrap_or_else(|| panic!("BERTH_TEST_NETWORK={name}: user, shared, pool or bridge"))
    }
}

/// What a VM of a bridge does all the time: it calls its neighbours by their addresses, and everybody on its link.
const CALLS: &str = "#!/bin/sh
while sleep 2; do
  for last in 2 3 4 5 6 7 8; do ping -c 1 -W 1 10.127.0.$last; done
  ping -c 1 -W 1 -b 10.127.255.255
done >/dev/null 2>&1 &
";

/// The service, and where chance stands.
struct Walk {
    service: Service,
    caller: Caller,
    chance: Chance,
    most: usize,
    network: String,
    mode: Mode,
    /// The host's neighbour, and who listens at the host's bridge.
    outside: Option<(Other, Listener)>,
    /// How often the service was killed.
    kills: usize,
}

/// The members of a list.
async fn list(caller: &Caller, path: &str) -> Vec<Value> {
    let answer = caller.get(&format!("{path}?limit=100")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body["data"].as_array().expect("a list").clone()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn is_at_rest(vm: &Value) -> bool {
    AT_REST.contains(&text(vm, "status"))
}

/// The addresses that a service's machines have in each mode but for their last number, and nobody else's.
fn prefixes(service: &Service) -> [[u8; 3]; 2] {
    let port: u16 = service.base.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let [high, low] = port.to_be_bytes();
    let of_user = u8::try_from(65 + port / 256 % 60).expect("a part of an address");
    [[127, of_user, low], [127, 210, high.wrapping_add(low.rotate_left(4))]]
}

impl Walk {
    async fn begin(seed: u64, mode: Mode, mut service: Service, other: Option<Other>) -> Self {
        let most = setting("BERTH_TEST_MACHINES").and_then(|most| usize::try_from(most).ok()).unwrap_or(MOST);
        println!("BERTH_TEST_SEED={seed} BERTH_TEST_MACHINES={most} BERTH_TEST_NETWORK={}", mode.name());
        let [_, [a, b, c]] = prefixes(&service);
        match mode {
            Mode::User => service.configure(
                "stop_seconds = 1
",
            ),
            Mode::Shared => service.configure(&format!(
                "stop_seconds = 1
[network]
mode = \"shared\"
address = \"{a}.{b}.{c}.1\"
ports = \"20000-29999\"
"
            )),
            Mode::Pool => service.configure(&format!(
                "stop_seconds = 1
[network]
mode = \"pool\"
pool = [\"{a}.{b}.{c}.1-{a}.{b}.{c}.{most}\"]
"
            )),
            Mode::Bridge => {}
        }
        // Emulated machines rest most of the time.
        reconfigure(&service, "stop_seconds", "cpu_overcommit = 200.0\nstop_seconds");
        service.start();
        let outside = other.map(|other| (other, Listener::new()));
        let caller = service.admin().await;
        let network = caller.post("/networks", json!({"name": "lan"})).await.id();
        Self { service, caller, chance: Chance::new(seed), most, network, mode, outside, kills: 0 }
    }

    fn one_of(&mut self, all: &[Value]) -> Option<String> {
        (!all.is_empty()).then(|| text(&all[self.chance.below(all.len())], "id").to_owned())
    }

    /// Asks for something that may not be legal at the moment. What a VM's owner can ask for never fails otherwise.
    async fn ask(&self, method: Method, path: &str, body: Value) -> String {
        let request = self.caller.request(method.clone(), path);
        let request = if body.is_null() { request } else { request.json(&body) };
        let answer = self.caller.send(request).await;
        let (status, code) = (answer.status, text(&answer.body, "code"));
        let is_refused = matches!((status, code), (400, "invalid_status" | "disk_not_found") | (404 | 409, _));
        // A disk that is not ready is a field that is wrong.
        let is_not_ready = status == 400 && answer.body.to_string().contains("ready");
        assert!((200..300).contains(&status) || is_refused || is_not_ready, "{method} {path}: {answer:?}");
        format!("{method} {path} {status} {code}")
    }

    /// One operation; what it was.
    async fn step(&mut self) -> String {
        let (vms, disks) = (list(&self.caller, "/vms").await, list(&self.caller, "/disks").await);
        let Some(id) = self.one_of(&vms).filter(|_| vms.len() == self.most || self.chance.below(4) > 0) else {
            return self.create(vms.len()).await;
        };
        let number = self.chance.below(20);
        let verbs = ["start", "stop", "restart", "suspend", "resume", "suspend", "resume", "start"];
        if let Some(verb) = verbs.get(number) {
            return self.ask(Method::POST, &format!("/vms/{id}/{verb}"), Value::Null).await;
        }
        match number {
            8 => {
                let size = ["tiny", "small"][self.chance.below(2)];
                self.ask(Method::POST, &format!("/vms/{id}/resize"), json!({"vm_config_id": size})).await
            }
            9 => {
                let source = ["192.0.2.0/24", "127.0.0.0/8"][self.chance.below(2)];
                let rule = json!({"direction": "in", "protocol": "tcp", "source": source, "action": "allow"});
                self.ask(Method::PUT, &format!("/vms/{id}/rules"), json!({"rules": [rule]})).await
            }
            10 | 11 => {
                let port = 8000 + self.chance.below(3);
                let body = json!({"exposed_ports": [{"port": port, "protocol": "tcp"}]});
                self.ask(Method::PATCH, &format!("/vms/{id}"), body).await
            }
            12 => self.ask(Method::DELETE, &format!("/vms/{id}"), Value::Null).await,
            13 | 14 => self.of_snapshots(&id, &vms, &disks).await,
            _ => self.of_disks(&id, &vms, &disks).await,
        }
    }

    /// A snapshot of a VM's root disk or of a data disk; where there are enough, one of them goes.
    async fn of_snapshots(&mut self, vm: &str, vms: &[Value], disks: &[Value]) -> String {
        let snapshots = list(&self.caller, "/disk_snapshots").await;
        if let Some(snapshot) = self.one_of(&snapshots).filter(|_| snapshots.len() >= SNAPSHOTS) {
            return self.ask(Method::DELETE, &format!("/disk_snapshots/{snapshot}"), Value::Null).await;
        }
        let of_data = self.one_of(disks).filter(|_| self.chance.below(2) == 0);
        let root = vms.iter().find(|it| it["id"] == vm).map(|it| text(&it["root_disk"], "id")).expect("a VM");
        if root.is_empty() && of_data.is_none() {
            return format!("{vm} is being deleted, and has no root disk any more");
        }
        let body = of_data.map_or(json!({"root_disk_id": root}), |disk| json!({"disk_id": disk}));
        self.ask(Method::POST, "/disk_snapshots", body).await
    }

    async fn of_disks(&mut self, vm: &str, vms: &[Value], disks: &[Value]) -> String {
        let free = disks.iter().filter(|disk| disk["vm_id"].is_null()).count();
        let Some(disk) = self.one_of(disks).filter(|_| free > 0 && (free > FREE_DISKS || self.chance.below(3) > 0))
        else {
            let body = json!({"name": "data", "type": "block", "size_gb": 10, "region_id": "local"});
            return self.ask(Method::POST, "/disks", body).await;
        };
        let body = json!({"vm_id": vm});
        match self.chance.below(5) {
            0 => {
                let root = vms.iter().find(|it| it["id"] == vm).map(|it| &it["root_disk"]).expect("a VM");
                let Some(size_gb) = root["size_gb"].as_u64() else {
                    return format!("{vm} is being deleted, and has no root disk any more");
                };
                let size = json!({"size_gb": size_gb + 1});
                self.ask(Method::POST, &format!("/root_disks/{}/resize", text(root, "id")), size).await
            }
            1 if free > FREE_DISKS => self.ask(Method::DELETE, &format!("/disks/{disk}"), Value::Null).await,
            1 | 2 => self.ask(Method::POST, &format!("/disks/{disk}/detach"), Value::Null).await,
            _ => self.ask(Method::POST, &format!("/disks/{disk}/attach"), body).await,
        }
    }

    async fn create(&mut self, number: usize) -> String {
        let mut body = vm(&format!("vm-{number}"));
        body["delete_root_disk"] = json!(true);
        body["restart_policy"] = json!(["never", "on-failure"][self.chance.below(2)]);
        if self.chance.below(2) == 0 {
            body["network_ids"] = json!([self.network]);
        } else if self.mode == Mode::Bridge {
            body["user_data"] = json!(CALLS);
        }
        if self.chance.below(3) == 0 {
            body["data_disks"] = json!({"create_disks": [{"name": "data", "type": "filesystem", "size_gb": 10}]});
        }
        self.ask(Method::POST, "/vms", body).await
    }

    /// Ends the service as a power failure would, whatever it does, and starts it again.
    async fn kill(&mut self) {
        self.service.kill();
        self.kills += 1;
        self.service.start();
        self.caller = self.service.admin().await;
    }

    /// Waits until so few machines have something under way, and says now and then which.
    async fn until_under_way(&self, most: usize) {
        let began = Instant::now();
        let said = std::cell::Cell::new(began);
        let few = async |caller: Caller| {
            let vms = list(&caller, "/vms").await;
            let busy: Vec<_> = vms.iter().filter(|vm| !is_at_rest(vm)).collect();
            if busy.len() > most && said.get().elapsed() > SAY {
                said.set(Instant::now());
                println!("{} s: under way are {}", began.elapsed().as_secs(), json!(busy));
                let log = self.service.log();
                println!("{}", &log[log.len().saturating_sub(2000)..]);
            }
            busy.len() <= most
        };
        self.caller.until("an end of what is under way", few).await;
    }

    /// Deletes all that there is.
    async fn clear(&self) {
        for vm in list(&self.caller, "/vms").await {
            assert_eq!(self.caller.delete(&format!("/vms/{}", text(&vm, "id"))).await.status, 202);
        }
        self.until_under_way(0).await;
        for kind in ["disk_snapshots", "disks"] {
            for thing in list(&self.caller, &format!("/{kind}")).await {
                let answer = self.caller.delete(&format!("/{kind}/{}", text(&thing, "id"))).await;
                assert!(matches!(answer.status, 202 | 204), "{answer:?}");
            }
        }
        let gone = async |caller: Caller| list(&caller, "/disk_snapshots").await.is_empty();
        self.caller.until("an end of snapshots", gone).await;
        self.check().await;
        assert_eq!(self.caller.delete(&format!("/networks/{}", self.network)).await.status, 204);
        self.has_files("networks", &BTreeSet::new());
    }

    /// Waits until nothing is under way, and compares the host with the rows.
    async fn check(&self) {
        self.until_under_way(0).await;
        let at_rest = async |caller: Caller| {
            let vms = list(&caller, "/vms").await;
            // One that was copied while its VM was suspended leaves, or grows, once that goes on.
            let is_kept = |disk: &Value| {
                (disk["change"] == "detaching" || disk["change"] == "growing")
                    && vms.iter().any(|vm| vm["id"] == disk["vm_id"] && vm["status"] == "suspended")
            };
            let is_done = |disk: &Value| disk["change"].is_null() || is_kept(disk);
            list(&caller, "/disks").await.iter().all(|disk| disk["status"] == "ready" && is_done(disk))
                && list(&caller, "/disk_snapshots").await.iter().all(|snapshot| snapshot["status"] == "ready")
                && list(&caller, "/root_disks").await.iter().all(is_done)
        };
        self.caller.until("disks at rest", at_rest).await;
        let (vms, disks) = (list(&self.caller, "/vms").await, list(&self.caller, "/disks").await);
        let running: Vec<_> = vms.iter().filter(|vm| vm["status"] == "running").collect();
        for vm in &vms {
            assert_ne!(vm["status"], "failed", "{vm}");
            assert_eq!(self.service.machine(text(vm, "id")).is_some(), vm["status"] == "running", "{vm}");
        }
        let joined = running.iter().any(|vm| vm["networks"].as_array().is_some_and(|all| !all.is_empty()));
        let (bridged, carried): (Vec<_>, Vec<_>) = running.iter().copied().partition(|vm| self.is_bridged(vm));
        // A machine, and the program that carries its network where the bridge does not.
        self.has("machines", running.len() + carried.len());
        self.has("networks", usize::from(joined));
        self.has_files("machines", &vms.iter().map(|vm| text(vm, "id").to_owned()).collect());
        let of_vms = vms.iter().map(|vm| text(&vm["root_disk"], "id").to_owned());
        self.has_files("disks", &of_vms.chain(disks.iter().map(|disk| text(disk, "id").to_owned())).collect());
        let snapshots = list(&self.caller, "/disk_snapshots").await;
        self.has_files("snapshots", &snapshots.iter().map(|snapshot| text(snapshot, "id").to_owned()).collect());
        for folder in ["lost", "staging"] {
            let left = below(&self.service.dir.path().join(folder));
            assert!(left.is_empty(), "{folder}: {left:?}; disks: {disks:?}; snapshots: {snapshots:?}");
        }
        let expected: BTreeSet<_> = carried.iter().flat_map(|vm| reached_at(vm)).collect();
        eventually("the ports of what runs", 120, || (self.listened() == expected).then_some(()));
        if self.mode == Mode::Bridge {
            self.has_on_the_bridge(&bridged).await;
        }
        let quota = self.caller.get("/quota").await.body;
        assert_eq!(quota["vms"]["used"], vms.len());
        for vm in &running {
            eventually("its SSH", 300, || self.is_ssh(ssh_of(vm)).then_some(()));
        }
    }

    /// Whether a VM's network is the host's bridge: those of a project's network have a program each.
    fn is_bridged(&self, vm: &Value) -> bool {
        self.mode == Mode::Bridge && vm["networks"].as_array().is_none_or(Vec::is_empty)
    }

    /// Whether the bridge leads to these and nowhere else, and nobody on it has heard anybody but his gateway.
    async fn has_on_the_bridge(&self, vms: &[&Value]) {
        let rows: BTreeSet<_> = vms.iter().flat_map(|vm| reached_at(vm)).map(|at| at.port()).collect();
        let has = async |_: Caller| {
            let found = found().await;
            let leads = found.rules.get("inet map forwards4").into_iter().flatten();
            let leads: BTreeSet<_> = leads.filter_map(|element| port_in(element)).collect();
            found.ports.len() == vms.len() && leads == rows
        };
        self.caller.until("the bridge of what runs", has).await;
        let (_, listener) = self.outside.as_ref().expect("a listener");
        assert_eq!(listener.strangers(), Vec::<String>::new(), "a guest has heard another");
    }

    /// Waits until the listener at the bridge has heard a guest, as it would all that one says. Chance may have let none speak
    /// for long enough: then there is one more.
    async fn is_heard(&self) {
        let Some((_, listener)) = &self.outside else { return };
        if listener.heard() == 0 {
            let mut body = vm("caller");
            (body["delete_root_disk"], body["user_data"]) = (json!(true), json!(CALLS));
            self.caller.create_vm(body).await;
            eventually("a guest that is heard", 300, || (listener.heard() > 0).then_some(()));
        }
        println!("the listener at the bridge heard {} packets", listener.heard());
    }

    /// Whether SSH answers there, as long as no rule keeps out who asks.
    fn is_ssh(&self, at: SocketAddrV4) -> bool {
        match &self.outside {
            Some((other, _)) => other.hears(at.into()).is_some_and(|banner| banner.starts_with("SSH-2.0-")),
            None => is_ssh(at),
        }
    }

    /// Whether so many processes work in a folder.
    fn has(&self, folder: &str, count: usize) {
        eventually(&format!("{count} processes in {folder}"), 120, || {
            (self.service.processes(folder).len() == count).then_some(())
        });
    }

    /// Whether a folder has files of all of these and of nothing else.
    fn has_files(&self, folder: &str, ids: &BTreeSet<String>) {
        let files = || self.service.files(folder).into_iter();
        let found =
            || -> BTreeSet<_> { files().map(|it| it.split('.').next().unwrap_or_default().to_owned()).collect() };
        // A VM that never ran since it was stopped need not have a folder.
        let fits = |found: &BTreeSet<String>| found == ids || folder == "machines" && found.is_subset(ids);
        eventually(&format!("{folder} of {ids:?} alone"), 120, || fits(&found()).then_some(()));
    }

    /// Where somebody listens at addresses of this service's machines.
    fn listened(&self) -> BTreeSet<SocketAddrV4> {
        let table = std::fs::read_to_string("/proc/thread-self/net/tcp").expect("a table");
        let read = |line: &str| {
            let [_, local, _, "0A"] = line.split_whitespace().take(4).collect::<Vec<_>>()[..] else { return None };
            let (address, port) = local.split_once(':')?;
            let address = Ipv4Addr::from(u32::from_str_radix(address, 16).ok()?.swap_bytes());
            Some(SocketAddrV4::new(address, u16::from_str_radix(port, 16).ok()?))
        };
        let prefixes = prefixes(&self.service);
        // The API is at the loopback.
        let own =
            |at: &SocketAddrV4| *at.ip() == HOST || prefixes.iter().any(|prefix| at.ip().octets().starts_with(prefix));
        table.lines().filter_map(read).filter(own).collect()
    }
}

fn place(host: &Value, port: &Value) -> SocketAddrV4 {
    let host = host.as_str().and_then(|host| host.parse().ok()).expect("an address");
    SocketAddrV4::new(host, port.as_u64().and_then(|port| u16::try_from(port).ok()).expect("a port"))
}

/// All files below a folder.
fn below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { below(&path) } else { vec![path] }).collect()
}

/// The port of the host that an element of the bridge's map leads from.
fn port_in(element: &str) -> Option<u16> {
    let element: Value = serde_json::from_str(element).ok()?;
    u16::try_from(element[0]["concat"][2].as_u64()?).ok()
}

fn ssh_of(vm: &Value) -> SocketAddrV4 {
    place(&vm["ssh"]["host"], &vm["ssh"]["port"])
}

/// Where a VM that runs is reached.
fn reached_at(vm: &Value) -> Vec<SocketAddrV4> {
    let exposed = vm["exposed_ports"].as_array().expect("a list").iter();
    exposed.map(|port| place(&port["host"], &port["public_port"])).chain([ssh_of(vm)]).collect()
}

/// Whether SSH answers there, as long as no rule keeps the test out.
fn is_ssh(at: SocketAddrV4) -> bool {
    let Ok(stream) = TcpStream::connect_timeout(&SocketAddr::from(at), Duration::from_secs(5)) else { return false };
    let mut line = String::new();
    stream.set_read_timeout(Some(Duration::from_secs(20))).is_ok()
        && BufReader::new(stream).read_line(&mut line).is_ok()
        && line.starts_with("SSH-2.0-")
}

async fn random_operations(seed: u64, mode: Mode, service: Service, other: Option<Other>) {
    let (began, seconds) = (Instant::now(), setting("BERTH_TEST_SECONDS"));
    let mut walk = Walk::begin(seed, mode, service, other).await;
    let mut operations = 0;
    while seconds.map_or(operations < OPERATIONS, |seconds| began.elapsed() < Duration::from_secs(seconds)) {
        let done = walk.step().await;
        println!("{operations} at {} s: {done}", began.elapsed().as_secs());
        operations += 1;
        if walk.chance.below(7) == 0 {
            walk.kill().await;
        }
        walk.until_under_way(UNDER_WAY).await;
    }
    walk.is_heard().await;
    walk.check().await;
    let bridge = if mode == Mode::Bridge { Some(found().await) } else { None };
    walk.kill().await;
    walk.check().await;
    if let Some(before) = bridge {
        assert_eq!(found().await, before, "what many changes left is what the next service makes at once");
    }
    walk.clear().await;
    println!("{operations} operations, the service killed {} times: the host has what the rows say", walk.kills);
}

#[test]
fn the_host_has_what_the_rows_say_after_random_operations() {
    let seed = setting("BERTH_TEST_SEED").unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0);
    match Mode::of(seed) {
        Mode::Bridge => {
            on_a_host(async move |service, other| random_operations(seed, Mode::Bridge, service, Some(other)).await);
        }
        mode => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
            runtime.block_on(random_operations(seed, mode, Service::new(BERTH, &["micro"]), None));
        }
    }
}
