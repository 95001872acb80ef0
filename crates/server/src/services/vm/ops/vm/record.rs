//! What is told of a VM's changes, and how its row takes them.

use berth_domain::vm::Status;
use berth_domain::vm::model::Want;
use berth_domain::{Result, Timestamp};
use serde_json::json;

use crate::db::audit::{Actor, Audit};
use crate::db::{Signal, Tx, event};
use crate::http::auth::Caller;
use crate::services::vm::store;
use crate::services::vm::store::vm::VmRow;

/// Writes the wish with its audit record, event and operation, and wakes the worker. Without a caller it is
/// the platform's own.
pub(in crate::services::vm::ops) async fn record(
    tx: &mut Tx,
    by: Option<&Caller>,
    (before, vm): (&VmRow, &VmRow),
    action: &str,
    now: Timestamp,
) -> Result<()> {
    store::vm::update(tx, before, vm).await?;
    let subject = vm.id.to_string();
    let data = json!({"status": vm.status.as_str(), "message": vm.message});
    let audit = Audit {
        org: Some(vm.org),
        project: Some(vm.project),
        actor: by.map_or(Actor::Platform, Caller::actor),
        request_id: by.map_or("", |caller| &caller.request_id),
        from: by.and_then(|caller| caller.from),
        action: &format!("vm.{action}"),
        subject: &subject,
        data: json!({"name": vm.name, "status": vm.status.as_str(), "message": vm.message}),
    };
    audit.write(tx, now).await?;
    event::emit(tx, vm.project, "vm.status", &subject, &data, now).await?;
    store::operation::begin(tx, vm.id, action, by.map_or(Actor::Platform, Caller::actor), now).await?;
    tx.signal(Signal::Work("vms"));
    tx.signal(Signal::Row("vms", vm.id.0));
    Ok(())
}

impl VmRow {
    /// Takes the wish to stop that is not its owner's, for a reason that still stands on it once it is stopped.
    pub(in crate::services::vm::ops) fn stop_for(&mut self, status: Status, reason: &str, now: Timestamp) {
        self.want = Want::Stop;
        self.ending = false;
        self.enter(status, Some(reason.to_owned()), now);
        self.stop_reason = Some(reason.to_owned());
    }

    /// Takes a new status by request or by the worker: the clock of its deadline begins anew.
    pub(in crate::services::vm::ops) fn enter(&mut self, status: Status, message: Option<String>, now: Timestamp) {
        self.status = status;
        self.message = message;
        self.status_since = now;
        self.updated_at = now;
        self.work_at = Some(now);
        self.stop_reason = None;
        self.attempts = 0;
        self.deaths = 0;
        self.power_off_at = None;
        self.pressed_at = None;
        self.start_after = None;
    }
}
