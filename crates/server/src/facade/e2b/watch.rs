//! Watching directories: by a stream, or asked from time to time.

use std::pin::pin;

use async_stream::stream;
use axum::body::Body;
use axum::http::{HeaderValue, Method, header};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use berth_domain::agent::runtime::{Change, Changes, WatchCreated};
use berth_domain::e2b::connect::{self, Code, Refused, USUAL};
use berth_domain::e2b::entry::{self, Happened, nonsense};
use berth_domain::e2b::process;
use berth_domain::sse::Reader;
use berth_host::sandbox::agent::BOUNDS;
use bytes::Bytes;
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::room::{Failure, Room};
use super::stream::{self, deadline};
use crate::facade::api::escaped;

/// The largest answer with what happened since the last time, in bytes.
const EVENTS: usize = 4 << 20;
/// Most things of an answer that are told as they are now: each is asked for by itself.
const ENTRIES: usize = 256;

/// What to watch.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Wanted {
    path: String,
    recursive: bool,
    #[serde(alias = "includeEntry")]
    include_entry: bool,
}

/// A message that is about a watcher.
#[derive(Debug, Deserialize)]
pub struct Named {
    #[serde(alias = "watcherId")]
    watcher_id: String,
}

/// A watcher, as its client names it: it says all that its events are told by, so nobody has to remember it.
#[derive(Debug, Deserialize, Serialize)]
struct Watcher {
    /// The watch of the runtime.
    id: String,
    /// The directory that names are told from.
    directory: String,
    /// Whether things are told as they are now.
    entries: bool,
}

impl Watcher {
    fn written(&self) -> String {
        URL_SAFE_NO_PAD.encode(json!(self).to_string())
    }

    fn read(text: &str) -> Option<Self> {
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
    }
}

impl Named {
    fn watcher(&self) -> Result<Watcher, Refused> {
        Watcher::read(&self.watcher_id).ok_or_else(|| Refused::new(Code::NotFound, "There is no such watcher."))
    }
}

/// The directory that a path names.
async fn directory(room: &Room, path: &str) -> Result<String, Failure> {
    let found = room.stat(path).await?;
    let none = || Refused::new(Code::InvalidArgument, format!("{path} is not a directory"));
    Ok(entry::directory(&found).ok_or_else(none)?.to_owned())
}

/// `WatchDir`: what happens, as it happens.
pub async fn watch(room: &Room, wanted: &Wanted, limit: Option<u64>) -> Result<Response, Failure> {
    let directory = directory(room, &wanted.path).await?;
    let route = format!("files/watch?recursive={}&{}", wanted.recursive, room.about(&directory));
    let accept = (header::ACCEPT, HeaderValue::from_static("text/event-stream"));
    let answer = room.open(Method::GET, &route, &[accept], Body::empty()).await?;
    let (room, entries) = (room.clone(), wanted.include_entry);
    Ok(stream::streamed(Body::from_stream(stream! {
        let mut pieces = answer.into_body().into_data_stream();
        let mut over = pin!(deadline(limit));
        let mut reader = Reader::new(BOUNDS);
        yield Ok::<_, std::convert::Infallible>(Bytes::from(connect::message(&json!({"start": {}}))));
        let failure = loop {
            let next = async {
                let Some(Ok(piece)) = pieces.next().await else { return Err(process::broken_off()) };
                reader.feed(&piece);
                told(&room, &mut reader, &directory, entries).await
            };
            let out = tokio::select! {
                out = next => out,
                () = &mut over => Err(process::timed_out()),
            };
            match out {
                Ok(out) if out.is_empty() => yield Ok(connect::message(&json!({"keepalive": {}})).into()),
                Ok(out) => yield Ok(out.into()),
                Err(refused) => break refused,
            }
        };
        yield Ok(connect::end(Some(&failure)).into());
    })))
}

/// The messages of the events that came.
async fn told(room: &Room, reader: &mut Reader, directory: &str, entries: bool) -> Result<Vec<u8>, Refused> {
    let mut changes = Vec::new();
    while let Some(event) = reader.pop().map_err(|_| nonsense())? {
        match event.name.as_str() {
            "change" => changes.push(serde_json::from_str(&event.data).map_err(|_| nonsense())?),
            "overflow" => return Err(process::lost()),
            "error" => return Err(process::broken_off()),
            _ => {}
        }
    }
    let events = events_of(room, &changes, directory, entries).await;
    Ok(events.iter().flat_map(|event| connect::message(&json!({"filesystem": event}))).collect())
}

/// What changes are told as.
async fn events_of(room: &Room, changes: &[Change], directory: &str, entries: bool) -> Vec<Value> {
    let happened: Vec<_> = changes.iter().flat_map(|change| Happened::of(change, directory)).collect();
    let mut told = Vec::new();
    for (at, one) in happened.iter().enumerate() {
        let path = format!("{}/{}", directory.trim_end_matches('/'), one.name);
        let now = if entries && at < ENTRIES { room.stat(&path).await.ok() } else { None };
        told.push(one.told(now.as_ref().map(entry::told)));
    }
    told
}

/// `CreateWatcher`.
pub async fn create(room: &Room, wanted: &Wanted) -> Result<Value, Failure> {
    let directory = directory(room, &wanted.path).await?;
    let body = json!({"path": directory, "recursive": wanted.recursive});
    let route = format!("files/watches?{}", room.whole());
    let WatchCreated { id } = room.read(Method::POST, &route, Some(&body), USUAL).await?;
    let watcher = Watcher { id, directory, entries: wanted.include_entry };
    Ok(json!({"watcherId": watcher.written()}))
}

/// `GetWatcherEvents`: what happened since the last time.
pub async fn events(room: &Room, named: &Named) -> Result<Value, Failure> {
    let watcher = named.watcher()?;
    let route = format!("files/watches/{}", escaped(&watcher.id));
    let since: Changes = room.read(Method::GET, &route, None, EVENTS).await?;
    if since.overflow {
        return Err(process::lost().into());
    }
    Ok(json!({"events": events_of(room, &since.data, &watcher.directory, watcher.entries).await}))
}

/// `RemoveWatcher`.
pub async fn remove(room: &Room, named: &Named) -> Result<Value, Failure> {
    let watcher = named.watcher()?;
    room.act(Method::DELETE, &format!("files/watches/{}", escaped(&watcher.id)), None).await?;
    Ok(json!({}))
}
