//! Hosts, for administrators of the platform.

use axum::Json;
use axum::extract::State;
use berth_domain::{Code, Error};

use crate::db::machine_gpu;
use crate::http::auth::Administrator;
use crate::http::envelope::ErrorBody;
use crate::http::list::{List, NameParams, PageParams, Params};
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::host::wire::host::{HostState, HostView};
use crate::services::host::{Hosts, store};

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
    Ok(Json(List::new(rows.into_iter().map(|row| HostView::of(row, &held)).collect(), listing.page, total)))
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
    let missing = || Error::new(Code::NotFound, "There is no such host. GET /api/v1/admin/hosts lists them.");
    let found = found.ok_or_else(missing)?;
    Ok(Json(HostView::of(found, &machine_gpu::all(&hosts.db).await?)))
}
