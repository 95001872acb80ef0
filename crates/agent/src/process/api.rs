//! The routes of commands and processes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use berth_domain::agent::error::code;
use berth_domain::agent::runtime::{CommandRequest, Processes as List};
use berth_domain::fields::{Fields, text};
use http::{HeaderValue, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout;

use crate::accounts::Account;
use crate::acting::Acting;
use crate::agent::Agent;
use crate::body::{Answer, nothing, reply, stream};
use crate::call::Call;
use crate::error::{Refusal, Result};
use crate::events::Feeding;
use crate::lock::lock;
use crate::process::follow::{Follow, Form, Leash, Which};
use crate::process::input::end as end_of;
use crate::process::{Asked, How, Launch, Process, base_env, begin, request, signal_by_name};
use crate::terminal::{TERM, size};

/// Output of a command that ends within this time goes out in one message. A separate message for the start took an
/// emulated machine 1.5 ms.
const TOGETHER: Duration = Duration::from_millis(10);
/// How long `DELETE` waits for the end: TERM, 5 s, KILL and a margin.
const END: Duration = Duration::from_secs(8);

/// `POST commands`.
pub async fn command(mut call: Call) -> Result<Answer> {
    let (agent, headers, root) = (call.agent.clone(), call.headers.clone(), root(&mut call)?);
    let wanted = request::parse(&call.json().await?, root)?;
    let (detach, form) = (wanted.detach, Form::of(&headers));
    // In a task of its own: if the client leaves meanwhile, the result is dropped, and that ends the command.
    let started = tokio::spawn(async move {
        let held = wanted.hold || !detach;
        let process = run(&agent, wanted, root, false, held).await?;
        let leash = (!detach).then(|| Leash(process.clone()));
        Ok::<_, Refusal>(Follow::command(process, leash, form))
    });
    let follow = started.await.map_err(Refusal::internal)??;
    let _ = timeout(TOGETHER, follow.process().ended()).await;
    Ok(streamed(follow))
}

/// `POST processes`.
pub async fn start(mut call: Call) -> Result<Answer> {
    let (agent, root) = (call.agent.clone(), root(&mut call)?);
    let wanted = request::parse(&call.json().await?, root)?;
    let started = tokio::spawn(async move {
        let held = wanted.hold;
        run(&agent, wanted, root, true, held).await
    });
    let process = started.await.map_err(Refusal::internal)??;
    let mut answer = reply(StatusCode::CREATED, &process.view(false));
    if let Ok(location) = HeaderValue::try_from(format!("processes/{}", process.pid)) {
        answer.headers_mut().insert(header::LOCATION, location);
    }
    Ok(answer)
}

/// Whether a request that starts a program takes its paths from the machine's root.
fn root(call: &mut Call) -> Result<bool> {
    let root = call.query.flag("root");
    std::mem::take(&mut call.query).finish()?;
    Ok(root)
}

/// `GET processes`.
pub fn list(mut call: Call) -> Result<Answer> {
    let env = call.query.flag("env");
    call.query.finish()?;
    let data = call.agent.processes.all().iter().map(|process| process.view(env)).collect();
    Ok(reply(StatusCode::OK, &List { data }))
}

/// `GET processes/{pid}`.
pub fn show(mut call: Call) -> Result<Answer> {
    let process = call.agent.processes.get(&call.parameter)?;
    let env = call.query.flag("env");
    call.query.finish()?;
    Ok(reply(StatusCode::OK, &process.view(env)))
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

/// `POST processes/{pid}/resize`.
pub async fn resize(call: Call) -> Result<Answer> {
    let process = call.agent.processes.get(&call.parameter)?;
    let body = call.json().await?;
    let mut fields = Fields::of(&body);
    let wanted = request::size(&mut fields);
    let wanted = fields.finish(wanted)?;
    if !process.pty {
        let message = "This process has no terminal; start it with 'pty' to give it one.";
        return Err(Refusal::new(code::CONFLICT, message));
    }
    let device = lock(&process.terminal).clone().ok_or_else(ended)?;
    device.resize(size(wanted.cols, wanted.rows)).map_err(|_| ended())?;
    Ok(nothing())
}

fn ended() -> Refusal {
    Refusal::new(code::PROCESS_ENDED, "The process has ended, or its input is closed.")
}

async fn type_in(process: &Process, mut body: Incoming, eof: bool) -> Result<()> {
    let mut stdin = process.stdin.lock().await;
    let input = stdin.as_mut().ok_or_else(ended)?;
    while let Some(frame) = body.frame().await {
        let message = "The body ended early; what came before was typed in.";
        let frame = frame.map_err(|_| Refusal::new(code::INVALID_REQUEST, message))?;
        if let Ok(bytes) = frame.into_data() {
            input.write(&bytes).await.map_err(|_| ended())?;
        }
    }
    if eof {
        end_of(&mut stdin).await.map_err(|_| ended())?;
    }
    Ok(())
}

/// Starts a process and everything that goes with it.
async fn run(
    agent: &Arc<Agent>,
    wanted: CommandRequest,
    root: bool,
    keep_stdin: bool,
    held: bool,
) -> Result<Arc<Process>> {
    let acting = Acting::new(root, wanted.user.clone());
    let pty = wanted.pty.map(|pty| size(pty.cols, pty.rows));
    let how = How { stdin: keep_stdin || wanted.stdin.is_some(), pty, timeout: wanted.timeout_seconds, held };
    let process = begin(agent, prepare(agent, &wanted, &acting), how).await?;
    if let Some(text) = wanted.stdin {
        let process = process.clone();
        tokio::spawn(async move {
            let mut stdin = process.stdin.lock().await;
            let typing = async {
                if let Some(input) = stdin.as_mut() {
                    input.write(text.as_bytes()).await?;
                }
                if keep_stdin { Ok(()) } else { end_of(&mut stdin).await }
            };
            // A program that ends, or stops reading, does not want the rest.
            tokio::select! {
                _ = typing => {}
                () = process.ended() => {}
            }
        });
    }
    Ok(process)
}

async fn prepare(agent: &Arc<Agent>, wanted: &CommandRequest, acting: &Acting) -> Result<(Asked, Launch)> {
    let place = agent.place()?;
    let (account, cwd) = acting.settle(agent, wanted.cwd.as_deref()).await?;
    let argv = match (&wanted.cmd, &wanted.argv) {
        (Some(cmd), _) => vec![place.shell.to_owned(), "-c".to_owned(), cmd.clone()],
        (None, argv) => argv.clone().unwrap_or_default(),
    };
    let asked = Asked {
        cmd: wanted.cmd.clone().unwrap_or_else(|| request::quoted(&argv)),
        argv: wanted.argv.clone(),
        cwd: wanted.cwd.clone(),
        env: wanted.env.clone(),
        tag: wanted.tag.clone(),
    };
    let mut env = environment(agent, &account, &wanted.env);
    if wanted.pty.is_some() {
        env.entry("TERM".to_owned()).or_insert_with(|| TERM.to_owned());
    }
    let mut words = argv.into_iter().map(OsString::from);
    let launch = Launch {
        program: words.next().unwrap_or_default(),
        name: None,
        arguments: words.collect(),
        env,
        cwd,
        account,
        cgroup: agent.freezer.cgroup(),
        terminal: wanted.pty.is_some(),
        isolated: false,
    };
    Ok((asked, launch))
}

/// The environment of a command: the account's, the sandbox's, its own.
pub fn environment(agent: &Agent, account: &Account, own: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut env = base_env(account);
    env.extend(lock(&agent.identity).env.clone());
    env.extend(own.clone());
    env
}
