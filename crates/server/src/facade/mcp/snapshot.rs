//! Tools for snapshots and forks.

use std::time::Duration;

use axum::http::Method;
use berth_domain::mcp::list::PAGE;
use berth_domain::mcp::snapshot::{Fork, OneSnapshot, Restore, Snapshot, Snapshots};
use berth_domain::{Code, Error, Result};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::answer::Answer;
use super::list::{chosen, page};
use super::sandbox::{PATIENCE, TOLD as OF_SANDBOX, id, path};
use super::tool::{Call, Effect, Tool};
use crate::facade::api::escaped;

/// Between two looks at a snapshot, for which the API has no wait.
const GLANCE: Duration = Duration::from_millis(200);
const LONGEST_GLANCE: Duration = Duration::from_secs(2);
/// What of a snapshot is told.
const TOLD: [&str; 8] = ["id", "name", "sandbox_id", "status", "message", "captures", "size_bytes", "created_at"];

/// The tools for snapshots and forks.
pub fn tools() -> Vec<Tool> {
    vec![
        Tool::new(
            "sandbox_snapshot",
            "Take a snapshot",
            "Keeps what a sandbox is now, with its memory, while it goes on. sandbox_restore brings it back to that, \
             sandbox_fork and sandbox_create make new ones of it.",
            Effect::Adds,
            snapshot,
        ),
        Tool::new(
            "sandbox_snapshots",
            "List snapshots",
            "Lists snapshots, the newest first, 20 a page.",
            Effect::Reads,
            snapshots,
        ),
        Tool::new(
            "sandbox_delete_snapshot",
            "Delete a snapshot",
            "Deletes a snapshot. Sandboxes that were made of it stay.",
            Effect::Changes,
            delete_snapshot,
        ),
        Tool::new(
            "sandbox_restore",
            "Restore a snapshot",
            "Brings a sandbox back to one of its snapshots. What it was since is lost.",
            Effect::Changes,
            restore,
        ),
        Tool::new(
            "sandbox_fork",
            "Fork a sandbox",
            "Makes copies of a running sandbox, with its files, memory and processes, while it goes on: try several ways \
             and keep the best.",
            Effect::Adds,
            fork,
        ),
    ]
}

async fn snapshot(mut call: Call, asked: Snapshot) -> Result<Answer> {
    let taken = format!("{}/snapshots", path(&asked.sandbox_id));
    let mut taken = call.caller.ask(Method::POST, &taken, Some(&asked.body())).await?;
    let (one, by) = (format!("/snapshots/{}", escaped(&id(&taken)?)), Instant::now() + PATIENCE);
    let mut glance = GLANCE;
    while taken["status"] == "Pending" && Instant::now() < by && !call.given_up.is_cancelled() {
        call.progress.tell("taking the snapshot").await;
        sleep(glance).await;
        glance = LONGEST_GLANCE.min(glance * 2);
        taken = call.caller.ask(Method::GET, &one, None).await?;
    }
    match taken["status"].as_str() {
        Some("Pending") => {
            taken["message"] = json!("It is not ready yet: sandbox_snapshots tells when it is.");
            Ok(Answer::data(chosen(&taken, &TOLD)))
        }
        Some("Failed") => {
            let why = taken["message"].as_str().unwrap_or_default();
            Err(Error::new(Code::SandboxFailed, format!("The snapshot could not be taken: {why}")))
        }
        _ => Ok(Answer::data(chosen(&taken, &TOLD))),
    }
}

async fn snapshots(call: Call, asked: Snapshots) -> Result<Answer> {
    let of = asked.sandbox_id.as_deref().map(path).unwrap_or_default();
    let path = format!("{of}/snapshots?limit={PAGE}&page={}", asked.page.unwrap_or(1));
    let list = call.caller.ask(Method::GET, &path, None).await?;
    Ok(Answer::data(page(&list, &TOLD, asked.page)))
}

async fn delete_snapshot(call: Call, asked: OneSnapshot) -> Result<Answer> {
    call.caller.ask(Method::DELETE, &format!("/snapshots/{}", escaped(&asked.snapshot_id)), None).await?;
    Ok(Answer::text("The snapshot is deleted."))
}

async fn fork(mut call: Call, asked: Fork) -> Result<Answer> {
    let made = format!("{}/fork", path(&asked.sandbox_id));
    let made = call.caller.ask(Method::POST, &made, Some(&asked.body())).await?;
    let (mut ready, by) = (Vec::new(), Instant::now() + PATIENCE);
    for one in made["data"].as_array().into_iter().flatten() {
        let id = id(one)?;
        // Of one that failed, or is late, the others are told all the same.
        ready.push(match call.until(&id, "Ready", by).await {
            Ok(fork) => chosen(&fork, &OF_SANDBOX),
            Err(error) => json!({"id": id, "name": one["name"], "error": super::answer::told(&error)}),
        });
    }
    Ok(Answer::data(json!({"data": ready})))
}

async fn restore(mut call: Call, asked: Restore) -> Result<Answer> {
    let body = json!({"snapshot_id": asked.snapshot_id});
    call.led(&asked.sandbox_id, "restore", Some(&body), "Ready").await
}
