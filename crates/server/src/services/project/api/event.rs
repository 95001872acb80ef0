//! Events of a project as server-sent events.
//!
//! A reader that comes back sends the number of the last event that it has (`Last-Event-ID`) and reads on from there;
//! without it the stream begins now. The service keeps events for some days. If a reader's last event is gone, later
//! ones may be, too, and the stream begins with an event that says so.

use std::time::Duration;

use async_stream::stream;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use berth_domain::identity::Action;
use berth_domain::{Error, Timestamp, sse};
use futures::FutureExt;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;

use crate::db::Signal;
use crate::db::tenant::Tenant;
use crate::http::auth::{Onlooker, Watch};
use crate::http::envelope::ErrorBody;
use crate::http::reply::{self, Reply};
use crate::services::project::store::event::{Audience, EventRow};
use crate::services::project::{Projects, store};

/// Events read at a time.
const BATCH: usize = 500;
/// The name of the event that reports a gap.
const TRUNCATED: &str = "truncated";
/// Longest time between two looks at the rows: other services may write them, too.
const POLL: Duration = Duration::from_secs(5);

/// Streams what happens in a project: `vm.created`, `vm.status`, `vm.ready`, `disk.status`, ….
///
/// Administrators of the platform are also told where machines were put: `vm.placed` and `sandbox.placed` with `host_id` and
/// `reason`, `vm.unplaced` and `sandbox.unplaced` with `hosts`, a sentence for each host that refused, and `vm.released` with the
/// `host_id` of a lost host that a VM let go of: its disks lie in a store, and it starts on another one.
///
/// The first is `truncated` where the last event that was read is not kept any more: others after it may be missing, too.
/// Its `data` has `from`, the number of the event that the stream goes on with, or null where there is none yet.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/events", operation_id = "streamEvents",
    tag = "events",
    params(("org_id" = String, Path), ("project_id" = String, Path),
        ("Last-Event-ID" = Option<String>, Header, description = "number of the last event that was read; 0 \
            begins with the oldest that is kept")),
    responses((status = 200, content_type = "text/event-stream", body = String), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn stream_events(
    State(projects): State<Projects>,
    Onlooker(scope): Onlooker,
    watch: Watch,
    headers: HeaderMap,
) -> Reply<Response> {
    let tenant = Tenant::from(&scope);
    let mut signals = projects.db.watch();
    let is_administrator = scope.caller.is_administrator();
    let audience = if is_administrator { Audience::Administrators } else { Audience::Members };
    let (mut seq, gap) = begin(&projects, (tenant, audience), &headers).await?;
    let events = stream! {
        if let Some(gap) = gap {
            yield gap;
        }
        let mut over = std::pin::pin!(async {
            tokio::select! {
                () = watch.over(&scope, Action::ReadProject) => {}
                () = watch.demoted(&scope) => {}
            }
        });
        loop {
            let rows = match store::event::after(&projects.db, (tenant, audience), seq, BATCH).await {
                Ok(rows) => rows,
                Err(error) => {
                    tracing::warn!(%error, "events cannot be read; the stream ends");
                    return;
                }
            };
            let more = rows.len() == BATCH;
            for row in rows {
                seq = row.seq;
                yield event(&row);
            }
            if more {
                if (&mut over).now_or_never().is_some() {
                    return;
                }
                continue;
            }
            let news = async {
                loop {
                    match signals.recv().await {
                        Ok(Signal::Event(project)) if project == tenant.project.0 => return,
                        Ok(_) => {}
                        Err(RecvError::Lagged(_)) => return,
                        Err(RecvError::Closed) => std::future::pending().await,
                    }
                }
            };
            tokio::select! {
                _ = tokio::time::timeout(POLL, news) => {}
                // A reader that comes back with another credential reads on where this one ended.
                () = &mut over => return,
            }
        }
    };
    Ok(reply::events(events))
}

/// The number after which a reader reads on, and the first event for it, if any.
async fn begin(
    projects: &Projects,
    (tenant, audience): (Tenant, Audience),
    headers: &HeaderMap,
) -> Result<(i64, Option<Vec<u8>>), Error> {
    let Some(value) = headers.get("last-event-id") else {
        return Ok((store::event::newest(&projects.db, tenant).await?, None));
    };
    let last = value.to_str().ok().and_then(|text| text.parse().ok()).filter(|seq| *seq >= 0);
    let last = last.ok_or_else(|| Error::field("Last-Event-ID", "must be the number of an event"))?;
    // A reader that begins with 0 asks for everything that is there.
    if last == 0 || store::event::is_kept(&projects.db, tenant, last).await? {
        return Ok((last, None));
    }
    let next = store::event::after(&projects.db, (tenant, audience), last, 1).await?;
    Ok((last, Some(truncated(tenant, last, next.first(), projects.clock.now()))))
}

/// Reports that events after this one may be missing. A reader cannot go on after this report, so it has no number.
fn truncated(tenant: Tenant, last: i64, next: Option<&EventRow>, now: Timestamp) -> Vec<u8> {
    let body = json!({
        "id": last, "type": TRUNCATED, "subject": tenant.project, "data": {"from": next.map(|row| row.seq)},
        "created_at": now,
    });
    sse::event(Some(TRUNCATED), &body.to_string())
}

fn event(row: &EventRow) -> Vec<u8> {
    let data: serde_json::Value = serde_json::from_str(&row.data).unwrap_or_default();
    let body = json!({
        "id": row.seq, "type": row.kind, "subject": row.subject, "data": data, "created_at": row.created_at,
    });
    let mut event = Vec::new();
    sse::write(&mut event, Some(&row.seq.to_string()), Some(&row.kind), &body.to_string());
    event
}
