//! Sandboxes: create, read, change, pause, resume, fork, restore, delete, wait.

use std::pin::pin;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use berth_domain::identity::Action;
use berth_domain::ids::SandboxId;
use berth_domain::sandbox::Phase;
use berth_domain::sandbox::request::{self, CreateSandbox, Fork, Pause, UpdateSandbox};

use crate::http::auth::{Editor, Reader, Scope, Watch};
use crate::http::base_url::BaseUrl;
use crate::http::body::{self, OptionalJson};
use crate::http::envelope::ErrorBody;
use crate::http::idempotency::{IdempotencyKey, KeyParam, Outcome};
use crate::http::list::{List, NameParams, PageParams, Params};
use crate::http::path::PathText;
use crate::http::reply::{Accepted, Reply};
use crate::http::wait::{self, Wait};
use crate::services::sandbox::store::sandbox::{Filter, SandboxRow, TABLE};
use crate::services::sandbox::wire::requests::{
    CreateSandboxBody, ForkBody, PauseBody, RestoreBody, UpdateSandboxBody,
};
use crate::services::sandbox::wire::sandbox::{Forked, SandboxPhase, SandboxView, Shown};
use crate::services::sandbox::{Sandboxes, ops, store};

/// Most pairs of metadata that a list may be narrowed by: each is looked for in every row.
const MOST_PAIRS: usize = 16;

/// Sandboxes of a project, newest first.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/sandboxes", operation_id = "listSandboxes",
    tag = "sandboxes", params(("org_id" = String, Path), ("project_id" = String, Path), PageParams, NameParams,
        ("phase" = Option<SandboxPhase>, Query, description = "only this phase"),
        ("template" = Option<String>, Query, description = "only those of a template, by id or name"),
        ("metadata.{key}" = Option<String>, Query,
            description = "only those whose metadata has this value under the key; may stand for 16 keys")),
    responses((status = 200, body = List<SandboxView>), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn list_sandboxes(
    State(sandboxes): State<Sandboxes>,
    Reader(scope, ..): Reader<Sandboxes>,
    BaseUrl(base): BaseUrl,
    mut params: Params,
) -> Reply<Json<List<SandboxView>>> {
    let listing = params.listing(&store::sandbox::LISTED);
    let metadata = params.below("metadata.");
    if metadata.len() > MOST_PAIRS {
        params.fail("metadata", format!("at most {MOST_PAIRS} pairs may be asked for"));
    }
    let filter = Filter { template: params.get("template").map(str::to_owned), metadata };
    params.finish()?;
    let (rows, total) = store::sandbox::list(sandboxes.db(), (&scope).into(), &filter, &listing).await?;
    let shown = shown(&sandboxes, &scope, &base);
    Ok(Json(List::new(rows.iter().map(|row| SandboxView::new(row, shown)).collect(), listing.page, total)))
}

/// Creates a sandbox; it is made after the answer.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/sandboxes", operation_id = "createSandbox",
    tag = "sandboxes", params(("org_id" = String, Path), ("project_id" = String, Path), KeyParam),
    request_body = CreateSandboxBody,
    responses((status = 201, body = SandboxView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 422, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn create_sandbox(
    State(sandboxes): State<Sandboxes>,
    Editor(scope, ..): Editor<Sandboxes>,
    BaseUrl(base): BaseUrl,
    key: IdempotencyKey,
    body::Json(body): body::Json,
) -> Reply<Outcome<SandboxView>> {
    let request = CreateSandbox::try_from(&body)?;
    let key = key.bind(&scope.caller, &body).await?;
    Ok(ops::sandbox::create(&sandboxes, &scope, request, &base, key).await?)
}

/// One sandbox.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/sandboxes/{sandbox_id}", operation_id = "getSandbox",
    tag = "sandboxes", params(("org_id" = String, Path), ("project_id" = String, Path), ("sandbox_id" = uuid::Uuid, Path)),
    responses((status = 200, body = SandboxView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn get_sandbox(
    State(sandboxes): State<Sandboxes>,
    Reader(scope, ..): Reader<Sandboxes>,
    BaseUrl(base): BaseUrl,
    path: PathText,
) -> Reply<Json<SandboxView>> {
    let row = ops::sandbox::get(&sandboxes, &scope, path.id("sandbox_id")?, false).await?;
    Ok(Json(view(&sandboxes, &scope, &row, &base)))
}

fn view(sandboxes: &Sandboxes, scope: &Scope, row: &SandboxRow, base: &str) -> SandboxView {
    SandboxView::new(row, shown(sandboxes, scope, base))
}

/// How the caller sees sandboxes.
fn shown<'a>(sandboxes: &Sandboxes, scope: &Scope, base: &'a str) -> Shown<'a> {
    Shown { base, now: sandboxes.clock().now(), names_hosts: scope.caller.is_administrator() }
}

/// Changes timeouts, whether requests resume it, metadata or the rules of the network.
#[utoipa::path(patch, path = "/api/v1/orgs/{org_id}/projects/{project_id}/sandboxes/{sandbox_id}", operation_id = "updateSandbox",
    tag = "sandboxes", params(("org_id" = String, Path), ("project_id" = String, Path), ("sandbox_id" = uuid::Uuid, Path)),
    request_body = UpdateSandboxBody,
    responses((status = 200, body = SandboxView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn update_sandbox(
    State(sandboxes): State<Sandboxes>,
    Editor(scope, ..): Editor<Sandboxes>,
    BaseUrl(base): BaseUrl,
    path: PathText,
    body::Json(body): body::Json,
) -> Reply<Json<SandboxView>> {
    let id = path.id("sandbox_id")?;
    let row = ops::sandbox::update(&sandboxes, &scope, id, UpdateSandbox::try_from(&body)?).await?;
    Ok(Json(view(&sandboxes, &scope, &row, &base)))
}

/// Deletes a sandbox for good, in any phase; it goes after the answer.
#[utoipa::path(delete, path = "/api/v1/orgs/{org_id}/projects/{project_id}/sandboxes/{sandbox_id}", operation_id = "deleteSandbox",
    tag = "sandboxes", params(("org_id" = String, Path), ("project_id" = String, Path), ("sandbox_id" = uuid::Uuid, Path)),
    responses((status = 202, description = "accepted"), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn delete_sandbox(
    State(sandboxes): State<Sandboxes>,
    Editor(scope, ..): Editor<Sandboxes>,
    path: PathText,
) -> Reply<StatusCode> {
    ops::sandbox::delete(&sandboxes, &scope, path.id("sandbox_id")?).await?;
    Ok(StatusCode::ACCEPTED)
}

/// Pauses a sandbox: its disk is kept, and its memory unless it has a GPU or `include_memory` is false. One that is `durable`
/// outlives its host while it is paused.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/sandboxes/{sandbox_id}/pause", operation_id = "pauseSandbox",
    tag = "sandboxes", params(("org_id" = String, Path), ("project_id" = String, Path), ("sandbox_id" = uuid::Uuid, Path)),
    request_body = Option<PauseBody>,
    responses((status = 202, body = SandboxView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn pause_sandbox(
    State(sandboxes): State<Sandboxes>,
    Editor(scope, ..): Editor<Sandboxes>,
    BaseUrl(base): BaseUrl,
    path: PathText,
    body: OptionalJson,
) -> Reply<Accepted<SandboxView>> {
    let id = path.id("sandbox_id")?;
    let request = Pause::try_from(&body.or_empty())?;
    let row = ops::sandbox::pause(&sandboxes, &scope, id, request).await?;
    Ok(Accepted(view(&sandboxes, &scope, &row, &base)))
}

/// Resumes a paused sandbox, where its memory was if that was kept. Life time that was over begins anew.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/sandboxes/{sandbox_id}/resume", operation_id = "resumeSandbox",
    tag = "sandboxes", params(("org_id" = String, Path), ("project_id" = String, Path), ("sandbox_id" = uuid::Uuid, Path)),
    responses((status = 202, body = SandboxView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn resume_sandbox(
    State(sandboxes): State<Sandboxes>,
    Editor(scope, ..): Editor<Sandboxes>,
    BaseUrl(base): BaseUrl,
    path: PathText,
) -> Reply<Accepted<SandboxView>> {
    let row = ops::sandbox::resume(&sandboxes, &scope, path.id("sandbox_id")?).await?;
    Ok(Accepted(view(&sandboxes, &scope, &row, &base)))
}

/// Makes sandboxes that begin where this one is, which goes on; `Location` names the first.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/sandboxes/{sandbox_id}/fork", operation_id = "forkSandbox",
    tag = "sandboxes", params(("org_id" = String, Path), ("project_id" = String, Path), ("sandbox_id" = uuid::Uuid, Path),
        KeyParam),
    request_body = Option<ForkBody>,
    responses((status = 201, body = Forked), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 422, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn fork_sandbox(
    State(sandboxes): State<Sandboxes>,
    Editor(scope, ..): Editor<Sandboxes>,
    BaseUrl(base): BaseUrl,
    path: PathText,
    key: IdempotencyKey,
    body: OptionalJson,
) -> Reply<Outcome<Forked>> {
    let (id, body) = (path.id("sandbox_id")?, body.or_empty());
    let request = Fork::try_from(&body)?;
    let key = key.bind(&scope.caller, &body).await?;
    Ok(ops::fork::fork(&sandboxes, &scope, id, request, &base, key).await?)
}

/// Goes back to a snapshot, in place: what was written since is gone.
#[utoipa::path(post, path = "/api/v1/orgs/{org_id}/projects/{project_id}/sandboxes/{sandbox_id}/restore", operation_id = "restoreSandbox",
    tag = "sandboxes", params(("org_id" = String, Path), ("project_id" = String, Path), ("sandbox_id" = uuid::Uuid, Path)),
    request_body = RestoreBody,
    responses((status = 202, body = SandboxView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn restore_sandbox(
    State(sandboxes): State<Sandboxes>,
    Editor(scope, ..): Editor<Sandboxes>,
    BaseUrl(base): BaseUrl,
    path: PathText,
    body::Json(body): body::Json,
) -> Reply<Accepted<SandboxView>> {
    let id = path.id("sandbox_id")?;
    let row = ops::sandbox::restore(&sandboxes, &scope, id, request::restore(&body)?).await?;
    Ok(Accepted(view(&sandboxes, &scope, &row, &base)))
}

/// Waits until a sandbox has a phase, or until the time is over; answers with the sandbox either way.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/sandboxes/{sandbox_id}/wait", operation_id = "waitSandbox",
    tag = "sandboxes", params(("org_id" = String, Path), ("project_id" = String, Path), ("sandbox_id" = uuid::Uuid, Path),
        ("phase" = Option<SandboxPhase>, Query, description = "default `Ready`"),
        ("timeout" = Option<i64>, Query, description = "seconds, 1 to 300; default 60", minimum = 1, maximum = 300)),
    responses((status = 200, body = SandboxView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = []), ("api_key" = [])))]
pub(super) async fn wait_sandbox(
    State(sandboxes): State<Sandboxes>,
    Reader(scope, ..): Reader<Sandboxes>,
    watch: Watch,
    BaseUrl(base): BaseUrl,
    path: PathText,
    mut params: Params,
) -> Reply<Json<SandboxView>> {
    let id: SandboxId = path.id("sandbox_id")?;
    let phase = params.read("phase", Phase::parse).unwrap_or(Phase::Ready);
    let seconds = params.integer("timeout", wait::LONGEST).unwrap_or(wait::DEFAULT);
    params.finish()?;
    let mut refusal = pin!(watch.refusal(&scope, Action::ReadProject));
    let mut wait = Wait::begin(sandboxes.db(), TABLE, id.0, seconds);
    loop {
        let row = ops::sandbox::get(&sandboxes, &scope, id, phase == Phase::Deleted).await?;
        let done = [phase, Phase::Failed, Phase::Deleted].contains(&row.phase);
        if done || !wait.changed(&mut refusal).await? {
            return Ok(Json(view(&sandboxes, &scope, &row, &base)));
        }
    }
}
