//! Verbs on disks that are made of a file which is sent.
//!
//! Whatever can be refused by the head of a request is refused before a byte of its body is read. The file is received into
//! `staging/` under the name of the disk that is to be, and is nobody's until one transaction writes the disk, the wish to make it
//! of that file, and all that is told of both.

use std::future::ready;
use std::time::Duration;

use berth_domain::ids::DiskId;
use berth_domain::vm::brought_disk::Origin;
use berth_domain::vm::disk_import::ImportDisk;
use berth_domain::{Code, Error, Result, Timestamp, hex};
use berth_host::fault;
use bytes::Bytes;
use futures::Stream;
use serde_json::json;

use super::disk::require_region;
use super::vm::new_disk;
use crate::db::audit::Audit;
use crate::db::usage::Held;
use crate::db::{Signal, Tx, event};
use crate::http::auth::Scope;
use crate::http::idempotency::{Idempotency, Outcome};
use crate::services::quota;
use crate::services::received::{Received, Receiving, Unclaimed, again, was_received};
use crate::services::vm::store::brought_disk::BroughtDiskRow;
use crate::services::vm::store::disk::DiskRow;
use crate::services::vm::wire::disk::DiskView;
use crate::services::vm::{Vms, store, told};

/// Receives a file of so many bytes, where its sender says how many, and records the wish for a disk with what it has. From its
/// first byte on it counts as the disk that it is to be.
pub async fn create(
    vms: &Vms,
    scope: &Scope,
    (request, length): (ImportDisk, Option<u64>),
    body: impl Stream<Item = Result<Bytes>> + Unpin,
    key: Idempotency,
) -> Result<Outcome<DiskView>> {
    let _place = vms.importing().enter((scope.org, scope.project))?;
    if was_received(vms.db(), scope, &key, vms.clock().now()).await? {
        let told = told_of(&request, hashed(vms, &request, body).await?);
        return again(vms.db(), scope, key, ("file", &told), vms.clock().now()).await;
    }
    has_room(vms, length.unwrap_or_default()).await?;
    // Whoever may not have the disk does not send it first.
    let claim = claim(vms, scope, &request).await?;
    let imported = import(vms, scope, (&request, length, &claim.disk), body, key).await;
    claim.over().await;
    imported
}

/// Claims what the disk is to have.
async fn claim(vms: &Vms, scope: &Scope, request: &ImportDisk) -> Result<Claim> {
    let now = vms.clock().now();
    let disk = new_disk(scope, &request.region_id, request.name.as_str(), request.kind, request.size_gb, now);
    let mut tx = vms.db().begin_as(scope).await?;
    admit(vms, &mut tx, scope, request, now).await?;
    store::brought_disk::insert(&mut tx, &BroughtDiskRow::claim(&disk, now)).await?;
    let claim = Claim { vms: vms.clone(), disk, is_over: false };
    tx.commit().await?;
    fault::point("disk_import.claimed").await.map_err(Error::internal)?;
    Ok(claim)
}

/// Receives the file, and records the wish.
async fn import(
    vms: &Vms,
    scope: &Scope,
    (request, length, disk): (&ImportDisk, Option<u64>, &DiskRow),
    body: impl Stream<Item = Result<Bytes>> + Unpin,
    key: Idempotency,
) -> Result<Outcome<DiskView>> {
    let staging = vms.engine().staging().await.map_err(Error::unavailable)?;
    let file = Unclaimed::new(staging.join(Origin::File.staged(disk.id)));
    let receiving = Receiving { file: Some(file.path()), is_hashed: true };
    tracing::info!(project = %scope.project, bytes = length, "receiving the file of a disk");
    let received = receiving.of(body, |bytes| request.admit(bytes, vms.config().import_bytes()), || has_room(vms, 0));
    let received = received.await;
    match &received {
        Ok(Received { bytes, .. }) => tracing::info!(project = %scope.project, bytes, "received the file of a disk"),
        Err(error) => tracing::info!(project = %scope.project, %error, "the file of a disk did not come whole"),
    }
    let (bytes, sha256) = whole(received?)?;
    request.compare(sha256)?;
    fault::point("disk_import.received").await.map_err(Error::internal)?;
    let key = key.of_body(&told_of(request, sha256));
    let now = vms.clock().now();
    let mut tx = vms.db().begin_as(scope).await?;
    store::brought_disk::release(&mut tx, disk.id).await?;
    admit(vms, &mut tx, scope, request, now).await?;
    let message = Some("waiting for a worker".into());
    let disk = DiskRow { message, created_at: now, updated_at: now, ..disk.clone() };
    store::disk::insert(&mut tx, &disk).await?;
    store::brought_disk::insert(&mut tx, &BroughtDiskRow::of(&disk, Origin::File, now)).await?;
    record(&mut tx, scope, &disk, (bytes, sha256)).await?;
    let view = DiskView::from(&disk);
    let outcome = key.created(&mut tx, now, view.location(scope), view).await?;
    let file = file.claim();
    if let Err(error) = tx.commit().await {
        // Where nobody can tell whether there is a row the file stays, and is swept at the next start if there is none.
        let found = store::brought_disk::find(vms.db(), disk.id).await;
        if found.is_ok_and(|found| found.is_none_or(|row| row.claimed_gb.is_some())) {
            let _ = tokio::fs::remove_file(file).await;
        }
        return Err(error.into());
    }
    Ok(outcome)
}

/// Until it is tried again to give up what was claimed.
const AGAIN: Duration = Duration::from_secs(5);

/// What is claimed for a disk whose file is on its way. It is given up with the request, also when that is dropped half way.
struct Claim {
    vms: Vms,
    disk: DiskRow,
    is_over: bool,
}

impl Claim {
    /// Gives it up. A disk that is there by now has its own row.
    async fn over(mut self) {
        self.is_over = release(&self.vms, self.disk.id).await;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let (vms, id) = (self.vms.clone(), self.disk.id);
        tokio::spawn(async move {
            while !release(&vms, id).await {
                tokio::time::sleep(AGAIN).await;
            }
        });
    }
}

/// Whether a claim is given up.
async fn release(vms: &Vms, id: DiskId) -> bool {
    let released = async {
        let mut tx = vms.db().begin().await?;
        store::brought_disk::release(&mut tx, id).await?;
        tx.commit().await
    };
    let released = released.await;
    if let Err(error) = &released {
        tracing::warn!(disk = %id, %error, "what was claimed for a disk cannot be given up; trying again");
    }
    released.is_ok()
}

/// Refuses what the project may not have.
async fn admit(vms: &Vms, tx: &mut Tx, scope: &Scope, request: &ImportDisk, now: Timestamp) -> Result<()> {
    require_region(vms, &request.region_id)?;
    quota::admit(tx, scope, Held { disks: 1, disk_gb: request.size_gb, ..Held::default() }, now).await
}

/// Refuses with 507 where the host has no room for so many bytes.
async fn has_room(vms: &Vms, bytes: u64) -> Result<()> {
    let room = vms.engine().capacity().await.map_err(Error::unavailable)?.room_bytes;
    if u64::try_from(room).is_ok_and(|room| room > bytes) {
        return Ok(());
    }
    Err(Error::new(Code::NoSpace, "The host's disk has no room for the file. Delete disks, or tell its operator."))
}

/// How many bytes came, and what they hash to.
fn whole(Received { bytes, sha256 }: Received) -> Result<(u64, [u8; 32])> {
    if bytes == 0 {
        return Err(Error::new(Code::InvalidRequest, "The body is empty; send a disk, qcow2 or raw."));
    }
    Ok((bytes, sha256.ok_or_else(|| Error::internal("a file was not hashed"))?))
}

/// All that a request says, as its key remembers it.
fn told_of(request: &ImportDisk, sha256: [u8; 32]) -> String {
    let ImportDisk { name, kind, size_gb, region_id, digest: _ } = request;
    json!([name.as_str(), kind.as_str(), size_gb, region_id, hex::encode(&sha256)]).to_string()
}

/// Reads a file that was sent before, to see what it hashes to, and keeps nothing of it.
async fn hashed(vms: &Vms, request: &ImportDisk, body: impl Stream<Item = Result<Bytes>> + Unpin) -> Result<[u8; 32]> {
    let receiving = Receiving { file: None, is_hashed: true };
    let admits = |bytes| request.admit(bytes, vms.config().import_bytes());
    let (_, sha256) = whole(receiving.of(body, admits, || ready(Ok(()))).await?)?;
    request.compare(sha256)?;
    Ok(sha256)
}

async fn record(tx: &mut Tx, scope: &Scope, disk: &DiskRow, (bytes, sha256): (u64, [u8; 32])) -> Result<()> {
    let (subject, data) = (disk.id.to_string(), told::data(disk));
    let mut audited = data.clone();
    (audited["bytes"], audited["sha256"]) = (bytes.into(), hex::encode(&sha256).into());
    Audit { data: audited, ..scope.audit("disk.import", &subject) }.write(tx, disk.created_at).await?;
    event::emit(tx, disk.project, "disk.created", &subject, &data, disk.created_at).await?;
    tx.signal(Signal::Work("disks"));
    Ok(())
}
