//! A platform with one sandbox, and the command line that knows both.

use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use berth_server::config::Config;
use berth_testkit::Platform;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::process::Command;
use tokio::sync::watch;

pub const BERTH: &str = env!("CARGO_BIN_EXE_berth");
/// How long anything may take that happens at all.
pub const PATIENCE: Duration = Duration::from_mins(1);
/// The sandbox's name.
pub const BOX: &str = "box";

/// A platform, the agent inside its sandboxes, and a way to it that can be cut.
pub struct Here {
    pub platform: Platform,
    pub way: Way,
    agent: Agent,
    pub home: TempDir,
}

impl Here {
    /// One with a sandbox called `box`.
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    /// The same with another configuration.
    pub async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let platform = Platform::start_with(change).await;
        let agent = Agent::start();
        platform.sandboxes.set_agent(&agent.folder.path().join("socket"));
        let id = platform.admin.create_sandbox(json!({"name": BOX})).await;
        platform.admin.sandbox_reaches(&id, "Ready").await;
        let way = Way::to(&platform.admin.base).await;
        Self { platform, way, agent, home: tempfile::tempdir().expect("a folder") }
    }

    /// `berth` with these arguments, whose caller is the administrator.
    pub fn berth(&self, arguments: &[&str]) -> Command {
        let names: Vec<_> = self.platform.admin.project.split('/').collect();
        let mut command = Command::new(BERTH);
        command.args(arguments).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.home.path()).env("BERTH_URL", &self.way.url);
        command
            .env("BERTH_TOKEN", &self.platform.admin.token)
            .env("BERTH_ORG", names[4])
            .env("BERTH_PROJECT", names[6]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    /// `berth sandbox` with these arguments, to its end.
    pub async fn sandbox(&self, arguments: &[&str]) -> Output {
        ended(self.berth(&[&["sandbox"], arguments].concat())).await
    }

    /// The same, which has to work; what it wrote.
    pub async fn fine(&self, arguments: &[&str]) -> String {
        let output = self.sandbox(arguments).await;
        assert!(output.status.success(), "{arguments:?} {output:?}");
        out(&output)
    }

    /// What `berth` writes to a window of so many columns. It has to work.
    pub async fn in_window(&self, arguments: &[&str], columns: u16) -> String {
        let (master, slave) = terminal(columns, 24);
        let mut command = self.berth(arguments);
        let mut child = command.stdout(Stdio::from(slave)).spawn().expect("a process");
        // The program alone holds its other side from now on, so that its end is the end of what comes.
        drop(command);
        let text = tokio::task::spawn_blocking(move || {
            let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
            while let Ok(count @ 1..) = rustix::io::read(&master, &mut buffer) {
                text.extend_from_slice(&buffer[..count]);
            }
            String::from_utf8_lossy(&text).replace("\r\n", "\n")
        });
        let text = tokio::time::timeout(PATIENCE, text).await.expect("an end in time").expect("a text");
        assert!(child.wait().await.expect("an end").success(), "{arguments:?} {text}");
        text
    }

    /// A program in the sandbox, to its end.
    pub async fn exec(&self, command: &[&str]) -> Output {
        self.sandbox(&[&["exec", BOX, "--"], command].concat()).await
    }

    /// A program in the sandbox that reads this.
    pub async fn fed(&self, arguments: &[&str], input: &[u8]) -> Output {
        self.fed_to(&[&["sandbox"], arguments].concat(), input).await
    }

    /// `berth` with these arguments, which reads this.
    pub async fn fed_to(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut command = self.berth(arguments);
        let mut child = command.stdin(Stdio::piped()).spawn().expect("a process");
        let mut stdin = child.stdin.take().expect("a pipe");
        let input = input.to_vec();
        let fed = tokio::spawn(async move {
            // Who does not read to the end ends the pipe.
            let _ = stdin.write_all(&input).await;
        });
        let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await.expect("an end in time");
        fed.abort();
        output.expect("an end")
    }

    /// A path of the sandbox's workspace.
    pub fn inside(&self, path: &str) -> PathBuf {
        self.agent.folder.path().join("work").join(path)
    }

    /// Processes that run in the sandbox.
    pub async fn running(&self) -> Vec<Value> {
        let listed: Value = serde_json::from_str(&self.fine(&["ps", BOX, "--json"]).await).expect("JSON");
        let all = listed["data"].as_array().expect("a list").clone();
        all.into_iter().filter(|process| process["state"] == "running").collect()
    }

    /// Puts somebody in place of the agent who hangs up on the first that comes, and the agent back after that.
    pub fn hang_up_once(&self) {
        let (here, agent) = (self.agent.folder.path().join("deaf"), self.agent.folder.path().join("socket"));
        let listener = UnixListener::bind(&here).expect("a socket");
        let engine = self.platform.sandboxes.clone();
        engine.set_agent(&here);
        tokio::spawn(async move {
            drop(listener.accept().await.expect("a connection"));
            engine.set_agent(&agent);
        });
    }

    /// Puts somebody between the service and the agent, who holds back what the agent answers to a request in which these
    /// words stand, until told to let go.
    pub fn hold_answers_to(&self, words: &'static str) -> Arc<watch::Sender<bool>> {
        let between = self.agent.folder.path().join("between");
        let listener = UnixListener::bind(&between).expect("a socket");
        let (agent, held) = (self.agent.folder.path().join("socket"), Arc::new(watch::Sender::new(true)));
        let holds = held.clone();
        tokio::spawn(async move {
            while let Ok((service, _)) = listener.accept().await {
                let agent = UnixStream::connect(&agent).await.expect("the agent");
                tokio::spawn(hold(service, agent, words, holds.subscribe()));
            }
        });
        self.platform.sandboxes.set_agent(&between);
        held
    }

    /// Waits until nothing runs in the sandbox.
    pub async fn quiet(&self) {
        until("the end of all processes", async || self.running().await.is_empty()).await;
    }
}

/// Carries bytes between the service and the agent. Once these words were said to it, what it says waits while it is held.
async fn hold(service: UnixStream, agent: UnixStream, words: &str, mut held: watch::Receiver<bool>) {
    let ((mut asks, mut hears), (mut says, mut listens)) = (service.into_split(), agent.into_split());
    let (said, was_said) = watch::channel(false);
    let there = async move {
        let (mut all, mut known) = (Vec::new(), 0);
        while let Ok(1..) = asks.read_buf(&mut all).await {
            said.send_replace(all.windows(words.len()).any(|window| window == words.as_bytes()));
            if listens.write_all(&all[known..]).await.is_err() {
                return;
            }
            known = all.len();
        }
    };
    let back = async move {
        let mut piece = Vec::new();
        while let Ok(1..) = says.read_buf(&mut piece).await {
            if *was_said.borrow() {
                // Whoever held it may be gone.
                let _ = held.wait_for(|held| !held).await;
            }
            if hears.write_all(&piece).await.is_err() {
                return;
            }
            piece.clear();
        }
    };
    tokio::join!(there, back);
}

/// A command to its end.
pub async fn ended(mut command: Command) -> Output {
    tokio::time::timeout(PATIENCE, command.output()).await.expect("an end in time").expect("an end")
}

/// Asks again until it is so.
pub async fn until(what: &str, so: impl AsyncFn() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !so().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("{what} did not come"));
}

/// Both sides of a terminal with a window of this size.
pub fn terminal(columns: u16, rows: u16) -> (OwnedFd, OwnedFd) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&master).and_then(|()| unlockpt(&master)).expect("its other side");
    let name = ptsname(&master, Vec::new()).expect("its name");
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let slave = rustix::fs::open(name.as_c_str(), flags, Mode::empty()).expect("its other side");
    tcsetwinsize(&master, window(columns, rows)).expect("a window");
    (master, slave)
}

/// The size of a window.
pub const fn window(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 }
}

/// What a command wrote.
pub fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What it said.
pub fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// An agent, and the folder that is its sandbox; both go with it.
struct Agent {
    process: Child,
    folder: TempDir,
}

impl Agent {
    fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("berth-sandbox-").tempdir().expect("a folder");
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("permissions");
        let (user, uid) = account();
        let workspace = folder.path().join("work");
        std::fs::create_dir(&workspace).expect("a folder");
        chown(&workspace, Some(uid), None).expect("an owner");
        // Whoever runs the tests may ignore signals, as nohup does.
        let mut command = std::process::Command::new("env");
        command.arg("--default-signal").arg(binary()).args(["--user", &user, "--root"]).arg(&workspace);
        let process = command.arg("--socket").arg(folder.path().join("socket")).spawn().expect("an agent");
        let agent = Self { process, folder };
        while std::os::unix::net::UnixStream::connect(agent.folder.path().join("socket")).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        agent
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.process.id().cast_signed()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.process.wait();
    }
}

/// The agent's program: the one that `script/test` built, else one that is built now.
fn binary() -> PathBuf {
    static BUILT: Once = Once::new();
    if let Some(built) = std::env::var_os("BERTH_TEST_AGENT") {
        return built.into();
    }
    BUILT.call_once(|| {
        let mut cargo = std::process::Command::new(env!("CARGO"));
        let built = cargo.args(["build", "--quiet", "--package", "berth-agent"]).status();
        assert!(built.expect("cargo").success(), "the agent is built");
    });
    Path::new(BERTH).with_file_name("berth-agent")
}

/// The account inside: somebody else where the test may be, so that permissions count.
fn account() -> (String, u32) {
    let own = rustix::process::geteuid();
    let passwd = std::fs::read_to_string("/etc/passwd").expect("accounts");
    let wanted = |fields: &[&str]| {
        if own.is_root() { fields[0] == "nobody" } else { fields[2] == own.as_raw().to_string() }
    };
    let fields = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| wanted(fields));
    let fields = fields.expect("an account");
    (fields[0].to_owned(), fields[2].parse().expect("a number"))
}

/// A way to a service that can be cut: every connection ends at once, and new ones work. One that is shut turns requests away:
/// new connections, and those on which a client says anything more. An answer that is under way still comes.
pub struct Way {
    pub url: String,
    cuts: Arc<watch::Sender<u32>>,
    shut: Arc<watch::Sender<bool>>,
    turned_away: Arc<AtomicU32>,
}

impl Way {
    async fn to(base: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let service = base.trim_start_matches("http://").to_owned();
        let cuts = Arc::new(watch::Sender::new(0));
        let told = cuts.clone();
        let (shut, turned_away) = (Arc::new(watch::Sender::new(false)), Arc::new(AtomicU32::new(0)));
        let (is_shut, count) = (shut.subscribe(), turned_away.clone());
        tokio::spawn(async move {
            while let Ok((here, _)) = listener.accept().await {
                if *is_shut.borrow() {
                    count.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let (service, mut cut) = (service.clone(), told.subscribe());
                let (is_shut, count) = (is_shut.clone(), count.clone());
                tokio::spawn(async move {
                    let there = TcpStream::connect(service).await.expect("the service");
                    tokio::select! {
                        turned_away = carry(here, there, is_shut) => {
                            count.fetch_add(turned_away.into(), Ordering::Relaxed);
                        }
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { url, cuts, shut, turned_away }
    }

    /// Turns requests away from now on, or no more.
    pub fn shut(&self, shut: bool) {
        self.shut.send_replace(shut);
    }

    /// How many were turned away.
    pub fn turned_away(&self) -> u32 {
        self.turned_away.load(Ordering::Relaxed)
    }

    /// Cuts every connection.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

/// Carries bytes between a client and the service, as long as both have connections. It ends, too, once the client says anything
/// while the way is shut: whether it did.
async fn carry(here: TcpStream, there: TcpStream, is_shut: watch::Receiver<bool>) -> bool {
    let ((mut asks, mut hears), (mut says, mut listens)) = (here.into_split(), there.into_split());
    let requests = async {
        let mut piece = Vec::new();
        while asks.read_buf(&mut piece).await.map_err(|_| false)? > 0 {
            if *is_shut.borrow() {
                return Err(true);
            }
            listens.write_all(&piece).await.map_err(|_| false)?;
            piece.clear();
        }
        listens.shutdown().await.map_err(|_| false)
    };
    let answers = async {
        copy(&mut says, &mut hears).await.map_err(|_| false)?;
        hears.shutdown().await.map_err(|_| false)
    };
    tokio::try_join!(requests, answers).err().unwrap_or_default()
}
