//! Tells the host what a network is and who belongs to it, until it knows the last change, and removes what is deleted.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_domain::host::network::{Member, NetworkSpec};
use berth_domain::ids::{HostId, NetworkId, Owner};
use berth_domain::network::{NetworkStep, next};
use berth_domain::{Result, Timestamp};
use berth_host::EngineError;
use tokio::time::timeout;

use super::{StepError, fault};
use crate::db::{Tx, network};
use crate::services::network::store::network::{MemberRow, NetworkRow};
use crate::services::network::{Networks, store};
use crate::work::Due;
use crate::work::lifecycle::{Life, Next};

/// How long a host may take to take a network, or to let go of it.
const PATIENCE: Duration = Duration::from_secs(30);

/// The lives of networks.
pub struct NetworkLife {
    networks: Networks,
}

impl Life for NetworkLife {
    type Key = NetworkId;
    type Seen = NetworkRow;
    type Step = NetworkStep;
    const TABLE: &'static str = network::TABLE;
    const KIND: &'static str = "network";

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Due<NetworkId>> {
        Ok(store::network::due(self.networks.db(), now, limit).await?)
    }

    async fn owner(&self, id: &NetworkId) -> Option<Owner> {
        store::network::owner(self.networks.db(), *id).await.ok().flatten()
    }

    async fn look(&self, id: &NetworkId) -> Result<Option<NetworkRow>, StepError> {
        Ok(store::network::load(self.networks.db(), *id).await?)
    }

    async fn plan(&self, row: &NetworkRow) -> Result<Next<NetworkStep>, StepError> {
        Ok(next(row.deleted_at.is_some(), row.revision, row.told).map_or(Next::Rest(None), Next::Take))
    }

    fn name(step: &NetworkStep) -> &'static str {
        step.as_str()
    }

    async fn take(&self, row: &NetworkRow, step: NetworkStep) -> Result<(), StepError> {
        match step {
            NetworkStep::Tell => self.tell(row).await,
            NetworkStep::Remove => self.remove(row).await,
        }
    }

    async fn catch_up(&self, row: &NetworkRow, revision: i64) -> Result<bool, StepError> {
        if row.revision >= revision {
            return Ok(false);
        }
        self.record(row, |row| row.revision = revision).await?;
        Ok(true)
    }

    async fn rest(&self, row: &NetworkRow, until: Option<Timestamp>) -> Result<(), StepError> {
        if row.work_at == until {
            return Ok(());
        }
        self.record(row, |row| row.work_at = until).await
    }

    async fn postpone(&self, row: &NetworkRow, until: Timestamp) -> Result<(), StepError> {
        self.record(row, |row| row.work_at = Some(until)).await
    }

    /// A network has no status in which it could have failed: the host is told until it takes it.
    async fn give_up(&self, _: &NetworkRow, _: &EngineError) -> Result<bool, StepError> {
        Ok(false)
    }
}

impl NetworkLife {
    /// The lives of the service's networks.
    pub const fn new(networks: Networks) -> Self {
        Self { networks }
    }

    /// The members are read after the revision: what came in between is told now, and once more later.
    async fn tell(&self, row: &NetworkRow) -> Result<(), StepError> {
        let members = store::network::members(self.networks.db(), row.id).await?;
        let own = self.networks.fleet().own();
        let hosts: BTreeSet<_> = members.iter().map(|member| member.host.unwrap_or(own).0).chain([own.0]).collect();
        let spec = spec(row, members);
        // One that is away keeps none of the others.
        let mut told = Ok(());
        for host in hosts.into_iter().map(HostId) {
            let silent = || EngineError::Transient("a host does not take a network".into());
            let tell = async { self.networks.fleet().of(host)?.network.set(&spec).await };
            told = told.and(timeout(PATIENCE, tell).await.unwrap_or_else(|_| Err(silent())));
        }
        told?;
        fault("network", "tell", "done").await?;
        let mut tx = self.networks.db().begin().await?;
        if let Some(before) = still(&mut tx, row).await? {
            let after = NetworkRow { told: row.revision, ..before.clone() };
            store::network::update(&mut tx, &before, &after).await?;
            tx.commit().await?;
        }
        Ok(())
    }

    async fn remove(&self, row: &NetworkRow) -> Result<(), StepError> {
        // One that is away has it removed by the next search of it.
        for (host, engines) in self.networks.fleet().all() {
            let own = host == self.networks.fleet().own();
            let removed = timeout(PATIENCE, engines.network.remove(row.id)).await;
            match removed.unwrap_or_else(|_| Err(EngineError::Transient("it does not answer".into()))) {
                Err(error) if own => return Err(error.into()),
                Err(error) => tracing::warn!(%host, network = %row.id, %error, "a host does not remove a network yet"),
                Ok(()) => {}
            }
        }
        fault("network", "remove", "done").await?;
        let mut tx = self.networks.db().begin().await?;
        store::network::remove(&mut tx, row.id).await?;
        Ok(tx.commit().await?)
    }

    /// Changes the row, unless a request changed what the host is to know since it was read.
    async fn record(&self, seen: &NetworkRow, change: impl FnOnce(&mut NetworkRow)) -> Result<(), StepError> {
        let mut tx = self.networks.db().begin().await?;
        if let Some(before) = still(&mut tx, seen).await? {
            let mut after = before.clone();
            change(&mut after);
            store::network::update(&mut tx, &before, &after).await?;
            tx.commit().await?;
        }
        Ok(())
    }
}

/// The row as it is now, if it is to be what it was to be when it was looked at.
async fn still(tx: &mut Tx, seen: &NetworkRow) -> Result<Option<NetworkRow>, StepError> {
    let now = store::network::load(tx, seen.id).await?;
    Ok(now.filter(|row| (row.revision, row.deleted_at) == (seen.revision, seen.deleted_at)))
}

/// A network as the host is told of it. A member is found by its name and by its id; a name that could be another one's
/// id is none.
fn spec(row: &NetworkRow, members: Vec<MemberRow>) -> NetworkSpec {
    let labelled = if row.rules.has_groups() { store::network::labelled(row, &members) } else { Vec::new() };
    let member = |member: MemberRow| Member {
        machine: member.machine,
        address: member.address,
        names: Some(member.name)
            .filter(|name| !is_like_an_id(name))
            .into_iter()
            .chain([member.id.to_string()])
            .collect(),
    };
    NetworkSpec {
        id: row.id,
        revision: row.revision,
        name: row.name.clone(),
        cidr: row.cidr,
        cidr6: row.cidr6,
        members: members.into_iter().map(member).collect(),
        rules: row.rules.with_groups(|label| network::group(&labelled, label)),
    }
}

fn is_like_an_id(name: &str) -> bool {
    name.len() == uuid::fmt::Hyphenated::LENGTH && name.parse::<uuid::Uuid>().is_ok()
}
