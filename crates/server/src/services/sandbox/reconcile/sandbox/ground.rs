//! What a sandbox's disk is to lie on, and the hosts that have it.
//!
//! The layers of a template may be brought to any host, unless its sandboxes begin with what runs in a memory that was captured on
//! its own: that does not travel. Elsewhere they start from the disk.

use berth_domain::Timestamp;
use berth_domain::ids::{HostId, LayerId};
use berth_domain::sandbox::layer_copy::{Availability, Lying, availability, holders};
use berth_domain::sandbox::plan::Source;
use berth_domain::sandbox::{MemoryKind, Phase};

use super::{SandboxLife, StepError};
use crate::db::{DbError, Tx};
use crate::services::fleet;
use crate::services::sandbox::store;
use crate::services::sandbox::store::sandbox::SandboxRow;
use crate::services::sandbox::store::template::TemplateRow;

/// Where a sandbox can begin.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Begins {
    /// The hosts that have what it begins with, its home first; at least one.
    pub hosts: Vec<HostId>,
    /// The layers, where they may be brought to others.
    pub layers: Option<Vec<Lying>>,
}

impl Begins {
    /// On one host, and no other.
    pub(super) fn on(host: HostId) -> Self {
        Self { hosts: vec![host], layers: None }
    }

    /// The one host that it can be on.
    pub(super) fn tied(&self) -> Option<HostId> {
        if self.layers.is_some() { None } else { self.hosts.first().copied() }
    }
}

impl SandboxLife {
    /// Where a sandbox can begin: where it is, or else where that is what it begins with.
    pub(super) async fn begins(&self, tx: &mut Tx, row: &SandboxRow) -> Result<Begins, DbError> {
        let own = self.sandboxes.host();
        if let Some(host) = row.machine.host {
            return Ok(Begins::on(host));
        }
        if let Some(snapshot) = row.restore.or(row.source_snapshot) {
            return Ok(Begins::on(store::snapshot::host(tx, snapshot).await?.unwrap_or(own)));
        }
        let template = match row.source_template {
            Some(id) => store::template::load(&mut *tx, id).await?,
            None => None,
        };
        let Some(template) = template else { return Ok(Begins::on(own)) };
        let Some(layer) = template.layer else { return Ok(Begins::on(own)) };
        let home = store::layer::host(&mut *tx, layer).await?.unwrap_or(own);
        let has_others = self.sandboxes.fleet().ids().iter().any(|host| *host != home);
        if !has_others || !may_travel(&mut *tx, &template).await? {
            return Ok(Begins::on(home));
        }
        let chain = store::layer_copy::chain(tx, layer).await?;
        let hosts = holders(&chain, own);
        Ok(if hosts.is_empty() { Begins::on(home) } else { Begins { hosts, layers: Some(chain) } })
    }

    /// What a sandbox without a disk is made of, and until when its time did not pass, since layers came to its host.
    pub(super) async fn ground(&self, row: &SandboxRow, now: Timestamp) -> Result<(Source, Timestamp), StepError> {
        let source = self.source(row).await?;
        let (Phase::Provisioning, None, Some(host), Some(id), Source::Ready) =
            (row.phase, row.layer, row.machine.host, row.source_template, &source)
        else {
            return Ok((source, row.phase_since));
        };
        let db = self.sandboxes.db();
        let layer = store::template::load(db, id).await?.and_then(|template| template.layer);
        let Some(layer) = layer else { return Ok((source, row.phase_since)) };
        let chain = store::layer_copy::chain(db, layer).await?;
        Ok(match availability(&chain, host, self.sandboxes.host(), row.phase_since) {
            Availability::Here(brought) => (source, brought.unwrap_or(row.phase_since).min(now)),
            Availability::Lacking(_) => (source, now),
            Availability::Coming => (Source::Waiting, now),
            Availability::Failed(reason) => (Source::Failed(reason), now),
        })
    }

    /// Whether a disk can be begun on a layer where the sandbox's machine is; since when, where that had to be brought. What is
    /// lacking is wished.
    pub(super) async fn has_ground(
        &self,
        tx: &mut Tx,
        row: &SandboxRow,
        layer: LayerId,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, StepError> {
        if row.source_template.is_none() {
            // What a snapshot is made of is where it is.
            return Ok(Some(row.phase_since));
        }
        let own = self.sandboxes.host();
        let host = row.machine.host.unwrap_or(own);
        let chain = store::layer_copy::chain(&mut *tx, layer).await?;
        match availability(&chain, host, own, row.phase_since) {
            Availability::Here(brought) => Ok(Some(brought.unwrap_or(row.phase_since))),
            // The host says itself that nothing is made there any more.
            Availability::Lacking(_) if !fleet::is_there(tx, host).await? => Ok(Some(row.phase_since)),
            Availability::Lacking(layers) => {
                store::layer_copy::want(tx, &layers, host, now).await?;
                Ok(None)
            }
            Availability::Coming | Availability::Failed(_) => Ok(None),
        }
    }
}

/// Whether sandboxes of a template may begin without the memory that was captured of it.
async fn may_travel(tx: &mut Tx, template: &TemplateRow) -> Result<bool, DbError> {
    if template.start_command.is_some() || template.ready_command.is_some() {
        return Ok(false);
    }
    let Some(memory) = template.memory else { return Ok(true) };
    let found = store::memory::find(tx, memory).await?;
    // That of a snapshot is what its owner left running.
    Ok(found.is_none_or(|memory| memory.kind == MemoryKind::Template))
}
