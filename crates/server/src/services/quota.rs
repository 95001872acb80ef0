//! Whether a project may have more: its quota and its organization's, against sums over rows in the transaction that
//! would add to them. Money is such a sum, too: of what models and machines cost this month.

use berth_domain::gateway::Nano;
use berth_domain::identity::Limits;
use berth_domain::ids::Owner;
use berth_domain::{Code, Error, Result, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

use crate::db::tenant::Whose;
use crate::db::usage::{self, Held};
use crate::db::{Db, Tx, quota, resource_usage, tenant};
use crate::http::auth::Scope;

/// Refuses with 404 a project that was deleted meanwhile.
pub async fn require_project(tx: &mut Tx, scope: &Scope) -> Result<()> {
    if tenant::lives(tx, scope.project).await? {
        return Ok(());
    }
    Err(Error::new(Code::ProjectNotFound, "There is no such project, or you do not belong to it."))
}

/// Refuses with 403 to make what would exceed the quota of the project or of its organization, money among it, and with
/// 404 a project that was deleted meanwhile.
pub async fn admit(tx: &mut Tx, scope: &Scope, wanted: Held, now: Timestamp) -> Result<()> {
    require_project(tx, scope).await?;
    admit_of(tx, (scope.org, scope.project), wanted, now).await
}

/// The same of a project that lives, where nobody asks.
pub async fn admit_of(tx: &mut Tx, owner: Owner, wanted: Held, now: Timestamp) -> Result<()> {
    let bounds = bounds(tx, owner).await?;
    for (whose, limits) in &bounds {
        within(tx, *whose, limits, wanted).await?;
    }
    solvent(tx, &bounds, now).await
}

/// The same of what costs nothing: whatever was spent, it may be made within its number. What bounds the project and
/// its organization.
pub async fn admit_number(tx: &mut Tx, scope: &Scope, wanted: Held) -> Result<[(Whose, Limits); 2]> {
    require_project(tx, scope).await?;
    let bounds = bounds(tx, (scope.org, scope.project)).await?;
    for (whose, limits) in &bounds {
        within(tx, *whose, limits, wanted).await?;
    }
    Ok(bounds)
}

/// Refuses with 403 to make or start what costs money, once the month's is spent by the project or its organization.
/// What runs goes on: nobody's machine is stopped for it.
pub async fn afford(tx: &mut Tx, scope: &Scope, now: Timestamp) -> Result<()> {
    let bounds = bounds(tx, (scope.org, scope.project)).await?;
    solvent(tx, &bounds, now).await
}

/// What the project and its organization may have. What the scope knows of that was read with the head of the request,
/// which may be long ago.
async fn bounds(tx: &mut Tx, (org, project): Owner) -> Result<[(Whose, Limits); 2]> {
    let (project, org) = (Whose::Project(project), Whose::Org(org));
    Ok([(project, quota::find(&mut *tx, project).await?), (org, quota::find(&mut *tx, org).await?)])
}

async fn solvent(tx: &mut Tx, bounds: &[(Whose, Limits)], now: Timestamp) -> Result<()> {
    // Most have no limit, and nothing is summed up for them.
    if bounds.iter().all(|(_, limits)| limits.spend_per_month.is_none()) {
        return Ok(());
    }
    let is_priced = resource_usage::is_priced(&mut *tx).await?;
    for (whose, limits) in bounds {
        if let Some(units) = limits.spend_per_month {
            judge(*whose, units, resource_usage::spent_on_all(tx, *whose, now).await?, is_priced)?;
        }
    }
    Ok(())
}

/// What is free may be had until more than the limit is spent, as with models.
fn judge(whose: Whose, units: i64, spent: Nano, is_priced: bool) -> Result<()> {
    let limit = Nano::whole(units);
    if spent < limit || (spent == limit && !is_priced) {
        return Ok(());
    }
    Err(Error::new(
        Code::QuotaExceeded,
        format!(
            "The {} may spend {units} a month on models, machines and disks together; {} are spent. What runs goes on. \
             Ask an administrator of the platform for more, or wait for the next month.",
            whose.word(),
            spent.units()
        ),
    ))
}

async fn within(tx: &mut Tx, whose: Whose, limits: &Limits, wanted: Held) -> Result<()> {
    // Most have no limit, and nothing is summed up for them.
    if !COUNTED.iter().any(|(_, of, limit)| of(&wanted) > 0 && limit(limits).is_some()) {
        return Ok(());
    }
    let held = usage::held(&mut *tx, whose).await?;
    for (what, of, limit) in COUNTED {
        room(whose, what, (of(&held), of(&wanted)), limit(limits))?;
    }
    Ok(())
}

/// What is counted in rows: its name for people, how much of it, and what limits it.
type Counted = (&'static str, fn(&Held) -> i64, fn(&Limits) -> Option<i64>);

const COUNTED: [Counted; 8] = [
    ("VMs", |held| held.vms, |limits| limits.vms),
    ("virtual CPUs", |held| held.vcpu, |limits| limits.vcpu),
    ("MiB of memory", |held| held.memory_mb, |limits| limits.memory_mb),
    ("GPUs", |held| held.gpus, |limits| limits.gpus),
    ("disks", |held| held.disks, |limits| limits.disks),
    ("GiB of disk", |held| held.disk_gb, |limits| limits.disk_gb),
    ("sandboxes", |held| held.sandboxes, |limits| limits.sandboxes),
    ("networks", |held| held.networks, |limits| limits.networks),
];

/// Refuses with 403 what would exceed a limit: so much of something is used, and so much more is wanted.
pub fn room(whose: Whose, what: &str, (used, wanted): (i64, i64), limit: Option<i64>) -> Result<()> {
    match limit {
        Some(limit) if wanted > 0 && used.saturating_add(wanted) > limit => Err(Error::new(
            Code::QuotaExceeded,
            format!(
                "The {} may have {limit} {}; it has {used} and this needs {wanted} more. \
                 Delete something, or ask an administrator of the platform for more.",
                whose.word(),
                counted(limit, what)
            ),
        )),
        _ => Ok(()),
    }
}

/// The word for so many of something. What is measured, as MiB of memory, has only one.
fn counted(number: i64, what: &str) -> &str {
    let one = what.strip_suffix("es").or_else(|| what.strip_suffix('s'));
    one.filter(|_| number == 1).unwrap_or(what)
}

/// What a project or an organization has, and what it may have; a limit of `null` is none.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = QuotaResponse)]
pub struct QuotaView {
    /// VMs.
    vms: Quota,
    /// Virtual CPUs.
    vcpu: Quota,
    /// Memory, in MiB.
    memory_mb: Quota,
    /// GPUs of VMs and sandboxes, also of those that are stopped or paused.
    gpus: Quota,
    /// Disks.
    disks: Quota,
    /// Disk, in GiB.
    disk_gb: Quota,
    /// Sandboxes.
    sandboxes: Quota,
    /// Networks.
    networks: Quota,
    /// Projects; of an organization alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    projects: Option<Quota>,
    /// Requests a minute; `null` is no limit.
    #[schema(required = true)]
    requests_per_minute: Option<i64>,
    /// Tokens of models a minute; `null` is no limit.
    #[schema(required = true)]
    tokens_per_minute: Option<i64>,
    /// Money for models, machines and disks a calendar month (UTC), in whole units of the prices; `null` is no limit.
    #[schema(required = true)]
    spend_per_month: Option<i64>,
    /// What was spent of it this month, in units of the prices; requests to models within the last seconds may be
    /// missing.
    spent_this_month: f64,
}

/// One quantity.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = QuotaEntry)]
pub struct Quota {
    /// What is used.
    used: i64,
    /// What is allowed; `null` is no limit.
    #[schema(required = true)]
    limit: Option<i64>,
}

impl QuotaView {
    /// What a project or an organization has at a time, beside its limits.
    pub async fn of(db: &Db, whose: Whose, limits: &Limits, now: Timestamp) -> Result<Self> {
        let held = usage::held(db, whose).await?;
        let spent =
            resource_usage::spent_on_models(db, whose, now).await? + resource_usage::spent(db, whose, now).await?;
        Ok(Self::new(&held, limits, spent))
    }

    fn new(held: &Held, limits: &Limits, spent: Nano) -> Self {
        const fn quota(used: i64, limit: Option<i64>) -> Quota {
            Quota { used, limit }
        }
        Self {
            vms: quota(held.vms, limits.vms),
            vcpu: quota(held.vcpu, limits.vcpu),
            memory_mb: quota(held.memory_mb, limits.memory_mb),
            gpus: quota(held.gpus, limits.gpus),
            disks: quota(held.disks, limits.disks),
            disk_gb: quota(held.disk_gb, limits.disk_gb),
            sandboxes: quota(held.sandboxes, limits.sandboxes),
            networks: quota(held.networks, limits.networks),
            projects: None,
            requests_per_minute: limits.requests_per_minute,
            tokens_per_minute: limits.tokens_per_minute,
            spend_per_month: limits.spend_per_month,
            spent_this_month: spent.units(),
        }
    }

    /// The same of an organization that has so many projects.
    #[must_use]
    pub fn with_projects(self, used: i64, limits: &Limits) -> Self {
        Self { projects: Some(Quota { used, limit: limits.projects }), ..self }
    }
}

#[cfg(test)]
mod tests {
    use berth_domain::ids::ProjectId;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn one_is_told_of_by_its_singular() {
        let told = |number| ["GPUs", "sandboxes", "MiB of memory"].map(|what| counted(number, what));
        assert_eq!(told(1), ["GPU", "sandbox", "MiB of memory"]);
        assert_eq!([told(0), told(2)], [["GPUs", "sandboxes", "MiB of memory"]; 2]);
    }

    #[test]
    fn who_has_spent_the_month_s_money_makes_nothing_more() {
        let of = |spent: i64, is_priced| judge(Whose::Project(ProjectId(Uuid::nil())), 2, Nano(spent), is_priced);
        assert!(of(1_999_999_999, true).is_ok());
        assert!(of(2_000_000_000, true).is_err_and(|error| error.code == Code::QuotaExceeded));
        // Where machines are free, they may be had until more than the limit is spent.
        assert!(of(2_000_000_000, false).is_ok());
        assert!(of(2_000_000_001, false).is_err());
    }
}
