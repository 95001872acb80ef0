//! Programs in a sandbox: what envd's `process.Process` is asked, as commands of the runtime, and what became of them.

use std::collections::BTreeMap;

use base64::Engine;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use serde::Deserialize;
use serde_json::{Value, json};

use super::connect::{Code, Refused};
use crate::agent::runtime::{CommandRequest, Exit, Process, ProcessState, PtySize};

/// Base64 in either alphabet, padded or not, as JSON of Protocol Buffers may have it.
const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
/// The longest time limit of a program, in seconds: that of the runtime.
const LONGEST: u64 = 30 * 24 * 3600;
/// Columns and rows of a terminal whose size nobody says.
const SIZE: PtySize = PtySize { cols: 80, rows: 24 };

/// The message of `Start`.
#[derive(Debug, Deserialize)]
pub struct StartRequest {
    process: Config,
    pty: Option<Pty>,
    tag: Option<String>,
    stdin: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Config {
    cmd: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    envs: BTreeMap<String, String>,
    cwd: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Pty {
    size: Option<Size>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct Size {
    cols: u16,
    rows: u16,
}

impl Pty {
    fn size(self) -> PtySize {
        let Size { cols, rows } = self.size.unwrap_or_default();
        let of = |wanted: u16, default: u16| if wanted == 0 { default } else { wanted };
        PtySize { cols: of(cols, SIZE.cols), rows: of(rows, SIZE.rows) }
    }
}

/// A program to start.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    /// The request of the runtime.
    pub request: CommandRequest,
    /// Whether something may be typed into it later.
    pub keeps_input: bool,
}

impl StartRequest {
    /// The program as an account starts it, with a time limit in milliseconds. A client that leaves does not end it.
    pub fn start(self, user: &str, limit_ms: Option<u64>) -> Start {
        let Self { process, pty, tag, stdin } = self;
        let request = CommandRequest {
            argv: Some(std::iter::once(process.cmd).chain(process.args).collect()),
            cwd: process.cwd.filter(|cwd| !cwd.is_empty()),
            env: process.envs,
            user: Some(user.to_owned()),
            timeout_seconds: limit_ms.map(|limit| limit.div_ceil(1000).clamp(1, LONGEST)),
            detach: true,
            hold: true,
            pty: pty.map(Pty::size),
            tag,
            ..CommandRequest::default()
        };
        // Who says nothing of an input has one, since the first SDKs did not.
        Start { request, keeps_input: pty.is_some() || stdin.unwrap_or(true) }
    }
}

/// A program that is meant.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Selector {
    /// By its number.
    Pid(u32),
    /// By its tag.
    Tag(String),
}

impl Selector {
    /// Its part of a path of the runtime, not yet escaped.
    pub fn name(&self) -> String {
        match self {
            Self::Pid(pid) => pid.to_string(),
            Self::Tag(tag) => format!("tag:{tag}"),
        }
    }
}

/// A message that is about a program: of `Connect` and `CloseStdin`.
#[derive(Debug, Deserialize)]
pub struct Selected {
    /// Which.
    pub process: Selector,
}

/// The message of `SendInput`.
#[derive(Debug, Deserialize)]
pub struct SendInput {
    /// Into which program.
    pub process: Selector,
    /// What to type.
    pub input: Input,
}

/// Something to type, in base64.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Input {
    /// Into an input.
    Stdin(String),
    /// Into a terminal.
    Pty(String),
}

impl Input {
    /// The bytes.
    ///
    /// # Errors
    /// It is no base64.
    pub fn bytes(&self) -> Result<Vec<u8>, Refused> {
        let (Self::Stdin(text) | Self::Pty(text)) = self;
        let by = |alphabet| GeneralPurpose::new(alphabet, LENIENT).decode(text).ok();
        let bytes = by(&alphabet::STANDARD).or_else(|| by(&alphabet::URL_SAFE));
        bytes.ok_or_else(|| Refused::new(Code::InvalidArgument, "The input is no base64."))
    }
}

/// The message of `Update`.
#[derive(Debug, Deserialize)]
pub struct Update {
    /// Of which program.
    pub process: Selector,
    pty: Pty,
}

impl Update {
    /// The size that its terminal gets.
    pub fn size(&self) -> PtySize {
        self.pty.size()
    }
}

/// The message of `SendSignal`.
#[derive(Debug, Deserialize)]
pub struct SendSignal {
    /// To which program.
    pub process: Selector,
    signal: Signal,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Signal {
    Name(String),
    Number(u32),
}

impl SendSignal {
    /// The signal's name.
    ///
    /// # Errors
    /// It is neither SIGTERM nor SIGKILL.
    pub fn name(&self) -> Result<&'static str, Refused> {
        match &self.signal {
            Signal::Name(name) if name == "SIGNAL_SIGTERM" => Ok("SIGTERM"),
            Signal::Name(name) if name == "SIGNAL_SIGKILL" => Ok("SIGKILL"),
            Signal::Number(15) => Ok("SIGTERM"),
            Signal::Number(9) => Ok("SIGKILL"),
            _ => Err(Refused::new(Code::InvalidArgument, "The signal is SIGNAL_SIGTERM or SIGNAL_SIGKILL.")),
        }
    }
}

/// A message of a client's stream of input: into which program it types, or what; or only that the client is alive.
#[derive(Debug, Deserialize)]
pub struct Typed {
    /// The program.
    pub start: Option<Selected>,
    /// Something to type.
    pub data: Option<TypedData>,
}

/// Something to type, in a stream.
#[derive(Debug, Deserialize)]
pub struct TypedData {
    /// That.
    pub input: Input,
}

/// The event that names the program, first in a stream.
pub fn started(pid: i32) -> Value {
    json!({"event": {"start": {"pid": pid}}})
}

/// Where output came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// The output.
    Stdout,
    /// The error output.
    Stderr,
    /// A terminal.
    Terminal,
}

/// An event with output.
pub fn data(output: Output, bytes: &[u8]) -> Value {
    let name = match output {
        Output::Stdout => "stdout",
        Output::Stderr => "stderr",
        Output::Terminal => "pty",
    };
    json!({"event": {"data": {name: STANDARD.encode(bytes)}}})
}

/// An event that shows that the stream is alive.
pub fn keep_alive() -> Value {
    json!({"event": {"keepalive": {}}})
}

/// The event of an end, last in a stream.
///
/// # Errors
/// The time was over.
pub fn ended(exit: &Exit) -> Result<Value, Refused> {
    if exit.timed_out {
        return Err(timed_out());
    }
    let end = match (exit.code, &exit.signal) {
        (Some(0), _) => json!({"exitCode": 0, "exited": true, "status": "exit status 0"}),
        (Some(code), _) => {
            let status = format!("exit status {code}");
            json!({"exitCode": code, "exited": true, "status": status, "error": status})
        }
        (None, signal) => {
            let name = signal.as_deref().unwrap_or("unknown");
            let status = format!("signal: {}", spelled(name));
            json!({"exitCode": -1, "exited": false, "status": status, "error": status})
        }
    };
    Ok(json!({"event": {"end": end}}))
}

/// What Go calls the signals that programs mostly end by.
fn spelled(signal: &str) -> &str {
    match signal {
        "SIGKILL" => "killed",
        "SIGTERM" => "terminated",
        "SIGINT" => "interrupt",
        "SIGHUP" => "hangup",
        "SIGSEGV" => "segmentation fault",
        "SIGABRT" => "aborted",
        other => other,
    }
}

/// The end of a stream whose time is over.
pub fn timed_out() -> Refused {
    Refused::new(Code::DeadlineExceeded, "the time of the request is over")
}

/// The end of a stream that broke off: SDKs ask then whether the sandbox is still there.
pub fn broken_off() -> Refused {
    Refused::new(Code::Unavailable, "the connection to the sandbox ended before the stream completed")
}

/// The end of a stream of which something is lost.
pub fn lost() -> Refused {
    Refused::new(Code::ResourceExhausted, "this reader was too slow, and some of what came is lost; look again")
}

/// The answer of `List`: those that run.
pub fn list(processes: Vec<Process>) -> Value {
    let running = processes.into_iter().filter(|process| process.state == ProcessState::Running);
    let told: Vec<Value> = running.map(told).collect();
    json!({"processes": told})
}

fn told(process: Process) -> Value {
    let (cmd, args) = match process.argv.as_deref() {
        Some([program, arguments @ ..]) => (program.clone(), arguments.to_vec()),
        _ => (process.cmd, Vec::new()),
    };
    let mut config = json!({"cmd": cmd, "args": args, "envs": process.env.unwrap_or_default()});
    if let Some(cwd) = process.cwd {
        config["cwd"] = cwd.into();
    }
    let mut told = json!({"config": config, "pid": process.pid});
    if let Some(tag) = process.tag {
        told["tag"] = tag.into();
    }
    told
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::super::connect;
    use super::*;

    fn read<T: DeserializeOwned>(message: Value) -> Result<T, Refused> {
        connect::read(message.to_string().as_bytes())
    }

    #[test]
    fn a_program_is_started_as_the_sdks_ask() {
        let asked = json!({"process": {"cmd": "/bin/bash", "args": ["-l", "-c", "true"], "envs": {"A": "b"}}, "stdin": false,
            "later": 1});
        let start = read::<StartRequest>(asked).unwrap().start("user", Some(60_000));
        let expected = json!({"argv": ["/bin/bash", "-l", "-c", "true"], "env": {"A": "b"}, "user": "user", "detach": true,
            "hold": true, "timeout_seconds": 60});
        assert_eq!((serde_json::to_value(start.request).unwrap(), start.keeps_input), (expected, false));
        let asked = json!({"process": {"cmd": "/bin/bash", "cwd": "/tmp"}, "pty": {"size": {"cols": 100}}, "tag": "t"});
        let Start { request, keeps_input } = read::<StartRequest>(asked).unwrap().start("root", Some(1));
        assert_eq!((request.pty, keeps_input), (Some(PtySize { cols: 100, rows: 24 }), true));
        assert_eq!((request.cwd.as_deref(), request.tag.as_deref()), (Some("/tmp"), Some("t")));
        assert_eq!(request.timeout_seconds, Some(1));
        let plain = read::<StartRequest>(json!({"process": {"cmd": "a", "cwd": ""}})).unwrap().start("user", None);
        assert_eq!((plain.request.cwd, plain.keeps_input), (None, true));
        assert_eq!(read::<StartRequest>(json!({})).unwrap_err().code, Code::InvalidArgument);
    }

    #[test]
    fn programs_are_meant_by_number_or_tag() {
        let name = |process: Value| read::<Selected>(json!({"process": process})).map(|one| one.process.name());
        assert_eq!(name(json!({"pid": 7})).unwrap(), "7");
        assert_eq!(name(json!({"tag": "a b"})).unwrap(), "tag:a b");
        assert!(name(json!({})).is_err() && name(json!({"pid": -1})).is_err() && read::<Selected>(json!({})).is_err());
    }

    #[test]
    fn input_is_base64_of_either_kind() {
        let bytes = |kind: &str, text: &str| {
            let sent = json!({"process": {"pid": 7}, "input": {kind: text}});
            read::<SendInput>(sent).unwrap().input.bytes()
        };
        for (text, expected) in [("aGk=", &b"hi"[..]), ("aGk", b"hi"), ("-_8", b"\xfb\xff"), ("+/8=", b"\xfb\xff")] {
            assert_eq!(bytes("stdin", text).unwrap(), expected, "{text}");
            assert_eq!(bytes("pty", text).unwrap(), expected, "{text}");
        }
        assert!(bytes("stdin", "!").is_err() && read::<SendInput>(json!({"process": {"pid": 7}})).is_err());
        let typed = |message| read::<Typed>(message).unwrap();
        assert_eq!(typed(json!({"start": {"process": {"pid": 7}}})).start.unwrap().process, Selector::Pid(7));
        assert!(typed(json!({"data": {"input": {"stdin": "aGk="}}})).data.is_some());
        let alive = typed(json!({"keepalive": {}}));
        assert!(alive.start.is_none() && alive.data.is_none());
    }

    #[test]
    fn an_end_reads_as_envd_tells_it() {
        let end = |code, signal: Option<&str>, timed_out| {
            ended(&Exit { code, signal: signal.map(str::to_owned), timed_out })
                .map(|event| event["event"]["end"].clone())
        };
        assert_eq!(end(Some(0), None, false).unwrap()["exitCode"], 0);
        let failed = end(Some(3), None, false).unwrap();
        assert_eq!((&failed["exitCode"], &failed["error"]), (&json!(3), &json!("exit status 3")));
        let killed = end(None, Some("SIGKILL"), false).unwrap();
        assert_eq!((&killed["exitCode"], &killed["status"]), (&json!(-1), &json!("signal: killed")));
        assert_eq!(end(None, Some("SIGTERM"), true).unwrap_err().code, Code::DeadlineExceeded);
    }

    #[test]
    fn the_list_has_what_runs() {
        let one = |pid: i32, state: &str| json!({"pid": pid, "cmd": "'a' b", "state": state, "started_at": ""});
        let mut tagged = one(1, "running");
        tagged["argv"] = json!(["a", "b"]);
        tagged["tag"] = json!("t");
        tagged["cwd"] = json!("/tmp");
        let all = json!([tagged, one(2, "exited"), one(3, "running")]);
        let listed = list(serde_json::from_value(all).unwrap());
        let first = json!({"config": {"cmd": "a", "args": ["b"], "envs": {}, "cwd": "/tmp"}, "pid": 1, "tag": "t"});
        assert_eq!(listed["processes"][0], first);
        assert_eq!(listed["processes"][1]["config"]["cmd"], "'a' b");
        assert_eq!(listed["processes"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn signals_and_sizes_are_read() {
        let signal = |signal: Value| {
            read::<SendSignal>(json!({"process": {"pid": 7}, "signal": signal})).and_then(|sent| sent.name())
        };
        assert_eq!(signal(json!("SIGNAL_SIGKILL")), Ok("SIGKILL"));
        assert_eq!(signal(json!(15)), Ok("SIGTERM"));
        assert!(signal(json!("SIGINT")).is_err() && signal(json!({})).is_err());
        let update = json!({"process": {"pid": 7}, "pty": {"size": {"cols": 5, "rows": 6}}});
        assert_eq!(read::<Update>(update).unwrap().size(), PtySize { cols: 5, rows: 6 });
        assert!(read::<Update>(json!({"process": {"pid": 7}})).is_err());
    }
}
