//! VMs: the seven operations of the specification, and change, wait and operations beside them.

use std::pin::pin;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use berth_domain::Error;
use berth_domain::identity::Action;
use berth_domain::ids::VmId;
use berth_domain::vm::Status;
use berth_domain::vm::request::{CreateVm, ReinstallVm, ReplaceKeys, ResizeVm, UpdateVm};
use berth_domain::vm::state::Verb;
use bytes::Bytes;

use crate::http::auth::{Editor, Reader, Scope, Watch};
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::idempotency::{IdempotencyKey, KeyParam, Outcome};
use crate::http::list::{List, NameParams, PageParams, Params, SortParams};
use crate::http::path::PathText;
use crate::http::query::truth;
use crate::http::reply::{Accepted, Reply};
use crate::http::wait::{self, Wait};
use crate::services::vm::ops;
use crate::services::vm::ops::with_disks::VmWithDisks;
use crate::services::vm::wire::requests::{CreateVmBody, ReinstallVmBody, ReplaceKeysBody, ResizeVmBody, UpdateVmBody};
use crate::services::vm::wire::vm::{MadeView, OperationView, VmStatus, VmView};
use crate::services::vm::{Vms, store};

/// VMs of a project, newest first.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/vms", operation_id = "listVMs", tag = "vms",
    params(("org_id" = String, Path), ("project_id" = String, Path), PageParams, NameParams,
        ("status" = Option<VmStatus>, Query, description = "only this status"),
        ("label" = Option<String>, Query, description = "only this label: `key` or `key=value`"),
        ("include_deleted" = Option<bool>, Query, description = "`true`: deleted ones too")),
    responses((status = 200, body = List<VmView>), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_vms(
    State(vms): State<Vms>,
    Reader(scope, ..): Reader<Vms>,
    mut params: Params,
) -> Reply<Json<List<VmView>>> {
    let listing = params.listing(&store::vm::LISTED);
    let deleted = params.read("include_deleted", truth).unwrap_or(false);
    params.finish()?;
    let (rows, total) = store::vm::list(vms.db(), (&scope).into(), &listing, deleted).await?;
    let ids: Vec<VmId> = rows.iter().map(|vm| vm.id).collect();
    let mut disks = std::collections::HashMap::<VmId, Vec<_>>::new();
    for disk in store::disk::of_vms(vms.db(), &ids).await? {
        if let Some(vm) = disk.vm {
            disks.entry(vm).or_default().push(disk);
        }
    }
    let views = rows
        .iter()
        .map(|vm| VmView::for_caller(&scope.caller, vm, disks.get(&vm.id).map_or(&[], Vec::as_slice)))
        .collect();
    Ok(Json(List::new(views, listing.page, total)))
}

/// Creates a VM, or several with `count`; they are made after the answer.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/vms", operation_id = "createVM", tag = "vms",
    params(("org_id" = String, Path), ("project_id" = String, Path),
        KeyParam),
    request_body = CreateVmBody,
    responses((status = 201, body = MadeView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 422, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn create_vm(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    key: IdempotencyKey,
    body::Json(body): body::Json,
) -> Reply<Outcome<MadeView>> {
    let request = CreateVm::try_from(&body)?;
    let key = key.bind(&scope.caller, &body).await?;
    Ok(ops::vm::create(&vms, &scope, request, key).await?)
}

/// One VM.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/vms/{vm_id}", operation_id = "getVM",
    tag = "vms",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("vm_id" = uuid::Uuid, Path),
        ("include_deleted" = Option<bool>, Query, description = "`true`: also when it is deleted")),
    responses((status = 200, body = VmView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn get_vm(
    State(vms): State<Vms>,
    Reader(scope, ..): Reader<Vms>,
    path: PathText,
    mut params: Params,
) -> Reply<Response> {
    let id = path.id("vm_id")?;
    let deleted = params.read("include_deleted", truth).unwrap_or(false);
    params.finish()?;
    let (epoch, asked) = (vms.db().epoch(), (scope.project, id, scope.caller.is_administrator()));
    if let Some(body) = epoch.and_then(|epoch| vms.views().get(epoch, asked)) {
        return Ok(json(body));
    }
    let found = ops::vm::get(&vms, &scope, id, deleted).await?;
    let body = Bytes::from(serde_json::to_vec(&view(&scope, &found)).map_err(Error::internal)?);
    if let Some(epoch) = epoch.filter(|_| found.vm.deleted_at.is_none()) {
        vms.views().put(epoch, asked, body.clone());
    }
    Ok(json(body))
}

/// A VM as the caller sees it.
fn view(scope: &Scope, found: &VmWithDisks) -> VmView {
    VmView::for_caller(&scope.caller, &found.vm, &found.disks)
}

fn json(body: Bytes) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}

/// Changes name, labels, ports, restart policy, the time to live or user data.
#[utoipa::path(patch, path = "/api/v1/orgs/{org_id}/projects/{project_id}/vms/{vm_id}", operation_id = "updateVM",
    tag = "vms",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("vm_id" = uuid::Uuid, Path)),
    request_body = UpdateVmBody,
    responses((status = 200, body = VmView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 413, body = ErrorBody),
        (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn update_vm(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
    body::Json(body): body::Json,
) -> Reply<Json<VmView>> {
    let id = path.id("vm_id")?;
    let change = UpdateVm::try_from(&body)?;
    Ok(Json(view(&scope, &ops::vm::update(&vms, &scope, id, change).await?)))
}

/// Replaces the keys of a VM's login user. A guest that runs QEMU's guest agent, as `debian-12` does, has them a moment later,
/// another when it boots next; `ssh_keys_state` says which. What the platform gave it before and is not named any more goes,
/// and what somebody wrote into `authorized_keys` by hand stays. Images that are imported take keys at their first boot, and
/// by an agent.
#[utoipa::path(put, path = "/api/v1/orgs/{org_id}/projects/{project_id}/vms/{vm_id}/ssh_keys",
    operation_id = "replaceVMSSHKeys", tag = "vms",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("vm_id" = uuid::Uuid, Path)),
    request_body = ReplaceKeysBody,
    responses((status = 200, body = VmView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 413, body = ErrorBody),
        (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn replace_vm_ssh_keys(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
    body::Json(body): body::Json,
) -> Reply<Json<VmView>> {
    let id = path.id("vm_id")?;
    let wanted = ReplaceKeys::try_from(&body)?;
    Ok(Json(view(&scope, &ops::vm::replace_keys(&vms, &scope, id, wanted).await?)))
}

/// Deletes a VM for good; it goes after the answer.
#[utoipa::path(delete, path = "/api/v1/orgs/{org_id}/projects/{project_id}/vms/{vm_id}", operation_id = "deleteVM",
    tag = "vms",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("vm_id" = uuid::Uuid, Path)),
    responses((status = 202, description = "accepted"), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn delete_vm(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
) -> Reply<StatusCode> {
    ops::vm::delete(&vms, &scope, path.id("vm_id")?).await?;
    Ok(StatusCode::ACCEPTED)
}

macro_rules! verb_route {
    ($(#[$doc:meta])* $handler:ident, $operation:literal, $path:literal, $verb:expr $(, $more:tt)*) => {
        $(#[$doc])*
        #[utoipa::path(post, path = $path, operation_id = $operation, tag = "vms",
            params(("org_id" = String, Path), ("project_id" = String, Path), ("vm_id" = uuid::Uuid, Path)),
            responses((status = 202, body = VmView), (status = 400, body = ErrorBody),
                (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
                (status = 503, body = ErrorBody) $(, $more)*),
            security(("bearer" = [])))]
        pub(super) async fn $handler(
            State(vms): State<Vms>,
            Editor(scope, ..): Editor<Vms>,
            path: PathText,
        ) -> Reply<Accepted<VmView>> {
            let found = ops::vm::verb(&vms, &scope, path.id("vm_id")?, $verb).await?;
            Ok(Accepted(view(&scope, &found)))
        }
    };
}

verb_route!(
    /// Starts a stopped or failed VM. A suspended one goes on where it was.
    start_vm, "startVM", "/api/v1/orgs/{org_id}/projects/{project_id}/vms/{vm_id}/start", Verb::Start
);
verb_route!(
    /// Stops a VM: power button, then power switch.
    stop_vm, "stopVM", "/api/v1/orgs/{org_id}/projects/{project_id}/vms/{vm_id}/stop", Verb::Stop
);
verb_route!(
    /// Suspends a running VM: its memory goes to the disk, and it uses none of the host's until it is resumed. Its
    /// connections end; its clock goes on from where it stood, until the guest sets it. One with GPUs is not suspended: 409
    /// `not_supported`.
    suspend_vm, "suspendVM", "/api/v1/orgs/{org_id}/projects/{project_id}/vms/{vm_id}/suspend", Verb::Suspend,
    (status = 409, body = ErrorBody)
);
verb_route!(
    /// Resumes a suspended VM where it was. One whose memory cannot be loaded any more boots, and its message says why.
    resume_vm, "resumeVM", "/api/v1/orgs/{org_id}/projects/{project_id}/vms/{vm_id}/resume", Verb::Resume
);
verb_route!(
    /// Stops a running VM and starts it again.
    restart_vm, "restartVM", "/api/v1/orgs/{org_id}/projects/{project_id}/vms/{vm_id}/restart", Verb::Restart
);

/// Gives a VM that is off another size, with which it starts next.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/vms/{vm_id}/resize", operation_id = "resizeVM",
    tag = "vms",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("vm_id" = uuid::Uuid, Path)),
    request_body = ResizeVmBody,
    responses((status = 202, body = VmView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 413, body = ErrorBody),
        (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn resize_vm(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
    body::Json(body): body::Json,
) -> Reply<Accepted<VmView>> {
    let id = path.id("vm_id")?;
    let request = ResizeVm::try_from(&body)?;
    Ok(Accepted(view(&scope, &ops::resize::resize(&vms, &scope, id, request).await?)))
}

/// Makes the root disk of a VM anew, from an image: whatever was on it is gone. Name, address, ports, keys, user data, networks
/// and data disks stay, and so do the ids of VM and disk and the size of that. A VM that runs is powered off first, the memory
/// of a suspended one is given up, and it runs afterwards, whatever it did before. Its guest is a new one: host keys differ,
/// and user data runs.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/vms/{vm_id}/reinstall",
    operation_id = "reinstallVM", tag = "vms",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("vm_id" = uuid::Uuid, Path)),
    request_body = ReinstallVmBody,
    responses((status = 202, body = VmView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 413, body = ErrorBody),
        (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn reinstall_vm(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
    body::Json(body): body::Json,
) -> Reply<Accepted<VmView>> {
    let id = path.id("vm_id")?;
    let request = ReinstallVm::try_from(&body)?;
    Ok(Accepted(view(&scope, &ops::reinstall::reinstall(&vms, &scope, id, request).await?)))
}

/// Starts a VM with a rescue system instead of its own: its root disk and data disks stand beside it under
/// `/dev/disk/by-id`, not mounted, and its keys, address and ports stay, so that its owner logs in and repairs. One that runs
/// is powered off first. `restart` leaves it, and so do `stop` and `start`; nothing of the rescue system is kept. Where the
/// host has none: 409 `not_supported`.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/vms/{vm_id}/rescue",
    operation_id = "rescueVM", tag = "vms",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("vm_id" = uuid::Uuid, Path)),
    responses((status = 202, body = VmView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn rescue_vm(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
) -> Reply<Accepted<VmView>> {
    let found = ops::rescue::rescue(&vms, &scope, path.id("vm_id")?).await?;
    Ok(Accepted(view(&scope, &found)))
}

/// Waits until a VM has a status, or until the time is over; answers with the VM either way.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/vms/{vm_id}/wait", operation_id = "waitVM",
    tag = "vms",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("vm_id" = uuid::Uuid, Path),
        ("status" = Option<VmStatus>, Query, description = "default `running`"),
        ("timeout" = Option<i64>, Query, description = "seconds, 1 to 300; default 60", minimum = 1, maximum = 300)),
    responses((status = 200, body = VmView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn wait_vm(
    State(vms): State<Vms>,
    Reader(scope, ..): Reader<Vms>,
    watch: Watch,
    path: PathText,
    mut params: Params,
) -> Reply<Json<VmView>> {
    let id: VmId = path.id("vm_id")?;
    let status = params.read("status", Status::parse).unwrap_or(Status::Running);
    let seconds = params.integer("timeout", wait::LONGEST).unwrap_or(wait::DEFAULT);
    params.finish()?;
    let mut refusal = pin!(watch.refusal(&scope, Action::ReadProject));
    let mut wait = Wait::begin(vms.db(), "vms", id.0, seconds);
    loop {
        let found = ops::vm::get(&vms, &scope, id, status == Status::Deleted).await?;
        let done = [status, Status::Failed, Status::Deleted].contains(&found.vm.status);
        if done || !wait.changed(&mut refusal).await? {
            return Ok(Json(view(&scope, &found)));
        }
    }
}

/// What was asked of a VM, newest first.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/vms/{vm_id}/operations",
    operation_id = "listVMOperations", tag = "vms",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("vm_id" = uuid::Uuid, Path), PageParams, SortParams,
        ("status" = Option<String>, Query, description = "only this status", pattern = "^(running|done|failed)$")),
    responses((status = 200, body = List<OperationView>), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_vm_operations(
    State(vms): State<Vms>,
    Reader(scope, ..): Reader<Vms>,
    path: PathText,
    mut params: Params,
) -> Reply<Json<List<OperationView>>> {
    let listing = params.listing(&store::operation::LISTED);
    params.finish()?;
    let id: VmId = path.id("vm_id")?;
    store::vm::find_ever(vms.db(), (&scope).into(), id).await?.ok_or_else(not_found)?;
    let (rows, total) = store::operation::list(vms.db(), id, &listing).await?;
    Ok(Json(List::new(rows.into_iter().map(OperationView::from).collect(), listing.page, total)))
}

/// The 404 of a VM.
pub(super) fn not_found() -> Error {
    ops::vm_not_found()
}
