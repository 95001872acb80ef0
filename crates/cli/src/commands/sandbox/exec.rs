//! `berth sandbox exec`: runs a program in a sandbox as if it ran on this machine.

use std::io::IsTerminal;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use berth_client::{
    CommandRequest, Execution, Form, OpenTerminal, OutputEvent, Piece, ProjectClient, Runtime, output_bytes,
};
use clap::Args;
use futures::FutureExt;
use serde_json::{Map, Value};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::find::{find, is_beyond};
use super::forward::{self, Signals};
use super::sink::{Reader, Sink};
use super::words::WORDS;
use super::{exit, terminal};
use crate::context::Context;
use crate::typed::retold;
use crate::{pairs, span};

/// How long to wait for the program's start after a signal, so that the program gets the signal, too.
const EARLY: Duration = Duration::from_secs(2);
/// How long a program may go on once its output has no reader.
const UNREAD: Duration = Duration::from_secs(1);

#[derive(Args)]
pub struct ExecArgs {
    /// Name or id
    sandbox: String,
    #[command(flatten)]
    how: How,
    /// Start it and print its pid: berth sandbox logs SANDBOX PID
    #[arg(long, short, conflicts_with_all = ["tty", "interactive"])]
    detach: bool,
    /// Program and its arguments; for shell syntax use sh -c '…'
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// How to run a program.
#[derive(Args)]
pub struct How {
    /// Forward standard input, even from a terminal
    #[arg(long, short)]
    interactive: bool,
    /// Do not forward standard input, even if it is no terminal
    #[arg(long, short, conflicts_with = "interactive")]
    no_stdin: bool,
    /// Run it in its own terminal
    #[arg(long, short)]
    tty: bool,
    /// Working directory, from the workspace's root, or absolute
    #[arg(long, short = 'w', value_name = "DIR")]
    cwd: Option<String>,
    /// Variable: KEY=VALUE, or KEY for this environment's; repeated
    #[arg(long, short, value_name = "KEY[=VALUE]")]
    env: Vec<String>,
    /// user, root, or another account, which begins in its home
    #[arg(long, short, value_name = "NAME")]
    user: Option<String>,
    /// End it after this time, as 90s or 5m; the exit code is then 124
    #[arg(long, value_name = "TIME", conflicts_with = "tty")]
    timeout: Option<String>,
}

impl How {
    /// The inside of a sandbox, and beyond the workspace if the directory or the account is.
    fn of(&self, runtime: &Runtime) -> Runtime {
        let other = self.user.as_deref().is_some_and(|user| !matches!(user, "user" | "root"));
        if other || self.cwd.as_deref().is_some_and(is_beyond) { runtime.at_root(None) } else { runtime.clone() }
    }

    fn request(&self, command: Vec<String>) -> Result<CommandRequest> {
        Ok(CommandRequest {
            argv: Some(command),
            cwd: self.cwd.clone(),
            env: pairs::variables(&self.env, pairs::own)?,
            user: self.user.clone(),
            timeout_seconds: self.timeout.as_deref().map(span::seconds).transpose()?,
            ..CommandRequest::default()
        })
    }

    fn terminal(&self, command: Vec<String>) -> Result<OpenTerminal> {
        let variables = pairs::variables(&self.env, pairs::own)?;
        let cmd = shell_line(variables.into_iter().map(|(key, value)| format!("{key}={value}")).collect(), command)?;
        let (cols, rows) = crate::keyboard::window();
        Ok(OpenTerminal { cols, rows, cmd: Some(cmd), cwd: self.cwd.clone(), user: self.user.clone(), id: None })
    }

    fn sends_stdin(&self) -> bool {
        let stdin = std::io::stdin();
        self.interactive || (!self.no_stdin && !stdin.is_terminal() && !is_null(&stdin))
    }
}

/// A line that a shell parses into the program, its arguments and its variables.
fn shell_line(variables: Vec<String>, command: Vec<String>) -> Result<String> {
    let mut words = vec!["exec".to_owned()];
    if !variables.is_empty() {
        words.push("env".into());
        words.extend(variables);
    }
    words.extend(command);
    Ok(shlex::try_join(words.iter().map(String::as_str))?)
}

/// Whether input never has any bytes: /dev/null.
fn is_null(stdin: &impl std::os::fd::AsFd) -> bool {
    rustix::fs::fstat(stdin).is_ok_and(|stat| {
        (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)) == (1, 3)
            && rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice
    })
}

pub async fn exec(context: &Context, project: &ProjectClient, args: ExecArgs) -> ExitCode {
    let done = async {
        let sandbox = find(project, &args.sandbox).await?;
        let runtime = project.runtime(&sandbox)?;
        if args.detach {
            return detached(context, &args.how.of(&runtime), args.how.request(args.command)?).await;
        }
        inside(context, &runtime, &args.how, args.command, Signals::listen()?).await
    };
    done.await.unwrap_or_else(|error| exit::failed(&error, context.look.is_json()))
}

/// Runs a program to its end.
pub async fn inside(
    context: &Context,
    runtime: &Runtime,
    how: &How,
    command: Vec<String>,
    mut signals: Signals,
) -> Result<ExitCode> {
    let runtime = &how.of(runtime);
    if how.tty {
        return terminal::run(runtime, how.terminal(command)?, signals).await;
    }
    let request = CommandRequest { hold: true, ..how.request(command)? };
    forward::outlive_broken_pipes()?;
    let sends_stdin = how.sends_stdin();
    let form = if context.look.is_json() { Form::Lines } else { Form::Bytes };
    let started = match started(runtime, request, sends_stdin, form, &mut signals).await? {
        Started::Follow(started) => started,
        Started::Left(code) => return Ok(code),
    };
    let run = Run { runtime, pid: started.pid, sink: Sink::standard(), json: context.look.is_json(), lost: false };
    run.follow(started.execution, signals, started.signal, sends_stdin).await
}

async fn detached(context: &Context, runtime: &Runtime, request: CommandRequest) -> Result<ExitCode> {
    let (pid, _) = begun(runtime, request, false, Form::Bytes).await?;
    if context.look.is_json() {
        crate::output::json(&runtime.process(pid).await?)?;
    } else {
        println!("{pid}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts a program. It outlives its connection, so that a broken connection can be replaced.
async fn begun(runtime: &Runtime, mut request: CommandRequest, stdin: bool, form: Form) -> Result<(i32, Execution)> {
    if stdin {
        let process = runtime.start(&request).await.map_err(|error| retold(error, WORDS))?;
        return Ok((process.pid, runtime.output(process.pid, form)));
    }
    request.detach = true;
    let mut execution = runtime.command(&request, form).await.map_err(|error| retold(error, WORDS))?;
    match execution.next().await? {
        Some(OutputEvent::Start { pid }) => Ok((pid, execution)),
        Some(OutputEvent::Error { message, .. }) => bail!(message),
        _ => bail!("the service did not say that the command was started"),
    }
}

enum Started {
    Follow(Following),
    Left(ExitCode),
}

struct Following {
    pid: i32,
    execution: Execution,
    /// The signal that came meanwhile.
    signal: Option<&'static str>,
}

async fn started(
    runtime: &Runtime,
    request: CommandRequest,
    stdin: bool,
    form: Form,
    signals: &mut Signals,
) -> Result<Started> {
    let mut begun = pin!(begun(runtime, request, stdin, form));
    let (begun, signal) = tokio::select! {
        begun = &mut begun => (begun?, None),
        signal = signals.next() => {
            let Ok(begun) = timeout(EARLY, begun).await else {
                eprintln!("berth: {signal} came before the sandbox had answered.");
                return Ok(Started::Left(exit::told(signal)));
            };
            (begun?, Some(signal))
        }
    };
    Ok(Started::Follow(Following { pid: begun.0, execution: begun.1, signal }))
}

/// A running program.
struct Run<'a> {
    runtime: &'a Runtime,
    pid: i32,
    sink: Sink,
    json: bool,
    /// Whether some of its output is missing.
    lost: bool,
}

impl Run<'_> {
    /// Follows the program to its end; ends the program if it cannot be followed.
    async fn follow(
        mut self,
        mut execution: Execution,
        signals: Signals,
        first: Option<&'static str>,
        stdin: bool,
    ) -> Result<ExitCode> {
        let (runtime, pid) = (self.runtime.clone(), self.pid);
        let left = tokio::spawn(async move { forward::signals(&runtime, pid, signals, first).await });
        let runtime = self.runtime.clone();
        let feeding = async move { if stdin { forward::stdin(&runtime, pid).await } else { Ok(()) } };
        match self.until_end(&mut execution, left, tokio::spawn(feeding)).await {
            Err(error) if !execution.is_over() => Err(self.give_up(error).await),
            done => done,
        }
    }

    async fn until_end(
        &mut self,
        execution: &mut Execution,
        mut left: JoinHandle<()>,
        mut input: JoinHandle<Result<()>>,
    ) -> Result<ExitCode> {
        let mut feeds = true;
        loop {
            let at_once = execution.next_piece().now_or_never();
            let piece = if let Some(piece) = at_once {
                piece?
            } else {
                self.flush()?;
                tokio::select! {
                    piece = execution.next_piece() => piece?,
                    _ = &mut left => return Ok(self.leave()),
                    fed = &mut input, if feeds => {
                        feeds = false;
                        fed??;
                        continue;
                    }
                }
            };
            if let Some(code) = self.tell(piece)? {
                self.flush()?;
                return Ok(code);
            }
        }
    }

    /// Shows a piece of output. The last event gives the exit code.
    fn tell(&mut self, piece: Option<Piece>) -> Result<Option<ExitCode>> {
        match piece.ok_or_else(|| anyhow!("the output ended, but the service did not say how the program ended"))? {
            Piece::Bytes { stderr, bytes, .. } => self.put(stderr, &bytes).map(|()| None),
            Piece::Event(event) => self.show(event),
        }
    }

    fn show(&mut self, event: OutputEvent) -> Result<Option<ExitCode>> {
        if self.json {
            let line = json_line(&event)? + "\n";
            self.put(false, line.as_bytes())?;
        }
        match event {
            OutputEvent::Start { .. } => {}
            OutputEvent::Truncated { from } => self.tell_of_loss(from)?,
            OutputEvent::Output { .. } if self.json => {}
            OutputEvent::Output { stderr, output } => self.put(stderr, &output_bytes(&output)?)?,
            OutputEvent::Exit(exit) => {
                let code = exit::code_of(&exit)
                    .ok_or_else(|| anyhow!("the program ended, but the service did not say how"))?;
                return Ok(Some(ExitCode::from(if self.lost { exit::FAILED } else { code })));
            }
            OutputEvent::Error { message, .. } => bail!(message),
        }
        Ok(None)
    }

    fn tell_of_loss(&mut self, from: u64) -> Result<()> {
        self.flush()?;
        if !self.lost {
            eprintln!(
                "berth: output before byte {from} is lost: the connection was away for too long, and a sandbox keeps the \
                 last 8 MiB of a program's output. Write it to a file there, and copy that: berth sandbox cp"
            );
        }
        self.lost = true;
        Ok(())
    }

    fn put(&mut self, stderr: bool, bytes: &[u8]) -> Result<()> {
        if self.sink.put(stderr, bytes)? == Reader::Left {
            self.reader_left();
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if self.sink.flush()? == Reader::Left {
            self.reader_left();
        }
        Ok(())
    }

    /// Ends a program whose output has no reader, as a pipe of this machine would.
    fn reader_left(&self) {
        let (runtime, pid) = (self.runtime.clone(), self.pid);
        tokio::spawn(async move {
            // The program may have ended by itself.
            let _ = runtime.signal(pid, "SIGPIPE").await;
            tokio::time::sleep(UNREAD).await;
            let _ = runtime.end_process(pid).await;
        });
    }

    fn leave(&self) -> ExitCode {
        eprintln!("berth: left the program, which may go on there as process {}.", self.pid);
        exit::told("SIGINT")
    }

    /// Ends a program that cannot be followed, and returns why.
    async fn give_up(&self, error: anyhow::Error) -> anyhow::Error {
        let interrupted = matches!(timeout(EARLY, self.runtime.signal(self.pid, "SIGTERM")).await, Ok(Ok(())));
        if interrupted { error.context("the program was told to end") } else { error }
    }
}

/// An event as one line of JSON.
pub fn json_line(event: &OutputEvent) -> Result<String> {
    let mut line = Map::from_iter([("event".to_owned(), Value::from(event.name()))]);
    if let Value::Object(data) = serde_json::from_str(&event.data())? {
        line.extend(data);
    }
    Ok(serde_json::to_string(&line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_shell_reads_what_was_typed() {
        let line = shell_line(Vec::new(), words(&["echo", "a b", "$HOME", "it's"])).unwrap();
        assert_eq!(shlex::split(&line).unwrap(), words(&["exec", "echo", "a b", "$HOME", "it's"]));
        assert!(line.contains("'$HOME'"), "{line}");
        let line = shell_line(words(&["A=1 2"]), words(&["top"])).unwrap();
        assert_eq!(shlex::split(&line).unwrap(), words(&["exec", "env", "A=1 2", "top"]));
        assert!(shell_line(Vec::new(), words(&["a\0"])).is_err());
    }

    #[test]
    fn events_are_lines_for_programs() {
        let event = OutputEvent::Start { pid: 7 };
        assert_eq!(json_line(&event).unwrap(), r#"{"event":"start","pid":7}"#);
    }

    #[test]
    fn nothing_comes_of_dev_null() {
        assert!(is_null(&std::fs::File::open("/dev/null").unwrap()));
        assert!(!is_null(&std::fs::File::open("/dev/zero").unwrap()));
        assert!(!is_null(&tempfile::tempfile().unwrap()));
    }
}
