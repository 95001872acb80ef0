//! Three machines on a switch, each with VMs: two replicas of a service, and a host that joined. Beside them the machine of the
//! database, and this one, whose clients know both replicas.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use berth_testkit::{Caller, HostProcess, Postgres, Service, one_after_the_other};
use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

use crate::client::{Clients, Doors};
use crate::clock::Clock;
use crate::guest::{ready, says, with_login};
use crate::place::{Lan, Place, address};
use crate::watch::Watch;
use crate::{BERTH, CLIENT, CONVERGES};

/// The machines, by the last byte of their addresses.
pub const REPLICAS: [u8; 2] = [1, 2];
pub const GAMMA: u8 = 3;
pub const DATABASE: u8 = 4;
/// Where each listens: replicas for clients, the joined host for the service.
const PORT: u16 = 8470;
/// Where replicas listen for each other.
const BETWEEN: u16 = 8471;

/// How much of what guests said last is told where something is not as it should be, in characters.
const CONSOLE: usize = 1000;
/// One at a time: each has as many guests as two cores emulate at their ease.
static TURN: Mutex<()> = Mutex::const_new(());
/// Seconds that a guest may take to boot or to end, where others are emulated beside it.
pub const GUESTS: u64 = 1200;

/// A VM, and the process that it had last.
pub struct Vm {
    pub id: String,
    pub process: Pid,
    /// The machine that it is on.
    pub on: u8,
}

/// Everything that is on the switch. What is dropped first stands first.
pub struct Site {
    pub clients: Clients,
    pub watch: Watch,
    pub replicas: [Service; 2],
    pub gamma: HostProcess,
    pub vms: Vec<Vm>,
    callers: Vec<Caller>,
    _postgres: Postgres,
    pub of_replicas: [Place; 2],
    pub database: Place,
    pub on_gamma: Place,
    _clock: Clock,
    _turn: MutexGuard<'static, ()>,
    pub lan: Lan,
}

fn at(number: u8, port: u16) -> SocketAddr {
    format!("{}:{port}", address(number)).parse().expect("an address")
}

/// A replica that is not started yet.
fn replica(number: u8, launcher: &[String], database: SocketAddr) -> Service {
    let mut service = Service::new(BERTH, &["micro"]);
    service.listen_at(at(number, PORT));
    service.set("BERTH_DATABASE_URL", &format!("postgres://berth@{database}/berth"));
    service.set("BERTH_LOG", "info,berth_server::requests=warn");
    service.set("BERTH_REPLICA_ADDRESS", &at(number, BETWEEN).to_string());
    service.launch_by(&launcher.iter().map(String::as_str).collect::<Vec<_>>());
    service
}

/// Waits until no other test has guests on a switch.
pub async fn one_at_a_time() -> MutexGuard<'static, ()> {
    TURN.lock().await
}

/// Has a machine that takes no requests join.
pub async fn joined(admin: &Caller, launcher: Vec<String>) -> HostProcess {
    let added = admin.post("/api/v1/admin/hosts", json!({"name": "gamma", "region_id": "local"})).await;
    assert_eq!(added.status, 201, "{added:?}");
    let token = added.body["token"].as_str().expect("a token");
    let mut host = HostProcess::new(BERTH);
    host.listen = at(GAMMA, PORT);
    host.launcher = launcher;
    let listen = host.listen.to_string();
    host.start(&["host", "join", &admin.base, token, "--insecure", "--listen", &listen]);
    host
}

impl Site {
    /// All of it, with a VM on each machine, and clients that write.
    pub async fn new() -> Self {
        Self::with_clocks([0; 3]).await
    }

    /// The same, of which the wall clocks of both replicas and of the joined host are so many seconds ahead. What is listed as the
    /// newest is so by them, and nobody looks at it where they are apart.
    pub async fn with_clocks(clocks: [i64; 3]) -> Self {
        let turn = one_at_a_time().await;
        let (lan, clock) = (Lan::around(CLIENT), Clock::compiled());
        let launcher = |place: &Place, seconds| [place.launcher(), clock.ahead(seconds)].concat();
        let database = lan.host(DATABASE);
        let (postgres, port) = database.run(|| {
            let postgres = Postgres::started_at(&address(DATABASE));
            let port = postgres.port();
            (postgres, port)
        });
        let places = REPLICAS.map(|number| lan.host(number));
        let made =
            [0, 1].map(|index| replica(REPLICAS[index], &launcher(&places[index], clocks[index]), at(DATABASE, port)));
        let [alpha, beta] = one_after_the_other(made);
        let admin = alpha.admin().await;
        let place = lan.host(GAMMA);
        let gamma = joined(&admin, launcher(&place, clocks[2])).await;
        let callers = vec![admin.clone(), admin.at(&beta.base)];
        let folders = [alpha.dir.path(), beta.dir.path(), gamma.dir.path()].map(Path::to_owned);
        let mut site = Self {
            clients: Clients::start(&callers, clocks == [0; 3]),
            watch: Watch::over(&folders),
            replicas: [alpha, beta],
            gamma,
            vms: Vec::new(),
            callers,
            _postgres: postgres,
            of_replicas: places,
            database,
            on_gamma: place,
            _clock: clock,
            _turn: turn,
            lan,
        };
        site.is_whole().await;
        let image = |folder: &Path| folder.join("images/micro/image.json").exists();
        site.until("the image on every host", async |_| folders.iter().all(|folder| image(folder))).await;
        site.fill(&admin).await;
        site
    }

    /// Has each machine have a VM.
    async fn fill(&mut self, admin: &Caller) {
        let body = with_login(&self.replicas[0]);
        for on in [REPLICAS[0], REPLICAS[1], GAMMA] {
            self.only(on, true).await;
            let id = admin.create_vm(body.clone()).await;
            ready(admin, &id).await;
            self.only(on, false).await;
            let process = self.process(on, &id).expect("a machine");
            self.vms.push(Vm { id, process, on });
        }
    }

    /// Has only this machine take new VMs, or all of them again.
    pub async fn only(&self, on: u8, only: bool) {
        let verb = if only { "cordon" } else { "uncordon" };
        for host in self.hosts().await.iter().filter(|host| number(host) != on) {
            self.does(&format!("/api/v1/admin/hosts/{}/{verb}", text(&host["id"])), 202).await;
        }
    }

    /// The process of a VM on a machine.
    pub fn process(&self, on: u8, id: &str) -> Option<Pid> {
        match REPLICAS.iter().position(|replica| *replica == on) {
            Some(index) => self.replicas[index].machine(id),
            None => self.gamma.machine(id),
        }
    }

    /// What a replica answers, whichever has one first. All tries have one key, so that what is asked for is done once.
    pub async fn asks(&self, method: Method, path: &str, body: Option<&Value>, key: Option<&str>) -> (u16, Value) {
        let (began, own) = (Instant::now(), format!("{:?}", Instant::now()));
        let (mut doors, key) = (Doors::new(&self.callers), key.unwrap_or(&own));
        loop {
            let answer = doors.ask(|caller| request(caller, method.clone(), path, (body, key))).await;
            if let Some(answer) = answer.filter(|(status, _)| *status < 500) {
                return answer;
            }
            assert!(began.elapsed() < Duration::from_secs(CONVERGES), "{path}: nobody answered within {CONVERGES} s");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// What one of the replicas answers to one try of making something.
    pub async fn asks_one(&self, index: usize, path: &str, body: &Value, key: &str) -> Option<(u16, Value)> {
        let mut door = Doors::new(&self.callers[index..=index]);
        door.ask(|caller| request(caller, Method::POST, path, (Some(body), key))).await
    }

    /// What the service says of something.
    pub async fn get(&self, path: &str) -> Value {
        let (status, body) = self.asks(Method::GET, path, None, None).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// Has the service do something, which it takes with this status.
    pub async fn does(&self, path: &str, status: u16) {
        let (told, body) = self.asks(Method::POST, path, None, None).await;
        assert_eq!(told, status, "{path}: {body}");
    }

    /// The administrator, at one of the replicas.
    pub fn caller(&self) -> &Caller {
        &self.callers[0]
    }

    /// Notes the process that a VM has now.
    pub fn starts_anew(&mut self, index: usize) {
        let Vm { id, on, .. } = &self.vms[index];
        self.vms[index].process = self.process(*on, id).expect("a machine");
    }

    /// Notes where a VM is now; while it went two machines had it.
    pub async fn moved(&mut self, index: usize, from: u8) {
        let id = self.vms[index].id.clone();
        let host = self.get(&self.path(&id)).await["host_id"].clone();
        let on = self.hosts().await.iter().find(|now| now["id"] == host).map(number).expect("a host");
        let left = async |site: &Self| site.process(from, &id).is_none();
        self.until("nothing of it where it was", left).await;
        self.vms[index].on = on;
        self.starts_anew(index);
        let twice = self.watch.twice();
        assert!(twice.iter().all(|seen| *seen == self.vms[index].id), "{twice:?}");
    }

    /// What time it is by the clock of the replica that is active, as it says of a project that it makes.
    pub async fn time(&self, name: &str) -> String {
        let projects = format!("{}/projects", self.callers[0].org());
        let (status, made) = self.asks(Method::POST, &projects, Some(&json!({"name": name})), None).await;
        assert_eq!(status, 201, "{made}");
        text(&made["created_at"]).to_owned()
    }

    /// The path of a VM.
    pub fn path(&self, id: &str) -> String {
        format!("{}/vms/{id}", self.callers[0].project)
    }

    /// All hosts.
    pub async fn hosts(&self) -> Vec<Value> {
        self.get("/api/v1/admin/hosts").await["data"].as_array().cloned().unwrap_or_default()
    }

    /// Waits until something is so.
    pub async fn until(&self, what: &str, is_so: impl AsyncFn(&Self) -> bool) {
        self.within(CONVERGES, what, is_so).await;
    }

    /// Waits for so many seconds until something is so.
    pub async fn within(&self, seconds: u64, what: &str, is_so: impl AsyncFn(&Self) -> bool) {
        let began = Instant::now();
        while !is_so(self).await {
            let late = began.elapsed() >= Duration::from_secs(seconds);
            assert!(!late, "{what}: not within {seconds} s; {}", self.told().await);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// What the service says of hosts and VMs.
    async fn told(&self) -> String {
        let of = |all: &[Value], names: &[&str]| {
            all.iter()
                .map(|one| names.iter().map(|name| format!("{} ", one[name])).collect::<String>())
                .collect::<Vec<_>>()
        };
        let vms =
            self.get(&format!("{}/vms", self.callers[0].project)).await["data"].as_array().cloned().unwrap_or_default();
        let hosts = of(&self.hosts().await, &["name", "service", "state", "trouble"]);
        let mut told = format!("hosts {hosts:#?}, VMs {:#?}", of(&vms, &["id", "host_id", "status", "message"]));
        for vm in &vms {
            let (_, console) =
                self.asks(Method::GET, &format!("{}/console", self.path(text(&vm["id"]))), None, None).await;
            let console = console.to_string();
            let from = console.char_indices().rev().nth(CONSOLE).map_or(0, |(at, _)| at);
            told += &format!("\n{} said: {}", vm["id"], &console[from..]);
        }
        told
    }

    /// Waits until a machine's host is in this state.
    pub async fn is(&self, number: u8, state: &str) {
        self.until(state, async |site| site.host(number).await["state"] == state).await;
    }

    /// The host of a machine.
    pub async fn host(&self, on: u8) -> Value {
        self.hosts().await.into_iter().find(|host| number(host) == on).unwrap_or_default()
    }

    /// Waits until all hosts are ready.
    pub async fn is_whole(&self) {
        let ready = |hosts: &[Value]| hosts.len() == 3 && hosts.iter().all(|host| host["state"] == "ready");
        self.until("every host", async |site| ready(&site.hosts().await)).await;
    }

    /// The index of the replica that is active, once one is.
    pub async fn active(&self) -> usize {
        let began = Instant::now();
        loop {
            let hosts = self.hosts().await;
            let active = hosts.iter().find(|host| host["service"] == "active").map(number);
            if let Some(index) = active.and_then(|active| REPLICAS.iter().position(|replica| *replica == active)) {
                return index;
            }
            assert!(began.elapsed() < Duration::from_secs(CONVERGES), "no replica is active: {hosts:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Waits until each client was answered after a moment.
    pub async fn writes_go_on(&self, since: Instant) {
        let later = async |site: &Self| site.clients.latest().is_some_and(|at| at > since);
        self.until("acknowledged writes", later).await;
    }

    /// Waits until a replica has ended because it is active no more.
    pub fn ends(&mut self, index: usize) {
        let replica = &mut self.replicas[index];
        replica.died();
        assert!(replica.said("this replica is active no more"), "{}", replica.log());
    }

    /// Sends the joined host's program a signal.
    pub fn signals(&self, signal: Signal) {
        let pid = i32::try_from(self.gamma.pid()).ok().and_then(Pid::from_raw).expect("a process");
        kill_process(pid, signal).expect("a signal");
    }

    /// What a command says in the guest of a VM that is reached.
    pub async fn says(&self, id: &str, command: &str) -> String {
        let vm = self.get(&self.path(id)).await;
        says(&self.replicas[0], &vm, command)
    }

    /// Waits until all is as it should be: each VM in the process that it had, no machine seen twice, and nothing taken back that a
    /// client saw.
    pub async fn is_right(&self) {
        self.is_whole().await;
        for vm in &self.vms {
            let path = self.path(&vm.id);
            let runs = async |site: &Self| {
                let now = site.get(&path).await;
                now["status"] == "running" && is_well(&now["message"])
            };
            self.until(&format!("{path}, running"), runs).await;
            assert_eq!(self.process(vm.on, &vm.id), Some(vm.process), "{}", vm.id);
            assert_eq!(self.says(&vm.id, "hostname").await, "web");
        }
        assert_eq!(self.watch.twice(), [].into());
        assert_eq!(self.clients.taken_back(), Vec::<String>::new());
    }
}

fn request(
    caller: &Caller,
    method: Method,
    path: &str,
    (body, key): (Option<&Value>, &str),
) -> reqwest::RequestBuilder {
    let request = caller.request(method, path).header("idempotency-key", key);
    if let Some(body) = body { request.json(body) } else { request }
}

/// Whether what is said of a VM that runs is nothing, or how it booted.
fn is_well(message: &Value) -> bool {
    message.as_str().is_none_or(|text| text.starts_with("it boots from the beginning"))
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

/// The machine of a host: the last byte of its address; 0 of one that has none.
fn number(host: &Value) -> u8 {
    let address = host["addresses"][0].as_str().and_then(|text| text.parse::<SocketAddr>().ok());
    address.map_or(0, |address| match address.ip() {
        std::net::IpAddr::V4(ip) => ip.octets()[3],
        std::net::IpAddr::V6(_) => 0,
    })
}
