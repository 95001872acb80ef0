//! Verbs on networks.

use berth_domain::firewall::Rules;
use berth_domain::ids::NetworkId;
use berth_domain::network::{CreateNetwork, MOST, UpdateNetwork, Wanted6, chosen_cidr6, free_cidr, overlap, overlap6};
use berth_domain::{Code, Error, Result, Timestamp};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde_json::json;
use uuid::Uuid;

use crate::db::audit::Audit;
use crate::db::usage::Held;
use crate::db::{Signal, Tx, event, network};
use crate::http::auth::Scope;
use crate::http::idempotency::{Idempotency, Outcome};
use crate::services::network::store::network::NetworkRow;
use crate::services::network::wire::network::NetworkView;
use crate::services::network::{Networks, store};
use crate::services::quota;

/// Makes a network of a project.
pub async fn create(
    networks: &Networks,
    scope: &Scope,
    request: CreateNetwork,
    key: Idempotency,
) -> Result<Outcome<NetworkView>> {
    let now = networks.clock().now();
    let mut tx = networks.db().begin_as(scope).await?;
    if let Some(replayed) = key.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    let others = store::network::of_project(&mut tx, scope.into()).await?;
    if others.len() >= MOST {
        let message = format!("A project has at most {MOST} networks. Delete one that nobody belongs to.");
        return Err(Error::new(Code::Conflict, message));
    }
    require_free(&others, None, request.name.as_str())?;
    let (cidr, cidr6) = (cidr(&others, request.cidr)?, cidr6(&others, request.cidr6)?);
    quota::admit_number(&mut tx, scope, Held { networks: 1, ..Held::default() }).await?;
    let row = NetworkRow {
        id: NetworkId(Uuid::now_v7()),
        org: scope.org,
        project: scope.project,
        name: request.name.as_str().to_owned(),
        cidr,
        cidr6,
        rules: Rules::default(),
        revision: 1,
        told: 0,
        work_at: Some(now),
        created_at: now,
        updated_at: now,
        deleted_at: None,
    };
    store::network::insert(&mut tx, &row).await?;
    record(&mut tx, scope, &row, "create", now).await?;
    let view = NetworkView::with_members(&row, &[]);
    let outcome = key.created(&mut tx, now, view.location(scope), view).await?;
    tx.commit().await?;
    Ok(outcome)
}

/// Refuses a name that another network of the project has.
fn require_free(others: &[NetworkRow], own: Option<NetworkId>, name: &str) -> Result<()> {
    if others.iter().any(|other| other.name == name && own != Some(other.id)) {
        let message = format!("The project has a network '{name}' already. Give this one another name.");
        return Err(Error::new(Code::NetworkExists, message));
    }
    Ok(())
}

/// The addresses of a new network: those that are wanted, or the first free ones.
fn cidr(others: &[NetworkRow], wanted: Option<Ipv4Net>) -> Result<Ipv4Net> {
    let Some(wanted) = wanted else {
        let taken: Vec<_> = others.iter().map(|other| other.cidr).collect();
        return free_cidr(&taken).ok_or_else(|| {
            Error::new(Code::Conflict, "No addresses are free for one more network. Delete one, or name its cidr.")
        });
    };
    match others.iter().find(|other| overlap(other.cidr, wanted)) {
        Some(other) => Err(overlaps(wanted.into(), &other.name, other.cidr.into(), "cidr")),
        None => Ok(wanted),
    }
}

/// Its IPv6 addresses: those that are wanted, or some made by chance.
fn cidr6(others: &[NetworkRow], wanted: Wanted6) -> Result<Option<Ipv6Net>> {
    let taken = || others.iter().filter_map(|other| Some((&other.name, other.cidr6?)));
    match wanted {
        Wanted6::Nothing => Ok(None),
        Wanted6::Any => {
            let taken: Vec<_> = taken().map(|(_, cidr6)| cidr6).collect();
            let random = Uuid::new_v4().as_u128();
            let chosen = chosen_cidr6(random, &taken);
            chosen.map(Some).ok_or_else(|| {
                Error::new(Code::Conflict, "No IPv6 addresses were found for one more network. Name its cidr6.")
            })
        }
        Wanted6::These(wanted) => match taken().find(|(_, other)| overlap6(*other, wanted)) {
            Some((name, other)) => Err(overlaps(wanted.into(), name, other.into(), "cidr6")),
            None => Ok(Some(wanted)),
        },
    }
}

fn overlaps(wanted: IpNet, name: &str, other: IpNet, field: &str) -> Error {
    let message = format!(
        "{wanted} overlaps the network '{name}' of the project, {other}. Name other addresses, or leave {field} out."
    );
    Error::new(Code::NetworkExists, message)
}

/// A network by its id, with who belongs to it.
pub async fn get(networks: &Networks, scope: &Scope, id: NetworkId) -> Result<NetworkView> {
    let row = store::network::find(networks.db(), scope.into(), id).await?.ok_or_else(not_found)?;
    let members = store::network::members(networks.db(), id).await?;
    Ok(NetworkView::with_members(&row, &members))
}

/// Changes a network's name, and has its members know it.
pub async fn update(networks: &Networks, scope: &Scope, id: NetworkId, change: UpdateNetwork) -> Result<NetworkView> {
    let now = networks.clock().now();
    let mut tx = networks.db().begin_as(scope).await?;
    let before = store::network::find(&mut tx, scope.into(), id).await?.ok_or_else(not_found)?;
    let members = store::network::members(&mut tx, id).await?;
    let mut row = before.clone();
    if let Some(name) = change.name {
        require_free(&store::network::of_project(&mut tx, scope.into()).await?, Some(id), name.as_str())?;
        name.as_str().clone_into(&mut row.name);
    }
    if row == before {
        return Ok(NetworkView::with_members(&row, &members));
    }
    row.revision += 1;
    (row.updated_at, row.work_at) = (now, Some(now));
    store::network::update(&mut tx, &before, &row).await?;
    record(&mut tx, scope, &row, "update", now).await?;
    tx.commit().await?;
    Ok(NetworkView::with_members(&row, &members))
}

/// Records the wish to delete a network, to which nobody may belong.
pub async fn delete(networks: &Networks, scope: &Scope, id: NetworkId) -> Result<()> {
    let now = networks.clock().now();
    let mut tx = networks.db().begin_as(scope).await?;
    let before = store::network::find(&mut tx, scope.into(), id).await?.ok_or_else(not_found)?;
    let members = network::addresses(&mut tx, id).await?.len();
    if members > 0 {
        let message = format!(
            "{members} VMs and sandboxes belong to the network. Delete them first; GET …/networks/ID lists them."
        );
        return Err(Error::new(Code::NetworkInUse, message));
    }
    let row = NetworkRow { deleted_at: Some(now), updated_at: now, work_at: Some(now), ..before.clone() };
    store::network::update(&mut tx, &before, &row).await?;
    record(&mut tx, scope, &row, "delete", now).await?;
    Ok(tx.commit().await?)
}

/// Audit record and event of a change, and the worker's call.
async fn record(tx: &mut Tx, scope: &Scope, row: &NetworkRow, action: &str, now: Timestamp) -> Result<()> {
    let subject = row.id.to_string();
    let cidr6 = row.cidr6.map(|cidr6| cidr6.to_string());
    let data = json!({"name": row.name, "cidr": row.cidr.to_string(), "cidr6": cidr6});
    Audit { data: data.clone(), ..scope.audit(&format!("network.{action}"), &subject) }.write(tx, now).await?;
    event::emit(tx, scope.project, &format!("network.{action}d"), &subject, &data, now).await?;
    tx.signal(Signal::Work(network::TABLE));
    Ok(())
}

/// The 404 of a network.
pub(super) fn not_found() -> Error {
    Error::new(Code::NotFound, "There is no such network in this project.")
}
