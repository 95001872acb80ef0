//! Whether the host's processor can be used: decided by a boot that worked.
//!
//! `/dev/kvm` may be there, open, and make a virtual CPU, and still never boot an ordinary kernel (under
//! page-table virtualisation, for one). So a kernel is booted, once, and the answer is remembered for as
//! long as QEMU, the host's kernel and its processor stay the same.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::host::qemu_version;
use crate::machine::Accel;

/// How long the probe may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// The line the probe's initrd writes.
const LINE: &str = "BERTH-PROBE-OK";

/// What the operator asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// What works.
    Auto,
    /// The host's processor, whatever the probe would say.
    Kvm,
    /// Software.
    Tcg,
}

/// A kernel whose initrd knows the probe.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The kernel.
    pub kernel: PathBuf,
    /// Its initrd.
    pub initrd: PathBuf,
}

/// What was decided, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// How processors are made.
    pub accel: Accel,
    /// Why, as a sentence.
    pub reason: String,
    /// Whether it would be another one with a kernel to boot.
    pub provisional: bool,
}

#[derive(Serialize, Deserialize)]
struct Remembered {
    key: String,
    works: bool,
    reason: String,
}

fn decided(accel: Accel, reason: impl Into<String>) -> Decision {
    Decision { accel, reason: reason.into(), provisional: false }
}

/// Decides. Boots the probe at most once for each combination of QEMU, kernel and processor.
pub async fn decide(request: Request, probe: Option<&Probe>, cache: &Path, qemu: &Path) -> Decision {
    match request {
        Request::Kvm => return decided(Accel::Kvm, "the configuration says so"),
        Request::Tcg => return decided(Accel::Tcg, "the configuration says so"),
        Request::Auto => {}
    }
    if let Err(error) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        let hint = if error.kind() == std::io::ErrorKind::PermissionDenied {
            "; to use it, type: sudo usermod -aG kvm $USER, and sign in again"
        } else {
            ""
        };
        return decided(Accel::Tcg, format!("/dev/kvm cannot be opened ({error}){hint}"));
    }
    let key = key(qemu).await;
    if let Some(known) = recall(cache).filter(|known| known.key == key) {
        return decided(if known.works { Accel::Kvm } else { Accel::Tcg }, known.reason);
    }
    let Some(probe) = probe else {
        let reason = "/dev/kvm is there, but no kernel was booted under it yet";
        return Decision { provisional: true, ..decided(Accel::Tcg, reason) };
    };
    let works = boots(probe, qemu).await;
    let reason = if works {
        "a kernel was booted under /dev/kvm".to_owned()
    } else {
        format!("/dev/kvm is there, but a kernel did not boot under it within {} s", PATIENCE.as_secs())
    };
    let known = Remembered { key, works, reason: reason.clone() };
    // An answer that cannot be kept is found out again.
    let _ = std::fs::write(cache, serde_json::to_vec(&known).unwrap_or_default());
    decided(if works { Accel::Kvm } else { Accel::Tcg }, reason)
}

fn recall(cache: &Path) -> Option<Remembered> {
    serde_json::from_slice(&std::fs::read(cache).ok()?).ok()
}

async fn key(qemu: &Path) -> String {
    let version = qemu_version(qemu).await.unwrap_or_default();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = info.lines().find(|line| line.starts_with("model name")).unwrap_or_default();
    format!("{version} | {} | {cpu}", kernel.trim())
}

/// The host's processor: its model and what it can do.
pub fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let lines = info.lines().filter(|line| line.starts_with("model name") || line.starts_with("flags"));
    let mut lines: Vec<_> = lines.collect();
    lines.dedup();
    lines.truncate(2);
    lines.join(" ")
}

async fn boots(probe: &Probe, qemu: &Path) -> bool {
    let mut command = Command::new(qemu);
    command.args(
        "-nodefaults -no-user-config -display none -M q35 -accel kvm -cpu host -m 256 -serial stdio -no-reboot"
            .split(' '),
    );
    command.arg("-kernel").arg(&probe.kernel).arg("-initrd").arg(&probe.initrd);
    command.args(["-append", "console=ttyS0 berth.probe"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let Ok(mut child) = command.spawn() else {
        return false;
    };
    let Some(out) = child.stdout.take() else {
        return false;
    };
    let answer = async {
        let mut lines = BufReader::new(out).split(b'\n');
        while let Ok(Some(line)) = lines.next_segment().await {
            if String::from_utf8_lossy(&line).contains(LINE) {
                return true;
            }
        }
        false
    };
    let works = tokio::time::timeout(PATIENCE, answer).await.unwrap_or(false);
    // Whether it worked or not, the probe has served.
    let _ = child.kill().await;
    works
}
