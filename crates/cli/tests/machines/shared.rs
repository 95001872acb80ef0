//! VMs that another machine reaches: at an address of their host that they share, each at ports of its own, or at an
//! address of its own each.
//!
//! Host and other machine are network namespaces of the test's own, joined by a pair of cards. Where the kernel lets
//! nobody make one, both are this machine's loopback.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use berth_testkit::{Caller, Service, eventually};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};

use crate::BERTH;
use crate::guest::{says, with_login};

pub const HOST: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
pub const OTHER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
/// Enough for two VMs.
const PORTS: (u16, u16) = (20_000, 20_021);

pub fn ip(arguments: &str) -> bool {
    Command::new("ip").args(arguments.split(' ')).status().is_ok_and(|status| status.success())
}

/// Another machine, which asks what answers at an address of the host, and answers itself.
pub struct Other {
    ask: mpsc::Sender<Ask>,
    said: mpsc::Receiver<Option<String>>,
}

/// What another machine is to do.
enum Ask {
    /// Say what answers there.
    Hear(SocketAddr),
    /// Have this address, too, and say this word to everybody who comes to a port of it.
    Serve(SocketAddr, &'static str),
}

impl Other {
    /// One that this thread's namespace has a line to.
    pub fn new(has_namespace: bool) -> Self {
        let ((ask, asked), (say, said)) = (mpsc::channel(), mpsc::channel());
        let (ready, began) = mpsc::channel();
        let (plugged, is_plugged) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            if has_namespace {
                unshare(CloneFlags::CLONE_NEWNET).expect("a namespace");
            }
            ready.send(nix::unistd::gettid()).expect("to be waited for");
            is_plugged.recv().expect("a card");
            assert!(!has_namespace || ip(&format!("address add {OTHER}/24 dev other")) && ip("link set other up"));
            while let Ok(asked) = asked.recv() {
                let answer = match asked {
                    Ask::Hear(at) => first_line(at),
                    Ask::Serve(at, word) => {
                        answer_to_all(at, word);
                        None
                    }
                };
                say.send(answer).expect("to be heard");
            }
        });
        let thread = began.recv().expect("another machine");
        if has_namespace {
            assert!(ip("link add host type veth peer name other") && ip(&format!("link set other netns {thread}")));
            assert!(ip(&format!("address add {HOST}/24 dev host")) && ip("link set host up"));
        }
        plugged.send(()).expect("another machine");
        Self { ask, said }
    }

    /// The first line of what answers at a port of the host; none where nobody does.
    pub fn hears(&self, at: SocketAddr) -> Option<String> {
        self.ask.send(Ask::Hear(at)).expect("another machine");
        self.said.recv().expect("another machine")
    }

    /// Has it say a word to everybody who comes to a port of an address of its own.
    pub fn serves(&self, at: SocketAddr, word: &'static str) {
        self.ask.send(Ask::Serve(at, word)).expect("another machine");
        self.said.recv().expect("another machine");
    }
}

fn answer_to_all(at: SocketAddr, word: &'static str) {
    assert!(ip("link set lo up"));
    // It may have it already.
    ip(&format!("address replace {}/32 dev lo", at.ip()));
    let listener = TcpListener::bind(at).expect("a port");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // Whoever asked may be gone.
            let _ = writeln!(stream, "{word}");
        }
    });
}

fn first_line(at: SocketAddr) -> Option<String> {
    let stream = TcpStream::connect_timeout(&at, Duration::from_secs(5)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).ok()?;
    Some(line.trim().to_owned()).filter(|line| !line.is_empty())
}

/// Has a micro say a word to everybody who comes to a port, without a moment in which nobody listens.
pub fn serve(service: &Service, vm: &Value, port: u16, word: &str) {
    let server = format!("nc -ll -p {port} -e /bin/busybox echo {word}");
    says(service, vm, &format!("setsid {server} >/dev/null 2>&1 </dev/null & echo begun"));
}

/// An address of the loopback that no other service's machines have.
fn of_nobody_else(service: &Service) -> Ipv4Addr {
    let port: u16 = service.base.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let [high, low] = port.to_be_bytes();
    Ipv4Addr::new(127, 200, high, low)
}

/// Where a port of a VM is reached, and where SSH is.
pub fn places(vm: &Value, port: u16) -> (SocketAddr, SocketAddr) {
    let address = |host: &Value, port: &Value| {
        let host: Ipv4Addr = host.as_str().expect("an address").parse().expect("an address");
        SocketAddr::from((host, u16::try_from(port.as_u64().expect("a port")).expect("a port")))
    };
    let exposed = vm["exposed_ports"].as_array().expect("a list").iter().find(|exposed| exposed["port"] == port);
    let exposed = exposed.expect("the port");
    assert_eq!(exposed["host"], vm["public_ip"]);
    (address(&exposed["host"], &exposed["public_port"]), address(&vm["ssh"]["host"], &vm["ssh"]["port"]))
}

async fn reached(mut service: Service, other: Other) {
    service.start();
    let caller = service.admin().await;
    let (first, second) = (caller.create_vm(with_login(&service)).await, caller.create_vm(another(&service)).await);
    let (mut answers, mut ids) = (Vec::new(), Vec::new());
    for (id, word) in [(first, "of the first"), (second, "of the second")] {
        let vm = caller.reaches(&id, "running").await;
        serve(&service, &vm, 8000, word);
        let (exposed, ssh) = places(&vm, 8000);
        assert!([exposed, ssh].iter().all(|at| (PORTS.0..=PORTS.1).contains(&at.port())));
        eventually("its page", 60, || (other.hears(exposed).as_deref() == Some(word)).then_some(()));
        assert!(other.hears(ssh).is_some_and(|banner| banner.starts_with("SSH-2.0-")));
        answers.push((exposed, word));
        ids.push(id);
    }
    assert_ne!(answers[0].0, answers[1].0);
    another_port(&caller, &service, &other, (&ids[0], answers[0].0)).await;
    // The rest of its block is shut.
    assert_eq!(other.hears(SocketAddr::new(answers[0].0.ip(), answers[0].0.port() + 5)), None);
    // They are reached while the service is away, and as before when it is back.
    service.kill();
    assert_eq!(other.hears(answers[1].0).as_deref(), Some(answers[1].1));
    service.start();
    assert_eq!(other.hears(answers[1].0).as_deref(), Some(answers[1].1));
    let caller = service.admin().await;
    for id in &ids {
        assert_eq!(caller.delete(&format!("/vms/{id}")).await.status, 202);
        caller.gone(id).await;
    }
    assert_eq!(other.hears(answers[1].0), None);
}

/// A VM beside the first, with the same key.
pub fn another(service: &Service) -> Value {
    let public = std::fs::read_to_string(service.dir.path().join("key.pub")).expect("a key");
    let mut body = berth_testkit::vm("db");
    body["ssh_keys"] = json!([public.trim()]);
    body["exposed_ports"] = json!([{"port": 8000, "protocol": "tcp"}]);
    body
}

/// Exposes another port of a VM that runs: the one before stays where it is.
async fn another_port(caller: &Caller, service: &Service, other: &Other, (id, before): (&str, SocketAddr)) {
    let both = json!([{"port": 9000, "protocol": "tcp"}, {"port": 8000, "protocol": "tcp"}]);
    let vm = caller.patch(&format!("/vms/{id}"), json!({"exposed_ports": both})).await.body;
    let (at, _) = places(&vm, 9000);
    assert_eq!(places(&vm, 8000).0, before);
    serve(service, &vm, 9000, "of another port");
    eventually("its page", 60, || (other.hears(at).as_deref() == Some("of another port")).then_some(()));
    assert_eq!(other.hears(before).as_deref(), Some("of the first"));
}

#[test]
fn another_machine_reaches_vms_that_share_an_address() {
    // What is started from this thread on is in its namespace, which goes with the last of them.
    let host = std::thread::spawn(|| {
        let has_namespace = unshare(CloneFlags::CLONE_NEWNET).is_ok() && ip("link set lo up");
        let other = Other::new(has_namespace);
        let service = Service::new(BERTH, &["micro"]);
        let address = if has_namespace { HOST } else { of_nobody_else(&service) };
        service.configure(&format!(
            "[network]\nmode = \"shared\"\naddress = \"{address}\"\nports = \"{}-{}\"\n",
            PORTS.0, PORTS.1
        ));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(reached(service, other));
    });
    host.join().expect("the host's side");
}

/// Addresses of the network between both machines that nobody has.
const POOL: &str = "198.51.100.64/31";

async fn reached_at_addresses(mut service: Service, other: Other) {
    service.start();
    let caller = service.admin().await;
    let (first, second) = (caller.create_vm(with_login(&service)).await, caller.create_vm(another(&service)).await);
    let mut answers = Vec::new();
    for (id, word) in [(&first, "of the first"), (&second, "of the second")] {
        let vm = caller.reaches(id, "running").await;
        serve(&service, &vm, 8000, word);
        let (exposed, ssh) = places(&vm, 8000);
        assert_eq!((exposed.port(), exposed.ip()), (8000, ssh.ip()));
        eventually("its page", 60, || (other.hears(exposed).as_deref() == Some(word)).then_some(()));
        assert!(other.hears(ssh).is_some_and(|banner| banner.starts_with("SSH-2.0-")));
        assert_eq!(other.hears(SocketAddr::new(ssh.ip(), 8001)), None, "what is not exposed is shut");
        answers.push((exposed, word));
    }
    assert_ne!(answers[0].0.ip(), answers[1].0.ip());
    // There are two addresses.
    let third = caller.create_vm(another(&service)).await;
    let failed = caller.reaches(&third, "failed").await;
    assert!(failed["message"].as_str().is_some_and(|text| text.contains("are all given out")), "{failed}");
    service.kill();
    assert_eq!(other.hears(answers[1].0).as_deref(), Some(answers[1].1));
    service.start();
    let caller = service.admin().await;
    assert_eq!(caller.delete(&format!("/vms/{first}")).await.status, 202);
    caller.gone(&first).await;
    assert_eq!(other.hears(answers[0].0), None);
    assert_eq!(caller.act(&format!("/vms/{third}/start")).await.status, 202);
    let vm = caller.reaches(&third, "running").await;
    assert_eq!(places(&vm, 8000).0.ip(), answers[0].0.ip(), "it has what the first gave back");
}

#[test]
fn another_machine_reaches_each_vm_at_an_address_of_its_own() {
    let host = std::thread::spawn(|| {
        let has_namespace = unshare(CloneFlags::CLONE_NEWNET).is_ok() && ip("link set lo up");
        let other = Other::new(has_namespace);
        assert!(!has_namespace || ip(&format!("route add local {POOL} dev lo")));
        let service = Service::new(BERTH, &["micro"]);
        let pool = if has_namespace {
            format!("{POOL:?}")
        } else {
            let [a, b, c, _] = of_nobody_else(&service).octets();
            format!("\"{a}.{b}.{c}.1-{a}.{b}.{c}.2\"")
        };
        service.configure(&format!("[network]\nmode = \"pool\"\npool = [{pool}]\n"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(reached_at_addresses(service, other));
    });
    host.join().expect("the host's side");
}
