//! Firewall rules of a network.

use berth_domain::Result;
use berth_domain::firewall::{Rules, SetRules};
use berth_domain::ids::NetworkId;
use serde_json::json;

use super::network::not_found;
use crate::db::audit::Audit;
use crate::db::{Signal, event, network};
use crate::http::auth::Scope;
use crate::services::firewall::require_few;
use crate::services::network::{Networks, store};

/// The rules of a network.
pub async fn get(networks: &Networks, scope: &Scope, id: NetworkId) -> Result<Rules> {
    let row = store::network::find(networks.db(), scope.into(), id).await?;
    Ok(row.ok_or_else(not_found)?.rules)
}

/// Sets the rules of a network, and has its members follow them.
pub async fn set(networks: &Networks, scope: &Scope, id: NetworkId, request: SetRules) -> Result<Rules> {
    let now = networks.clock().now();
    let mut tx = networks.db().begin_as(scope).await?;
    let before = store::network::find(&mut tx, scope.into(), id).await?.ok_or_else(not_found)?;
    let mut row = before.clone();
    if row.rules == request.rules {
        return Ok(row.rules);
    }
    if request.rules.has_groups() {
        let members = store::network::members(&mut tx, id).await?;
        require_few(&request.rules, &store::network::labelled(&row, &members))?;
    }
    (row.rules, row.updated_at, row.work_at) = (request.rules, now, Some(now));
    row.revision += 1;
    store::network::update(&mut tx, &before, &row).await?;
    let subject = id.to_string();
    let data = json!({"name": row.name, "rules": row.rules});
    Audit { data, ..scope.audit("network.set_rules", &subject) }.write(&mut tx, now).await?;
    event::emit(&mut tx, scope.project, "network.updated", &subject, &json!({"name": row.name}), now).await?;
    tx.signal(Signal::Work(network::TABLE));
    tx.commit().await?;
    Ok(row.rules)
}
