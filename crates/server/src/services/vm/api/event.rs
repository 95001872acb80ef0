//! Events of a project as server-sent events (extension).
//!
//! A reader that comes back says the number of the last event it has (`Last-Event-ID`) and reads on from
//! there; without it the stream begins now.

use std::convert::Infallible;
use std::time::Duration;

use async_stream::stream;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use berth_domain::Error;
use berth_domain::identity::Action;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;

use crate::db::Signal;
use crate::http::auth::{Onlooker, Watch};
use crate::http::envelope::ErrorBody;
use crate::http::reply::Reply;
use crate::services::vm::store::Tenant;
use crate::services::vm::store::event::EventRow;
use crate::services::vm::{Vms, store};

/// Events read at a time.
const BATCH: i64 = 500;
/// Between two comments on a silent stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Longest time between two looks at the rows: others may write them, too.
const POLL: Duration = Duration::from_secs(5);

/// Streams what happens in a project: `vm.created`, `vm.status`, `vm.ready`, `disk.status`, ….
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/events", operation_id = "streamEvents",
    tag = "events",
    params(("org_id" = String, Path), ("project_id" = String, Path),
        ("Last-Event-ID" = Option<String>, Header, description = "number of the last event that was read")),
    responses((status = 200, content_type = "text/event-stream", body = String), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn stream_events(
    State(vms): State<Vms>,
    Onlooker(scope): Onlooker,
    watch: Watch,
    headers: HeaderMap,
) -> Reply<Response> {
    let tenant = Tenant::from(&scope);
    let mut signals = vms.db().watch();
    let mut seq = match headers.get("last-event-id") {
        None => store::event::newest(vms.db(), tenant).await?,
        Some(value) => value
            .to_str()
            .ok()
            .and_then(|text| text.parse().ok())
            .filter(|seq| *seq >= 0)
            .ok_or_else(|| Error::field("Last-Event-ID", "must be the number of an event"))?,
    };
    let events = stream! {
        let mut over = std::pin::pin!(watch.over(&scope, Action::ReadProject));
        loop {
            let rows = match store::event::after(vms.db(), tenant, seq, BATCH).await {
                Ok(rows) => rows,
                Err(error) => {
                    tracing::warn!(%error, "events cannot be read; the stream ends");
                    return;
                }
            };
            for row in rows {
                seq = row.seq;
                yield Ok::<_, Infallible>(event(&row));
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
                // Whoever comes back with another credential reads on where this one ended.
                () = &mut over => return,
            }
        }
    };
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

fn event(row: &EventRow) -> Event {
    let data: serde_json::Value = serde_json::from_str(&row.data).unwrap_or_default();
    let body = json!({
        "id": row.seq, "type": row.kind, "subject": row.subject, "data": data, "created_at": row.created_at,
    });
    Event::default().id(row.seq.to_string()).event(row.kind.clone()).data(body.to_string())
}
