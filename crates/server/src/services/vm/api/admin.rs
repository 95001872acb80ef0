//! Everybody's VMs, as administrators of the platform see and end them.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use berth_domain::ids::VmId;

use crate::http::auth::Administrator;
use crate::http::envelope::ErrorBody;
use crate::http::list::{List, NameParams, PageParams, Params};
use crate::http::path::PathText;
use crate::http::reply::{Accepted, Reply};
use crate::services::owner::{OwnerParams, whose};
use crate::services::vm::wire::admin::AdminVmView;
use crate::services::vm::wire::vm::{VmStatus, VmView};
use crate::services::vm::{Vms, ops, store};

/// Everybody's VMs, newest first.
#[utoipa::path(get, path = "/api/v1/admin/vms", operation_id = "listAllVMs", tag = "administration",
    params(OwnerParams, ("status" = Option<VmStatus>, Query, description = "only this status"),
        NameParams, PageParams),
    responses((status = 200, body = List<AdminVmView>), (status = 400, body = ErrorBody), (status = 401,
    body = ErrorBody), (status = 403, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_all_vms(
    State(vms): State<Vms>,
    Administrator(admin): Administrator,
    mut params: Params,
) -> Reply<Json<List<AdminVmView>>> {
    let (listing, whose) = (params.listing(&store::vm::LISTED), whose(&mut params));
    params.finish()?;
    let (rows, total) = store::vm::list_all(vms.db(), &whose, &listing).await?;
    let ids: Vec<VmId> = rows.iter().map(|vm| vm.row.id).collect();
    let disks = store::disk::of_vms(vms.db(), &ids).await?;
    let views = rows.iter().map(|vm| {
        let own: Vec<_> = disks.iter().filter(|disk| disk.vm == Some(vm.row.id)).cloned().collect();
        AdminVmView { vm: VmView::for_caller(&admin.caller, &vm.row, &own), owner: vm.into() }
    });
    Ok(Json(List::new(views.collect(), listing.page, total)))
}

/// Stops somebody's VM. Its owner may start it again; suspend the organization where that is not wanted.
#[utoipa::path(post, path = "/api/v1/admin/vms/{vm_id}/stop", operation_id = "stopAnyVM", tag = "administration",
    params(("vm_id" = uuid::Uuid, Path)), responses((status = 202, body = VmView), (status = 400, body = ErrorBody),
    (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503,
    body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn stop_any_vm(
    State(vms): State<Vms>,
    Administrator(admin): Administrator,
    path: PathText,
) -> Reply<Accepted<VmView>> {
    let vm = ops::admin::stop(&vms, &admin, path.id("vm_id")?).await?;
    let disks = store::disk::of_vms(vms.db(), &[vm.id]).await?;
    Ok(Accepted(VmView::for_caller(&admin.caller, &vm, &disks)))
}

/// Deletes somebody's VM, in any status.
#[utoipa::path(delete, path = "/api/v1/admin/vms/{vm_id}", operation_id = "deleteAnyVM", tag = "administration",
    params(("vm_id" = uuid::Uuid, Path)), responses((status = 202, description = "will be deleted"), (status = 400,
    body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404,
    body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn delete_any_vm(
    State(vms): State<Vms>,
    Administrator(admin): Administrator,
    path: PathText,
) -> Reply<StatusCode> {
    ops::admin::delete(&vms, &admin, path.id("vm_id")?).await?;
    Ok(StatusCode::ACCEPTED)
}
