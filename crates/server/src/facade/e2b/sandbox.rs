//! Sandboxes: create, connect, list, change, pause, fork and kill.

use std::collections::HashMap;

use axum::Json;
use axum::extract::{FromRequestParts, RawQuery};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use berth_domain::e2b::listing::{self, MOST, Sandboxes};
use berth_domain::e2b::network::Network;
use berth_domain::e2b::sandbox::{
    Create, Fork, Keep, Sandbox, Snapshot, State, Timeout, read, seconds, snapshot_names, template_names,
};
use berth_domain::ids::{SandboxId, SnapshotId};
use berth_domain::{Code, Error, Result, Timestamp};
use futures::future::join_all;
use serde_json::{Value, json};

use super::holder::{Holder, told};
use crate::facade::api::escaped;
use crate::http::body::OptionalJson;
use crate::http::envelope::ApiError;
use crate::http::path::PathText;

/// The header with the place where a list goes on.
const NEXT: &str = "x-next-token";
/// Seconds that a sandbox lives whose client says nothing.
const TIME: i64 = 300;
/// Seconds between two points of metrics, at least.
const RESOLUTION: i64 = 5;
/// Pages of the API's list that a page is made of, at most: of one that finds little the next page goes on.
const LOOKS: usize = 10;
/// Points of metrics, at most: what the API tells at once.
const POINTS: i64 = 2000;

/// The answer of every route.
pub type Reply<T> = std::result::Result<T, ApiError>;

/// The id of a sandbox in a path. What can be none is none, as SDKs expect who hold an id of another platform.
pub struct Id(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let missing = || Error::new(Code::SandboxNotFound, "There is no such sandbox.");
        let path = PathText::of(parts).await?;
        let id: SandboxId = path.text("sandbox_id").parse().map_err(|_| missing())?;
        Ok(Self(id.to_string()))
    }
}

/// `POST /sandboxes`.
pub async fn create(holder: Holder, body: OptionalJson) -> Reply<Response> {
    let wanted: Create = read(&body.or_empty())?;
    let mut request = wanted.request()?;
    let alias = match made_of(&holder, &wanted.template).await? {
        Made::Template { id, name } => {
            request["template_id"] = id.into();
            name
        }
        Made::Snapshot(id) => {
            request["snapshot_id"] = id.into();
            None
        }
    };
    let made: Sandbox = told(holder.create("/sandboxes", &request).await?)?;
    let ready = match holder.until(&made.id, "Ready").await {
        Ok(ready) => ready,
        Err(error) => {
            give_up(&holder, &made.id, &error).await;
            return Err(error.into());
        }
    };
    let mut told = ready.connected(&holder.tokens(&ready)?, &holder.domain);
    if let Some(alias) = alias {
        told["alias"] = alias.into();
    }
    Ok((StatusCode::CREATED, Json(told)).into_response())
}

/// Deletes a sandbox that failed while it was made, or that nobody has heard of and nobody can ask for again. One that was
/// paused meanwhile is somebody's, and stays.
async fn give_up(holder: &Holder, id: &str, error: &Error) {
    let failed = error.code == Code::SandboxFailed;
    let unheard = error.code == Code::Unavailable && !holder.may_come_again();
    if failed || unheard {
        let _ = holder.ask(Method::DELETE, &path(id), None).await;
    }
}

fn path(id: &str) -> String {
    format!("/sandboxes/{}", escaped(id))
}

/// What a sandbox is made of.
enum Made {
    Template { id: String, name: Option<String> },
    Snapshot(String),
}

/// What is called so: a template, or a snapshot.
async fn made_of(holder: &Holder, called: &str) -> Result<Made> {
    for name in template_names(called) {
        if let Some(template) = holder.template(name).await? {
            let text = |field: &str| template[field].as_str().map(str::to_owned);
            return Ok(Made::Template { id: text("id").unwrap_or_default(), name: text("name") });
        }
    }
    let missing = || Error::new(Code::TemplateNotFound, format!("template '{called}' not found"));
    let snapshot = snapshots(holder, called).await?.into_iter().next().ok_or_else(missing)?;
    Ok(Made::Snapshot(snapshot.id))
}

/// The snapshot with an id, or those with a name, the latest first.
pub async fn snapshots(holder: &Holder, called: &str) -> Result<Vec<Snapshot>> {
    if called.parse::<SnapshotId>().is_ok() {
        match holder.read(&format!("/snapshots/{called}")).await {
            Err(error) if error.code.status() == 404 => {}
            found => return found.map(|snapshot| vec![snapshot]),
        }
    }
    for name in snapshot_names(called) {
        let listed = holder.ask(Method::GET, &format!("/snapshots?limit=100&name={}", escaped(name)), None).await?;
        let found: Vec<Snapshot> = told(listed["data"].clone())?;
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Ok(Vec::new())
}

/// `POST /sandboxes/{id}/connect`: resumes it where it is paused, and lets it live for as long as that, at least.
pub async fn connect(holder: Holder, Id(id): Id, body: OptionalJson) -> Reply<Response> {
    let wanted: Timeout = read(&body.or_empty())?;
    if wanted.memory == Some(false) {
        let message =
            "A sandbox goes on from the memory that it was paused with. Pause it without memory to have it boot.";
        return Err(Error::new(Code::NotSupported, message).into());
    }
    let before = holder.sandbox(&id).await?;
    let status = if before.state() == Some(State::Paused) {
        resumed(&holder, &before).await?;
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    let ready = holder.until(&id, "Ready").await?;
    prolong(&holder, &ready, wanted.timeout.unwrap_or(TIME)).await?;
    Ok((status, Json(ready.connected(&holder.tokens(&ready)?, &holder.domain))).into_response())
}

async fn resumed(holder: &Holder, sandbox: &Sandbox) -> Result<()> {
    if sandbox.phase == "Pausing" {
        holder.until(&sandbox.id, "Paused").await?;
    }
    holder.act(&sandbox.id, "resume", None).await.map(drop)
}

/// Has a sandbox live for so many seconds from now, if it would end before.
async fn prolong(holder: &Holder, sandbox: &Sandbox, timeout: i64) -> Result<()> {
    let Some(ends) = sandbox.expires_at.as_deref().and_then(|at| Timestamp::parse(at).ok()) else { return Ok(()) };
    if ends < holder.now().plus_seconds(timeout) {
        live(holder, &sandbox.id, timeout).await?;
    }
    Ok(())
}

/// Has a sandbox live for so many seconds from now.
async fn live(holder: &Holder, id: &str, timeout: i64) -> Result<()> {
    let change = json!({"timeout_seconds": seconds(timeout)});
    holder.ask(Method::PATCH, &path(id), Some(&change)).await.map(drop)
}

/// `POST /sandboxes/{id}/resume`, of earlier SDKs.
pub async fn resume(holder: Holder, Id(id): Id, body: OptionalJson) -> Reply<Response> {
    let wanted: Timeout = read(&body.or_empty())?;
    let before = holder.sandbox(&id).await?;
    if before.state() == Some(State::Running) {
        return Err(Error::new(Code::InvalidPhase, "The sandbox runs already.").into());
    }
    resumed(&holder, &before).await?;
    let ready = holder.until(&id, "Ready").await?;
    prolong(&holder, &ready, wanted.timeout.unwrap_or(TIME)).await?;
    Ok((StatusCode::CREATED, Json(ready.connected(&holder.tokens(&ready)?, &holder.domain))).into_response())
}

/// `GET /sandboxes/{id}`.
pub async fn show(holder: Holder, Id(id): Id) -> Reply<Json<Value>> {
    let sandbox = holder.sandbox(&id).await?;
    let alias = holder.alias(&sandbox).await;
    Ok(Json(sandbox.detailed(alias.as_deref(), &holder.tokens(&sandbox)?.inside, &holder.domain)))
}

/// `DELETE /sandboxes/{id}`.
pub async fn kill(holder: Holder, Id(id): Id) -> Reply<StatusCode> {
    let sandbox: Sandbox = holder.read(&path(&id)).await?;
    if sandbox.phase == "Deleting" {
        return Err(Error::new(Code::SandboxNotFound, "The sandbox is on its way out.").into());
    }
    holder.ask(Method::DELETE, &path(&id), None).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /sandboxes/{id}/timeout`.
pub async fn set_timeout(holder: Holder, Id(id): Id, body: OptionalJson) -> Reply<StatusCode> {
    let wanted: Timeout = read(&body.or_empty())?;
    let timeout = wanted.timeout.ok_or_else(|| Error::field("timeout", "is required"))?;
    holder.sandbox(&id).await?;
    live(&holder, &id, timeout).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /sandboxes/{id}/refreshes`, of earlier SDKs: never shortens its life.
pub async fn refresh(holder: Holder, Id(id): Id, body: OptionalJson) -> Reply<StatusCode> {
    let duration = body.or_empty()["duration"].as_i64().unwrap_or(TIME);
    prolong(&holder, &holder.sandbox(&id).await?, duration).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /sandboxes/{id}/pause`.
pub async fn pause(holder: Holder, Id(id): Id, body: OptionalJson) -> Reply<StatusCode> {
    let wanted: Keep = read(&body.or_empty())?;
    if holder.sandbox(&id).await?.state() == Some(State::Paused) {
        return Err(Error::new(Code::InvalidPhase, "The sandbox is paused already.").into());
    }
    let how = wanted.memory.map(|memory| json!({"include_memory": memory}));
    holder.act(&id, "pause", how.as_ref()).await?;
    holder.until(&id, "Paused").await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `PUT /sandboxes/{id}/network`: replaces the rules.
pub async fn set_network(holder: Holder, Id(id): Id, body: OptionalJson) -> Reply<StatusCode> {
    let wanted: Network = read(&body.or_empty())?;
    let rules = wanted.rules().map_err(|message| Error::new(Code::InvalidRequest, message))?;
    holder.ask(Method::PATCH, &path(&id), Some(&json!({"network": rules}))).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /sandboxes/{id}/fork`: each goes on from the memory, and tells for itself whether it got there.
pub async fn fork(holder: Holder, Id(id): Id, body: OptionalJson) -> Reply<Response> {
    let wanted: Fork = read(&body.or_empty())?;
    holder.sandbox(&id).await?;
    let request = json!({"count": wanted.count.unwrap_or(1), "include_memory": true});
    let made = holder.create(&format!("{}/fork", path(&id)), &request).await?;
    let made: Vec<Sandbox> = told(made["data"].clone())?;
    let timeout = wanted.timeout.unwrap_or(TIME);
    let forks = join_all(made.iter().map(|fork| settled(&holder, fork, timeout))).await;
    let told: Vec<Value> = forks
        .into_iter()
        .map(|fork| match fork {
            Ok(sandbox) => json!({"sandbox": sandbox}),
            Err(error) => json!({"error": {"code": error.code.status(), "message": error.message}}),
        })
        .collect();
    Ok((StatusCode::CREATED, Json(told)).into_response())
}

async fn settled(holder: &Holder, fork: &Sandbox, timeout: i64) -> Result<Value> {
    live(holder, &fork.id, timeout).await?;
    let ready = match holder.until(&fork.id, "Ready").await {
        Ok(ready) => ready,
        Err(error) => {
            give_up(holder, &fork.id, &error).await;
            return Err(error);
        }
    };
    Ok(ready.connected(&holder.tokens(&ready)?, &holder.domain))
}

/// `GET /sandboxes`, of earlier SDKs: those that run, on one page.
pub async fn running(holder: Holder, RawQuery(query): RawQuery) -> Reply<Response> {
    let mut wanted = Sandboxes::read(&query.unwrap_or_default())?;
    wanted.paused = false;
    page(&holder, &wanted).await
}

/// `GET /v2/sandboxes`.
pub async fn list(holder: Holder, RawQuery(query): RawQuery) -> Reply<Response> {
    page(&holder, &Sandboxes::read(&query.unwrap_or_default())?).await
}

/// A page of a list, with the place of the next one. What the API cannot leave out is passed over here, so a page may
/// take several of the API's.
async fn page(holder: &Holder, wanted: &Sandboxes) -> Reply<Response> {
    let (mut found, mut looked_at, mut goes_on) = (Vec::new(), 0, true);
    for _ in 0..LOOKS {
        if found.len() == wanted.place.limit || !goes_on {
            break;
        }
        let at = wanted.place.skipped + looked_at;
        let (sandboxes, total) = some(holder, wanted, at).await?;
        if sandboxes.is_empty() {
            goes_on = false;
        }
        for sandbox in sandboxes {
            if found.len() == wanted.place.limit {
                break;
            }
            looked_at += 1;
            if is_wanted(&sandbox, wanted) {
                found.push(sandbox);
            }
        }
        goes_on &= wanted.place.skipped + looked_at < total;
    }
    let aliases = aliases(holder, &found).await;
    let alias = |sandbox: &Sandbox| aliases.get(sandbox.template_id.as_deref()?)?.as_deref();
    let listed: Vec<Value> = found.iter().map(|sandbox| sandbox.listed(alias(sandbox))).collect();
    let mut headers = HeaderMap::new();
    if goes_on && let Ok(next) = HeaderValue::from_str(&wanted.place.next(looked_at)) {
        headers.insert(NEXT, next);
    }
    Ok((headers, Json(listed)).into_response())
}

/// The names of the templates of sandboxes, by their ids.
async fn aliases(holder: &Holder, sandboxes: &[Sandbox]) -> HashMap<String, Option<String>> {
    let mut aliases = HashMap::new();
    for sandbox in sandboxes {
        let Some(template) = &sandbox.template_id else { continue };
        if !aliases.contains_key(template) {
            aliases.insert(template.clone(), holder.alias(sandbox).await);
        }
    }
    aliases
}

/// Sandboxes of the API's list from a place on, and how many there are in all.
async fn some(holder: &Holder, wanted: &Sandboxes, at: usize) -> Result<(Vec<Sandbox>, usize)> {
    let order = if wanted.oldest_first { "created_at" } else { "-created_at" };
    let mut query = format!("/sandboxes?limit={MOST}&page={}&sort={order}", at / MOST + 1);
    for (key, value) in &wanted.metadata {
        query.push_str(&format!("&metadata.{}={}", escaped(key), escaped(value)));
    }
    if let Some(template) = &wanted.template {
        // One that no template is called lists none.
        let name = template_names(template).next().unwrap_or(template);
        query.push_str(&format!("&template={}", escaped(name)));
    }
    let listed = holder.ask(Method::GET, &query, None).await?;
    let sandboxes: Vec<Sandbox> = told(listed["data"].clone())?;
    let total = listed["pagination"]["total_items"].as_u64().unwrap_or(0);
    Ok((sandboxes.into_iter().skip(at % MOST).collect(), usize::try_from(total).unwrap_or(usize::MAX)))
}

fn is_wanted(sandbox: &Sandbox, wanted: &Sandboxes) -> bool {
    let state = match sandbox.state() {
        Some(State::Running) => wanted.running,
        Some(State::Paused) => wanted.paused,
        None => false,
    };
    let later = |after: Timestamp| Timestamp::parse(&sandbox.created_at).is_ok_and(|made| made > after);
    state && wanted.started_after.is_none_or(later)
}

/// `GET /sandboxes/{id}/metrics`.
pub async fn metrics(holder: Holder, Id(id): Id, RawQuery(query): RawQuery) -> Reply<Json<Vec<Value>>> {
    let sandbox = holder.sandbox(&id).await?;
    let now = holder.now();
    let age = Timestamp::parse(&sandbox.created_at).map_or(0, |made| now.seconds() - made.seconds());
    let (begins, ends) = listing::window(&query.unwrap_or_default(), now, age)?;
    let window = begins.clamp(RESOLUTION, 30 * 86_400);
    let resolution = (window / POINTS + 1).max(RESOLUTION);
    let path = format!("{}/metrics?window={window}s&resolution={resolution}s", path(&id));
    let told = holder.ask(Method::GET, &path, None).await?;
    let latest = now.plus_seconds(-ends);
    Ok(Json(points(&sandbox, &told["series"], latest)))
}

/// The points of series at which the sandbox ran, up to a time.
fn points(sandbox: &Sandbox, series: &Value, latest: Timestamp) -> Vec<Value> {
    let value = |name: &str, at: usize| series[name][at][1].clone();
    let times = series["cpu_percent"].as_array().into_iter().flatten().enumerate();
    let point = |(at, one): (usize, &Value)| {
        let time = one[0].as_str()?;
        let when = Timestamp::parse(time).ok().filter(|when| *when <= latest)?;
        let (cpu, memory) = (one[1].as_f64()?, value("memory_bytes", at).as_i64()?);
        let cores = u32::try_from(sandbox.vcpu).unwrap_or(1).max(1);
        Some(json!({
            "timestamp": time, "timestampUnix": when.seconds(), "cpuCount": sandbox.vcpu,
            "cpuUsedPct": cpu / f64::from(cores), "memUsed": memory, "memTotal": sandbox.memory_mb << 20, "memCache": 0,
            "diskUsed": value("disk_bytes", at).as_i64().unwrap_or(0), "diskTotal": sandbox.disk_gb << 30,
        }))
    };
    times.filter_map(point).collect()
}
