//! The progress line: one line that changes on a terminal, one line for each step elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use berth_client::{ProjectClient, Vm};
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
