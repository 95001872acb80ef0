//! Commands: what runs in a sandbox, and what it said.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::agent::runtime::CommandRequest;

/// Seconds a command may run where nobody says: clients give up soon after.
pub const TIME: u64 = 120;
/// Longest that a caller may wait for a command, in seconds. What runs longer runs in the background.
pub const LONGEST: u64 = 3_600;
/// Most bytes of output that one answer tells: some six thousand tokens.
pub const OUTPUT: usize = 24 * 1024;

/// Has a shell's standard input written to a file and runs that, so that the code may be long and read nothing of itself.
const KEPT: &str = "f=$(mktemp) && cat >\"$f\" && exec \"$@\" \"$f\" </dev/null";

/// A command to run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The sandbox's id.
    pub sandbox_id: String,
    /// What bash runs.
    #[schemars(example = &"pip install --quiet requests && python3 main.py")]
    pub command: String,
    /// Where it runs. Default the user's home, `/home/user`.
    #[schemars(example = &"/home/user/project")]
    pub cwd: Option<String>,
    /// Variables for it alone.
    pub env: Option<BTreeMap<String, String>>,
    /// What it reads.
    pub stdin: Option<String>,
    /// The account that runs it: `user` (the default) or `root`.
    #[schemars(example = &"root")]
    pub user: Option<String>,
    /// Seconds after which it is ended, 1 to 3600. Default 120. In the background it is ended only where this is given.
    #[schemars(example = 300)]
    pub timeout_seconds: Option<u64>,
    /// Whether it goes on by itself, as servers do: the answer is its number at once, and `sandbox_read_output` tells what it
    /// says. Default false.
    pub background: Option<bool>,
}

/// Languages of code.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// Python 3.
    #[default]
    Python,
    /// JavaScript, by Node.js, where the template has it.
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
    /// Where it runs. Default the user's home, `/home/user`.
    pub cwd: Option<String>,
    /// Seconds after which it is ended, 1 to 3600. Default 120.
    pub timeout_seconds: Option<u64>,
}

/// A command, as the agent is asked for it.
#[derive(Debug)]
pub struct Asked {
    /// The body.
    pub request: CommandRequest,
    /// Whether its end is waited for.
    pub waits: bool,
}

/// How long a command may run whose end is waited for.
///
/// # Errors
/// It is out of range.
fn limit(asked: Option<u64>) -> Result<u64, String> {
    match asked.unwrap_or(TIME) {
        seconds @ 1..=LONGEST => Ok(seconds),
        _ => Err(format!("timeout_seconds must be from 1 to {LONGEST}. What runs longer: background")),
    }
}

impl Run {
    /// The command in words of the agent.
    ///
    /// # Errors
    /// What is out of range.
    pub fn asked(self) -> Result<Asked, String> {
        let waits = self.background != Some(true);
        let timeout_seconds = if waits { Some(limit(self.timeout_seconds)?) } else { self.timeout_seconds };
        let request = CommandRequest {
            argv: Some(["bash", "-c", &self.command].map(str::to_owned).to_vec()),
            cwd: self.cwd,
            env: self.env.unwrap_or_default(),
            user: self.user,
            timeout_seconds,
            stdin: Some(self.stdin.unwrap_or_default()),
            detach: true,
            ..CommandRequest::default()
        };
        Ok(Asked { request, waits })
    }
}

impl RunCode {
    /// The command in words of the agent.
    ///
    /// # Errors
    /// What is out of range.
    pub fn asked(self) -> Result<Asked, String> {
        let program = match self.language {
            Language::Python => "python3",
            Language::Javascript => "node",
            Language::Bash => "bash",
        };
        let request = CommandRequest {
            argv: Some(["bash", "-c", KEPT, "code", program].map(str::to_owned).to_vec()),
            cwd: self.cwd,
            timeout_seconds: Some(limit(self.timeout_seconds)?),
            stdin: Some(self.code),
            detach: true,
            ..CommandRequest::default()
        };
        Ok(Asked { request, waits: true })
    }
}

/// Output to read.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadOutput {
    /// The sandbox's id.
    pub sandbox_id: String,
    /// The number of the process, as `sandbox_run_command` answered it.
    #[schemars(example = 214)]
    pub pid: i32,
    /// Where to begin, in bytes since its start: the `next_offset` of the answer before. Default 0.
    pub offset: Option<u64>,
    /// Seconds to wait for more where there is nothing yet, up to 60. Default 0.
    pub wait_seconds: Option<u64>,
}

/// A process of a sandbox.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Signal {
    /// The sandbox's id.
    pub sandbox_id: String,
    /// The number of the process.
    pub pid: i32,
    /// `SIGTERM` (the default), `SIGINT`, `SIGKILL`, or another name.
    #[schemars(example = &"SIGTERM")]
    pub signal: Option<String>,
}

/// Input for a process that runs in the background.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The sandbox's id.
    pub sandbox_id: String,
    /// The number of the process.
    pub pid: i32,
    /// What it reads, as it is: a line ends with a newline.
    #[schemars(example = &"yes\n")]
    pub input: String,
}

/// What a command's end is told as.
pub fn ended(pid: Option<i32>, exit: &crate::agent::runtime::Exit) -> Value {
    let mut told = json!({"pid": pid, "exit_code": exit.code, "timed_out": exit.timed_out});
    if let Some(signal) = &exit.signal {
        told["signal"] = json!(signal);
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(seconds: Option<u64>, background: bool) -> Result<Asked, String> {
        let mut run = json!({"sandbox_id": "s", "command": "true", "background": background});
        if let Some(seconds) = seconds {
            run["timeout_seconds"] = json!(seconds);
        }
        serde_json::from_value::<Run>(run).unwrap().asked()
    }

    #[test]
    fn what_is_waited_for_ends() {
        assert_eq!(run(None, false).unwrap().request.timeout_seconds, Some(TIME));
        assert_eq!(run(Some(LONGEST), false).unwrap().request.timeout_seconds, Some(LONGEST));
        for wrong in [0, LONGEST + 1] {
            assert!(run(Some(wrong), false).unwrap_err().contains("timeout_seconds"));
        }
        assert_eq!(run(None, true).unwrap().request.timeout_seconds, None);
    }

    #[test]
    fn code_is_read_by_its_language_alone() {
        for (language, program) in [("python", "python3"), ("javascript", "node"), ("bash", "bash")] {
            let asked = json!({"sandbox_id": "s", "code": "1", "language": language});
            let asked = serde_json::from_value::<RunCode>(asked).unwrap().asked().unwrap();
            assert_eq!(asked.request.argv.unwrap().last().unwrap(), program);
            assert_eq!(asked.request.stdin.as_deref(), Some("1"));
        }
        assert!(
            serde_json::from_value::<RunCode>(json!({"sandbox_id": "s", "code": "1", "language": "perl"})).is_err()
        );
    }
}
