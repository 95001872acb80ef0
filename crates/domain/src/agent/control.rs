//! What the host alone may ask, below `/control`. Bodies are JSON; an answer without a body is 204.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fields::{Parsed, text};

/// `POST /control/boot`: take this file system as the root. Answers [`Booted`]; once more changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// Its block device, such as `/dev/vda`; ext4.
    pub root: String,
    /// Who commands and files belong to, `user` unless said otherwise; made if the image has no such account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The workspace, an absolute path, the user's home unless said otherwise; made if it is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// Whether the file system is one that is being built: no account and no workspace is made in it.
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
    /// Its number.
    pub uid: u32,
    /// The workspace, an absolute path.
    pub workspace: String,
}

/// `PUT /control/identity`: become this sandbox. May come again, and must after a restore.
#[derive(Clone, Serialize, Deserialize)]
pub struct Identity {
    /// The sandbox's id.
    pub sandbox_id: String,
    /// What every runtime and tunnel request must bear from now on. Not empty.
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
    /// How the network is set up; none leaves only the loopback.
    #[serde(default)]
    pub network: Option<Network>,
    /// Whether user processes and the file system are let go at the end.
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
pub struct Network {
    /// Its hardware address, such as `52:54:00:12:34:56`; kept as it is without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Its IPv4 address, such as `10.0.2.15`.
    pub address: String,
    /// Bits of the network, 1 to 32.
    pub prefix: u8,
    /// Where the default route leads.
    pub gateway: String,
    /// The resolver.
    pub dns: String,
}

/// `POST /control/freeze`. Answers [`Frozen`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freeze {
    /// Whether user processes stop, too.
    #[serde(default)]
    pub processes: bool,
}

/// What a freeze came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frozen {
    /// Every user process stands still.
    pub processes: bool,
    /// How the root file system was made consistent.
    pub file_system: Stillness,
}

/// What keeps a file system consistent on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stillness {
    /// The kernel lets nobody write to it.
    Frozen,
    /// Everything is on the disk, and who could write stands still.
    Still,
    /// Everything written so far is on the disk; later writes are recovered by the journal.
    Synced,
}

/// The answer to `POST /control/unpack?path=/&keep&owner=app:app&mode=0755`, whose body is a tar archive.
///
/// It is unpacked as root beneath `path`, every link being resolved as if `/` were all there is, and with owners,
/// permissions, times, and the extended attributes `user.*` and `security.capability`. What would lie on another file
/// system, such as `/proc`, and devices and pipes are passed over.
///
/// Without `keep` it is a layer of an image: it takes the place of what is there, and `.wh.NAME` and `.wh..wh..opq`
/// take away. With `keep` it is a copy: directories that are there stay as they are, and are not replaced. `owner`
/// (`name[:group]` or numbers) and `mode` hold for everything, instead of what the archive says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unpacked {
    /// How many entries were unpacked.
    pub entries: u64,
    /// How many were passed over.
    pub skipped: u64,
}

/// `POST /control/pack`: answers a tar archive of what a copy takes. Its members are named after where they go,
/// relative to `/`, and keep owners, permissions, times, the extended attributes that [`Unpacked`] tells of, and that
/// several names are one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pack {
    /// Patterns of what is taken, from `/`. Of a directory it is the content.
    pub sources: Vec<String>,
    /// Where it goes, an absolute path.
    pub to: String,
    /// Whether that is a directory. A file goes there with its own name then, and else with that of `to`.
    pub into: bool,
}

/// `POST /control/run`: runs a program on a disk that is being built. Answers the events of a command; a client that
/// leaves ends it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Its whole environment, but for `PATH` and `HOME` where they are not in it.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Where it runs, an absolute path; made if it is not there.
    pub cwd: String,
    /// As whom, `name[:group]` or numbers; root without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Whether it has a network.
    pub network: bool,
    /// When to end it, in seconds.
    pub timeout_seconds: u64,
}

/// The answer to `GET /control/stat?path=/app`, links followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Whether a directory is there, and not something else.
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
