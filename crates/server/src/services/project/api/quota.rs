//! What a project uses and may use.

use axum::Json;
use axum::extract::State;

use crate::db::tenant::Whose;
use crate::http::auth::Onlooker;
use crate::http::envelope::ErrorBody;
use crate::http::reply::Reply;
use crate::services::project::Projects;
use crate::services::quota::QuotaView;

/// What a project uses and may use.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/quota", operation_id = "getQuota",
    tag = "catalog", params(("org_id" = String, Path), ("project_id" = String, Path)),
    responses((status = 200, body = QuotaView), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn get_quota(State(projects): State<Projects>, Onlooker(scope): Onlooker) -> Reply<Json<QuotaView>> {
    let (whose, now) = (Whose::Project(scope.project), projects.clock.now());
    Ok(Json(QuotaView::of(&projects.db, whose, &scope.limits, now).await?))
}
