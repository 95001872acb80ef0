//! `berth doctor`: what this machine can do, what is missing, and what to type.

use std::fmt;
use std::path::PathBuf;

use berth_qemu::host;

use crate::clock::Clock;
use crate::config::Config;
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
    let engine = QemuEngine::open(&config.data_dir, &config.vm, config.accel);
    let mut lines = engine.findings().await;
    lines.extend(QemuSandboxes::open(config, Clock::default()).findings());
    lines.extend(["espeak-ng", "ffmpeg"].map(|name| speaks(name, host::find(name))));
    lines.push(data_dir(config));
    lines.push(Finding { good: true, what: "sign-up".into(), text: config.sign_up().describe().into() });
    Report { ok: lines.iter().all(|l| l.good), lines }
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
