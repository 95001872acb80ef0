//! The sandbox of the programs that read strangers' texts: no network, no privileges, no files, bounded time and
//! memory, and nothing of the service's environment.

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;

use berth_domain::{Code, Error, Result};
use tokio::process::Command;

/// Where programs are looked for when the service has no `PATH`.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Bounds: seconds of CPU; 2 GiB of addresses, most of them libraries; no files, no core dumps. espeak-ng looks for
/// PulseAudio, whose file in memory would exceed the file limit and kill it; ignoring XFSZ turns that into an error.
const LIMITS: &str = "env --ignore-signal=XFSZ prlimit --cpu=60 --as=2147483648 --fsize=0 --core=0 --nofile=64";
/// The user nobody, without a way back.
const NOBODY: &str = "setpriv --no-new-privs --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all";

/// The words of a command line before the program's own.
#[derive(Clone, Debug)]
pub(super) struct Sandbox {
    words: Vec<String>,
    path: OsString,
}

impl Sandbox {
    /// The strictest sandbox that this machine allows.
    pub async fn strictest() -> Result<Self> {
        let root = rustix::process::geteuid().is_root();
        let path = std::env::var_os("PATH").unwrap_or_else(|| PATH.into());
        for words in candidates(root) {
            let sandbox = Self { words, path: path.clone() };
            if sandbox.works().await {
                return Ok(sandbox);
            }
        }
        Err(Error::new(
            Code::SpeechUnavailable,
            "This machine cannot confine the programs that speak. The operator types: apt-get install util-linux",
        ))
    }

    /// A program in the sandbox: killed when dropped, with pipes or nothing for files.
    pub fn command(&self, program: &Path) -> Command {
        let mut words = self.words.iter();
        let mut command = Command::new(words.next().map_or("env", String::as_str));
        command.args(words).arg(program).env_clear().current_dir("/").process_group(0).kill_on_drop(true);
        command.env("PATH", &self.path).env("HOME", "/").env("LANG", "C.UTF-8");
        // A server that does not exist: the library looks for none, starts none, and writes nothing to the home folder.
        command.env("PULSE_SERVER", "/nonexistent");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    async fn works(&self) -> bool {
        self.command(Path::new("true")).status().await.is_ok_and(|status| status.success())
    }
}

/// The sandboxes to try, the strictest first.
fn candidates(root: bool) -> Vec<Vec<String>> {
    let all = if root {
        vec![
            format!("unshare --net {LIMITS} {NOBODY} --bounding-set=-all"),
            format!("{LIMITS} {NOBODY} --bounding-set=-all"),
            format!("{LIMITS} {NOBODY}"),
        ]
    } else {
        // Where users may make namespaces, a namespace of their own has no network.
        vec![
            format!("unshare --user --net {LIMITS} setpriv --no-new-privs"),
            format!("{LIMITS} setpriv --no-new-privs"),
        ]
    };
    all.iter().map(|words| words.split_whitespace().map(str::to_owned).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn says(program: &str, argument: &str) -> String {
        let sandbox = Sandbox::strictest().await.unwrap();
        let output = sandbox.command(Path::new(program)).arg(argument).stdout(Stdio::piped()).output().await.unwrap();
        assert!(output.status.success(), "{program}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[tokio::test]
    async fn nothing_of_ours_is_inside() {
        let variables = says("env", "-0").await;
        let mut names: Vec<_> = variables.split('\0').filter_map(|line| line.split_once('=')).map(|(n, _)| n).collect();
        names.sort_unstable();
        assert_eq!(names, ["HOME", "LANG", "PATH", "PULSE_SERVER"]);
        let status = says("cat", "/proc/self/status").await;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(field("NoNewPrivs:"), ["1"]);
        assert_eq!(field("CapEff:"), ["0000000000000000"]);
        assert_ne!(field("Uid:")[0], "0");
        let limits = says("cat", "/proc/self/limits").await;
        for (what, most) in [("Max file size", "0"), ("Max cpu time", "60"), ("Max open files", "64")] {
            let line = limits.lines().find_map(|line| line.strip_prefix(what)).unwrap();
            assert_eq!(line.split_whitespace().next(), Some(most), "{what}");
        }
    }
}
