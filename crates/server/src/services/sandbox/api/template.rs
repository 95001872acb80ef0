//! Templates of sandboxes.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use berth_domain::sandbox::request::CreateTemplate;

use crate::http::auth::{SandboxEditor, SandboxReader};
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::idempotency::{IdempotencyKey, Outcome};
use crate::http::list::{List, PageParams, Params};
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::sandbox::wire::requests::CreateTemplateBody;
use crate::services::sandbox::wire::template::TemplateView;
use crate::services::sandbox::{Sandboxes, ops, store};

/// Templates that a project can use, its own and the platform's, newest first.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/sandbox_templates", operation_id = "listSandboxTemplates",
    tag = "sandbox_templates", params(("org_id" = String, Path), ("project_id" = String, Path), PageParams,
        ("name" = Option<String>, Query, description = "only this name (extension)")),
    responses((status = 200, body = List<TemplateView>), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn list_templates(
    State(sandboxes): State<Sandboxes>,
    SandboxReader(scope): SandboxReader,
    mut params: Params,
) -> Reply<Json<List<TemplateView>>> {
    let page = params.page();
    let name = params.get("name").map(str::to_owned);
    params.finish()?;
    let (rows, total) = store::template::list(sandboxes.db(), (&scope).into(), name.as_deref(), page).await?;
    Ok(Json(List::new(rows.iter().map(TemplateView::from).collect(), page, total)))
}

/// Builds a template; `status` tells when it is ready.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/sandbox_templates", operation_id = "createSandboxTemplate",
    tag = "sandbox_templates", params(("org_id" = String, Path), ("project_id" = String, Path), ("Idempotency-Key" = Option<String>, Header, description = "1 to 255 characters; kept 24 hours",
            min_length = 1, max_length = 255, pattern = "^[ -~]*[!-~][ -~]*$")),
    request_body = CreateTemplateBody,
    responses((status = 201, body = TemplateView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 422, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn create_template(
    State(sandboxes): State<Sandboxes>,
    SandboxEditor(scope): SandboxEditor,
    key: IdempotencyKey,
    body::Json(body): body::Json,
) -> Reply<Outcome<TemplateView>> {
    let request = CreateTemplate::try_from(&body)?;
    let key = key.bind(&scope.caller, &body);
    Ok(ops::template::create(&sandboxes, &scope, request, key).await?)
}

/// One template, by id or name.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/sandbox_templates/{template_id}", operation_id = "getSandboxTemplate",
    tag = "sandbox_templates", params(("org_id" = String, Path), ("project_id" = String, Path), ("template_id" = String, Path, description = "id or name")),
    responses((status = 200, body = TemplateView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn get_template(
    State(sandboxes): State<Sandboxes>,
    SandboxReader(scope): SandboxReader,
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
    SandboxEditor(scope): SandboxEditor,
    path: PathText,
) -> Reply<StatusCode> {
    ops::template::delete(&sandboxes, &scope, path.text("template_id")).await?;
    Ok(StatusCode::NO_CONTENT)
}
