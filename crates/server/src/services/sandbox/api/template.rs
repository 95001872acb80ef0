//! Templates of sandboxes.

use async_stream::stream;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use berth_domain::identity::Action;
use berth_domain::sandbox::request::CreateTemplate;
use berth_domain::sse;

use crate::http::auth::{Editor, Reader, Watch};
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::idempotency::{IdempotencyKey, KeyParam, Outcome};
use crate::http::list::{List, NameParams, PageParams, Params};
use crate::http::path::PathText;
use crate::http::reply::{Reply, events};
use crate::services::sandbox::ops::build_log::Tail;
use crate::services::sandbox::wire::requests::CreateTemplateBody;
use crate::services::sandbox::wire::template::{TemplateStatusWord, TemplateView};
use crate::services::sandbox::{Sandboxes, ops, store};

/// Templates that a project can use, its own and the platform's, newest first.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/sandbox_templates", operation_id = "listSandboxTemplates",
    tag = "sandbox_templates", params(("org_id" = String, Path), ("project_id" = String, Path), PageParams, NameParams,
        ("status" = Option<TemplateStatusWord>, Query, description = "only this status")),
    responses((status = 200, body = List<TemplateView>), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn list_templates(
    State(sandboxes): State<Sandboxes>,
    Reader(scope, ..): Reader<Sandboxes>,
    mut params: Params,
) -> Reply<Json<List<TemplateView>>> {
    let listing = params.listing(&store::template::LISTED);
    params.finish()?;
    let (rows, total) = store::template::list(sandboxes.db(), (&scope).into(), &listing).await?;
    Ok(Json(List::new(rows.iter().map(TemplateView::from).collect(), listing.page, total)))
}

/// Builds a template; `status` tells when it is ready.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/sandbox_templates", operation_id = "createSandboxTemplate",
    tag = "sandbox_templates", params(("org_id" = String, Path), ("project_id" = String, Path), KeyParam),
    request_body = CreateTemplateBody,
    responses((status = 201, body = TemplateView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 422, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn create_template(
    State(sandboxes): State<Sandboxes>,
    Editor(scope, ..): Editor<Sandboxes>,
    key: IdempotencyKey,
    body::Json(body): body::Json,
) -> Reply<Outcome<TemplateView>> {
    let request = CreateTemplate::try_from(&body)?;
    let key = key.bind(&scope.caller, &body).await?;
    Ok(ops::template::create(&sandboxes, &scope, request, key).await?)
}

/// One template, by id or name.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/sandbox_templates/{template_id}", operation_id = "getSandboxTemplate",
    tag = "sandbox_templates", params(("org_id" = String, Path), ("project_id" = String, Path), ("template_id" = String, Path, description = "id or name")),
    responses((status = 200, body = TemplateView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn get_template(
    State(sandboxes): State<Sandboxes>,
    Reader(scope, ..): Reader<Sandboxes>,
    path: PathText,
) -> Reply<Json<TemplateView>> {
    let name = path.text("template_id");
    let row = store::template::find(sandboxes.db(), (&scope).into(), name).await?;
    Ok(Json(TemplateView::from(&row.ok_or_else(|| ops::template_not_found(name))?)))
}

/// Deletes one of the project's own templates. Sandboxes that were made of it keep what they have.
#[utoipa::path(delete, path = "/api/v1/orgs/{org_id}/projects/{project_id}/sandbox_templates/{template_id}", operation_id = "deleteSandboxTemplate",
    tag = "sandbox_templates", params(("org_id" = String, Path), ("project_id" = String, Path), ("template_id" = String, Path, description = "id or name")),
    responses((status = 204, description = "it goes after the answer"), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn delete_template(
    State(sandboxes): State<Sandboxes>,
    Editor(scope, ..): Editor<Sandboxes>,
    path: PathText,
) -> Reply<StatusCode> {
    ops::template::delete(&sandboxes, &scope, path.text("template_id")).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What the build of a template tells: events `log` with `text` and the `offset` behind it, and at last one `end` with
/// the template's `status` and `message`. With `follow` it waits for what comes; its last MiB is kept.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/sandbox_templates/{template_id}/logs", operation_id = "getSandboxTemplateLogs",
    tag = "sandbox_templates", params(("org_id" = String, Path), ("project_id" = String, Path), ("template_id" = String, Path, description = "id or name"),
        ("follow" = Option<bool>, Query, description = "whether to wait for what comes; it does not without"),
        ("offset" = Option<i64>, Query, minimum = 0, description = "where to begin, in bytes since the beginning")),
    responses((status = 200, content_type = "text/event-stream", body = String), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn get_template_logs(
    State(sandboxes): State<Sandboxes>,
    Reader(scope, ..): Reader<Sandboxes>,
    watch: Watch,
    mut params: Params,
    path: PathText,
) -> Reply<Response> {
    let follow = params.read("follow", flag).unwrap_or_default();
    let offset = params.read("offset", offset).unwrap_or_default();
    params.finish()?;
    let name = path.text("template_id");
    let row = store::template::find(sandboxes.db(), (&scope).into(), name).await?;
    let id = row.ok_or_else(|| ops::template_not_found(name))?.id;
    let told = stream! {
        let mut over = std::pin::pin!(watch.over(&scope, Action::ReadProject));
        let mut tail = Tail::new(sandboxes, id, offset, follow);
        loop {
            let event = tokio::select! {
                event = tail.next() => event,
                // Whoever comes back with another credential reads on where this one ended.
                () = &mut over => None,
            };
            let Some((name, data)) = event else { return };
            yield sse::event(Some(name), &data.to_string());
        }
    };
    Ok(events(told))
}

fn flag(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| "must be true or false".to_owned())
}

fn offset(text: &str) -> Result<u64, String> {
    text.parse::<i64>().ok().and_then(|n| u64::try_from(n).ok()).ok_or_else(|| "must be a number from 0 on".to_owned())
}
