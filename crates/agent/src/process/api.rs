//! The routes of commands and processes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_domain::agent::error::code;
use berth_domain::agent::runtime::{CommandRequest, Processes as List};
use berth_domain::fields::{Fields, text};
use http::{HeaderValue, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use rustix::fs::{Mode, OFlags};
use rustix::pipe::PipeFlags;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use crate::accounts::Account;
use crate::agent::Agent;
use crate::body::{Answer, nothing, reply, stream};
use crate::call::Call;
use crate::clock;
use crate::error::{Refusal, Result};
use crate::events::Feeding;
use crate::files;
use crate::lock::lock;
use crate::place::Place;
use crate::process::follow::{Follow, Form, Leash, Which};
use crate::process::hold::Hold;
use crate::process::pump::{Pump, Source};
use crate::process::{Launch, Process, base_env, launch, request, signal_by_name};

/// Output of a command that ends within this time goes out in one message. A separate message for the start took an
/// emulated machine 1.5 ms.
const TOGETHER: Duration = Duration::from_millis(10);
/// How long `DELETE` waits for the end: TERM, 5 s, KILL and a margin.
const END: Duration = Duration::from_secs(8);

/// `POST commands`.
pub async fn command(call: Call) -> Result<Answer> {
    let (agent, headers) = (call.agent.clone(), call.headers.clone());
    let wanted = request::parse(&call.json().await?)?;
    let (detach, form) = (wanted.detach, Form::of(&headers));
    // In a task of its own: if the client leaves meanwhile, the result is dropped, and that ends the command.
    let started = tokio::spawn(async move {
        let held = wanted.hold || !detach;
        let process = run(&agent, wanted, false, held).await?;
        let leash = (!detach).then(|| Leash(process.clone()));
        Ok::<_, Refusal>(Follow::command(process, leash, form))
    });
    let follow = started.await.map_err(Refusal::internal)??;
    let _ = timeout(TOGETHER, follow.process().ended()).await;
    Ok(streamed(follow))
}

/// `POST processes`.
pub async fn start(call: Call) -> Result<Answer> {
    let agent = call.agent.clone();
    let wanted = request::parse(&call.json().await?)?;
    let started = tokio::spawn(async move {
        let held = wanted.hold;
        run(&agent, wanted, true, held).await
    });
    let process = started.await.map_err(Refusal::internal)??;
    let mut answer = reply(StatusCode::CREATED, &process.view());
    if let Ok(location) = HeaderValue::try_from(format!("processes/{}", process.pid)) {
        answer.headers_mut().insert(header::LOCATION, location);
    }
    Ok(answer)
}

/// `GET processes`.
pub fn list(call: &Call) -> Answer {
    let data = call.agent.processes.all().iter().map(|process| process.view()).collect();
    reply(StatusCode::OK, &List { data })
}

/// `GET processes/{pid}`.
pub fn show(call: Call) -> Result<Answer> {
    Ok(reply(StatusCode::OK, &call.agent.processes.get(&call.parameter)?.view()))
}

/// `DELETE processes/{pid}`: ends a process, or forgets one that has ended.
pub async fn end(call: Call) -> Result<Answer> {
    let process = call.agent.processes.get(&call.parameter)?;
    if !process.runs() {
        call.agent.processes.forget(process.pid);
        return Ok(nothing());
    }
    process.end.notify_one();
    // A process that survives KILL hangs in the kernel, and stays in the list.
    let _ = timeout(END, process.ended()).await;
    Ok(nothing())
}

/// `GET processes/{pid}/logs`.
pub fn logs(mut call: Call) -> Result<Answer> {
    let process = call.agent.processes.get(&call.parameter)?;
    let follow = call.query.flag("follow");
    let hold = call.query.flag("hold");
    let offset = call.query.number("offset", 0..=u64::MAX, 0);
    let which = match call.query.text("stream") {
        None => Which::Both,
        Some("stdout") => Which::Stdout,
        Some("stderr") => Which::Stderr,
        Some(_) => {
            call.query.fail("stream", "must be stdout or stderr");
            Which::Both
        }
    };
    call.query.finish()?;
    let reader = Follow::new(process, offset, which, follow, Form::of(&call.headers));
    Ok(streamed(if hold { reader.holding() } else { reader }))
}

/// The answer with a reader's stream.
fn streamed(reader: Follow) -> Answer {
    let kind = reader.content_type();
    stream(kind, Feeding::new(reader))
}

/// `POST processes/{pid}/stdin`.
pub async fn stdin(mut call: Call) -> Result<Answer> {
    let process = call.agent.processes.get(&call.parameter)?;
    let eof = call.query.flag("eof");
    call.query.finish()?;
    tokio::select! {
        written = type_in(&process, call.body, eof) => written?,
        () = process.ended() => return Err(ended()),
    }
    Ok(nothing())
}

/// `POST processes/{pid}/signal`.
pub async fn signal(call: Call) -> Result<Answer> {
    let agent = call.agent.clone();
    let process = agent.processes.get(&call.parameter)?;
    let body = call.json().await?;
    let mut fields = Fields::of(&body);
    let signal = fields.required("signal", |value| {
        signal_by_name(text(value)?).ok_or_else(|| "must be the name of a signal, like SIGINT".to_owned())
    });
    let signal = fields.finish(signal)?;
    if !process.runs() || !agent.reaper.signal_group(process.pid, signal) {
        return Err(ended());
    }
    Ok(nothing())
}

fn ended() -> Refusal {
    Refusal::new(code::PROCESS_ENDED, "The process has ended, or its input is closed.")
}

async fn type_in(process: &Process, mut body: Incoming, eof: bool) -> Result<()> {
    let mut stdin = process.stdin.lock().await;
    let pipe = stdin.as_mut().ok_or_else(ended)?;
    while let Some(frame) = body.frame().await {
        let message = "The body ended early; what came before was typed in.";
        let frame = frame.map_err(|_| Refusal::new(code::INVALID_REQUEST, message))?;
        if let Ok(bytes) = frame.into_data() {
            pipe.write_all(&bytes).await.map_err(|_| ended())?;
        }
    }
    if eof {
        *stdin = None;
    }
    Ok(())
}

/// Starts a process and everything that goes with it.
async fn run(agent: &Arc<Agent>, wanted: CommandRequest, keep_stdin: bool, held: bool) -> Result<Arc<Process>> {
    let how = How { stdin: keep_stdin || wanted.stdin.is_some(), timeout: wanted.timeout_seconds, held };
    let process = begin(agent, prepare(agent, &wanted), how).await?;
    if let Some(text) = wanted.stdin {
        let process = process.clone();
        tokio::spawn(async move {
            let mut stdin = process.stdin.lock().await;
            let Some(pipe) = stdin.as_mut() else { return };
            // A program that ends, or stops reading, does not want the rest.
            tokio::select! {
                _ = pipe.write_all(text.as_bytes()) => {}
                () = process.ended() => {}
            }
            if !keep_stdin {
                *stdin = None;
            }
        });
    }
    Ok(process)
}

/// Options of a process to start.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Whether it has an input.
    pub stdin: bool,
    /// Its time limit, in seconds.
    pub timeout: Option<u64>,
    /// Whether it waits for the reader of its output.
    pub held: bool,
}

/// Starts a prepared program, and counts it as running.
pub async fn begin(
    agent: &Arc<Agent>,
    prepared: impl Future<Output = Result<(String, Launch)>>,
    how: How,
) -> Result<Arc<Process>> {
    agent.processes.reserve()?;
    let started = async {
        let (cmd, launched) = prepared.await?;
        spawn(agent, cmd, launched, how).await
    };
    let started = started.await;
    if started.is_err() {
        agent.processes.give_back();
    }
    let (process, pump) = started?;
    agent.processes.add(process.clone());
    tokio::spawn(pump.run());
    Ok(process)
}

async fn spawn(agent: &Arc<Agent>, cmd: String, launched: Launch, how: How) -> Result<(Arc<Process>, Pump)> {
    let (stdout, stdout_there) = output()?;
    let (stderr, stderr_there) = output()?;
    let (stdin, stdin_there) = if how.stdin { input()? } else { (None, nothing_to_read()?) };
    let reaper = agent.reaper.clone();
    let spawned =
        tokio::task::spawn_blocking(move || launch(&reaper, launched, [stdin_there, stdout_there, stderr_there]));
    let (child, ending) = spawned.await.map_err(Refusal::internal)??;
    let process = Arc::new(Process {
        pid: child.as_raw_pid(),
        cmd,
        started_at: clock::now(),
        log: Mutex::default(),
        hold: Mutex::new(if how.held { Hold::from_start() } else { Hold::default() }),
        progress: Notify::new(),
        exit: Mutex::default(),
        changed: watch::Sender::new(()),
        end: Notify::new(),
        stdin: tokio::sync::Mutex::new(stdin),
    });
    let pump = Pump {
        process: process.clone(),
        processes: agent.processes.clone(),
        reaper: agent.reaper.clone(),
        sources: [Source::new(stdout, false), Source::new(stderr, true)],
        ending,
        deadline: how.timeout.map(|seconds| Instant::now() + Duration::from_secs(seconds)),
    };
    Ok((process, pump))
}

async fn prepare(agent: &Arc<Agent>, wanted: &CommandRequest) -> Result<(String, Launch)> {
    let place = agent.place()?;
    let (account, cwd) = settle(agent, wanted.user.as_deref(), wanted.cwd.as_deref()).await?;
    let argv = match (&wanted.cmd, &wanted.argv) {
        (Some(cmd), _) => vec![place.shell.to_owned(), "-c".to_owned(), cmd.clone()],
        (None, argv) => argv.clone().unwrap_or_default(),
    };
    let cmd = wanted.cmd.clone().unwrap_or_else(|| request::quoted(&argv));
    let mut words = argv.into_iter().map(OsString::from);
    let launch = Launch {
        program: words.next().unwrap_or_default(),
        name: None,
        arguments: words.collect(),
        env: environment(agent, &account, &wanted.env),
        cwd,
        account,
        cgroup: agent.freezer.cgroup(),
        terminal: false,
        isolated: false,
    };
    Ok((cmd, launch))
}

/// The account and the directory in which a command runs.
pub async fn settle(agent: &Arc<Agent>, user: Option<&str>, cwd: Option<&str>) -> Result<(Account, OwnedFd)> {
    let place = agent.place()?;
    let as_root = user == Some("root");
    if as_root && !rustix::process::geteuid().is_root() {
        return Err(Refusal::new(code::PERMISSION_DENIED, "This sandbox has no root user; leave 'user' out."));
    }
    // The account's groups may have changed since the boot.
    let account = if as_root {
        agent.accounts.get("root").unwrap_or_else(Account::root)
    } else {
        agent.accounts.get(&place.account.name).unwrap_or_else(|| place.account.clone())
    };
    let cwd = match cwd {
        // The child finds out whether its account may enter the directory.
        None => place.root.try_clone().map_err(Refusal::internal)?,
        Some(path) => {
            let path = path.to_owned();
            let open = move |place: &Place| files::open_directory(place, &path);
            if as_root {
                let place = place.clone();
                tokio::task::spawn_blocking(move || open(&place)).await.map_err(Refusal::internal)??
            } else {
                agent.pool.run(place, open).await?
            }
        }
    };
    Ok((account, cwd))
}

/// The environment of a command: the account's, the sandbox's, its own.
pub fn environment(agent: &Agent, account: &Account, own: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut env = base_env(account);
    env.extend(lock(&agent.identity).env.clone());
    env.extend(own.clone());
    env
}

fn output() -> Result<(Receiver, OwnedFd)> {
    let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(Refusal::internal)?;
    Ok((Receiver::from_owned_fd(ours).map_err(Refusal::internal)?, theirs))
}

fn input() -> Result<(Option<Sender>, OwnedFd)> {
    let (theirs, ours) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(Refusal::internal)?;
    Ok((Some(Sender::from_owned_fd(ours).map_err(Refusal::internal)?), theirs))
}

fn nothing_to_read() -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::open("/dev/null", flags, Mode::empty()).map_err(Refusal::internal)
}
