//! Snapshots.

use std::time::Duration;

use axum::Json;
use axum::extract::RawQuery;
use axum::http::Method;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use berth_domain::e2b::listing::Snapshots;
use berth_domain::e2b::sandbox::{Keep, Snapshot, read};
use berth_domain::{Code, Error, Result};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::holder::{Holder, told};
use super::sandbox::{Id, Reply};
use crate::facade::api::escaped;
use crate::http::body::OptionalJson;

/// How long a snapshot is waited for.
const PATIENCE: Duration = Duration::from_secs(50);
/// Between two looks at it, at first and at most.
const AGAIN: Duration = Duration::from_millis(50);
const SELDOM: Duration = Duration::from_secs(1);
/// The header with the place where a list goes on.
const NEXT: &str = "x-next-token";

/// `POST /sandboxes/{id}/snapshots`.
pub async fn create(holder: Holder, Id(id): Id, body: OptionalJson) -> Reply<Response> {
    let wanted: Keep = read(&body.or_empty())?;
    holder.sandbox(&id).await?;
    let mut request = json!({"include_memory": wanted.memory.unwrap_or(true)});
    if let Some(name) = wanted.name {
        request["name"] = name.into();
    }
    let made: Snapshot = told(holder.create(&format!("/sandboxes/{}/snapshots", escaped(&id)), &request).await?)?;
    let ready = ready(&holder, made).await?;
    Ok((StatusCode::CREATED, Json(ready.told())).into_response())
}

async fn ready(holder: &Holder, mut snapshot: Snapshot) -> Result<Snapshot> {
    let (deadline, mut again) = (Instant::now() + PATIENCE, AGAIN);
    while snapshot.status == "Pending" {
        if Instant::now() > deadline {
            let message = format!("The snapshot is not ready after {} s. It is listed once it is.", PATIENCE.as_secs());
            return Err(Error::new(Code::Unavailable, message));
        }
        sleep(again).await;
        again = (again * 2).min(SELDOM);
        snapshot = holder.read(&format!("/snapshots/{}", escaped(&snapshot.id))).await?;
    }
    if snapshot.status == "Ready" {
        return Ok(snapshot);
    }
    let message = snapshot.message.unwrap_or_else(|| "The snapshot could not be taken.".to_owned());
    Err(Error::new(Code::SnapshotNotReady, message))
}

/// `GET /snapshots`.
pub async fn list(holder: Holder, RawQuery(query): RawQuery) -> Reply<Response> {
    let wanted = Snapshots::read(&query.unwrap_or_default())?;
    let of = match &wanted.sandbox {
        Some(sandbox) => format!("/sandboxes/{}/snapshots", escaped(sandbox)),
        None => "/snapshots".to_owned(),
    };
    let limit = wanted.place.limit;
    let name = wanted.name.as_deref().map(|name| format!("&name={}", escaped(name))).unwrap_or_default();
    let path = format!("{of}?limit={limit}&page={}{name}", wanted.place.skipped / limit + 1);
    let listed = holder.ask(Method::GET, &path, None).await?;
    let snapshots: Vec<Snapshot> = told(listed["data"].clone())?;
    let total = listed["pagination"]["total_items"].as_u64().and_then(|total| usize::try_from(total).ok()).unwrap_or(0);
    let mut headers = HeaderMap::new();
    if wanted.place.skipped + limit < total
        && let Ok(next) = HeaderValue::from_str(&wanted.place.next(limit))
    {
        headers.insert(NEXT, next);
    }
    let told: Vec<Value> = snapshots.iter().filter(|snapshot| snapshot.status == "Ready").map(Snapshot::told).collect();
    Ok((headers, Json(told)).into_response())
}
