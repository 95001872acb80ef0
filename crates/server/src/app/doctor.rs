//! `berth doctor`: what this machine can do, what is missing, and what to type.

use std::fmt;
use std::path::PathBuf;

use berth_qemu::{confinement, host};

use crate::clock::Clock;
use crate::config::{Config, Demand};
use crate::engine::Finding;
use crate::services::sandbox::engine::qemu::QemuSandboxes;
use crate::services::vm::engine::qemu::QemuEngine;

/// The findings.
pub struct Report {
    /// Whether this machine can run VMs and sandboxes.
    pub ok: bool,
    lines: Vec<Finding>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{} {:<14} {}", if line.good { "ok  " } else { "MISS" }, line.what, line.text)?;
        }
        let verdict = if self.ok { "Machines can be run here." } else { "Something is missing that machines need." };
        write!(f, "{verdict}")
    }
}

/// Examines this machine.
pub async fn doctor(config: &Config) -> Report {
    let engine = QemuEngine::open(&config.data_dir, &config.vm, config.machines, config.accel);
    let mut lines = engine.findings().await;
    lines.extend(QemuSandboxes::open(config, Clock::default()).findings());
    lines.extend(confined(config).await);
    lines.extend(["espeak-ng", "ffmpeg"].map(|name| speaks(name, host::find(name))));
    lines.push(data_dir(config));
    lines.push(Finding { good: true, what: "sign-up".into(), text: config.sign_up().describe().into() });
    Report { ok: lines.iter().all(|l| l.good), lines }
}

/// How machines are confined here: what holds, and a line for each part that does not. It is wrong only where the
/// operator demands it.
async fn confined(config: &Config) -> Vec<Finding> {
    let demanded = config.machines.confinement == Demand::Required;
    let _ = std::fs::create_dir_all(&config.data_dir);
    let found = confinement::of_host(&config.data_dir).await;
    let has_user = config.machines.of_sandbox(0).user.is_some();
    let who = if has_user { "a user and group of its own" } else { "the service's user" };
    let parts = match found.missing() {
        [] => "with files, processes, network and names of its own, within limits",
        _ => "without what is missing below",
    };
    let text = format!("each machine runs as {who}, {parts}, behind QEMU's filter of system calls");
    let whole = Finding { good: true, what: "confinement".into(), text };
    let missing = found.missing().iter().map(|missing| Finding {
        good: !demanded,
        what: "not confined".into(),
        text: format!("machines run without {missing}"),
    });
    std::iter::once(whole).chain(missing).collect()
}

/// A program that speech needs. Machines run without it.
fn speaks(name: &str, path: Option<PathBuf>) -> Finding {
    let missing = || "none, so that nothing can be spoken here; type: sudo apt install espeak-ng ffmpeg".to_owned();
    Finding { good: true, what: name.into(), text: path.map_or_else(missing, |path| path.display().to_string()) }
}

fn data_dir(config: &Config) -> Finding {
    let dir = &config.data_dir;
    let writable = std::fs::create_dir_all(dir).and_then(|()| tempfile::tempfile_in(dir)).is_ok();
    let text = if writable {
        dir.display().to_string()
    } else {
        format!("{} cannot be written; set BERTH_DATA_DIR to a folder of yours", dir.display())
    };
    Finding { good: writable, what: "data folder".into(), text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_cannot_speak_is_fit() {
        let missing = speaks("espeak-ng", None);
        assert!(missing.good && missing.text.contains("sudo apt install espeak-ng ffmpeg"), "{}", missing.text);
        let found = speaks("ffmpeg", Some("/usr/bin/ffmpeg".into()));
        assert_eq!((found.good, found.text.as_str()), (true, "/usr/bin/ffmpeg"));
    }
}
