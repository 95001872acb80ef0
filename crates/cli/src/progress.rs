//! The progress line: one line that changes on a terminal, one line for each step elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use berth_client::{ProjectClient, Sandbox, Vm};
use indicatif::{ProgressBar, ProgressStyle};

use crate::failure::Failure;

/// Between two looks at what is waited for.
const LOOK: Duration = Duration::from_millis(250);

/// A progress line on standard error.
pub struct Progress {
    bar: Option<ProgressBar>,
    shown: String,
}

impl Progress {
    /// An empty one; `quiet` never shows anything.
    pub fn new(quiet: bool) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed:.dim}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Self { bar, shown: if quiet { "quiet".into() } else { String::new() } }
    }

    /// Shows a step.
    pub fn show(&mut self, text: String) {
        match &self.bar {
            Some(bar) => bar.set_message(text),
            None if self.shown != "quiet" && self.shown != text => {
                eprintln!("{text}");
                self.shown = text;
            }
            None => {}
        }
    }

    /// Takes the line away.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Waits until a VM has a status and shows the steps on the way.
pub async fn wait(project: &ProjectClient, id: &str, status: &str, seconds: u64, quiet: bool) -> Result<Vm> {
    let mut progress = Progress::new(quiet);
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let vm = loop {
        let vm = match project.vm(id).await {
            Err(error) if status == "deleted" && error.status() == Some(404) => project.wait_vm(id, status, 1).await?,
            other => other?,
        };
        if vm.status == status || vm.status == "failed" || vm.status == "deleted" {
            break vm;
        }
        if Instant::now() > deadline {
            return Err(Failure::late(format!("{} is still {} after {seconds} s", vm.name, vm.status)));
        }
        progress.show(step(&vm));
        tokio::time::sleep(LOOK).await;
    };
    progress.finish();
    if vm.status == status {
        return Ok(vm);
    }
    bail!("{} is {}: {}", vm.name, vm.status, vm.message.unwrap_or_default())
}

fn step(vm: &Vm) -> String {
    match &vm.message {
        Some(message) => format!("{}: {} ({message})", vm.name, vm.status),
        None => format!("{}: {}", vm.name, vm.status),
    }
}

/// How long one request waits for a sandbox, in seconds; then its step is shown again.
const TURN: u64 = 2;

/// Waits until a sandbox has a phase and shows the steps on the way.
pub async fn wait_sandbox(
    project: &ProjectClient,
    id: &str,
    phase: &str,
    seconds: u64,
    quiet: bool,
) -> Result<Sandbox> {
    let mut progress = Progress::new(quiet);
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let sandbox = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let sandbox = project.wait_sandbox(id, phase, left.as_secs().clamp(1, TURN)).await?;
        if sandbox.phase == phase || ["Failed", "Deleting"].contains(&sandbox.phase.as_str()) {
            break sandbox;
        }
        if left.is_zero() {
            let text = format!("{} is still {} after {seconds} s", called(&sandbox), sandbox.phase);
            return Err(Failure::late(text));
        }
        progress.show(match &sandbox.message {
            Some(message) => format!("{}: {} ({message})", called(&sandbox), sandbox.phase),
            None => format!("{}: {}", called(&sandbox), sandbox.phase),
        });
    };
    progress.finish();
    if sandbox.phase == phase {
        return Ok(sandbox);
    }
    bail!("{} is {}: {}", called(&sandbox), sandbox.phase, sandbox.message.as_deref().unwrap_or_default())
}

/// What a sandbox is called: its name, or its id if it has none.
pub fn called(sandbox: &Sandbox) -> &str {
    sandbox.name.as_deref().unwrap_or(&sandbox.id)
}

/// How many bytes went by: a line on a terminal, and nothing elsewhere.
pub struct Meter(ProgressBar);

impl Meter {
    /// Of so many bytes, if that is known.
    pub fn new(name: &str, bytes: Option<u64>) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let (bar, template) = match bytes {
            Some(bytes) => (ProgressBar::new(bytes), "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}"),
            None => (ProgressBar::new_spinner(), "{spinner} {msg} {bytes} {bytes_per_sec}"),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(name.to_owned());
        Self(bar)
    }

    /// More went by.
    pub fn add(&self, bytes: usize) {
        self.0.inc(bytes as u64);
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
