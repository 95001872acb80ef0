//! The network of a VM: what it reaches, who carries it, and what becomes of a connection when one of them ends.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use berth_testkit::{Caller, Service, eventually};
use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::BERTH;
use crate::crash::{body, killed_at, leaves_nothing, service};
use crate::guest::{login, ready, says, with_login};

/// Of the start of a machine, and of having its network carried again.
const NETWORK: &[&str] = &["vm.network.spawned", "vm.network.noted", "vm.network.told", "vm.network.linked"];

/// What is known of the program of a VM's network.
fn note(service: &Service, id: &str) -> Option<Value> {
    let file = service.dir.path().join("machines").join(id).join("egress.json");
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

/// The process of that program, if it lives.
pub fn program(service: &Service, id: &str) -> Option<Pid> {
    let pid = i32::try_from(note(service, id)?["pid"].as_i64()?).ok()?;
    let name = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    // One that ended and that nobody waited for has no arguments.
    name.starts_with(b"berth-egress\0").then(|| Pid::from_raw(pid)).flatten()
}

/// Waits until a VM's network is carried.
fn carried(service: &Service, id: &str) {
    let socket = service.dir.path().join("machines").join(id).join("egress.sock");
    eventually("a program that has its machine's card", 60, || {
        let mut stream = UnixStream::connect(&socket).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        stream.write_all(b"{\"version\":1,\"ask\":\"status\"}\n").ok()?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).ok()?;
        answer.contains("\"is_linked\":true").then_some(())
    });
}

/// A VM that can be logged in to.
async fn logged_in(service: &Service, caller: &Caller) -> (String, Value) {
    let id = caller.create_vm(with_login(service)).await;
    let vm = ready(caller, &id).await;
    assert_eq!(says(service, &vm, "hostname"), "web");
    (id, vm)
}

/// A session of a shell over SSH that stays open.
pub struct Session {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Session {
    pub fn open(service: &Service, vm: &Value) -> Self {
        let mut command: Command = login(service, vm);
        let mut child = command.arg("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("ssh");
        let input = child.stdin.take().expect("its input");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let mut session = Self { child, input, output };
        session.echoes("hello");
        session
    }

    /// Says a word, and waits for it to come back.
    pub fn echoes(&mut self, word: &str) {
        writeln!(self.input, "{word}").expect("to be heard");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("an answer");
        assert_eq!(line.trim(), word);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_goes_on_while_the_service_restarts() {
    let mut service = Service::started(BERTH, &["micro"]);
    let caller = service.admin().await;
    let (id, vm) = logged_in(&service, &caller).await;
    let mut session = Session::open(&service, &vm);
    let (machine, carrier) = (service.machine(&id), program(&service, &id).expect("a program"));
    service.kill();
    session.echoes("nobody serves");
    service.start();
    let caller = service.admin().await;
    assert_eq!(caller.get(&format!("/vms/{id}")).await.body["status"], "running");
    session.echoes("somebody serves again");
    // The service that came finds the program, and tells it of another port.
    let ports = json!({"exposed_ports": [{"port": 9000, "protocol": "tcp"}]});
    assert_eq!(caller.patch(&format!("/vms/{id}"), ports).await.status, 200);
    let host = vm["public_ip"].as_str().expect("an address").to_owned();
    eventually("the open port", 120, || TcpStream::connect((host.as_str(), 9000)).ok());
    eventually("the shut port", 120, || TcpStream::connect((host.as_str(), 8000)).is_err().then_some(()));
    session.echoes("and tells of ports");
    assert_eq!((service.machine(&id), program(&service, &id)), (machine, Some(carrier)), "the same processes");
    caller.delete(&format!("/vms/{id}")).await;
    caller.gone(&id).await;
    assert!(std::fs::read(format!("/proc/{}/cmdline", carrier.as_raw_pid())).unwrap_or_default().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_ended_is_started_again() {
    let mut service = Service::started(BERTH, &["micro"]);
    let caller = service.admin().await;
    let (id, vm) = logged_in(&service, &caller).await;
    let host = vm["public_ip"].as_str().expect("an address").to_owned();
    let another = |service: &Service, before: Pid| {
        eventually("another program", 120, || program(service, &id).filter(|pid| *pid != before));
    };
    // Under the service's eyes, and while nobody looks.
    let carrier = program(&service, &id).expect("a program");
    kill_process(carrier, Signal::KILL).expect("a signal");
    another(&service, carrier);
    eventually("the port", 120, || TcpStream::connect((host.as_str(), 8000)).ok());
    assert_eq!(says(&service, &vm, "hostname"), "web");
    service.kill();
    let carrier = program(&service, &id).expect("a program");
    kill_process(carrier, Signal::KILL).expect("a signal");
    service.start();
    another(&service, carrier);
    assert_eq!(says(&service, &vm, "hostname"), "web");
    // It ends with its machine, though nobody is there to end it.
    let carrier = program(&service, &id).expect("a program");
    service.kill();
    kill_process(service.machine(&id).expect("a machine"), Signal::KILL).expect("a signal");
    eventually("the end of the program", 120, || (program(&service, &id) != Some(carrier)).then_some(()));
    TcpListener::bind((host.as_str(), 8000)).expect("its ports are free");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_does_not_reach_its_host() {
    let service = Service::started(BERTH, &["micro"]);
    let caller = service.admin().await;
    let (_, vm) = logged_in(&service, &caller).await;
    // What answers on this host's loopback: the service itself, and a port of datagrams.
    let api = service.base.rsplit(':').next().expect("a port");
    let datagrams = UdpSocket::bind(("127.0.0.1", 0)).expect("a port");
    datagrams.set_read_timeout(Some(Duration::from_millis(500))).expect("a patience");
    let port = datagrams.local_addr().expect("an address").port();
    // The guest is root: it may send what is meant for its own loopback to its card.
    let raw = "sysctl -q -w net.ipv4.conf.all.route_localnet=1 net.ipv4.conf.all.rp_filter=0 \
               net.ipv4.conf.eth0.route_localnet=1; \
               ip rule add pref 32765 lookup local; ip rule del pref 0; \
               ip rule add pref 10 to 127.0.0.0/8 lookup 100; \
               ip route add 127.0.0.0/8 via 10.0.2.2 dev eth0 table 100 src 10.0.2.15";
    says(&service, &vm, &format!("{raw}; ip route get 127.0.0.1 | grep -q eth0"));
    let host = vm["public_ip"].as_str().expect("an address");
    for address in ["10.0.2.2", "127.0.0.1", host, "169.254.169.254"] {
        let ask = format!(
            "echo x | nc -u -w 1 {address} {port}; \
             wget -q -T 5 -O - http://{address}:{api}/healthz && echo reached || echo refused"
        );
        assert_eq!(says(&service, &vm, &ask), "refused", "{address}");
    }
    assert!(datagrams.recv(&mut [0]).is_err(), "a datagram came");
    assert_eq!(says(&service, &vm, "hostname"), "web", "what is allowed goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_is_carried_again() {
    let mut service = service();
    for point in NETWORK {
        // At the machine's start.
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::POST, "/vms", body(), 201).await;
        })
        .await;
        let id = caller.get("/vms").await.body["data"][0]["id"].as_str().expect("an id").to_owned();
        caller.reaches(&id, "running").await;
        carried(&service, &id);
        assert_eq!(programs(&service).len(), 1, "{point}");
        // After it died alone.
        service.kill();
        kill_process(programs(&service)[0], Signal::KILL).expect("a signal");
        service.start_and_die_at(point);
        service.start();
        let caller = service.admin().await;
        carried(&service, &id);
        eventually("one program", 120, || (programs(&service).len() == 1).then_some(()));
        leaves_nothing(&service, &caller, &id).await;
        assert!(programs(&service).is_empty(), "{point}");
    }
}

/// The programs of networks of a service's machines.
fn programs(service: &Service) -> Vec<Pid> {
    let named = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.starts_with(b"berth-egress\0")
    };
    service.processes("machines").into_iter().filter(named).filter_map(Pid::from_raw).collect()
}
