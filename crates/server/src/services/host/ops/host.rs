//! Names, labels, and whether a host takes new machines.

use berth_domain::host::Drain;
use berth_domain::host::request::UpdateHost;
use berth_domain::ids::HostId;
use berth_domain::{Code, Error, Result};
use serde_json::{Value, json};

use crate::db::{Tx, machine};
use crate::http::auth::Person;
use crate::services::host::store::host::HostRow;
use crate::services::host::{Hosts, store};

/// Has a host take no new machines, or take them again. What runs there goes on, and starts there again; machines that
/// wait for an owner end, since whoever gets one would be new there.
pub async fn cordon(hosts: &Hosts, admin: &Person, id: HostId, cordoned: bool) -> Result<HostRow> {
    let mut tx = hosts.db.begin_as(admin).await?;
    let before = find(&mut tx, id).await?;
    let drain = before.drain.filter(|_| cordoned);
    if (before.cordoned, before.drain) == (cordoned, drain) {
        return Ok(before);
    }
    let host = HostRow { cordoned, drain, ..before.clone() };
    if cordoned {
        machine::give_way(&mut tx, id).await?;
    }
    let action = if cordoned { "host.cordon" } else { "host.uncordon" };
    write(hosts, tx, (admin, action), (&before, host), json!({ "name": before.name() })).await
}

/// Has a host take no new machines, and its VMs go to other hosts that have room: and how. It holds until
/// the host is uncordoned.
pub async fn drain(hosts: &Hosts, admin: &Person, id: HostId, drain: Drain) -> Result<HostRow> {
    let mut tx = hosts.db.begin_as(admin).await?;
    let before = find(&mut tx, id).await?;
    if before.drain == Some(drain) {
        return Ok(before);
    }
    let host = HostRow { cordoned: true, drain: Some(drain), ..before.clone() };
    machine::give_way(&mut tx, id).await?;
    let data = json!({ "name": before.name(), "drain": drain.as_str() });
    write(hosts, tx, (admin, "host.drain"), (&before, host), data).await
}

/// Calls a host otherwise, and labels it anew.
pub async fn update(hosts: &Hosts, admin: &Person, id: HostId, change: UpdateHost) -> Result<HostRow> {
    let mut tx = hosts.db.begin_as(admin).await?;
    let before = find(&mut tx, id).await?;
    let mut host = before.clone();
    host.given_name = change.name.or(host.given_name);
    host.labels = change.labels.unwrap_or(host.labels);
    if host == before {
        return Ok(before);
    }
    let data = json!({ "name": host.name(), "labels": &host.labels });
    write(hosts, tx, (admin, "host.update"), (&before, host), data).await
}

/// Writes a row and its audit record.
async fn write(
    hosts: &Hosts,
    mut tx: Tx,
    (admin, action): (&Person, &str),
    (before, after): (&HostRow, HostRow),
    data: Value,
) -> Result<HostRow> {
    store::host::put(&mut tx, Some(before), &after).await?;
    admin.caller.audit(action, &after.id.to_string()).with(data).write(&mut tx, hosts.clock.now()).await?;
    tx.commit().await?;
    Ok(after)
}

async fn find(tx: &mut Tx, id: HostId) -> Result<HostRow> {
    store::host::find(tx, id).await?.ok_or_else(host_not_found)
}

/// What is answered where there is no such host.
pub fn host_not_found() -> Error {
    Error::new(Code::NotFound, "There is no such host. GET /api/v1/admin/hosts lists them.")
}
