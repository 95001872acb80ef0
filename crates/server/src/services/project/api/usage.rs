//! What every project has, for administrators.

use axum::Json;
use axum::extract::State;

use crate::db::usage;
use crate::http::auth::Administrator;
use crate::http::envelope::ErrorBody;
use crate::http::list::{Asked, List, PageParams};
use crate::http::reply::Reply;
use crate::services::project::Projects;
use crate::services::project::wire::usage::UsageView;

/// The projects that have anything, those with most memory first.
#[utoipa::path(get, path = "/api/v1/admin/usage", operation_id = "listUsage", tag = "administration",
    params(PageParams),
    responses((status = 200, body = List<UsageView>), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_usage(
    State(projects): State<Projects>,
    _admin: Administrator,
    Asked(page): Asked,
) -> Reply<Json<List<UsageView>>> {
    let (rows, total) = usage::list(&projects.db, page).await?;
    Ok(Json(List::new(rows.into_iter().map(UsageView::from).collect(), page, total)))
}
