//! The audit log, of an organization and of the platform.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use berth_domain::identity::audit::Filter;
use bytes::Bytes;
use futures::Stream;

use crate::http::auth::{Administrator, OrgManager, Person};
use crate::http::envelope::ErrorBody;
use crate::http::list::{List, PageParams, Params};
use crate::http::reply::Reply;
use crate::services::identity::wire::audit::{AuditParams, AuditView, OrgParam};
use crate::services::identity::{Identity, ops, store};

/// The media type of JSON lines.
const LINES: &str = "application/x-ndjson";

/// Who did what in an organization, newest first (owners and administrators).
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/audit_log", operation_id = "listAuditLog", tag = "identity",
    params(("org_id" = String, Path), AuditParams, PageParams), responses((status = 200, body = List<AuditView>),
    (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn list_audit_log(
    State(identity): State<Identity>,
    OrgManager(scope): OrgManager,
    Params(params): Params,
) -> Reply<Json<List<AuditView>>> {
    let (filter, page) = Filter::read(params)?;
    let (rows, total) = store::audit::list(&identity.inner.db, scope.org, &filter, page).await?;
    Ok(Json(List::new(rows.into_iter().map(AuditView::from).collect(), page, total)))
}

/// Who did what on the whole platform, newest first. With `Accept: application/x-ndjson` all of it, a record in a line.
#[utoipa::path(get, path = "/api/v1/admin/audit", operation_id = "listAllAudit", tag = "administration",
    params(OrgParam, AuditParams, PageParams), responses((status = 200, content((List<AuditView> = "application/json"),
    (String = "application/x-ndjson"))), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
    (status = 403, body = ErrorBody), (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn list_all_audit(
    State(identity): State<Identity>,
    Administrator(admin): Administrator,
    headers: HeaderMap,
    Params(params): Params,
) -> Reply<Response> {
    let (filter, page) = Filter::read_all(params)?;
    if wants_lines(&headers) {
        ops::audit::export(&identity, &admin, &filter).await?;
        let body = Body::from_stream(lines(identity, admin, filter));
        return Ok(([(header::CONTENT_TYPE, LINES)], body).into_response());
    }
    let (rows, total) = store::audit::list_all(&identity.inner.db, &filter, page).await?;
    Ok(Json(List::new(rows.into_iter().map(AuditView::from).collect(), page, total)).into_response())
}

fn wants_lines(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut kinds = accepted.flat_map(|value| value.split(','));
    kinds.any(|kind| kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case(LINES)))
}

/// The records, so many at a time. What cannot be read breaks the answer off: nobody takes it for the whole.
fn lines(identity: Identity, admin: Person, filter: Filter) -> impl Stream<Item = std::io::Result<Bytes>> {
    async_stream::try_stream! {
        let mut place = None;
        loop {
            let step = ops::audit::step(&identity, &admin, &filter, place.take()).await;
            let (rows, next) = step.map_err(std::io::Error::other)?;
            let mut text = Vec::new();
            for row in rows {
                serde_json::to_writer(&mut text, &AuditView::from(row))?;
                text.push(b'\n');
            }
            yield Bytes::from(text);
            match next {
                Some(next) => place = Some(next),
                None => break,
            }
        }
    }
}
