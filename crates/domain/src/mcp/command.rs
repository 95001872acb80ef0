//! Commands: what runs in a sandbox, and what it said.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::excerpt::Excerpt;
use crate::agent::runtime::CommandRequest;

/// Seconds after which a command is ended where nobody says.
pub const TIME: u64 = 600;
/// The latest that it may be, in seconds. What runs longer runs in the background.
pub const LONGEST: u64 = 3_600;
/// Seconds for which an answer waits for a command's end where nobody says: clients wait for an answer for a minute.
pub const WAIT: u64 = 50;
/// Most seconds for which one waits for a command's end.
pub const LONGEST_WAIT: u64 = 600;
/// Most seconds for which one waits for more output.
pub const LONGEST_LOOK: u64 = 60;
/// Most bytes of output that one answer tells: some six thousand tokens.
pub const OUTPUT: usize = 24 * 1024;

/// Programs that read code on their standard input and run it, so that the code may be long and lies in no file. The code finds
/// modules where it runs, and its own standard input empty. Python keeps the lines of the code for its tracebacks.
const PYTHON: &str = "import sys, linecache, traceback; code = sys.stdin.read(); \
                      sys.excepthook = lambda kind, error, trace: traceback.print_exception(kind, error, trace.tb_next); \
                      linecache.cache['<code>'] = (len(code), None, code.splitlines(True), '<code>'); \
                      exec(compile(code, '<code>', 'exec'))";
const BASH: &str = "code=$(cat; echo .); exec </dev/null; eval \"${code%.}\"";

/// A command to run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The sandbox's id.
    pub sandbox_id: String,
    /// What bash runs.
    #[schemars(example = &"pip install --quiet requests && python3 main.py")]
    pub command: String,
    /// Where it runs. Default the home of the account.
    #[schemars(example = &"/home/user/project")]
    pub cwd: Option<String>,
    /// Variables for it alone.
    pub env: Option<BTreeMap<String, String>>,
    /// What it reads.
    pub stdin: Option<String>,
    /// The account that runs it. Default the template's own, which is `user` in most; `root` may do everything.
    #[schemars(example = &"root")]
    pub user: Option<String>,
    /// Seconds to wait for its end, 0 to 600. Default 50. What takes longer goes on, and `sandbox_read_output` has the rest.
    #[schemars(example = 50)]
    pub wait_seconds: Option<u64>,
    /// Seconds after which it is ended, 1 to 3600. Default 600.
    #[schemars(example = 1800)]
    pub timeout_seconds: Option<u64>,
    /// Whether it goes on by itself for as long as the sandbox runs, as servers do: the answer is its pid at once. Default
    /// false.
    pub background: Option<bool>,
}

/// Languages of code.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// Python 3.
    #[default]
    Python,
    /// JavaScript, by Node.js, where the template has it: `base` has not, `code-interpreter` has.
    Javascript,
    /// Bash.
    Bash,
}

/// Code to run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunCode {
    /// The sandbox's id.
    pub sandbox_id: String,
    /// The code, a whole program. It starts afresh each time: what has to stay it keeps in files.
    #[schemars(example = &"import platform\nprint(platform.python_version())")]
    pub code: String,
    /// Its language. Default `python`.
    #[serde(default)]
    pub language: Language,
    /// Where it runs, and where modules beside it are found. Default the home of the account.
    pub cwd: Option<String>,
    /// Variables for it alone.
    pub env: Option<BTreeMap<String, String>>,
    /// The account that runs it. Default the template's own.
    pub user: Option<String>,
    /// Seconds to wait for its end, 0 to 600. Default 50. What takes longer goes on, and `sandbox_read_output` has the rest.
    pub wait_seconds: Option<u64>,
    /// Seconds after which it is ended, 1 to 3600. Default 600.
    pub timeout_seconds: Option<u64>,
}

/// A command, as the agent is asked for it.
#[derive(Debug)]
pub struct Asked {
    /// The body.
    pub request: CommandRequest,
    /// Seconds for which its end is waited for; none where it goes on by itself.
    pub wait: Option<u64>,
}

/// A number of seconds within bounds.
///
/// # Errors
/// It is out of them.
fn seconds(name: &str, asked: Option<u64>, usual: u64, (least, most): (u64, u64)) -> Result<u64, String> {
    let seconds = asked.unwrap_or(usual);
    if (least..=most).contains(&seconds) {
        return Ok(seconds);
    }
    Err(format!("{name} must be from {least} to {most}. What runs longer: background"))
}

/// The environment of a command. Python tells what it prints at once, as who reads on wants it.
fn environment(asked: Option<BTreeMap<String, String>>) -> BTreeMap<String, String> {
    let mut env = asked.unwrap_or_default();
    env.entry("PYTHONUNBUFFERED".to_owned()).or_insert_with(|| "1".to_owned());
    env
}

impl Run {
    /// The command in words of the agent.
    ///
    /// # Errors
    /// What is out of range.
    pub fn asked(self) -> Result<Asked, String> {
        let waits = self.background != Some(true);
        let timeout_seconds = match (waits, self.timeout_seconds) {
            (false, None) => None,
            (_, asked) => Some(seconds("timeout_seconds", asked, TIME, (1, LONGEST))?),
        };
        let wait = seconds("wait_seconds", self.wait_seconds, WAIT, (0, LONGEST_WAIT))?;
        let request = CommandRequest {
            argv: Some(["bash", "-c", &self.command].map(str::to_owned).to_vec()),
            cwd: self.cwd,
            env: environment(self.env),
            user: self.user,
            timeout_seconds,
            stdin: Some(self.stdin.unwrap_or_default()),
            detach: true,
            ..CommandRequest::default()
        };
        Ok(Asked { request, wait: waits.then_some(wait) })
    }
}

impl RunCode {
    /// The command in words of the agent.
    ///
    /// # Errors
    /// What is out of range.
    pub fn asked(self) -> Result<Asked, String> {
        let program: &[&str] = match self.language {
            Language::Python => &["python3", "-c", PYTHON],
            Language::Javascript => &["node", "-"],
            Language::Bash => &["bash", "-c", BASH],
        };
        let request = CommandRequest {
            argv: Some(program.iter().copied().map(str::to_owned).collect()),
            cwd: self.cwd,
            env: environment(self.env),
            user: self.user,
            timeout_seconds: Some(seconds("timeout_seconds", self.timeout_seconds, TIME, (1, LONGEST))?),
            stdin: Some(self.code),
            detach: true,
            ..CommandRequest::default()
        };
        let wait = seconds("wait_seconds", self.wait_seconds, WAIT, (0, LONGEST_WAIT))?;
        Ok(Asked { request, wait: Some(wait) })
    }
}

/// Output to read.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadOutput {
    /// The sandbox's id.
    pub sandbox_id: String,
    /// The pid of the process, as `sandbox_run_command` answered it.
    #[schemars(example = 214)]
    pub pid: i32,
    /// Where to begin, in bytes since its start: the `next_offset` of the answer before, or where a `left_out` begins. Default 0.
    pub offset: Option<u64>,
    /// Instead of from an offset on, the last so many bytes of what there is, up to 24576.
    #[schemars(example = 4000)]
    pub tail_bytes: Option<u64>,
    /// Seconds to wait for more where there is nothing yet, up to 60: the answer comes with the first output. Default 0.
    #[schemars(example = 30)]
    pub wait_seconds: Option<u64>,
}

impl ReadOutput {
    /// What is told of it, and for how many seconds that is waited for.
    ///
    /// # Errors
    /// What is out of range, or does not go together.
    pub fn asked(&self) -> Result<(Excerpt, u64), String> {
        let wait = seconds("wait_seconds", self.wait_seconds, 0, (0, LONGEST_LOOK))?;
        match (self.tail_bytes, self.offset) {
            (Some(_), Some(_)) => Err("tail_bytes and offset do not go together".to_owned()),
            (Some(bytes), None) => match usize::try_from(bytes) {
                Ok(most @ 1..=OUTPUT) => Ok((Excerpt::last(most, 0), wait)),
                _ => Err(format!("tail_bytes must be from 1 to {OUTPUT}")),
            },
            (None, offset) => Ok((Excerpt::first(OUTPUT, offset.unwrap_or(0)), wait)),
        }
    }
}

/// A process of a sandbox.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Signal {
    /// The sandbox's id.
    pub sandbox_id: String,
    /// The pid of the process.
    pub pid: i32,
    /// `SIGTERM` (the default), `SIGINT`, `SIGKILL`, or another name.
    #[schemars(example = &"SIGTERM")]
    pub signal: Option<String>,
}

/// Input for a process.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The sandbox's id.
    pub sandbox_id: String,
    /// The pid of the process.
    pub pid: i32,
    /// What it reads, as it is: a line ends with a newline.
    #[schemars(example = &"yes\n")]
    pub input: String,
    /// Whether nothing follows: the input ends. Default false.
    pub end: Option<bool>,
}

/// What a command's end is told as.
pub fn ended(pid: Option<i32>, exit: &crate::agent::runtime::Exit) -> Value {
    let mut told = json!({"pid": pid, "exit_code": exit.code});
    if let Some(signal) = &exit.signal {
        told["signal"] = json!(signal);
    }
    if exit.timed_out {
        told["timed_out"] = json!("it was ended: raise timeout_seconds, or run it in the background");
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(more: &[(&str, Value)]) -> Result<Asked, String> {
        let mut run = json!({"sandbox_id": "s", "command": "true"});
        for (name, value) in more {
            run[*name] = value.clone();
        }
        serde_json::from_value::<Run>(run).unwrap().asked()
    }

    #[test]
    fn a_command_is_waited_for_and_ends() {
        let plain = run(&[]).unwrap();
        assert_eq!((plain.wait, plain.request.timeout_seconds), (Some(WAIT), Some(TIME)));
        for (name, least, most) in [("timeout_seconds", 1, LONGEST), ("wait_seconds", 0, LONGEST_WAIT)] {
            for fine in [least, most] {
                assert!(run(&[(name, json!(fine))]).is_ok(), "{name} {fine}");
            }
            assert!(run(&[(name, json!(most + 1))]).unwrap_err().contains(name));
        }
        assert!(run(&[("timeout_seconds", json!(0))]).is_err());
        let server = run(&[("background", json!(true))]).unwrap();
        assert_eq!((server.wait, server.request.timeout_seconds), (None, None));
        let bounded = run(&[("background", json!(true)), ("timeout_seconds", json!(60))]).unwrap();
        assert_eq!(bounded.request.timeout_seconds, Some(60));
    }

    #[test]
    fn python_is_heard_at_once_unless_somebody_says_otherwise() {
        assert_eq!(run(&[]).unwrap().request.env["PYTHONUNBUFFERED"], "1");
        let own = run(&[("env", json!({"PYTHONUNBUFFERED": ""}))]).unwrap();
        assert_eq!(own.request.env["PYTHONUNBUFFERED"], "");
    }

    #[test]
    fn code_is_read_by_its_language_alone() {
        for (language, program) in [("python", "python3"), ("javascript", "node"), ("bash", "bash")] {
            let asked = json!({"sandbox_id": "s", "code": "1", "language": language});
            let asked = serde_json::from_value::<RunCode>(asked).unwrap().asked().unwrap();
            assert_eq!(asked.request.argv.unwrap()[0], program);
            assert_eq!(asked.request.stdin.as_deref(), Some("1"));
        }
        assert!(
            serde_json::from_value::<RunCode>(json!({"sandbox_id": "s", "code": "1", "language": "perl"})).is_err()
        );
    }

    #[test]
    fn output_is_read_from_an_offset_on_or_from_its_end() {
        let read = |more: Value| {
            let mut asked = json!({"sandbox_id": "s", "pid": 1});
            asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value::<ReadOutput>(asked).unwrap().asked()
        };
        assert_eq!(read(json!({"offset": 7})).unwrap().0.end(), 7);
        for fine in [json!({"tail_bytes": 1}), json!({"tail_bytes": OUTPUT}), json!({"wait_seconds": LONGEST_LOOK})] {
            assert!(read(fine.clone()).is_ok(), "{fine}");
        }
        for wrong in [
            json!({"tail_bytes": 0}),
            json!({"tail_bytes": OUTPUT + 1}),
            json!({"wait_seconds": LONGEST_LOOK + 1}),
            json!({"tail_bytes": 1, "offset": 0}),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
