//! Hosts, for administrators of the platform.

use axum::Json;
use axum::extract::State;
use berth_domain::Result;
use berth_domain::host::Drain;
use berth_domain::host::request::UpdateHost;

use crate::db::machine_gpu;
use crate::http::auth::Administrator;
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::list::{List, NameParams, PageParams, Params};
use crate::http::path::PathText;
use crate::http::query::truth;
use crate::http::reply::{Accepted, Reply};
use crate::services::host::store::host::HostRow;
use crate::services::host::wire::host::{HostState, HostView, UpdateHostBody};
use crate::services::host::{Hosts, ops, store};

/// Every host that this database knows, newest first: the service's own, and those that are lost.
#[utoipa::path(get, path = "/api/v1/admin/hosts", operation_id = "listHosts", tag = "administration",
    params(PageParams, NameParams, ("state" = Option<HostState>, Query, description = "only this state"),
        ("label" = Option<String>, Query, description = "only this label: `key` or `key=value`")),
    responses((status = 200, body = List<HostView>), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_hosts(
    State(hosts): State<Hosts>,
    _admin: Administrator,
    mut params: Params,
) -> Reply<Json<List<HostView>>> {
    let listing = params.listing(&store::host::LISTED);
    params.finish()?;
    let (rows, total) = store::host::list(&hosts.db, &listing).await?;
    let held = machine_gpu::all(&hosts.db).await?;
    let things = store::host::things_of(&hosts.db, &rows).await?;
    let views = rows.into_iter().zip(things).map(|(row, things)| HostView::of(row, things, &held)).collect();
    Ok(Json(List::new(views, listing.page, total)))
}

/// One host.
#[utoipa::path(get, path = "/api/v1/admin/hosts/{host_id}", operation_id = "getHost", tag = "administration",
    params(("host_id" = uuid::Uuid, Path)),
    responses((status = 200, body = HostView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn get_host(
    State(hosts): State<Hosts>,
    _admin: Administrator,
    path: PathText,
) -> Reply<Json<HostView>> {
    let found = store::host::find(&hosts.db, path.id("host_id")?).await?;
    Ok(Json(view(&hosts, found.ok_or_else(ops::host::host_not_found)?).await?))
}

/// Calls a host otherwise, or labels it anew; absent fields stay as they are.
#[utoipa::path(patch, path = "/api/v1/admin/hosts/{host_id}", operation_id = "updateHost", tag = "administration",
    params(("host_id" = uuid::Uuid, Path)), request_body = UpdateHostBody,
    responses((status = 200, body = HostView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 413, body = ErrorBody),
        (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn update_host(
    State(hosts): State<Hosts>,
    Administrator(admin): Administrator,
    path: PathText,
    body::Json(body): body::Json,
) -> Reply<Json<HostView>> {
    let id = path.id("host_id")?;
    let change = UpdateHost::try_from(&body)?;
    let host = ops::host::update(&hosts, &admin, id, change).await?;
    Ok(Json(view(&hosts, host).await?))
}

/// Has a host take no new machines. Those that it has go on, and start there again; machines that wait for an owner end.
#[utoipa::path(post, path = "/api/v1/admin/hosts/{host_id}/cordon", operation_id = "cordonHost", tag = "administration",
    params(("host_id" = uuid::Uuid, Path)),
    responses((status = 202, body = HostView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn cordon_host(
    State(hosts): State<Hosts>,
    Administrator(admin): Administrator,
    path: PathText,
) -> Reply<Accepted<HostView>> {
    let host = ops::host::cordon(&hosts, &admin, path.id("host_id")?, true).await?;
    Ok(Accepted(view(&hosts, host).await?))
}

/// Has a host take new machines again, and VMs leave it no more. What failed meanwhile is started by its owner.
#[utoipa::path(post, path = "/api/v1/admin/hosts/{host_id}/uncordon", operation_id = "uncordonHost",
    tag = "administration", params(("host_id" = uuid::Uuid, Path)),
    responses((status = 202, body = HostView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn uncordon_host(
    State(hosts): State<Hosts>,
    Administrator(admin): Administrator,
    path: PathText,
) -> Reply<Accepted<HostView>> {
    let host = ops::host::cordon(&hosts, &admin, path.id("host_id")?, false).await?;
    Ok(Accepted(view(&hosts, host).await?))
}

/// Has a host take no new machines, and its VMs go to other hosts that have room, with their disks: those that are off, as
/// soon as they are, and those that run, a few at a time, while they run (live migration). With `restart=true` those leave,
/// too, that cannot go as they run: each is shut down and starts elsewhere.
/// Sandboxes go with disk and memory: those that are paused or have failed, and with `restart=true` those that run, too,
/// which are paused, and go on elsewhere. Their snapshots and projects' templates follow. VMs that are suspended with their
/// memory, snapshots of disks, images of projects, disks of no VM and the platform's templates stay. `holds` says what is
/// left. It goes on until the host is uncordoned.
#[utoipa::path(post, path = "/api/v1/admin/hosts/{host_id}/drain", operation_id = "drainHost", tag = "administration",
    params(("host_id" = uuid::Uuid, Path),
        ("restart" = Option<bool>, Query, description = "whether that leaves, too, which cannot go as it runs: VMs are \
            shut down and started elsewhere, sandboxes paused and resumed there")),
    responses((status = 202, body = HostView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn drain_host(
    State(hosts): State<Hosts>,
    Administrator(admin): Administrator,
    path: PathText,
    mut params: Params,
) -> Reply<Accepted<HostView>> {
    let id = path.id("host_id")?;
    let restart = params.read("restart", truth).unwrap_or(false);
    params.finish()?;
    let drain = if restart { Drain::All } else { Drain::Off };
    let host = ops::host::drain(&hosts, &admin, id, drain).await?;
    Ok(Accepted(view(&hosts, host).await?))
}

/// A host with what it has, and what machines have of its GPUs.
async fn view(hosts: &Hosts, row: HostRow) -> Result<HostView> {
    let things = store::host::things(&hosts.db, row.id).await?;
    Ok(HostView::of(row, things, &machine_gpu::all(&hosts.db).await?))
}
