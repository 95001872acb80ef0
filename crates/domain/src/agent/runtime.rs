//! What users ask, below `/runtime`: bodies of requests and answers, and the data of events.
//!
//! Events are server-sent: `event: NAME`, `data: JSON`, an empty line. The names are [`OutputEvent::name`]s,
//! `change` and `overflow`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum EntryType {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, a pipe or a socket.
    Other,
}

/// One thing in the file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Entry {
    /// The last part of its path; `.` for the workspace itself.
    pub name: String,
    /// Its path from the workspace's root; with `root` absolute.
    pub path: String,
    /// What it is.
    #[serde(rename = "type")]
    pub kind: EntryType,
    /// Its length in bytes.
    pub size: u64,
    /// Its permissions in octal, four digits, such as `0644`.
    pub mode: String,
    /// Its owner's name, or number where it has none.
    pub owner: String,
    /// When its content changed last, RFC 3339 in UTC.
    pub modified_at: String,
    /// Where a link leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Its group's name, or number where it has none; with `details`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// What a link leads to in the end; with `details`, and not where it leads nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved: Option<Resolved>,
    /// Its extended attributes of the namespace `user.`, without that prefix; with `details`. Those that are text, at most
    /// 64 of together 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<BTreeMap<String, String>>,
}

/// What a link leads to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Resolved {
    /// Its absolute path, without links.
    pub path: String,
    /// What it is.
    #[serde(rename = "type")]
    pub kind: EntryType,
    /// Its permissions in octal, four digits.
    pub mode: String,
}

/// The answer of `files/list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Listing {
    /// The entries, each directory's sorted by name and followed by what it holds.
    pub data: Vec<Entry>,
    /// Whether there were more than the limit.
    pub truncated: bool,
}

/// The answer of `files/exists`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Exists {
    /// Whether it does.
    pub exists: bool,
}

/// The body of `files/mkdir`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Mkdir {
    /// What to make.
    pub path: String,
    /// Whether to make missing parents, and to be content with what is there.
    #[serde(default)]
    pub parents: bool,
}

/// The body of `files/remove`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Remove {
    /// What to remove.
    pub path: String,
    /// Whether to remove what it holds, too.
    #[serde(default)]
    pub recursive: bool,
}

/// The body of `files/move`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Move {
    /// What to move.
    pub from: String,
    /// Where to.
    pub to: String,
    /// Whether to replace what is there.
    #[serde(default)]
    pub overwrite: bool,
}

/// The body of `files/archive`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Archive {
    /// What to pack; a directory's entries are named from it.
    pub path: String,
}

/// The answer of `files/extract`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Extracted {
    /// How many entries were unpacked.
    pub entries: u64,
}

/// Data of an event named `change`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Change {
    /// What happened.
    pub kind: ChangeKind,
    /// To what, from the workspace's root; with `root` absolute.
    pub path: String,
    /// Its new path, if it was renamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Whether only its mode, its owner, its times or its attributes changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub metadata: bool,
}

/// The body of `files/watches`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WatchRequest {
    /// What to watch.
    pub path: String,
    /// Whether to watch everything below it, too.
    #[serde(default)]
    pub recursive: bool,
}

/// The answer of `files/watches`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WatchCreated {
    /// Its id.
    pub id: String,
}

/// The answer of `files/watches/{id}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Changes {
    /// What happened since the last such answer, the oldest first.
    pub data: Vec<Change>,
    /// Whether some of it is missing: look again.
    pub overflow: bool,
}

/// What happened to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It came to be.
    Created,
    /// Its content or its metadata changed.
    Modified,
    /// It is gone.
    Removed,
    /// It has another path.
    Renamed,
}

/// The body of `commands` and `processes`. One of `cmd` and `argv` is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CommandRequest {
    /// What a shell runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cmd: Option<String>,
    /// A program and its arguments, run without a shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// Where it runs, from the workspace's root; with `root` from the machine's, and by default the account's home.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Variables on top of the sandbox's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// `user` or `root`; with `root=true` any account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// When to end it, 1 to 2,592,000 seconds; never without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    /// What it reads first. A command's input ends after that; a process's stays open for more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Whether a command goes on when its client goes away.
    #[serde(default)]
    pub detach: bool,
    /// Whether it waits for who reads its output, and none is lost: a command that is not detached always does. Its reader
    /// is a command's own stream, or one of `logs` with `hold`. One who is away for a minute is waited for no more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
    /// Gives it a terminal of this size, which is its input, its output and its errors. What it shows is in the log as
    /// output, and what is written to its input is typed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<PtySize>,
    /// A name of up to 256 bytes, by which it is found while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// The size of a terminal, in characters; also the body of `processes/{pid}/resize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PtySize {
    /// Columns, 1 to 10,000.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 10_000))]
    pub cols: u16,
    /// Rows, 1 to 10,000.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 10_000))]
    pub rows: u16,
}

/// The answer of `processes` and `processes/{pid}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Process {
    /// Its number, and its group's.
    pub pid: i32,
    /// What it runs; quoted for a shell where it was started by `argv`.
    pub cmd: String,
    /// Whether it runs.
    pub state: ProcessState,
    /// When it was started, RFC 3339 in UTC.
    pub started_at: String,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
    /// Its program and arguments, as they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// Where it was started, as it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Its tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Whether it has a terminal.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pty: bool,
    /// How many bytes it has written so far.
    #[serde(default)]
    pub output_bytes: u64,
    /// Its own variables, as they were asked for; with `env`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
}

/// A list of [`Process`]es, the newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Processes {
    /// They.
    pub data: Vec<Process>,
}

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// It does.
    Running,
    /// It ended.
    Exited,
}

/// How a process ended: a code or a signal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Exit {
    /// What it returned.
    pub code: Option<i32>,
    /// The signal that ended it, such as `SIGTERM`.
    pub signal: Option<String>,
    /// Whether its time was up.
    pub timed_out: bool,
}

/// The body of `processes/{pid}/signal`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SignalRequest {
    /// Its name, such as `SIGINT`.
    pub signal: String,
}

/// An event of a command's or a process's stream.
///
/// A process has one log, and `offset` counts its bytes since the process was started: of both streams together, in
/// the order of their events, each event's bytes being contiguous. An event is a line without its newline, or with
/// `partial` a piece of one: the line is longer than 64 KiB, the other stream spoke in the midst of it, or what there is
/// ended without a newline. A line that its program has not ended yet is held back; [`super::output`] has it at once. So
/// reading goes on at `offset` plus the length of the bytes, plus one for the newline unless the event is `partial`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputEvent {
    /// `start`, first in a command's stream.
    Start {
        /// The process.
        pid: i32,
    },
    /// `truncated`, where older output is gone.
    Truncated {
        /// The offset that follows.
        from: u64,
    },
    /// `stdout` or `stderr`.
    Output {
        /// Whether it is `stderr`.
        stderr: bool,
        /// Its bytes.
        output: Output,
    },
    /// `exit`, last.
    Exit(Exit),
    /// `error`, last.
    Error {
        /// One of [`crate::agent::error::code`].
        code: String,
        /// What to do about it.
        message: String,
    },
}

/// Data of `stdout` and `stderr`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Output {
    /// Its bytes, if they are UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
    /// Its bytes in base64, if they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
    /// Where its first byte stands in the log.
    pub offset: u64,
    /// No newline follows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

impl OutputEvent {
    /// The event's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Start { .. } => "start",
            Self::Truncated { .. } => "truncated",
            Self::Output { stderr: false, .. } => "stdout",
            Self::Output { stderr: true, .. } => "stderr",
            Self::Exit(_) => "exit",
            Self::Error { .. } => "error",
        }
    }

    /// Whether nothing follows.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Exit(_) | Self::Error { .. })
    }

    /// The event with a name, from its data.
    ///
    /// # Errors
    /// An unknown name, or data that is not its.
    pub fn parse(name: &str, data: &str) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Start {
            pid: i32,
        }
        #[derive(Deserialize)]
        struct Truncated {
            from: u64,
        }
        #[derive(Deserialize)]
        struct Failure {
            code: String,
            message: String,
        }
        Ok(match name {
            "start" => Self::Start { pid: serde_json::from_str::<Start>(data)?.pid },
            "truncated" => Self::Truncated { from: serde_json::from_str::<Truncated>(data)?.from },
            "stdout" | "stderr" => Self::Output { stderr: name == "stderr", output: serde_json::from_str(data)? },
            "exit" => Self::Exit(serde_json::from_str(data)?),
            "error" => {
                let Failure { code, message } = serde_json::from_str(data)?;
                Self::Error { code, message }
            }
            other => {
                let text = format!("unknown event {other:?}");
                return Err(<serde_json::Error as serde::de::Error>::custom(text));
            }
        })
    }

    /// The event's data.
    pub fn data(&self) -> String {
        let json = match self {
            Self::Start { pid } => serde_json::to_string(&serde_json::json!({ "pid": pid })),
            Self::Truncated { from } => serde_json::to_string(&serde_json::json!({ "from": from })),
            Self::Output { output, .. } => serde_json::to_string(output),
            Self::Exit(exit) => serde_json::to_string(exit),
            Self::Error { code, message } => {
                serde_json::to_string(&serde_json::json!({ "code": code, "message": message }))
            }
        };
        json.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event() -> impl Strategy<Value = OutputEvent> {
        let output = (any::<Option<String>>(), any::<u64>(), any::<bool>(), any::<bool>());
        prop_oneof![
            any::<i32>().prop_map(|pid| OutputEvent::Start { pid }),
            any::<u64>().prop_map(|from| OutputEvent::Truncated { from }),
            output.prop_map(|(line, offset, partial, stderr)| {
                OutputEvent::Output { stderr, output: Output { line, base64: None, offset, partial } }
            }),
            (any::<Option<i32>>(), any::<Option<String>>(), any::<bool>())
                .prop_map(|(code, signal, timed_out)| OutputEvent::Exit(Exit { code, signal, timed_out })),
            (any::<String>(), any::<String>()).prop_map(|(code, message)| OutputEvent::Error { code, message }),
        ]
    }

    proptest! {
        #[test]
        fn events_come_out_as_they_went_in(event in event()) {
            prop_assert!(!event.data().contains('\n'), "one line of data");
            prop_assert_eq!(OutputEvent::parse(event.name(), &event.data()).unwrap(), event);
        }
    }

    #[test]
    fn data_is_what_the_contract_shows() {
        let exit = OutputEvent::Exit(Exit { code: None, signal: Some("SIGTERM".into()), timed_out: true });
        assert_eq!(exit.data(), r#"{"code":null,"signal":"SIGTERM","timed_out":true}"#);
        let output = Output { line: Some("a".into()), offset: 3, ..Output::default() };
        assert_eq!(OutputEvent::Output { stderr: true, output }.data(), r#"{"line":"a","offset":3}"#);
        assert!(OutputEvent::parse("other", "{}").is_err());
    }
}
