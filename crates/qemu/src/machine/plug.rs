//! Data disks that come to a running machine and leave it.
//!
//! QEMU has no way to files any more when its guest runs, so the disk is handed to it open (unix(7), SCM_RIGHTS). A guest
//! sees a disk come to a port and is asked to let go of it there; only then is it gone (QEMU, docs/pcie.txt). Whatever an
//! interrupted attempt left is found by the disk's serial, which stands in every name, so each of these may be done again.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use uuid::Uuid;

use super::arguments::{FILE, PLACE, device_of, node_of, served};
use super::drive::{checked, held, require};
use super::files::COMMANDS;
use super::spec::Drive;
use crate::error::at;
use crate::qmp::Qmp;
use crate::{Error, Result};

/// Where QEMU keeps devices that have a name.
const DEVICES: &str = "/machine/peripheral";
/// How long a guest may take in one call to let go of a disk; one that listens takes some 50 ms.
const LETTING_GO: Duration = Duration::from_secs(2);
/// Between two looks whether it has.
const TICK: Duration = Duration::from_millis(20);

/// Hands a data disk to a running machine; of one that is served the connection. One that it has already stays as it is.
pub async fn attach(dir: &Path, id: Uuid, drive: &Drive, served: Option<&Arc<OwnedFd>>) -> Result<()> {
    let mut qmp = Qmp::connect(dir, COMMANDS).await?;
    if held(&mut qmp, &drive.serial).await?.is_some() {
        return Ok(());
    }
    require(dir, id, checked(drive)?)?;
    clear(&mut qmp, &drive.serial).await?;
    let full = || Error::Invalid("the VM has no free place for another disk while it runs; restart it first".into());
    let place = free_place(&mut qmp).await?.ok_or_else(full)?;
    let (node, device) = (node_of(&drive.serial), device_of(&drive.serial));
    for arguments in handed_over(&mut qmp, &node, drive, served).await? {
        qmp.execute("blockdev-add", arguments).await?;
    }
    let arguments =
        json!({"driver": "virtio-blk-pci", "drive": node, "serial": drive.serial, "bus": place, "id": device});
    qmp.execute("device_add", arguments).await.map(drop)
}

/// Hands QEMU what it needs to use a disk: the nodes by which it does.
async fn handed_over(
    qmp: &mut Qmp,
    node: &str,
    drive: &Drive,
    connection: Option<&Arc<OwnedFd>>,
) -> Result<[Value; 2]> {
    if let Some(connection) = connection {
        let socket = connection.try_clone().map_err(|e| Error::io("cannot hand a disk over", e))?;
        qmp.give(node, &File::from(socket)).await?;
        return Ok(served(node, node));
    }
    let file = File::options().read(true).write(true).open(&drive.path).map_err(at("cannot open", &drive.path))?;
    let (name, below) = (qmp.give_named(node, &file).await?, format!("{node}{FILE}"));
    Ok([
        json!({"driver": "file", "filename": name, "node-name": below, "discard": "unmap"}),
        json!({"driver": drive.format, "file": below, "node-name": node, "discard": "unmap"}),
    ])
}

/// Whether a running machine has a disk, by what its guest knows that by.
pub async fn has_disk(dir: &Path, serial: &str) -> Result<bool> {
    let mut qmp = Qmp::connect(dir, COMMANDS).await?;
    Ok(held(&mut qmp, serial).await?.is_some())
}

/// Asks the guest of a running machine to let go of a data disk, and takes it away. False where the guest has not let go of
/// it yet; it may do so later. Fine where the machine has no such disk.
pub async fn detach(dir: &Path, serial: &str) -> Result<bool> {
    let mut qmp = Qmp::connect(dir, COMMANDS).await?;
    if held(&mut qmp, serial).await?.is_some() {
        let device = device_of(serial);
        if !children(&mut qmp, DEVICES).await?.contains(&device) {
            let text = "the VM was started by an older version, and gives no disk back while it runs; stop it first";
            return Err(Error::Invalid(text.into()));
        }
        // QEMU answers with an error while it still waits for an earlier request. Only whether the disk goes counts.
        let _ = qmp.execute("device_del", json!({"id": device})).await;
        if !is_gone(&mut qmp, &device).await? {
            return Ok(false);
        }
    }
    clear(&mut qmp, serial).await?;
    Ok(true)
}

async fn is_gone(qmp: &mut Qmp, device: &str) -> Result<bool> {
    let deadline = Instant::now() + LETTING_GO;
    loop {
        if !children(qmp, DEVICES).await?.iter().any(|child| child == device) {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        tokio::time::sleep(TICK).await;
    }
}

/// Has QEMU forget a disk that no device uses.
async fn clear(qmp: &mut Qmp, serial: &str) -> Result<()> {
    let node = node_of(serial);
    let nodes = qmp.execute("query-named-block-nodes", json!({"flat": true})).await?;
    let named = |node: &Value| node.get("node-name").and_then(Value::as_str).map(str::to_owned);
    let known: Vec<_> = nodes.as_array().into_iter().flatten().filter_map(named).collect();
    for name in [node.clone(), format!("{node}{FILE}")] {
        if known.contains(&name) {
            qmp.execute("blockdev-del", json!({"node-name": name})).await?;
        }
    }
    qmp.take_back(&node).await
}

/// The place of each data disk that a running machine has in one, by its serial.
pub(super) async fn places(qmp: &mut Qmp) -> Result<BTreeMap<String, usize>> {
    let mut places = BTreeMap::new();
    for device in children(qmp, DEVICES).await? {
        let Some(serial) = device.strip_prefix(&device_of("")) else { continue };
        let path = format!("{DEVICES}/{device}");
        let bus = qmp.execute("qom-get", json!({"path": path, "property": "parent_bus"})).await?;
        let name = bus.as_str().and_then(|bus| bus.rsplit('/').next()).and_then(|name| name.strip_prefix(PLACE));
        if let Some(place) = name.and_then(|number| number.parse().ok()) {
            places.insert(serial.to_owned(), place);
        }
    }
    Ok(places)
}

/// Whether a running machine has a device of this name.
pub(super) async fn has(qmp: &mut Qmp, name: &str) -> Result<bool> {
    Ok(children(qmp, DEVICES).await?.iter().any(|device| device == name))
}

/// For how many data disks a running machine has places.
pub(super) async fn count(qmp: &mut Qmp) -> Result<usize> {
    Ok(children(qmp, DEVICES).await?.iter().filter(|name| name.starts_with(PLACE)).count())
}

/// A place that has no disk.
async fn free_place(qmp: &mut Qmp) -> Result<Option<String>> {
    for place in children(qmp, DEVICES).await?.into_iter().filter(|name| name.starts_with(PLACE)) {
        let bus = format!("{DEVICES}/{place}/{place}");
        if !children(qmp, &bus).await?.iter().any(|child| child.starts_with("child[")) {
            return Ok(Some(place));
        }
    }
    Ok(None)
}

/// What QEMU has at a path of its objects.
async fn children(qmp: &mut Qmp, path: &str) -> Result<Vec<String>> {
    let found = qmp.execute("qom-list", json!({"path": path})).await?;
    let named = |child: &Value| child.get("name").and_then(Value::as_str).map(str::to_owned);
    Ok(found.as_array().into_iter().flatten().filter_map(named).collect())
}
