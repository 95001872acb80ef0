//! The audit log of an organization.

use axum::Json;
use axum::extract::State;

use crate::http::auth::OrgManager;
use crate::http::envelope::ErrorBody;
use crate::http::list::{List, PageParams, Params};
use crate::http::reply::Reply;
use crate::services::identity::wire::audit::{AuditParams, AuditView, read};
use crate::services::identity::{Identity, store};

/// Who did what in an organization, newest first (owners and administrators).
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/audit_log", operation_id = "listAuditLog", tag = "identity",
    params(("org_id" = String, Path), AuditParams, PageParams), responses((status = 200, body = List<AuditView>),
    (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn list_audit_log(
    State(identity): State<Identity>,
    OrgManager(scope): OrgManager,
    params: Params,
) -> Reply<Json<List<AuditView>>> {
    let (filter, page) = read(params)?;
    let (rows, total) = store::audit::list(&identity.inner.db, scope.org, &filter, page).await?;
    Ok(Json(List::new(rows.into_iter().map(AuditView::from).collect(), page, total)))
}
