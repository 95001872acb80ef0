//! `berth doctor`: what this machine can do, what is missing, and what to type.

use std::fmt;

use crate::clock::Clock;
use crate::config::Config;
use crate::services::sandbox::engine::qemu::QemuSandboxes;
use crate::services::vm::engine::qemu::QemuEngine;

/// The findings.
pub struct Report {
    /// Whether machines can be run.
    pub ok: bool,
    lines: Vec<Finding>,
}

/// One finding.
pub struct Finding {
    /// Whether it is as it should be.
    pub good: bool,
    /// What was looked at.
    pub what: String,
    /// What was found, and what to type where it is missing.
    pub text: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{} {:<14} {}", if line.good { "ok  " } else { "MISS" }, line.what, line.text)?;
        }
        let verdict = if self.ok { "Machines can be run here." } else { "Something that machines need is missing." };
        write!(f, "{verdict}")
    }
}

/// Looks at this machine.
pub async fn doctor(config: &Config) -> Report {
    let engine = QemuEngine::open(&config.data_dir, &config.vm, config.accel);
    let mut lines = engine.findings().await;
    lines.extend(QemuSandboxes::open(config, Clock::default()).findings());
    lines.push(data_dir(config));
    Report { ok: lines.iter().all(|l| l.good), lines }
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
