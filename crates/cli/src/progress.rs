//! The progress line: one line that changes on a terminal, one line for each step elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use berth_client::{ProjectClient, Sandbox, Vm};
use indicatif::{ProgressBar, ProgressStyle};

use crate::failure::Failure;

/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(250);

/// Pause between two equal lines, where output cannot change a line.
const AGAIN: Duration = Duration::from_secs(30);

/// A progress line on standard error.
pub struct Progress {
    bar: Option<ProgressBar>,
    told: Option<Told>,
}

impl Progress {
    /// An empty progress line; `quiet` never shows anything.
    pub fn new(quiet: bool) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed:.dim}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        let told = (!quiet && bar.is_none()).then(|| Told::new(Instant::now()));
        Self { bar, told }
    }

    /// One beside a meter, which shows the steps itself where a line can change.
    pub fn beside_meter(quiet: bool) -> Self {
        Self::new(quiet || std::io::stderr().is_terminal())
    }

    /// Shows a step.
    pub fn show(&mut self, text: String) {
        if let Some(bar) = &self.bar {
            bar.set_message(text);
        } else if let Some(line) = self.told.as_mut().and_then(|told| told.line(text, Instant::now())) {
            eprintln!("{line}");
        }
    }

    /// Removes the line.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

/// What was printed where no line can change: each step once, and again every half minute while it lasts.
struct Told {
    text: String,
    began: Instant,
    last: Instant,
}

impl Told {
    const fn new(now: Instant) -> Self {
        Self { text: String::new(), began: now, last: now }
    }

    /// The line to write, if there is one.
    fn line(&mut self, text: String, now: Instant) -> Option<String> {
        let is_new = self.text != text;
        if !is_new && now.duration_since(self.last) < AGAIN {
            return None;
        }
        (self.text, self.last) = (text, now);
        let seconds = now.duration_since(self.began).as_secs();
        Some(if is_new { self.text.clone() } else { format!("{}, {seconds} s so far", self.text) })
    }
}

/// Waits until a VM has a status, and shows the steps until then.
pub async fn wait(project: &ProjectClient, id: &str, status: &str, seconds: u64, quiet: bool) -> Result<Vm> {
    until(project, id, (status, false), seconds, quiet).await
}

/// Waits until a VM runs and its guest has booted, and shows the steps until then.
pub async fn wait_guest(project: &ProjectClient, id: &str, seconds: u64, quiet: bool) -> Result<Vm> {
    until(project, id, ("running", true), seconds, quiet).await
}

/// Waits until the worker has offered a VM's new SSH keys to its guest, if that has booted.
pub async fn wait_keys(project: &ProjectClient, id: &str, quiet: bool) -> Result<Vm> {
    const SECONDS: u64 = 60;
    let look = async || Ok(project.vm(id).await?);
    let stage = |vm: &Vm| {
        if vm.status != "running" || !vm.guest_ready || vm.ssh_keys_state != "pending" {
            return Ok(Stage::Over);
        }
        Ok(Stage::Underway {
            shown: format!("{}: giving its guest the keys", vm.name),
            late: format!("{name} has not got its keys after {SECONDS} s; see berth vm show {name}", name = vm.name),
        })
    };
    watch(Progress::new(quiet), Some(SECONDS), look().await?, stage, look).await
}

/// Waits until a VM has a status and, if wanted, its guest has booted.
async fn until(
    project: &ProjectClient,
    id: &str,
    (status, guest): (&str, bool),
    seconds: u64,
    quiet: bool,
) -> Result<Vm> {
    let look = async || match project.vm(id).await {
        Err(error) if status == "deleted" && error.status() == Some(404) => Ok(project.wait_vm(id, status, 1).await?),
        other => Ok(other?),
    };
    let stage = |vm: &Vm| {
        let there = vm.status == status && (vm.guest_ready || !guest);
        // A VM that is off stays off until a person asks for something else, so there is nothing to wait for.
        let is_off = ["stopped", "suspended", "failed", "deleted"].contains(&vm.status.as_str());
        // One that could not be suspended says why, and goes on.
        let is_back = (status, vm.status.as_str()) == ("suspended", "running") && vm.message.is_some();
        if there || is_off || is_back {
            return Ok(Stage::Over);
        }
        let name = &vm.name;
        Ok(if guest && vm.status == status {
            Stage::Underway {
                shown: format!("{name}: running (waiting for its guest)"),
                late: format!("{name} is still running, and its guest has not booted, after {seconds} s"),
            }
        } else {
            Stage::Underway {
                shown: step(name, &vm.status, vm.message.as_deref()),
                late: format!("{name} is still {} after {seconds} s", vm.status),
            }
        })
    };
    let vm = watch(Progress::new(quiet), Some(seconds), look().await?, stage, look).await?;
    if vm.status == status {
        return Ok(vm);
    }
    match (vm.status.as_str(), vm.message) {
        (_, Some(message)) => bail!("{} is {}: {message}", vm.name, vm.status),
        ("suspended", None) if status == "running" => {
            bail!("{name} is suspended. Resume it: berth vm resume {name}", name = vm.name)
        }
        ("stopped", None) if status == "running" => {
            bail!(
                "{name} is stopped and will not be {status} by itself. Start it: berth vm start {name}",
                name = vm.name
            )
        }
        (is, None) => bail!("{} is {is} and will not be {status} by itself", vm.name),
    }
}

/// The state of a thing to wait for.
pub enum Stage {
    /// There is nothing more to wait for.
    Over,
    /// It is on its way.
    Underway {
        /// The text of the progress line.
        shown: String,
        /// The message if the time is up.
        late: String,
    },
}

/// Looks at a thing repeatedly until it is over or the seconds are, and shows its state. Without `seconds` it waits as
/// long as the service goes on.
pub async fn watch<T>(
    mut progress: Progress,
    seconds: Option<u64>,
    mut thing: T,
    stage: impl Fn(&T) -> Result<Stage>,
    look: impl AsyncFn() -> Result<T>,
) -> Result<T> {
    let begun = Instant::now();
    loop {
        match stage(&thing)? {
            Stage::Over => break,
            Stage::Underway { late, .. } if seconds.is_some_and(|most| begun.elapsed().as_secs() >= most) => {
                return Err(Failure::late(late));
            }
            Stage::Underway { shown, .. } => progress.show(shown),
        }
        tokio::time::sleep(LOOK).await;
        thing = look().await?;
    }
    progress.finish();
    Ok(thing)
}

impl Stage {
    /// The stage of a thing in the making: over once it is ready, and an error if it failed.
    pub fn of_made(name: &str, status: &str, message: Option<&str>, seconds: u64) -> Result<Self> {
        match status {
            "ready" | "Ready" => Ok(Self::Over),
            "failed" | "Failed" => bail!("{name} failed: {}", message.unwrap_or_default()),
            _ => Ok(Self::Underway {
                shown: step(name, status, message),
                late: format!("{name} is still {status} after {seconds} s"),
            }),
        }
    }
}

/// The text for a thing on its way.
pub fn step(name: &str, status: &str, message: Option<&str>) -> String {
    let message = message.map(|message| format!(" ({message})")).unwrap_or_default();
    format!("{name}: {status}{message}")
}

/// Seconds that one request waits for a sandbox, before its step is shown again.
const TURN: u64 = 2;

/// Waits until a sandbox has a phase, and shows the steps until then.
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
        if sandbox.phase == phase || stays(&sandbox.phase, phase) {
            break sandbox;
        }
        if left.is_zero() {
            let text = format!("{} is still {} after {seconds} s", called(&sandbox), sandbox.phase);
            return Err(Failure::late(text));
        }
        progress.show(step(called(&sandbox), &sandbox.phase, sandbox.message.as_deref()));
    };
    progress.finish();
    if sandbox.phase == phase {
        return Ok(sandbox);
    }
    let name = called(&sandbox);
    match (sandbox.phase.as_str(), sandbox.message.as_deref()) {
        ("Paused", _) if phase != "Deleted" => {
            bail!("{name} is Paused and will not be {phase} by itself. Wake it: berth sandbox resume {name}")
        }
        (is, Some(message)) => bail!("{name} is {is}: {message}"),
        (is, None) => bail!("{name} is {is} and will not be {phase} by itself"),
    }
}

/// Whether a sandbox in a phase cannot reach the goal unless a person asks for something else.
fn stays(phase: &str, goal: &str) -> bool {
    match phase {
        "Failed" | "Paused" | "Deleted" => true,
        "Deleting" => goal != "Deleted",
        _ => false,
    }
}

/// Waits until a thing is gone. `look` returns its state, and a 404 once it is gone.
pub async fn wait_gone(
    name: &str,
    seconds: u64,
    quiet: bool,
    look: impl AsyncFn() -> berth_client::Result<String>,
) -> Result<()> {
    let look = async || match look().await {
        Err(error) if error.status() == Some(404) => Ok(None),
        found => Ok(Some(found?)),
    };
    let stage = |status: &Option<String>| {
        Ok(status.as_ref().map_or(Stage::Over, |status| Stage::Underway {
            shown: step(name, status, None),
            late: format!("{name} is still there after {seconds} s"),
        }))
    };
    watch(Progress::new(quiet), Some(seconds), look().await?, stage, look).await.map(drop)
}

/// A sandbox's name, or its id if it has none.
pub fn called(sandbox: &Sandbox) -> &str {
    sandbox.name.as_deref().unwrap_or(&sandbox.id)
}

/// Shows how many bytes went by: on a terminal, and nowhere else.
pub struct Meter(ProgressBar);

impl Meter {
    /// For so many bytes, if that is known.
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

    /// Adds bytes that went by.
    pub fn add(&self, bytes: usize) {
        self.0.inc(bytes as u64);
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_no_line_changes_a_step_is_told_once_and_then_every_half_minute() {
        let began = Instant::now();
        let mut told = Told::new(began);
        for (second, text, line) in [
            (0, "web: starting", Some("web: starting")),
            (1, "web: starting", None),
            (29, "web: starting", None),
            (30, "web: starting", Some("web: starting, 30 s so far")),
            (59, "web: starting", None),
            (60, "web: starting", Some("web: starting, 60 s so far")),
            (61, "web: running", Some("web: running")),
            (90, "web: running", None),
            (91, "web: running", Some("web: running, 91 s so far")),
        ] {
            let said = told.line(text.to_owned(), began + Duration::from_secs(second));
            assert_eq!(said.as_deref(), line, "{second}");
        }
    }
}
