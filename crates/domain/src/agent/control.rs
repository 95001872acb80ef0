//! What only the host may ask of the agent, below `/control`. Bodies are JSON; an answer without a body is 204.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fields::{Parsed, text};

/// `POST /control/boot`: take this file system as the root. The agent answers [`Booted`]; asking again changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// Its block device, such as `/dev/vda`; ext4.
    pub root: String,
    /// The account that owns commands and files, `user` by default; the agent makes it if the image lacks it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The workspace, an absolute path, by default the user's home; the agent makes it if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// Whether a build is making the file system: then the agent makes no account and no workspace in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bare: bool,
}

/// Longest name of an account, in bytes, as `useradd` has it.
pub const LONGEST_ACCOUNT: usize = 32;

/// Whether commands can run as an account of this name: `a-z`, `0-9`, `-` and `_`, not a digit or `-` first.
pub fn is_account(name: &str) -> bool {
    let fine = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
    let first = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b == b'_');
    first && name.len() <= LONGEST_ACCOUNT && name.bytes().all(fine)
}

/// Rule: an absolute path.
pub fn absolute(value: &Value) -> Parsed<String> {
    match text(value)? {
        path if path.starts_with('/') => Ok(path.to_owned()),
        _ => Err("must be an absolute path".to_owned()),
    }
}

/// The answer to [`Boot`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Booted {
    /// The account's name.
    pub user: String,
    /// Its user id.
    pub uid: u32,
    /// The workspace, an absolute path.
    pub workspace: String,
}

/// `PUT /control/identity`: become this sandbox. The host may send it again, and must after a restore.
#[derive(Clone, Serialize, Deserialize)]
pub struct Identity {
    /// The sandbox's id.
    pub sandbox_id: String,
    /// The token that every runtime and tunnel request must bear from now on. Not empty.
    pub token: String,
    /// The host's name.
    pub hostname: String,
    /// 32 hexadecimal digits.
    pub machine_id: String,
    /// Random bytes for the kernel's pool, base64; 16 to 2,048 bytes.
    pub entropy: String,
    /// The time, in microseconds since 1970.
    pub unix_micros: i64,
    /// Environment of every command.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The network; without it there is only the loopback.
    #[serde(default)]
    pub network: Option<Interface>,
    /// Whether to thaw user processes and the file system at the end.
    #[serde(default)]
    pub thaw: bool,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("sandbox_id", &self.sandbox_id).finish_non_exhaustive()
    }
}

/// The first network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Its hardware address, such as `52:54:00:12:34:56`; unchanged if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Its IPv4 address, such as `10.0.2.15`.
    pub address: String,
    /// Length of the network's prefix in bits, 1 to 32.
    pub prefix: u8,
    /// The router of the default route.
    pub gateway: String,
    /// The resolver.
    pub dns: String,
    /// The same in IPv6; without it the interface has none. An agent that does not know of it goes on with IPv4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Interface6>,
}

/// What the first network interface has of IPv6: this one address, at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface6 {
    /// Its address, such as `fd62:6572:7468::15`.
    pub address: String,
    /// Length of the link's prefix in bits, 1 to 128.
    pub prefix: u8,
    /// The router, which is on the link.
    pub gateway: String,
    /// Where the router leads, such as `fd00::/8`. There is no way to other addresses.
    pub to: String,
}

/// `POST /control/freeze`. Answers [`Frozen`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freeze {
    /// Whether to stop user processes, too.
    #[serde(default)]
    pub processes: bool,
}

/// The result of a freeze.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frozen {
    /// Whether every user process is stopped.
    pub processes: bool,
    /// How the agent made the root file system consistent.
    pub file_system: Stillness,
}

/// What keeps a file system consistent on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stillness {
    /// The kernel lets no process write to it.
    Frozen,
    /// Everything is on the disk, and every process that could write is stopped.
    Still,
    /// Everything written so far is on the disk; the journal recovers later writes.
    Synced,
}

/// The answer to `POST /control/unpack?path=/&keep&owner=app:app&mode=0755`, whose body is a tar archive.
///
/// The agent unpacks the archive as root beneath `path`. It resolves every link as if `/` were all there is, and sets
/// owners, permissions, times, and the extended attributes `user.*` and `security.capability`. It skips devices and
/// pipes, and entries that would lie on another file system, such as `/proc`.
///
/// Without `keep` the archive is a layer of an image: it replaces what is there, and `.wh.NAME` and `.wh..wh..opq`
/// remove. With `keep` it is a copy: existing directories stay as they are, and are not replaced. `owner`
/// (`name[:group]` or numbers) and `mode` apply to every entry, instead of the archive's values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unpacked {
    /// How many entries were unpacked.
    pub entries: u64,
    /// How many were skipped.
    pub skipped: u64,
}

/// `POST /control/pack`: answers a tar archive of the files that a copy takes. Its members have their destination as
/// their name, relative to `/`. They keep owners, permissions, times, the extended attributes named at [`Unpacked`],
/// and hard links.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pack {
    /// Patterns of the files to take, from `/`. Of a directory, the copy takes the content.
    pub sources: Vec<String>,
    /// The destination, an absolute path.
    pub to: String,
    /// Whether the destination is a directory. A file keeps its own name there, and else gets that of `to`.
    pub into: bool,
}

/// `POST /control/run`: runs a program on a disk that a build is making. The answer is the events of a command; a
/// client that leaves ends the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Its whole environment; the agent adds `PATH` and `HOME` if they are not in it.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Its working directory, an absolute path; the agent makes it if it is missing.
    pub cwd: String,
    /// Its user, `name[:group]` or numbers; by default root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Whether it has a network.
    pub network: bool,
    /// When to end it, in seconds.
    pub timeout_seconds: u64,
}

/// The answer to `GET /control/stat?path=/app`, which follows links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Whether it is a directory.
    pub directory: bool,
}

/// Most bytes of the body of [`Run`]: its environment and a script.
pub const MAX_RUN: usize = 1024 * 1024;

/// `GET /control/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Processor time since the machine started, without idling, in seconds.
    pub cpu_seconds: f64,
    /// Memory in use, in bytes.
    pub memory_bytes: u64,
    /// Memory there is, in bytes.
    pub memory_total_bytes: u64,
    /// The root file system's use, in bytes.
    pub disk_bytes: u64,
    /// The root file system's size, in bytes.
    pub disk_total_bytes: u64,
    /// Processes and threads of the user.
    pub processes: u64,
    /// Commands, processes and terminals that run.
    pub running: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_accounts_are_plain() {
        for fine in ["app", "_apt", "a-1", &"a".repeat(LONGEST_ACCOUNT)] {
            assert!(is_account(fine), "{fine}");
        }
        for bad in ["", "App", "1a", "-a", "a.b", &"a".repeat(LONGEST_ACCOUNT + 1)] {
            assert!(!is_account(bad), "{bad}");
        }
    }

    #[test]
    fn a_path_of_a_machine_is_absolute() {
        assert_eq!(absolute(&Value::from("/dev/vda")), Ok("/dev/vda".to_owned()));
        for bad in [Value::from("dev/vda"), Value::from(""), Value::from("/a\0"), Value::from(7)] {
            assert!(absolute(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_identity_says_nothing_of_its_secrets() {
        let text = r#"{"sandbox_id": "a", "token": "geheim", "hostname": "h", "machine_id": "m",
            "entropy": "geheim", "unix_micros": 0}"#;
        let identity: Identity = serde_json::from_str(text).unwrap();
        assert!(!format!("{identity:?}").contains("geheim"));
        assert!(!identity.thaw && identity.network.is_none() && identity.env.is_empty());
    }
}
