//! Verbs on templates.

use berth_domain::ids::{SnapshotId, TemplateId};
use berth_domain::sandbox::request::CreateTemplate;
use berth_domain::sandbox::{SourceKind, TemplateStatus, Warm};
use berth_domain::{Code, Error, Result, Timestamp};
use berth_host::sandbox::PlatformTemplate;
use serde_json::json;
use uuid::Uuid;

use super::{admit_stored, snapshot, template_not_found, upload};
use crate::db::audit::Audit;
use crate::db::{DbError, Tx, event};
use crate::http::auth::Scope;
use crate::http::idempotency::{Idempotency, Outcome};
use crate::services::quota::require_project;
use crate::services::sandbox::Sandboxes;
use crate::services::sandbox::store;
use crate::services::sandbox::store::snapshot::SnapshotRow;
use crate::services::sandbox::store::template::TemplateRow;
use crate::services::sandbox::wire::template::TemplateView;

/// The user that commands run as where nobody says otherwise.
pub(in crate::services::sandbox) const USER: &str = "user";

/// Records the wish for a template.
pub async fn create(
    sandboxes: &Sandboxes,
    scope: &Scope,
    request: CreateTemplate,
    key: Idempotency,
) -> Result<Outcome<TemplateView>> {
    let now = sandboxes.clock().now();
    let mut tx = sandboxes.db().begin_as(scope).await?;
    if let Some(replayed) = key.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    require_project(&mut tx, scope).await?;
    let source = match request.kind {
        SourceKind::FromSnapshot => {
            let id: SnapshotId = request.source.parse().map_err(Error::internal)?;
            Some(snapshot::ready(&mut tx, scope, id).await?)
        }
        _ => None,
    };
    let name = request.name.as_str();
    if let Some(former) = store::template::of_project(&mut tx, scope.project, name).await? {
        if !request.replace && former.status != TemplateStatus::Failed {
            let message =
                "Choose another name, delete that one first, or ask with 'replace' that this one takes its place.";
            return Err(Error::new(Code::TemplateExists, format!("The project has a template '{name}'. {message}")));
        }
        replace(&mut tx, scope, &former, now).await?;
    }
    if let Some(id) = request.context
        && store::upload::find(&mut tx, scope.into(), id).await?.is_none()
    {
        return Err(upload::not_found());
    }
    admit_stored(&mut tx, sandboxes, scope).await?;
    let mut row = new(scope, &request, now)?;
    if let Some(snapshot) = source {
        build_on(&mut row, &request, &snapshot);
    }
    store::template::insert(&mut tx, &row).await?;
    let subject = row.id.to_string();
    let data = json!({"name": row.name, "source": row.kind.as_str()});
    Audit { data, ..scope.audit("template.create", &subject) }.write(&mut tx, now).await?;
    tell(&mut tx, &row, now).await?;
    let view = TemplateView::from(&row);
    let outcome = key.created(&mut tx, now, view.location(scope), view).await?;
    tx.commit().await?;
    Ok(outcome)
}

/// Records the wish to delete a template, and gives its name to the one that takes its place. Sandboxes that wait for the
/// former look at it again.
async fn replace(tx: &mut Tx, scope: &Scope, before: &TemplateRow, now: Timestamp) -> Result<()> {
    let subject = before.id.to_string();
    let after = TemplateRow { name: subject.clone(), ..deleting(before, now) };
    store::template::update(tx, before, &after, now).await?;
    store::sandbox::wake_those_of_template(tx, before.id, now).await?;
    // That one is being deleted was recorded and told when it was asked for.
    if before.status == TemplateStatus::Deleting {
        return Ok(());
    }
    let data = json!({"name": before.name, "status": before.status.as_str(), "replaced": true});
    Audit { data, ..scope.audit("template.delete", &subject) }.write(tx, now).await?;
    tell(tx, &TemplateRow { name: before.name.clone(), ..after }, now).await?;
    Ok(())
}

fn deleting(before: &TemplateRow, now: Timestamp) -> TemplateRow {
    TemplateRow {
        status: TemplateStatus::Deleting,
        message: None,
        status_since: now,
        work_at: Some(now),
        updated_at: now,
        ..before.clone()
    }
}

fn new(scope: &Scope, request: &CreateTemplate, now: Timestamp) -> Result<TemplateRow> {
    let size = |value: Option<i64>| match (value, request.kind) {
        (Some(value), _) => Ok(value),
        (None, SourceKind::FromSnapshot) => Ok(0),
        (None, _) => Err(Error::internal("a template without a size")),
    };
    Ok(TemplateRow {
        org: Some(scope.org),
        project: Some(scope.project),
        name: request.name.as_str().to_owned(),
        kind: request.kind,
        source: request.source.clone(),
        vcpu: size(request.vcpu)?,
        memory_mb: size(request.memory_mb)?,
        disk_gb: size(request.disk_gb)?,
        env: request.env.clone(),
        context: request.context,
        start_command: request.start_command.clone(),
        ready_command: request.ready_command.clone(),
        ..blank(TemplateId(Uuid::now_v7()), now)
    })
}

/// A template that is made of a snapshot has its disk at once, and its memory, where the machine is as large and
/// nothing else is to be started.
fn build_on(row: &mut TemplateRow, request: &CreateTemplate, snapshot: &SnapshotRow) {
    row.vcpu = request.vcpu.unwrap_or(snapshot.vcpu);
    row.memory_mb = request.memory_mb.unwrap_or(snapshot.memory_mb);
    row.disk_gb = snapshot.disk_gb;
    row.env = snapshot.env.clone().into_iter().chain(std::mem::take(&mut row.env)).collect();
    row.run_user.clone_from(&snapshot.run_user);
    row.workdir.clone_from(&snapshot.workdir);
    (row.base_layer, row.layer) = (snapshot.layer, snapshot.layer);
    let fits = (row.vcpu, row.memory_mb) == (snapshot.vcpu, snapshot.memory_mb) && row.start_command.is_none();
    if let Some(memory) = snapshot.memory.filter(|_| fits) {
        (row.memory, row.warm) = (Some(memory), Warm::Done);
    }
}

fn blank(id: TemplateId, now: Timestamp) -> TemplateRow {
    TemplateRow {
        id,
        org: None,
        project: None,
        name: String::new(),
        status: TemplateStatus::Pending,
        message: Some("waiting for a worker".into()),
        kind: SourceKind::Platform,
        source: String::new(),
        version: None,
        vcpu: 1,
        memory_mb: 0,
        disk_gb: 0,
        env: std::collections::BTreeMap::new(),
        start_command: None,
        ready_command: None,
        run_user: USER.into(),
        workdir: None,
        base_layer: None,
        layer: None,
        next_layer: None,
        memory: None,
        next_memory: None,
        warm: Warm::Wanted,
        context: None,
        status_since: now,
        attempts: 0,
        work_at: Some(now),
        created_at: now,
        updated_at: now,
        deleted_at: None,
    }
}

/// The row of a template that the platform brings along, to be made.
pub(in crate::services::sandbox) fn of_platform(
    found: &PlatformTemplate,
    id: TemplateId,
    now: Timestamp,
) -> TemplateRow {
    TemplateRow {
        name: found.name.clone(),
        source: found.name.clone(),
        version: Some(found.version.clone()),
        vcpu: found.vcpu,
        memory_mb: found.memory_mb,
        disk_gb: found.disk_gb,
        run_user: found.user.clone(),
        start_command: found.start_command.clone(),
        ready_command: found.ready_command.clone(),
        ..blank(id, now)
    }
}

/// Records the wish to delete one of the project's own templates. Sandboxes that were made of it keep theirs.
pub async fn delete(sandboxes: &Sandboxes, scope: &Scope, name: &str) -> Result<()> {
    let now = sandboxes.clock().now();
    let mut tx = sandboxes.db().begin_as(scope).await?;
    let before = store::template::find(&mut tx, scope.into(), name).await?.ok_or_else(|| template_not_found(name))?;
    if before.project.is_none() {
        return Err(Error::new(Code::Forbidden, "This template belongs to the platform and cannot be deleted."));
    }
    let after = deleting(&before, now);
    store::template::update(&mut tx, &before, &after, now).await?;
    let subject = after.id.to_string();
    Audit { data: json!({"name": after.name}), ..scope.audit("template.delete", &subject) }.write(&mut tx, now).await?;
    tell(&mut tx, &after, now).await?;
    store::sandbox::wake_those_of_template(&mut tx, after.id, now).await?;
    Ok(tx.commit().await?)
}

/// Tells who watches the project; the platform's templates belong to none.
pub(in crate::services::sandbox) async fn tell(
    tx: &mut Tx,
    row: &TemplateRow,
    now: Timestamp,
) -> std::result::Result<(), DbError> {
    let Some(project) = row.project else { return Ok(()) };
    let data = json!({"name": row.name, "status": row.status.as_str(), "message": row.message});
    event::emit(tx, project, "template.status", &row.id.to_string(), &data, now).await
}
