//! Events of streams that a caller may come back for: who lost a connection in the midst of a call hears the rest.
//!
//! They are kept in memory, for minutes, and so many bytes of them in all: of more the oldest streams go. A service that ends
//! takes with it what was under way, and a caller who comes back then hears nothing and calls again. The id of an event has
//! the random one of its stream in it, so that only who heard one can ask for the next.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_stream::stream;
use rmcp::model::ServerJsonRpcMessage;
use rmcp::transport::streamable_http_server::session::{
    EventId, EventStore, EventStoreError, EventStream, ServerSseMessage,
};
use tokio::sync::watch;
use tokio::time::Instant;

/// How long a stream is kept that ended.
const KEPT: Duration = Duration::from_mins(5);
/// How long one is kept that says nothing: longer than any call takes.
const SILENT: Duration = Duration::from_hours(2);
/// Most bytes of events that are kept.
const BYTES: usize = 64 << 20;

/// The events of all streams.
pub struct Events {
    kept: Mutex<Kept>,
    most: usize,
}

impl Default for Events {
    fn default() -> Self {
        Self { kept: Mutex::default(), most: BYTES }
    }
}

#[derive(Default)]
struct Kept {
    streams: HashMap<String, Log>,
    /// Ids of streams, in the order of their first events.
    order: VecDeque<String>,
    bytes: usize,
}

/// One stream.
struct Log {
    events: Vec<ServerSseMessage>,
    bytes: usize,
    ended: bool,
    at: Instant,
    /// How many events there are. It goes with the stream.
    count: watch::Sender<usize>,
}

impl Events {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Nothing in there is left half changed.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What follows the first so many events of a stream, and whether that is all. None where it is gone.
    fn after(&self, stream: &str, count: usize) -> Option<(Vec<ServerSseMessage>, bool)> {
        let kept = self.kept();
        let log = kept.streams.get(stream)?;
        Some((log.events.get(count..)?.to_vec(), log.ended))
    }
}

impl Kept {
    fn push(&mut self, stream: &str, mut event: ServerSseMessage, now: Instant) -> EventId {
        if !self.streams.contains_key(stream) {
            let log = Log { events: Vec::new(), bytes: 0, ended: false, at: now, count: watch::Sender::new(0) };
            self.streams.insert(stream.to_owned(), log);
            self.order.push_back(stream.to_owned());
        }
        let id = |count: usize| format!("{stream}.{count}");
        let Some(log) = self.streams.get_mut(stream) else { return id(0) };
        let id = id(log.events.len() + 1);
        event.event_id = Some(id.clone());
        let bytes = event.message.as_deref().map_or(0, length);
        log.ended |= event.message.as_deref().is_some_and(is_last);
        log.events.push(event);
        (log.at, log.bytes) = (now, log.bytes + bytes);
        self.bytes += bytes;
        log.count.send_replace(log.events.len());
        id
    }

    /// Lets go of what is too old, and of the oldest where there is too much.
    fn prune(&mut self, most: usize, now: Instant) {
        let is_old = |log: &Log| now.duration_since(log.at) > if log.ended { KEPT } else { SILENT };
        let old: Vec<String> =
            self.order.iter().filter(|id| self.streams.get(*id).is_none_or(is_old)).cloned().collect();
        for id in old {
            self.forget(&id);
        }
        while self.bytes > most
            && self.order.len() > 1
            && let Some(id) = self.order.front().cloned()
        {
            self.forget(&id);
        }
    }

    fn forget(&mut self, stream: &str) {
        self.order.retain(|id| id != stream);
        if let Some(log) = self.streams.remove(stream) {
            self.bytes -= log.bytes;
        }
    }
}

/// Whether nothing follows a message: it answers the call.
const fn is_last(message: &ServerJsonRpcMessage) -> bool {
    matches!(message, ServerJsonRpcMessage::Response(_) | ServerJsonRpcMessage::Error(_))
}

/// The length of a message, in bytes.
fn length(message: &ServerJsonRpcMessage) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // What cannot be written is not sent either.
    let _ = serde_json::to_writer(&mut count, message);
    count.0
}

/// The stream of an event, and how many events there were with it.
fn place(event: &str) -> Option<(&str, usize)> {
    let (stream, count) = event.rsplit_once('.')?;
    Some((stream, count.parse().ok()?))
}

#[async_trait::async_trait]
impl EventStore for Shared {
    async fn store_event(&self, stream: &str, event: &ServerSseMessage) -> Result<EventId, EventStoreError> {
        let (mut kept, now) = (self.0.kept(), Instant::now());
        let id = kept.push(stream, event.clone(), now);
        kept.prune(self.0.most, now);
        Ok(id)
    }

    async fn replay_events_after(&self, last: &str) -> Result<EventStream, EventStoreError> {
        let (stream, mut count) = place(last).ok_or("no id of an event")?;
        let mut changed = {
            let kept = self.0.kept();
            kept.streams.get(stream).ok_or("a stream that is gone")?.count.subscribe()
        };
        let (events, stream) = (self.0.clone(), stream.to_owned());
        Ok(Box::pin(stream! {
            while let Some((more, ended)) = events.after(&stream, count) {
                count += more.len();
                for event in more {
                    yield event;
                }
                if ended || changed.wait_for(|now| *now > count).await.is_err() {
                    return;
                }
            }
        }))
    }
}

/// The same, held by its server and by streams.
#[derive(Clone, Default)]
pub struct Shared(std::sync::Arc<Events>);

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt;
    use rmcp::model::{ErrorData, JsonRpcError, NotificationNoParam, RequestId, ServerNotification};

    fn note() -> ServerSseMessage {
        let note = ServerNotification::ToolListChangedNotification(NotificationNoParam::default());
        ServerSseMessage::from_message(ServerJsonRpcMessage::notification(note))
    }

    fn end() -> ServerSseMessage {
        let error = ErrorData::internal_error("an end", None);
        ServerSseMessage::from_message(ServerJsonRpcMessage::Error(JsonRpcError::new(
            Some(RequestId::Number(1)),
            error,
        )))
    }

    async fn rest(events: &Shared, last: &str) -> Vec<String> {
        let stream = events.replay_events_after(last).await.map_err(|error| error.to_string()).unwrap();
        stream.filter_map(|event| async move { event.event_id }).collect().await
    }

    #[tokio::test]
    async fn who_comes_back_hears_what_follows_and_the_end_of_it() {
        let events = Shared::default();
        let first = events.store_event("a", &note()).await.unwrap();
        events.store_event("b", &note()).await.unwrap();
        let second = events.store_event("a", &note()).await.unwrap();
        let waiting = tokio::spawn({
            let (events, first) = (events.clone(), first.clone());
            async move { rest(&events, &first).await }
        });
        tokio::task::yield_now().await;
        let last = events.store_event("a", &end()).await.unwrap();
        assert_eq!(waiting.await.unwrap(), [second.clone(), last.clone()]);
        assert_eq!(rest(&events, &second).await, std::slice::from_ref(&last));
        assert!(rest(&events, &last).await.is_empty());
    }

    #[tokio::test]
    async fn what_nobody_heard_is_not_told() {
        let events = Shared::default();
        events.store_event("a", &end()).await.unwrap();
        for wrong in ["", "a", "a.x", "b.1", "0"] {
            assert!(events.replay_events_after(wrong).await.is_err(), "{wrong}");
        }
        assert!(rest(&events, "a.7").await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn old_streams_go_and_of_too_many_the_oldest() {
        let events = Shared::default();
        let ended = events.store_event("ended", &end()).await.unwrap();
        let open = events.store_event("open", &note()).await.unwrap();
        tokio::time::advance(KEPT + Duration::from_secs(1)).await;
        events.store_event("new", &note()).await.unwrap();
        assert!(events.replay_events_after(&ended).await.is_err());
        assert!(events.replay_events_after(&open).await.is_ok());
        tokio::time::advance(SILENT + Duration::from_secs(1)).await;
        events.store_event("new", &note()).await.unwrap();
        assert!(events.replay_events_after(&open).await.is_err());

        let one = length(&note().message.unwrap());
        let few = Shared(std::sync::Arc::new(Events { kept: Mutex::default(), most: 2 * one }));
        let ids = [few.store_event("1", &note()).await.unwrap(), few.store_event("2", &note()).await.unwrap()];
        assert!(few.replay_events_after(&ids[0]).await.is_ok());
        few.store_event("3", &note()).await.unwrap();
        assert!(few.replay_events_after(&ids[0]).await.is_err());
        assert!(few.replay_events_after(&ids[1]).await.is_ok());
    }

    #[tokio::test]
    async fn a_stream_that_goes_ends_who_waits_for_it() {
        let events = Shared::default();
        let open = events.store_event("open", &note()).await.unwrap();
        let waiting = tokio::spawn({
            let events = events.clone();
            async move { rest(&events, &open).await }
        });
        tokio::task::yield_now().await;
        events.0.kept().forget("open");
        assert!(waiting.await.unwrap().is_empty());
    }
}
