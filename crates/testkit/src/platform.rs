//! A platform in this process: the real service, its real HTTP on a real port, a simulated engine.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_host::clock::Clock;
use berth_server::app::{App, Doors, Engines};
use berth_server::config::{Config, Secret};
use berth_server::db::Db;
use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{SimulatedEngine, SimulatedNetworks, SimulatedSandboxes};

const EMAIL: &str = "admin@example.com";
const PASSWORD: &str = "a quiet harbour at night";

/// A running platform. Dropping it removes its files.
pub struct Platform {
    /// Its engine.
    pub engine: Arc<SimulatedEngine>,
    /// Its engine of sandboxes.
    pub sandboxes: Arc<SimulatedSandboxes>,
    /// Its networks.
    pub networks: Arc<SimulatedNetworks>,
    /// Its first administrator.
    pub admin: Caller,
    /// Its configuration.
    pub config: Config,
    app: Option<App>,
    server: JoinHandle<std::io::Result<()>>,
    /// Whether its database has rows of machines that are another one's.
    is_beside: bool,
    _dir: Arc<TempDir>,
}

/// The engines of a platform.
type Simulated = (Arc<SimulatedEngine>, Arc<SimulatedSandboxes>, Arc<SimulatedNetworks>);

/// A person or a program with a token, and the project of its calls.
#[derive(Clone)]
pub struct Caller {
    /// Address of the service.
    pub base: String,
    /// Access token.
    pub token: String,
    /// Refresh token.
    pub refresh_token: String,
    /// Path of the project: `/api/v1/orgs/…/projects/…`.
    pub project: String,
    http: reqwest::Client,
}

/// An answer of the service.
#[derive(Debug)]
pub struct Answer {
    /// Status.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// The body as JSON; a string if it is not JSON, null if it is empty.
    pub body: Value,
}

/// How long to wait before a check that has failed since then is made again: what takes long is asked seldom.
pub(crate) fn pause(began: Instant) -> Duration {
    (began.elapsed() / 10).clamp(Duration::from_millis(10), Duration::from_millis(250))
}

impl Answer {
    /// Sends a request and reads the answer whole.
    async fn to(request: reqwest::RequestBuilder) -> reqwest::Result<Self> {
        let response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await?;
        let body =
            if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap_or(Value::String(text)) };
        Ok(Self { status, headers, body })
    }
}

impl Platform {
    /// Starts a platform.
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    /// Starts a platform with another configuration; on PostgreSQL if `BERTH_TEST_POSTGRES` names a server. It waits
    /// ten minutes wherever a service waits for seconds, so that no test depends on the load of its host.
    pub async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let dir = Arc::new(tempfile::tempdir().expect("a folder"));
        let mut config = Config::from_sources(None, |name| {
            (name == "BERTH_DATA_DIR").then(|| dir.path().to_string_lossy().into_owned())
        })
        .expect("a configuration");
        config.admin_email = EMAIL.into();
        config.admin_password = Secret(PASSWORD.into());
        config.database_url = with_tables(dir.path()).await;
        // A connection to PostgreSQL is a process, which learns of every table anew.
        config.database_connections = 4;
        (config.database_wait_seconds, config.http.body_grace_seconds) = (600, 600);
        config.http.unread_seconds = 600;
        config.identity.refresh_grace_seconds = 600;
        // Tests move the clock, some by each look that they take: nobody is signed out by that.
        config.identity.access_token_seconds = 1_000_000;
        // Cheap hashes: at the usual cost they would be a third of a short test.
        (config.identity.argon2_memory_kib, config.identity.argon2_passes) = (64, 1);
        change(&mut config);
        Box::pin(Self::run(config, Simulated::default(), Clock::default(), dir)).await
    }

    async fn run(config: Config, (engine, sandboxes, networks): Simulated, clock: Clock, dir: Arc<TempDir>) -> Self {
        sandboxes.share(engine.gpus_of_host());
        engine.set_network(config.network.of_vms());
        let engines = Engines { vm: engine.clone(), sandbox: sandboxes.clone(), network: networks.clone() };
        let app = Box::pin(App::start_by(clock, &config, engines)).await.expect("the service starts");
        let at_any_port = Config { listen: ([127, 0, 0, 1], 0).into(), ..config.clone() };
        let doors = Doors::open(&at_any_port, None, &app).await.expect("a port");
        let base = format!("http://{}", doors.main);
        let server = tokio::spawn(doors.serve(CancellationToken::new()));
        let admin = Caller::login(&base, EMAIL, &password(&config)).await;
        Self { engine, sandboxes, networks, admin, config, app: Some(app), server, is_beside: false, _dir: dir }
    }

    /// Stops the service and starts it again over the same files and the same host.
    pub async fn restart(mut self) -> Self {
        self.stop().await;
        let engines = (self.engine.clone(), self.sandboxes.clone(), self.networks.clone());
        Box::pin(Self::run(self.config.clone(), engines, Clock::default(), self._dir.clone())).await
    }

    /// Ends the service as SIGKILL would, and starts it again over the same files and the same host. Its clock stays as
    /// far ahead as it was set.
    pub async fn crash_and_restart(self) -> Self {
        self.crash_for(0).await
    }

    /// The same, and so many seconds pass before the next start.
    pub async fn crash_for(mut self, seconds: i64) -> Self {
        let clock = self.app().clock.clone();
        self.crash();
        clock.advance(seconds);
        let engines = (self.engine.clone(), self.sandboxes.clone(), self.networks.clone());
        Box::pin(Self::run(self.config.clone(), engines, clock, self._dir.clone())).await
    }

    /// Ends the service as SIGTERM would.
    pub async fn stop(&mut self) {
        self.server.abort();
        if let Some(app) = self.app.take() {
            app.stop().await;
        }
    }

    /// Ends the service as SIGKILL would: it completes nothing.
    pub fn crash(&mut self) {
        self.server.abort();
        self.app = None;
    }

    /// The service.
    pub fn app(&self) -> &App {
        self.app.as_ref().expect("a running service")
    }

    /// A service on a copy of this one's folder, with machines of its own: for a few seconds both have the database,
    /// until this one notices the other. `None` on SQLite, which only one service can have.
    pub async fn beside(&self) -> Option<Self> {
        if !self.config.database_url.starts_with("postgres") {
            return None;
        }
        let dir = Arc::new(tempfile::tempdir().expect("a folder"));
        std::fs::copy(self.config.data_dir.join("identity"), dir.path().join("identity")).expect("a copy");
        let config = Config { data_dir: dir.path().to_owned(), take_over: true, ..self.config.clone() };
        let mut beside = Box::pin(Self::run(config, Simulated::default(), Clock::default(), dir)).await;
        beside.is_beside = true;
        Some(beside)
    }

    /// What each resource of the administrator's project took since yesterday. A test may begin in one month and end in the
    /// next, where the API tells of the latter alone unless a time is named.
    pub async fn resource_usage(&self) -> Value {
        let from = self.app().clock.now().plus_seconds(-24 * 3600);
        self.admin.get(&format!("/resource_usage?from={from}")).await.body
    }

    /// Sets the service's clock forward.
    pub fn advance(&self, seconds: i64) {
        self.app().clock.advance(seconds);
    }

    /// All messages to an address or number, oldest first.
    pub fn messages(&self, recipient: &str) -> Vec<String> {
        let folder = self.config.data_dir.join("outbox");
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        // The service is still writing a file whose name begins with a dot, and renames it at the end.
        let whole = |entry: &std::fs::DirEntry| !entry.file_name().as_encoded_bytes().starts_with(b".");
        let mut files: Vec<_> = entries.filter(whole).map(|e| e.path()).collect();
        // The names are ids that grow with time.
        files.sort();
        let texts = files.iter().filter_map(|file| std::fs::read_to_string(file).ok());
        texts.filter(|text| text.lines().any(|line| line.trim_end() == format!("To: {recipient}"))).collect()
    }

    /// Waits for the message with this number to a recipient, and returns it.
    pub async fn message(&self, recipient: &str, number: usize) -> String {
        self.admin.until("a message", |_| async { self.messages(recipient).len() >= number }).await;
        self.messages(recipient).swap_remove(number - 1)
    }

    /// Signs a new person up, with an organization and a project of their own.
    pub async fn sign_up(&self, email: &str) -> Caller {
        let anybody = self.admin.anonymous();
        let answer = anybody.post("/api/v1/auth/signup", json!({"email": email, "password": PASSWORD})).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        Caller::login(&self.admin.base, email, PASSWORD).await
    }
}

/// The administrator's password: the configured one, or the one that the service made up.
fn password(config: &Config) -> String {
    if !config.admin_password.0.is_empty() {
        return config.admin_password.0.clone();
    }
    let login = std::fs::read_to_string(config.data_dir.join("administrator")).expect("a file");
    login.lines().nth(1).expect("a second line").to_owned()
}

/// Makes a new database on a PostgreSQL server; the whole server is removed after the tests.
pub fn fresh_database(server: &str) -> String {
    copy_of(server, "template1")
}

fn copy_of(server: &str, template: &str) -> String {
    let name = format!("berth_{}", uuid::Uuid::now_v7().simple());
    // Copying files takes two thirds of the time of copying blocks through the server's log.
    let create = format!("CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY");
    let mut command = std::process::Command::new("psql");
    let output = command.args(["-q", &format!("{server}/postgres"), "-c", &create]).output().expect("psql");
    assert!(output.status.success(), "{output:?}");
    format!("{server}/{name}")
}

/// A database with all tables and no rows.
enum Tables {
    /// The file of SQLite.
    File(Vec<u8>),
    /// A database of PostgreSQL, by its name.
    Database(String),
}

impl Tables {
    async fn make(server: Option<&str>) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("berth.db");
        let url = server.map_or_else(|| format!("sqlite:{}", file.display()), fresh_database);
        let db = Db::open(&url).await.expect("a database");
        db.close().await;
        match server {
            Some(_) => Self::Database(url.rsplit('/').next().expect("a name").to_owned()),
            None => Self::File(std::fs::read(file).expect("a file")),
        }
    }
}

/// The address of a database with all tables and no rows. The tables are made once, which takes as long as a short
/// test.
async fn with_tables(folder: &Path) -> String {
    static TABLES: OnceCell<Tables> = OnceCell::const_new();
    let server = std::env::var("BERTH_TEST_POSTGRES").ok();
    match TABLES.get_or_init(|| Tables::make(server.as_deref())).await {
        Tables::Database(name) => copy_of(&server.expect("the same server"), name),
        Tables::File(bytes) => {
            let file = folder.join("berth.db");
            std::fs::write(&file, bytes).expect("a file");
            format!("sqlite:{}", file.display())
        }
    }
}

impl Drop for Platform {
    fn drop(&mut self) {
        self.server.abort();
        // What is on another machine is missed here.
        if !std::thread::panicking() && !self.is_beside {
            assert_eq!(self.sandboxes.violations(), Vec::<String>::new());
            assert_eq!(self.engine.violations(), Vec::<String>::new());
        }
    }
}

impl Caller {
    /// Signs in; calls go to the person's first project.
    pub async fn login(base: &str, email: &str, password: &str) -> Self {
        // Services die in tests, and a client must not take an old connection for one to the next service. The client
        // uses no TLS, and reading the host's certificates would take as long as starting the service.
        let http = reqwest::Client::builder().tls_certs_only([]).pool_max_idle_per_host(0).build().expect("a client");
        let nobody = Self {
            base: base.into(),
            token: String::new(),
            refresh_token: String::new(),
            project: String::new(),
            http,
        };
        let answer = nobody.post("/api/v1/auth/login", json!({"email": email, "password": password})).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let text = |key: &str| answer.body[key].as_str().expect("a token").to_owned();
        let mut caller = Self { token: text("access_token"), refresh_token: text("refresh_token"), ..nobody };
        let org = caller.get("/api/v1/orgs").await.body["data"][0]["id"].as_str().expect("an id").to_owned();
        let projects = caller.get(&format!("/api/v1/orgs/{org}/projects")).await.body;
        caller.project = format!("/api/v1/orgs/{org}/projects/{}", projects["data"][0]["id"].as_str().expect("an id"));
        caller
    }

    /// The same project without a token.
    pub fn anonymous(&self) -> Self {
        Self { token: String::new(), ..self.clone() }
    }

    /// The same project with another token.
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: token.into(), ..self.clone() }
    }

    /// The same person in another project, by its path.
    pub fn in_project(&self, path: &str) -> Self {
        Self { project: path.into(), ..self.clone() }
    }

    /// Id of the project.
    pub fn project_id(&self) -> &str {
        self.project.rsplit('/').next().expect("an id")
    }

    /// Path of the project's organization: `/api/v1/orgs/…`.
    pub fn org(&self) -> &str {
        self.project.split("/projects").next().expect("a path")
    }

    /// The same person in a new project of the same organization.
    pub async fn another_project(&self, name: &str) -> Self {
        let made = self.post(&format!("{}/projects", self.org()), json!({"name": name})).await;
        assert_eq!(made.status, 201, "{made:?}");
        self.in_project(&format!("{}/projects/{}", self.org(), made.id()))
    }

    /// The service's address.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The credential.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// The same person at another address of the service.
    pub fn at(&self, base: &str) -> Self {
        Self { base: base.into(), ..self.clone() }
    }

    /// A request that the test completes.
    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let path = if [
            "/api/",
            "/sandbox/",
            "/v1/",
            "/e2b/",
            "/mcp",
            "/oauth/",
            "/health",
            "/files",
            "/process.",
            "/filesystem.",
            "/.",
        ]
        .iter()
        .any(|root| path.starts_with(root))
        {
            path.to_owned()
        } else {
            format!("{}{path}", self.project)
        };
        let request = self.http.request(method, format!("{}{path}", self.base));
        if self.token.is_empty() { request } else { request.bearer_auth(&self.token) }
    }

    /// Sends a request that may kill the service before the answer; an answer must have this status.
    pub async fn ask(&self, method: Method, path: &str, body: Value, status: u16) -> Option<Answer> {
        let request = self.request(method, path);
        let request = if body.is_null() { request } else { request.json(&body) };
        let answer = Answer::to(request).await.ok()?;
        assert_eq!(answer.status, status, "{answer:?}");
        Some(answer)
    }

    /// Sends a request.
    pub async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        Answer::to(request).await.expect("an answer")
    }

    /// Reads. A path that does not begin with `/api` lies in the project.
    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    /// Posts JSON.
    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::POST, path).json(&body)).await
    }

    /// Posts without a body.
    pub async fn act(&self, path: &str) -> Answer {
        self.send(self.request(Method::POST, path)).await
    }

    /// Puts JSON.
    pub async fn put(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::PUT, path).json(&body)).await
    }

    /// Patches.
    pub async fn patch(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::PATCH, path).json(&body)).await
    }

    /// Deletes.
    pub async fn delete(&self, path: &str) -> Answer {
        self.send(self.request(Method::DELETE, path)).await
    }

    /// Creates a VM and returns its id.
    pub async fn create_vm(&self, body: Value) -> String {
        let answer = self.post("/vms", body).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.id()
    }

    /// Waits until a VM has a status, and returns the VM.
    pub async fn reaches(&self, vm: &str, status: &str) -> Value {
        let answer = self.get(&format!("/vms/{vm}/wait?status={status}&timeout=300")).await;
        assert_eq!((answer.status, answer.body["status"].as_str()), (200, Some(status)), "{answer:?}");
        answer.body
    }

    /// Creates a sandbox and returns its id.
    pub async fn create_sandbox(&self, body: Value) -> String {
        let answer = self.post("/sandboxes", body).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.id()
    }

    /// Waits until a sandbox has a phase, and returns the sandbox.
    pub async fn sandbox_reaches(&self, sandbox: &str, phase: &str) -> Value {
        let answer = self.get(&format!("/sandboxes/{sandbox}/wait?phase={phase}&timeout=300")).await;
        assert_eq!((answer.status, answer.body["phase"].as_str()), (200, Some(phase)), "{answer:?}");
        answer.body
    }

    /// Creates a sandbox and waits until it is ready; returns its id.
    pub async fn ready_sandbox(&self) -> String {
        let id = self.create_sandbox(json!({})).await;
        self.sandbox_reaches(&id, "Ready").await;
        id
    }

    /// Creates a VM and waits until it runs; returns its id.
    pub async fn running_vm(&self, name: &str) -> String {
        let id = self.create_vm(crate::vm(name)).await;
        self.reaches(&id, "running").await;
        id
    }

    /// Waits until a VM is gone.
    pub async fn gone(&self, vm: &str) {
        let path = format!("/vms/{vm}");
        self.until("the VM's end", |c| {
            let path = path.clone();
            async move { c.get(&path).await.status == 404 }
        })
        .await;
    }

    /// Repeats a check until it succeeds, for five minutes at most.
    pub async fn until<F: Future<Output = bool>>(&self, what: &str, check: impl Fn(Self) -> F) {
        let began = Instant::now();
        while !check(self.clone()).await {
            assert!(began.elapsed() < Duration::from_mins(5), "{what}: not within five minutes");
            tokio::time::sleep(pause(began)).await;
        }
    }
}

impl Answer {
    /// The id in the answer to a creation.
    pub fn id(&self) -> String {
        self.body["id"].as_str().expect("an id").to_owned()
    }

    /// A header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Asserts a refusal whose body has the usual form.
    #[track_caller]
    pub fn refused(&self, status: u16, code: &str) {
        assert_eq!((self.status, self.body["code"].as_str()), (status, Some(code)), "{self:?}");
        assert!(self.body["message"].as_str().is_some_and(|m| !m.is_empty()), "{self:?}");
        assert!(self.header("x-request-id").is_some());
    }

    /// Whether a field is among the invalid ones.
    pub fn names(&self, field: &str) -> bool {
        self.body["details"].as_array().is_some_and(|all| all.iter().any(|d| d["field"] == field))
    }
}

/// The token of a message's link.
pub fn token_in(message: &str) -> String {
    let rest = message.split("token=").nth(1).expect("a link");
    rest.split_whitespace().next().expect("a token").to_owned()
}

/// The code of a message: six digits that stand alone.
pub fn code_in(message: &str) -> String {
    let word = |word: &&str| word.len() == 6 && word.bytes().all(|b| b.is_ascii_digit());
    message.split_whitespace().find(word).expect("a code").to_owned()
}
