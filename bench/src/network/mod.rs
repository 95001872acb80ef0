//! The network of machines beside QEMU's own, and from machine to machine.
//!
//! Three real guests, equal in everything but their cards' networks, run in a namespace of the benchmark's own, whose
//! loopback has an address that stands for the outside. One has QEMU's `-netdev user`, two have a program each, started as
//! the host starts it, and a switch joins these two. They are measured in turns, a few seconds at a time.
//!
//! The guests are emulated, which costs more than everything else. It costs it in a thread of its own: QEMU's main thread
//! has the card and what is behind it, and nothing else to do here. So the network's CPU is that of the main thread, and of
//! the programs beside it.

pub mod bridge;
mod guest;
mod initrd;
mod inside;
mod joined;

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::process::Command;
use tokio::time::timeout;

use crate::process::median;
use crate::report::{Bound, Report};

pub use inside::{ARGUMENT, measure};

/// How long everything may take, and with a thousand machines on a bridge.
const PATIENCE: Duration = Duration::from_secs(175);
const PATIENCE_WITH_MANY: Duration = Duration::from_mins(10);

/// What was measured in the namespace.
#[derive(Debug, Serialize, Deserialize)]
struct Figures {
    out: Vec<Pair>,
    into: Vec<Pair>,
    between: Vec<Window>,
    machine: Memory,
    switch: Memory,
}

/// A turn of each.
#[derive(Debug, Serialize, Deserialize)]
struct Pair {
    ours: Window,
    theirs: Window,
}

/// What was carried in some time, and for how much CPU.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Window {
    megabytes: f64,
    seconds: f64,
    /// CPU seconds of the network.
    network: f64,
    /// Those of the network that are the programs', not QEMU's.
    programs: f64,
    /// CPU seconds of the guests.
    guests: f64,
}

/// Memory of a program, in MiB.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Memory {
    /// Before anything was measured.
    idle: f64,
    /// After it, once nothing had happened for a while.
    after: f64,
}

impl Window {
    /// MB a second.
    fn rate(&self) -> f64 {
        self.megabytes / self.seconds
    }

    /// CPU seconds of the network for a GB.
    fn cost(&self) -> f64 {
        self.network / self.megabytes * 1e3
    }
}

/// The median of something of several turns.
fn typical<'a>(windows: impl Iterator<Item = &'a Window>, of: impl Fn(&Window) -> f64) -> f64 {
    median(windows.map(of).collect())
}

pub async fn run(report: &mut Report) -> Result<()> {
    let figures = figures().await?;
    beside(report, ("out of a machine", "out"), &figures.out);
    beside(report, ("into a machine", "in"), &figures.into);
    for (what, memory) in [("a program", figures.machine), ("a network's switch", figures.switch)] {
        let detail = format!("{:.2} a few seconds after all the bytes; what its file maps is shared", memory.after);
        let what = format!("network: private memory of {what}, idle");
        report.add(&what, memory.idle, "MiB", Some(Bound::Most(2.0)), detail);
    }
    let between = |of: fn(&Window) -> f64| typical(figures.between.iter(), of);
    report.add("network: machine to machine", between(Window::rate), "MB/s", None, "over a network's switch".into());
    let programs = between(|window| window.programs / window.megabytes * 1e3);
    let detail = format!("{programs:.2} of them two programs' and the switch's, the rest two QEMUs'");
    report.add("network: machine to machine, CPU for a GB", between(Window::cost), "s", None, detail);
    Ok(())
}

fn beside(report: &mut Report, (direction, way): (&str, &str), turns: &[Pair]) {
    let ratio = |of: fn(&Window) -> f64| median(turns.iter().map(|turn| of(&turn.ours) / of(&turn.theirs)).collect());
    let ours = |of: fn(&Window) -> f64| typical(turns.iter().map(|turn| &turn.ours), of);
    let theirs = |of: fn(&Window) -> f64| typical(turns.iter().map(|turn| &turn.theirs), of);
    let detail = format!("{:.0} MB/s beside {:.0}; guests emulated", ours(Window::rate), theirs(Window::rate));
    let what = format!("network: bytes a second {direction} beside QEMU's own");
    report.add(&what, ratio(Window::rate), "times", Some(Bound::Least(1.0)), detail);
    let programs = ours(|window| window.programs / window.megabytes * 1e3);
    let whole: fn(&Window) -> f64 = |window| (window.network + window.guests) / window.megabytes * 1e3;
    let detail = format!(
        "{:.2} s ({programs:.2} of it the program's) beside {:.2}: QEMU's main thread and the program; with the thread that \
         emulates the guest {:.1} beside {:.1}, {:.2} times",
        ours(Window::cost),
        theirs(Window::cost),
        ours(whole),
        theirs(whole),
        ratio(whole),
    );
    let what = format!("network: CPU for a GB {way} beside QEMU's own");
    report.add(&what, ratio(Window::cost), "times", Some(Bound::Most(0.25)), detail);
}

/// Measures in namespaces that end with this.
async fn figures() -> Result<Figures> {
    let users = if rustix::process::geteuid().is_root() { inside::USERS } else { inside::ONE_USER };
    apart(ARGUMENT, users, PATIENCE).await
}

/// Has a process of its own measure, in namespaces that end with it.
async fn apart<T: DeserializeOwned>(argument: &str, how: &str, patience: Duration) -> Result<T> {
    let folder = tempfile::tempdir_in("/var/tmp")?;
    let is_root = rustix::process::geteuid().is_root();
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.args((!is_root).then_some("--map-root-user")).arg(std::env::current_exe()?);
    command.arg(argument).arg(folder.path()).arg(how);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    let measured = command.spawn().context("unshare")?.wait_with_output();
    let out = timeout(patience, measured).await.context("the network was not measured in time")??;
    ensure!(out.status.success(), "the network could not be measured: {}", out.status);
    Ok(serde_json::from_slice(&out.stdout)?)
}
