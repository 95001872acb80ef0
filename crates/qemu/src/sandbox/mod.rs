//! A sandbox's machine: small, in a jail, and copied while it runs.
//!
//! Its memory is always a private mapping of a file, so what the guest wrote since its start can be told
//! from what it began with: the pages that are the process' own (Linux, Documentation/admin-guide/mm/
//! pagemap.rst, bit 61). A capture is the state of the devices, some 170 KiB, and a memory file with
//! those pages; a machine that loads it begins exactly there. So every copy costs what was written, not
//! what the guest has, and it costs the same whether one machine or a hundred map the file.
//!
//! ```text
//!   boot: an empty file ─► runs ─► capture A ─► load A: runs ─► capture B ─► …
//! ```
//!
//! The disk is a chain of layers. A checkpoint makes the top one somebody's base for good and gives the machine
//! an empty layer on it, without stopping anything.
//!
//! The process has nothing but its open files ([`crate::launch`]): where the service may, it runs as a user of its own
//! in an empty root folder; QEMU's seccomp filter keeps it from starting programs.

mod arguments;
mod capture;
mod files;
mod layer;
mod memory;
mod network;
mod spec;

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::net::UnixStream;
use uuid::Uuid;

pub use arguments::arguments;
pub use capture::{Capture, Report, capture};
use files::{AGENT, MEMORY};
pub use layer::{create as create_layer, create_root, node as layer_node, size as layer_size, sync as sync_layer};
pub use memory::{copy as copy_memory, empty as empty_memory};
pub use spec::{Begin, Layer, Spec};

use crate::error::at;
use crate::groups::Limits;
use crate::launch::Order;
use crate::machine::jail::{self, Needs};
use crate::machine::{COMMANDS, Lock, START, clear, devices, end, find, hold, locked, process, wait_started};
use crate::qmp::{Qmp, connect_in};
use crate::{Error, Result, host, qcow2};

/// What QEMU needs beside the guest's memory: itself, its buffers, and what an emulated processor's code is translated
/// to, in MiB.
const BESIDE_MB: u64 = 256;
/// How long QEMU may take to load a capture. Measured: 8 ms.
const LOAD: Duration = Duration::from_secs(20);
/// Between two looks at something that takes milliseconds.
const TICK: Duration = Duration::from_millis(1);

/// Starts a machine and lets it run. One that runs already is left as it is. Before the guest's first instruction (of
/// one that loads: once all is ready) `about_to_run` is called: where that fails, or was not reached, nothing wrote to
/// the disk.
pub async fn start(spec: &Spec, about_to_run: impl FnOnce() -> Result<()> + Send) -> Result<()> {
    let lock = locked(&spec.dir).await?;
    if hold(&spec.dir, spec.id)?.is_some() {
        return Ok(());
    }
    match &spec.begin {
        Begin::Boot { .. } => {
            about_to_run()?;
            make(spec, lock).await.map(drop)
        }
        Begin::Load { state, .. } => match run(spec, &mut make(spec, lock).await?, state, about_to_run).await {
            Ok(()) => Ok(()),
            Err(error) => {
                // What QEMU said of itself tells more than that it is gone.
                let reason = find(&spec.dir, spec.id).is_none().then(|| process::reason(&spec.dir));
                // Half loaded is nothing.
                stop(&spec.dir, spec.id).await?;
                Err(reason.unwrap_or(error))
            }
        },
    }
}

/// Makes the process, and waits until it answers.
async fn make(spec: &Spec, lock: Lock) -> Result<Qmp> {
    clear(&spec.dir)?;
    remove(&spec.dir, &[AGENT, MEMORY])?;
    let memory = spec.dir.join(MEMORY);
    match &spec.begin {
        Begin::Boot { .. } => empty_memory(&memory, spec.memory_mb)?,
        Begin::Load { memory: from, .. } => std::fs::hard_link(from, &memory).map_err(at("cannot link", from))?,
    }
    let order = order_of(spec).await?;
    let ended = process::spawn(&order, &[], spec.id, &lock).await?;
    drop(lock);
    wait_started(&spec.dir, ended, START + devices::patience(&spec.assigned, spec.memory_mb)).await
}

/// What a machine's launcher is told.
async fn order_of(spec: &Spec) -> Result<Order> {
    let (mut read, mut write, mut disk_bytes) = (spec.assigned.folders.clone(), Vec::new(), 0);
    if let Begin::Boot { kernel, initrd, .. } = &spec.begin {
        read.extend([kernel.clone(), initrd.clone()]);
    }
    if spec.reads_memory {
        read.push(spec.dir.join(MEMORY));
    }
    for (index, layer) in spec.disk.iter().enumerate() {
        let below = spec.disk.get(index + 1).and_then(|below| below.path.file_name()).map(Path::new);
        disk_bytes = disk_bytes.max(qcow2::check(&layer.path, below)?);
        if index == 0 { &mut write } else { &mut read }.push(layer.path.clone());
    }
    // A memory that it begins with is others', too.
    let is_shared = matches!(spec.begin, Begin::Load { .. });
    let lend = (is_shared && !spec.reads_memory).then(|| MEMORY.into());
    let arguments = arguments(spec, host::release_of(&spec.qemu).await?);
    let (program, dir) = (spec.qemu.as_path(), spec.dir.as_path());
    let limits = Limits { memory_mb: u64::from(spec.memory_mb) + BESIDE_MB, vcpus: spec.vcpus };
    let locked_bytes = devices::locked_bytes(&spec.assigned, spec.memory_mb);
    let devices = spec.assigned.files.clone();
    let given = 0;
    let needs = Needs { program, arguments, dir, read, write, lend, given, devices, locked_bytes, limits, disk_bytes };
    jail::order(spec.id, spec.jail, needs).await
}

async fn run(spec: &Spec, qmp: &mut Qmp, state: &Path, about_to_run: impl FnOnce() -> Result<()>) -> Result<()> {
    load(qmp, state).await?;
    network::wait_listening(qmp, &spec.dir).await?;
    about_to_run()?;
    qmp.execute("cont", json!({})).await.map(drop)
}

/// Loads the devices' state; the machine stands still afterwards.
async fn load(qmp: &mut Qmp, state: &Path) -> Result<()> {
    let file = File::open(state).map_err(at("cannot open", state))?;
    qmp.give("state", &file).await?;
    qmp.execute("migrate-incoming", json!({"uri": "fd:state"})).await?;
    let deadline = Instant::now() + LOAD;
    loop {
        let status = qmp.execute("query-status", json!({})).await?;
        match status.get("status").and_then(Value::as_str) {
            Some("inmigrate") if Instant::now() < deadline => tokio::time::sleep(TICK).await,
            Some("inmigrate") => return Err(Error::Timeout("the machine's state")),
            Some("paused") => return Ok(()),
            status => {
                let status = status.unwrap_or("nothing is said of it");
                return Err(Error::Qemu(format!("it does not wait with what it loaded: {status}")));
            }
        }
    }
}

/// Ends a machine's process at once. Fine where there is none.
pub async fn stop(dir: &Path, id: Uuid) -> Result<()> {
    end(dir, id).await
}

fn remove(dir: &Path, names: &[&str]) -> Result<()> {
    for name in names {
        let path = dir.join(name);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(at("cannot remove", &path)(e)),
            _ => {}
        }
    }
    Ok(())
}

/// Connects to the agent's end of a running machine. One connection at a time.
pub async fn connect_agent(dir: &Path) -> Result<UnixStream> {
    connect_in(dir, AGENT).await
}

/// The layer a running machine writes to.
pub async fn top(dir: &Path) -> Result<String> {
    node_in_use(&mut Qmp::connect(dir, COMMANDS).await?).await
}

async fn node_in_use(qmp: &mut Qmp) -> Result<String> {
    let disks = qmp.execute("query-block", json!({})).await?;
    let node = disks.as_array().into_iter().flatten().find_map(|disk| disk.pointer("/inserted/node-name"));
    node.and_then(Value::as_str).map(str::to_owned).ok_or_else(|| Error::Qemu("the machine has no disk".into()))
}

/// The last bytes the guest wrote to its console; QEMU keeps them in a ring.
pub async fn console(dir: &Path) -> Result<String> {
    let mut qmp = Qmp::connect(dir, COMMANDS).await?;
    let text = qmp.execute("ringbuf-read", json!({"device": "console", "size": arguments::CONSOLE_BYTES})).await?;
    Ok(text.as_str().unwrap_or_default().to_owned())
}
