//! VMs on a bridge of their host: what reaches them, what they reach, and what is left when they are gone.
//!
//! Host and another machine are network namespaces of the test's own, joined by a pair of cards, so that bridge, devices and
//! rules are nobody else's. The other machine is the way outside, too.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use berth_bridge::{Present, Settings, present};
use berth_testkit::{Caller, Service, eventually};
use nix::sched::{CloneFlags, unshare};
use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::BERTH;
use crate::crash::{self, killed_at};
use crate::guest::{ready, says, with_login};
use crate::network::Session;
use crate::shared::{HOST, OTHER, Other, another, ip, places, serve};

/// An address of nobody's network, which the other machine has in the test.
const OUTSIDE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(9, 9, 9, 9)), 7000);
/// A table of the host's own.
const OWN: &str =
    "table inet own { chain input { type filter hook input priority 10; policy accept; tcp dport 1 drop; }; }";

const BRIDGE: &str = "mode = \"bridge\"";

/// In a namespace of its own, with another machine at the other end of a line and the way outside by it.
pub fn on_a_host(test: impl AsyncFnOnce(Service, Other) + Send + 'static) {
    let host = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a namespace; these tests are root's");
        assert!(ip("link set lo up"));
        let other = Other::new(true);
        other.serves(OUTSIDE, "outside");
        assert!(ip(&format!("route add default via {OTHER}")));
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("a setting");
        nft(OWN);
        let service = Service::new(BERTH, &["micro"]);
        service.configure(&format!("stop_seconds = 1\n[network]\naddress = \"{HOST}\"\n{BRIDGE}\n"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(test(service, other));
    });
    host.join().expect("the host's side");
}

fn nft(text: &str) -> String {
    let output = Command::new("nft").arg(text).output().expect("nft");
    assert!(output.status.success(), "{text}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Has the service know another setting from its next start on.
pub fn reconfigure(service: &Service, from: &str, to: &str) {
    let file = service.dir.path().join("berth.toml");
    let text = std::fs::read_to_string(&file).expect("a file");
    assert!(text.contains(from), "{text}");
    std::fs::write(file, text.replace(from, to)).expect("a file");
}

/// What the host has of the bridge.
pub async fn found() -> Present {
    present(&Settings::default()).await.expect("what is there")
}

/// Whether a guest hears a word at an address, for which it waits as long as a busy host may take.
fn hears(service: &Service, vm: &Value, at: SocketAddr, word: &str) -> bool {
    hears_within(60, service, vm, at, word)
}

/// The same within so many seconds, where it may not come to hear it.
fn hears_within(seconds: u32, service: &Service, vm: &Value, at: SocketAddr, word: &str) -> bool {
    let ask = format!("timeout {seconds} nc {} {} </dev/null | grep -c {word} || true", at.ip(), at.port());
    says(service, vm, &ask) == "1"
}

/// The address that a guest was told.
fn own_address(service: &Service, vm: &Value) -> IpAddr {
    let address = says(service, vm, "ip -4 -o address show dev eth0 | sed 's|.* inet \\([0-9.]*\\)/.*|\\1|'");
    address.parse().expect("an address")
}

async fn verb(caller: &Caller, id: &str, verb: &str, status: &str) -> Value {
    let answer = caller.act(&format!("/vms/{id}/{verb}")).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    caller.reaches(id, status).await
}

async fn reached_and_reaching(mut service: Service, other: Other) {
    let own = nft("list table inet own");
    service.start();
    let caller = service.admin().await;
    let ids = [caller.create_vm(with_login(&service)).await, caller.create_vm(another(&service)).await];
    let mut vms = Vec::new();
    for (id, word) in ids.iter().zip(["of the first", "of the second"]) {
        let vm = caller.reaches(id, "running").await;
        serve(&service, &vm, 8000, word);
        let (exposed, ssh) = places(&vm, 8000);
        eventually("its page", 60, || (other.hears(exposed).as_deref() == Some(word)).then_some(()));
        assert!(other.hears(ssh).is_some_and(|banner| banner.starts_with("SSH-2.0-")));
        assert_eq!(other.hears(SocketAddr::new(ssh.ip(), ssh.port() + 5)), None, "what is not exposed is shut");
        vms.push(vm);
    }
    let programs = service
        .processes("machines")
        .into_iter()
        .filter(|pid| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default().starts_with(b"berth-egress\0"));
    assert_eq!(programs.count(), 0, "no program is beside them");
    assert_eq!(found().await.ports.len(), 2);
    let api: u16 = service.base.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let neighbour = own_address(&service, &vms[1]);
    let gateway = Settings::default().gateway().into();
    assert!(hears(&service, &vms[0], OUTSIDE, "outside"));
    for (ip, port) in [(neighbour, 8000), (neighbour, 22), (HOST.into(), api), (gateway, api), (OTHER.into(), 22)] {
        let ask = format!("timeout 3 nc -w 2 {ip} {port} </dev/null && echo reached || echo refused");
        assert_eq!(says(&service, &vms[0], &ask), "refused", "{ip} {port}");
    }
    ruled(&service, &caller, &other, (&ids[0], &vms[0])).await;
    outlives_its_service(&mut service, &other, (&ids[0], &vms[0])).await;
    let caller = service.admin().await;
    goes_on_from_its_memory(&service, &caller, &other, (&ids[0], &vms[0])).await;
    for id in &ids {
        assert_eq!(caller.delete(&format!("/vms/{id}")).await.status, 202);
        caller.gone(id).await;
    }
    let left = found().await;
    assert!(left.ports.is_empty() && left.neighbours.is_empty() && left.devices.len() == 1, "{left:?}");
    assert_eq!(other.hears(places(&vms[1], 8000).0), None);
    assert_eq!(nft("list table inet own"), own);
}

/// Another port is opened and what goes out is refused, and neither cuts what is allowed.
async fn ruled(service: &Service, caller: &Caller, other: &Other, (id, vm): (&str, &Value)) {
    let mut session = Session::open(service, vm);
    let before = places(vm, 8000).0;
    let both = json!([{"port": 9000, "protocol": "tcp"}, {"port": 8000, "protocol": "tcp"}]);
    let changed = caller.patch(&format!("/vms/{id}"), json!({"exposed_ports": both})).await.body;
    assert_eq!(places(&changed, 8000).0, before, "it stays where it is");
    serve(service, &changed, 9000, "of another port");
    let at = places(&changed, 9000).0;
    eventually("its page", 60, || (other.hears(at).as_deref() == Some("of another port")).then_some(()));
    let rules = json!([{"direction": "out", "protocol": "tcp", "ports": [7000], "action": "deny"},
        {"direction": "in", "protocol": "tcp", "ports": [9000], "action": "deny"}]);
    let set = caller.put(&format!("/vms/{id}/rules"), json!({"rules": rules})).await;
    assert_eq!(set.status, 200, "{set:?}");
    eventually("a rule", 60, || (!hears_within(5, service, vm, OUTSIDE, "outside")).then_some(()));
    assert_eq!(other.hears(at), None);
    assert_eq!(other.hears(before).as_deref(), Some("of the first"));
    assert_eq!(caller.put(&format!("/vms/{id}/rules"), json!({"rules": []})).await.status, 200);
    eventually("no rule", 60, || hears_within(5, service, vm, OUTSIDE, "outside").then_some(()));
    session.echoes("neither was cut");
}

/// Guests are reached while the service is away; what others did to its rules meanwhile is made up for.
async fn outlives_its_service(service: &mut Service, other: &Other, (id, vm): (&str, &Value)) {
    let (at, machine) = (places(vm, 8000).0, service.machine(id));
    let mut session = Session::open(service, vm);
    let before = found().await;
    service.kill();
    assert_eq!(other.hears(at).as_deref(), Some("of the first"));
    nft("delete table inet berth0");
    service.start();
    assert_eq!(found().await, before);
    assert_eq!(other.hears(at).as_deref(), Some("of the first"));
    session.echoes("nothing was cut");
    assert_eq!(service.machine(id), machine);
    // Under its eyes, too.
    let forwarding = "/proc/sys/net/ipv4/conf/berth0/forwarding";
    for damage in ["delete table bridge berth0", "flush table inet berth0"] {
        nft(damage);
        std::fs::write(forwarding, "0").expect("a setting");
        let stands = async || {
            let forwards = std::fs::read_to_string(forwarding).is_ok_and(|is| is.trim() == "1");
            forwards && found().await == before
        };
        for _ in 0..300 {
            if stands().await {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(stands().await, "{damage}");
    }
}

/// A suspended VM has nothing of the host, and goes on with another device under the same address.
async fn goes_on_from_its_memory(service: &Service, caller: &Caller, other: &Other, (id, vm): (&str, &Value)) {
    let boot = says(service, vm, "cat /proc/sys/kernel/random/boot_id");
    let address = own_address(service, vm);
    verb(caller, id, "suspend", "suspended").await;
    assert_eq!(found().await.ports.len(), 1);
    let vm = verb(caller, id, "start", "running").await;
    assert_eq!(says(service, &vm, "cat /proc/sys/kernel/random/boot_id"), boot, "{vm}");
    assert_eq!(own_address(service, &vm), address);
    assert_eq!(other.hears(places(&vm, 8000).0).as_deref(), Some("of the first"));
    assert!(hears(service, &vm, OUTSIDE, "outside"));
}

#[test]
fn vms_on_a_bridge_are_reached_and_reach_the_outside_alone() {
    on_a_host(reached_and_reaching);
}

/// In these modes it is started, one after another; whether a program carries it then.
const MODES: [(&str, &str, bool); 2] = [(BRIDGE, "mode = \"shared\"", true), ("mode = \"shared\"", BRIDGE, false)];

async fn in_another_mode(mut service: Service, other: Other) {
    service.start();
    let caller = service.admin().await;
    let id = caller.create_vm(with_login(&service)).await;
    let vm = ready(&caller, &id).await;
    let ssh = places(&vm, 8000).1;
    let answers = || other.hears(ssh).is_some_and(|banner| banner.starts_with("SSH-2.0-"));
    let is_carried = |service: &Service| service.dir.path().join("machines").join(&id).join("net.sock").exists();
    for (from, to, carried) in MODES {
        let before = is_carried(&service);
        assert_eq!(service.stop(), Some(0));
        reconfigure(&service, from, to);
        service.start();
        let caller = service.admin().await;
        // It runs as it began.
        assert!(answers());
        assert_eq!(is_carried(&service), before);
        verb(&caller, &id, "stop", "stopped").await;
        verb(&caller, &id, "start", "running").await;
        assert_eq!(is_carried(&service), carried);
        eventually("the login", 60, || answers().then_some(()));
        assert_eq!(found().await.ports.len(), usize::from(!carried));
    }
    // A memory knows the address that the bridge gave.
    let caller = service.admin().await;
    verb(&caller, &id, "suspend", "suspended").await;
    assert_eq!(service.stop(), Some(0));
    reconfigure(&service, BRIDGE, "mode = \"shared\"");
    service.start();
    assert!(found().await.devices.is_empty(), "nobody is on it");
    let caller = service.admin().await;
    let vm = verb(&caller, &id, "start", "suspended").await;
    let said = vm["message"].as_str().unwrap_or_default();
    assert!(said.contains("sets network.mode = \"bridge\""), "{vm}");
    verb(&caller, &id, "stop", "stopped").await;
    verb(&caller, &id, "start", "running").await;
    eventually("the login", 60, || answers().then_some(()));
}

#[test]
fn a_vm_is_on_the_bridge_from_its_next_start_on() {
    on_a_host(in_another_mode);
}

/// Addresses between both machines that nobody has, and that the host answers for.
const POOL: &str = "198.51.100.64/30";

/// A bridge that grows.
const NARROW: &str = "subnet = \"10.127.0.0/24\"";

/// The process of the program that answers guests.
fn answerer(service: &Service) -> Option<Pid> {
    let note = std::fs::read(service.dir.path().join("bridge/program.json")).ok()?;
    let note: Value = serde_json::from_slice(&note).expect("a note");
    let pid = i32::try_from(note["pid"].as_i64()?).ok()?;
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    line.starts_with(b"berth-bridge\0").then(|| Pid::from_raw(pid)).flatten()
}

/// A VM that runs, and whether somebody carries its network beside it.
async fn begun(service: &Service, caller: &Caller, body: Value) -> (Value, bool) {
    let id = caller.create_vm(body).await;
    let vm = ready(caller, &id).await;
    (vm, service.dir.path().join("machines").join(id).join("net.sock").exists())
}

/// With an address each, beside VMs of a project's network, and with a memory that was captured.
async fn beside_others(mut service: Service, other: Other) {
    assert!(ip(&format!("route add local {POOL} dev lo")));
    reconfigure(&service, BRIDGE, &format!("{BRIDGE}\npool = [{POOL:?}]\n{NARROW}"));
    service.capture_boots();
    service.start();
    let caller = service.admin().await;
    let answers = |vm: &Value| {
        let ssh = places(vm, 8000).1;
        eventually("the login", 60, || other.hears(ssh).filter(|banner| banner.starts_with("SSH-2.0-")));
    };
    let (first, is_carried) = begun(&service, &caller, with_login(&service)).await;
    assert!(!is_carried);
    answers(&first);
    let boots = service.dir.path().join("boots");
    let whole = |name: &String| boots.join(name).join("boot.json").is_file();
    eventually("a captured boot", 600, || service.files("boots").into_iter().find(whole));
    let (second, is_carried) = begun(&service, &caller, another(&service)).await;
    assert!(!is_carried && second["message"].is_null(), "{second}");
    answers(&second);
    assert_ne!(own_address(&service, &first), own_address(&service, &second));
    let lan = caller.post("/networks", json!({"name": "lan"})).await.id();
    let mut body = another(&service);
    (body["name"], body["network_ids"]) = (json!("member"), json!([lan]));
    let (member, is_carried) = begun(&service, &caller, body).await;
    assert!(is_carried, "a switch is linked to a program");
    answers(&member);
    // Who answers guests is replaced, under the service's eyes and while nobody looks.
    let before = answerer(&service).expect("a program");
    kill_process(before, Signal::KILL).expect("a signal");
    let next = eventually("another program", 60, || answerer(&service).filter(|pid| *pid != before));
    service.kill();
    kill_process(next, Signal::KILL).expect("a signal");
    reconfigure(&service, NARROW, "subnet = \"10.127.0.0/16\"");
    service.start();
    assert!(found().await.addresses.contains(&(Settings::default().gateway().into(), 16)));
    answers(&first);
    assert!(hears(&service, &first, OUTSIDE, "outside"));
    assert_ne!(answerer(&service).expect("a program"), next);
    // The bridge leads nothing to where this host alone reaches VMs.
    let ssh = places(&second, 8000).1;
    service.kill();
    reconfigure(&service, BRIDGE, "mode = \"user\"");
    service.start();
    let caller = service.admin().await;
    let path = format!("/vms/{}", second["id"].as_str().expect("an id"));
    let said = async |caller: Caller| {
        let vm = caller.get(&path).await.body;
        vm["message"].as_str().is_some_and(|text| text.contains("until then where it was"))
    };
    caller.until("its message", said).await;
    assert!(other.hears(ssh).is_some_and(|banner| banner.starts_with("SSH-2.0-")));
}

#[test]
fn vms_on_a_bridge_and_beside_programs_are_reached_alike() {
    on_a_host(beside_others);
}

/// What `berth doctor` says here.
fn doctor(service: &Service) -> String {
    let mut doctor = service.berth(&["doctor", "--config"]);
    doctor.arg(service.dir.path().join("berth.toml")).env("BERTH_DATA_DIR", service.dir.path());
    String::from_utf8_lossy(&doctor.output().expect("an end").stdout).into_owned()
}

/// Has the service's folder be somebody's.
fn give(service: &Service, user: u32) {
    let status = Command::new("chown").arg("-R").arg(format!("{user}:{user}")).arg(service.dir.path()).status();
    assert!(status.is_ok_and(|status| status.success()));
}

/// Starts it in vain, as somebody; what it says.
fn refused(service: &Service, user: u32) -> String {
    let before = service.log().len();
    let status = service.command().uid(user).gid(user).status().expect("an end");
    let said = service.log().split_off(before);
    assert_eq!(status.code(), Some(1), "{said}");
    said
}

async fn lacking(mut service: Service, _other: Other) {
    let said = doctor(&service);
    for line in ["ok   root", "ok   tun", "ok   bridge"] {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert!(!said.contains("forwarding"), "{said}");
    std::fs::write("/proc/sys/net/ipv4/conf/host/forwarding", "0").expect("a setting");
    let said = doctor(&service);
    assert!(said.contains("MISS forwarding") && said.contains("net/ipv4/conf/host/forwarding=1"), "{said}");
    // Whoever is not root has no bridge.
    give(&service, 54_321);
    let said = refused(&service, 54_321);
    assert!(said.contains("takes root; run the service as root"), "{said}");
    give(&service, 0);
    // Nor has one whose guests would have addresses of the host's own network.
    assert!(ip("address add 10.127.3.4/24 dev host"));
    let said = refused(&service, 0);
    assert!(said.contains("10.127.3.4/24"), "{said}");
    assert!(ip("address delete 10.127.3.4/24 dev host"));
    // Whoever has the port of DHCP keeps no service down, and is followed by who answers guests.
    let taken = std::net::UdpSocket::bind("0.0.0.0:67").expect("the port");
    service.start();
    assert!(service.log().contains("nobody answers guests of the bridge"), "{}", service.log());
    assert_eq!(answerer(&service), None);
    drop(taken);
    eventually("who answers guests", 60, || answerer(&service));
}

#[test]
fn what_a_host_lacks_is_said_with_what_to_type() {
    on_a_host(lacking);
}

/// Of a start and of an end on the bridge.
const START: &[&str] = &["vm.start.intent", "vm.bridge.noted", "vm.bridge.set", "vm.start.done"];
const STOP: &[&str] = &["vm.power_off.before", "vm.bridge.remove", "vm.bridge.removed", "vm.power_off.after"];
const CHANGE: &[&str] = &["vm.set_ports.before", "vm.set_ports.done"];

async fn killed_everywhere(mut service: Service, other: Other) {
    service.start();
    let caller = service.admin().await;
    let id = caller.create_vm(with_login(&service)).await;
    let vm = caller.reaches(&id, "running").await;
    let ssh = places(&vm, 8000).1;
    let running = found().await;
    assert_eq!(running.ports.len(), 1);
    verb(&caller, &id, "stop", "stopped").await;
    let stopped = found().await;
    assert!(stopped.ports.is_empty());
    service.kill();
    let act = |action: &'static str| {
        let path = format!("/vms/{id}/{action}");
        async move |caller: &Caller| {
            caller.ask(Method::POST, &path, Value::Null, 202).await;
        }
    };
    for (start, stop) in START.iter().zip(STOP) {
        let caller = killed_at(&mut service, start, act("start")).await;
        caller.reaches(&id, "running").await;
        assert_eq!(found().await, running, "{start}");
        eventually("the login", 60, || other.hears(ssh).filter(|banner| banner.starts_with("SSH-2.0-")));
        service.kill();
        let caller = killed_at(&mut service, stop, act("stop")).await;
        caller.reaches(&id, "stopped").await;
        assert_eq!(found().await, stopped, "{stop}");
        service.kill();
    }
    service.start();
    verb(&service.admin().await, &id, "start", "running").await;
    service.kill();
    for (port, point) in (9000..).zip(CHANGE) {
        let ports = json!({"exposed_ports": [{"port": port, "protocol": "tcp"}]});
        let path = format!("/vms/{id}");
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::PATCH, &path, ports, 200).await;
        })
        .await;
        let key = format!("\"{port}\"");
        let leads = async |_: Caller| {
            found().await.rules.values().flatten().any(|rule| rule.contains(&key) || rule.contains(&port.to_string()))
        };
        caller.until("the port", leads).await;
        crash::stopped(&mut service);
    }
    // A machine that dies while nobody looks leaves nothing either.
    kill_process(service.machine(&id).expect("a machine"), Signal::KILL).expect("a signal");
    service.start();
    let caller = service.admin().await;
    caller.delete(&path_of(&id)).await;
    caller.gone(&id).await;
    assert_eq!(found().await, stopped);
}

fn path_of(id: &str) -> String {
    format!("/vms/{id}")
}

#[test]
fn a_service_killed_anywhere_leaves_the_bridge_as_it_is_to_be() {
    on_a_host(killed_everywhere);
}
