//! Events of streams that a caller may come back for: who lost a connection in the midst of a call hears the rest.
//!
//! They are kept in memory, for minutes, and so many bytes and streams of them in all and for each caller: of more the oldest
//! of whoever has the most go. A service that ends takes with it what was under way, and a caller who comes back then hears
//! nothing and calls again. Nobody hears streams of another caller.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
/// How long one is kept at all: longer than any call takes.
const LONGEST: Duration = Duration::from_hours(2);
/// What is kept in all, and of one caller.
const IN_ALL: Amount = Amount { bytes: 64 << 20, streams: 20_000 };
const OF_ONE: Amount = Amount { bytes: 8 << 20, streams: 1_000 };
/// How many times of streams are kept at least before somebody looks which of them are of use.
const SLACK: usize = 64;
/// What an event takes beside its message, in bytes.
const BESIDE: usize = 1024;

/// How much is kept, or may be.
#[derive(Clone, Copy, Default)]
struct Amount {
    bytes: usize,
    streams: usize,
}

impl Amount {
    const fn is_more_than(self, most: Self) -> bool {
        self.bytes > most.bytes || self.streams > most.streams
    }
}

/// The events of all streams.
pub struct Events {
    kept: Mutex<Kept>,
    in_all: Amount,
    of_one: Amount,
}

impl Default for Events {
    fn default() -> Self {
        Self { kept: Mutex::default(), in_all: IN_ALL, of_one: OF_ONE }
    }
}

#[derive(Default)]
struct Kept {
    streams: HashMap<String, Log>,
    /// Streams of each caller, the oldest first.
    owners: HashMap<Arc<str>, Owner>,
    /// When streams began, and when they ended.
    begun: VecDeque<(Instant, String)>,
    ended: VecDeque<(Instant, String)>,
    held: Amount,
}

#[derive(Default)]
struct Owner {
    order: VecDeque<String>,
    held: Amount,
}

/// One stream.
struct Log {
    owner: Arc<str>,
    events: Vec<ServerSseMessage>,
    bytes: usize,
    ended: bool,
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
    fn begin(&mut self, stream: &str, owner: &Arc<str>, now: Instant) {
        self.tidy();
        let log =
            Log { owner: owner.clone(), events: Vec::new(), bytes: 0, ended: false, count: watch::Sender::new(0) };
        self.streams.insert(stream.to_owned(), log);
        let own = self.owners.entry(owner.clone()).or_default();
        own.order.push_back(stream.to_owned());
        own.held.streams += 1;
        self.held.streams += 1;
        self.begun.push_back((now, stream.to_owned()));
    }

    /// Lets go of the times of streams that went, before there are more of them than of those that are there.
    fn tidy(&mut self) {
        let Self { streams, begun, ended, .. } = self;
        for times in [begun, ended] {
            if times.len() > 2 * streams.len() + SLACK {
                times.retain(|(_, stream)| streams.contains_key(stream));
            }
        }
    }

    /// Adds an event of so many bytes. One of a stream that went has an id, too, at which nothing follows.
    fn push(&mut self, stream: &str, mut event: ServerSseMessage, bytes: usize, now: Instant) -> EventId {
        let Some(log) = self.streams.get_mut(stream) else { return format!("{stream}.gone") };
        let id = format!("{stream}.{}", log.events.len() + 1);
        event.event_id = Some(id.clone());
        if event.message.as_deref().is_some_and(is_last) && !log.ended {
            log.ended = true;
            self.ended.push_back((now, stream.to_owned()));
        }
        log.events.push(event);
        log.bytes += bytes;
        self.held.bytes += bytes;
        if let Some(own) = self.owners.get_mut(&log.owner) {
            own.held.bytes += bytes;
        }
        log.count.send_replace(log.events.len());
        id
    }

    /// Lets go of what is too old, and where there is too much of the oldest of whoever has it.
    fn prune(&mut self, owner: &str, in_all: Amount, of_one: Amount, now: Instant) {
        let mut gone = Vec::new();
        for (times, age) in [(&mut self.ended, KEPT), (&mut self.begun, LONGEST)] {
            while let Some((_, stream)) = times.pop_front_if(|(at, _)| now.duration_since(*at) > age) {
                gone.push(stream);
            }
        }
        for stream in gone {
            self.forget(&stream);
        }
        while self.owners.get(owner).is_some_and(|own| own.held.is_more_than(of_one)) && self.forget_oldest(owner) {}
        while self.held.is_more_than(in_all) {
            let most = self.owners.iter().max_by_key(|(_, own)| own.held.bytes + own.held.streams * BESIDE);
            let Some(most) = most.map(|(owner, _)| owner.clone()) else { return };
            if !self.forget_oldest(&most) {
                return;
            }
        }
    }

    fn forget_oldest(&mut self, owner: &str) -> bool {
        let oldest = self.owners.get(owner).and_then(|own| own.order.front().cloned());
        let Some(stream) = oldest else { return false };
        self.forget(&stream);
        true
    }

    fn forget(&mut self, stream: &str) {
        let Some(log) = self.streams.remove(stream) else { return };
        self.held.bytes -= log.bytes;
        self.held.streams -= 1;
        let Some(own) = self.owners.get_mut(&log.owner) else { return };
        own.held.bytes -= log.bytes;
        own.held.streams -= 1;
        // It is near the front: what goes is old.
        if let Some(place) = own.order.iter().position(|id| id == stream) {
            own.order.remove(place);
        }
        if own.order.is_empty() {
            self.owners.remove(&log.owner);
        }
    }
}

/// Whether nothing follows a message: it answers the call.
const fn is_last(message: &ServerJsonRpcMessage) -> bool {
    matches!(message, ServerJsonRpcMessage::Response(_) | ServerJsonRpcMessage::Error(_))
}

/// What an event takes, in bytes.
fn size(event: &ServerSseMessage) -> usize {
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
    let mut count = Count(BESIDE);
    if let Some(message) = &event.message {
        // What cannot be written is not sent either.
        let _ = serde_json::to_writer(&mut count, message.as_ref());
    }
    count.0
}

/// The stream of an event, and how many events there were with it.
fn place(event: &str) -> Option<(&str, usize)> {
    let (stream, count) = event.rsplit_once('.')?;
    Some((stream, count.parse().ok()?))
}

/// The events of one request of a caller: its own stream, and those that it may come back for.
#[derive(Clone)]
pub struct Own {
    events: Arc<Events>,
    owner: Arc<str>,
    begun: Arc<AtomicBool>,
}

impl Own {
    /// Those of a caller.
    pub fn of(events: &Arc<Events>, owner: &str) -> Self {
        Self { events: events.clone(), owner: owner.into(), begun: Arc::default() }
    }
}

#[async_trait::async_trait]
impl EventStore for Own {
    async fn store_event(&self, stream: &str, event: &ServerSseMessage) -> Result<EventId, EventStoreError> {
        let (bytes, event, now) = (size(event), event.clone(), Instant::now());
        let mut kept = self.events.kept();
        if !self.begun.swap(true, Ordering::Relaxed) {
            kept.begin(stream, &self.owner, now);
        }
        let id = kept.push(stream, event, bytes, now);
        kept.prune(&self.owner, self.events.in_all, self.events.of_one, now);
        Ok(id)
    }

    async fn replay_events_after(&self, last: &str) -> Result<EventStream, EventStoreError> {
        let (stream, mut count) = place(last).ok_or("no id of an event")?;
        let mut changed = {
            let kept = self.events.kept();
            let log = kept.streams.get(stream).filter(|log| log.owner == self.owner);
            log.ok_or("a stream that is gone")?.count.subscribe()
        };
        let (events, stream) = (self.events.clone(), stream.to_owned());
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

    async fn stored(own: &Own, stream: &str, event: &ServerSseMessage) -> String {
        own.store_event(stream, event).await.unwrap()
    }

    async fn rest(own: &Own, last: &str) -> Vec<String> {
        let stream = own.replay_events_after(last).await.map_err(|error| error.to_string()).unwrap();
        stream.filter_map(|event| async move { event.event_id }).collect().await
    }

    async fn is_kept(events: &Arc<Events>, owner: &str, id: &str) -> bool {
        Own::of(events, owner).replay_events_after(id).await.is_ok()
    }

    #[tokio::test]
    async fn who_comes_back_hears_what_follows_and_the_end_of_it() {
        let events = Arc::default();
        let (a, b) = (Own::of(&events, "o"), Own::of(&events, "o"));
        let first = stored(&a, "a", &note()).await;
        stored(&b, "b", &note()).await;
        let second = stored(&a, "a", &note()).await;
        let waiting = tokio::spawn({
            let (b, first) = (b.clone(), first.clone());
            async move { rest(&b, &first).await }
        });
        tokio::task::yield_now().await;
        let last = stored(&a, "a", &end()).await;
        assert_eq!(waiting.await.unwrap(), [second.clone(), last.clone()]);
        assert_eq!(rest(&b, &second).await, std::slice::from_ref(&last));
        assert!(rest(&b, &last).await.is_empty());
        assert!(!is_kept(&events, "another", &first).await);
    }

    #[tokio::test]
    async fn what_nobody_heard_is_not_told() {
        let events = Arc::default();
        let own = Own::of(&events, "o");
        stored(&own, "a", &end()).await;
        for wrong in ["", "a", "a.x", "b.1", "0", "a.gone"] {
            assert!(!is_kept(&events, "o", wrong).await, "{wrong}");
        }
        assert!(rest(&own, "a.7").await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn streams_go_some_time_after_their_end_and_all_of_them_at_last() {
        let events = Arc::default();
        let ended = stored(&Own::of(&events, "o"), "ended", &end()).await;
        let open = stored(&Own::of(&events, "o"), "open", &note()).await;
        tokio::time::advance(KEPT).await;
        stored(&Own::of(&events, "o"), "new", &note()).await;
        assert!(is_kept(&events, "o", &ended).await);
        tokio::time::advance(Duration::from_secs(1)).await;
        stored(&Own::of(&events, "o"), "newer", &note()).await;
        assert!(!is_kept(&events, "o", &ended).await && is_kept(&events, "o", &open).await);
        tokio::time::advance(LONGEST).await;
        stored(&Own::of(&events, "o"), "newest", &note()).await;
        assert!(!is_kept(&events, "o", &open).await);
    }

    fn few(in_all: Amount, of_one: Amount) -> Arc<Events> {
        Arc::new(Events { kept: Mutex::default(), in_all, of_one })
    }

    fn is_tidy(events: &Events) {
        let kept = events.kept();
        assert!(kept.begun.len().max(kept.ended.len()) <= 2 * kept.streams.len() + SLACK + 1);
    }

    #[tokio::test]
    async fn of_too_many_of_one_caller_its_oldest_go_and_stay_away() {
        let one = size(&note());
        for most in [Amount { bytes: 2 * one, streams: 100 }, Amount { bytes: 100 * one, streams: 2 }] {
            let events = few(IN_ALL, most);
            let first = Own::of(&events, "o");
            let ids = [stored(&first, "1", &note()).await, stored(&Own::of(&events, "o"), "2", &note()).await];
            let other = stored(&Own::of(&events, "another"), "3", &note()).await;
            assert!(is_kept(&events, "o", &ids[0]).await);
            stored(&Own::of(&events, "o"), "4", &note()).await;
            assert!(!is_kept(&events, "o", &ids[0]).await);
            assert!(is_kept(&events, "o", &ids[1]).await && is_kept(&events, "another", &other).await);
            for number in 0..10 * SLACK {
                stored(&Own::of(&events, "o"), &format!("n{number}"), &end()).await;
            }
            is_tidy(&events);
            // What it still says begins no stream anew.
            stored(&first, "1", &note()).await;
            assert!(!is_kept(&events, "o", &ids[0]).await);
        }
    }

    #[tokio::test]
    async fn of_too_many_in_all_those_of_the_greediest_go() {
        let one = size(&note());
        let events = few(Amount { bytes: 3 * one, streams: 100 }, OF_ONE);
        let modest = stored(&Own::of(&events, "modest"), "1", &note()).await;
        let first = stored(&Own::of(&events, "greedy"), "2", &note()).await;
        for stream in ["3", "4"] {
            stored(&Own::of(&events, "greedy"), stream, &note()).await;
        }
        assert!(is_kept(&events, "modest", &modest).await && !is_kept(&events, "greedy", &first).await);
        let kept = events.kept();
        assert_eq!((kept.held.streams, kept.owners.len(), kept.streams.len()), (3, 2, 3));
    }

    #[tokio::test]
    async fn a_stream_that_goes_ends_who_waits_for_it() {
        let events = Arc::default();
        let own = Own::of(&events, "o");
        let open = stored(&own, "open", &note()).await;
        let waiting = tokio::spawn({
            let own = own.clone();
            async move { rest(&own, &open).await }
        });
        tokio::task::yield_now().await;
        own.events.kept().forget_oldest("o");
        assert!(waiting.await.unwrap().is_empty());
    }
}
