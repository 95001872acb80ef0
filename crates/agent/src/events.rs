//! Streamed bodies, and the comments that keep an idle one alive.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use berth_domain::sse;
use bytes::Bytes;
use futures_core::Stream;

/// Longest silence of a stream of events.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A source of a body's bytes, one chunk after the other.
pub trait Feed: Send + 'static {
    /// The next chunk; nothing at the end.
    fn next(&mut self) -> impl Future<Output = Option<io::Result<Bytes>>> + Send;

    /// The bytes that show that the stream is alive.
    fn keep_alive(&self) -> Bytes {
        Bytes::from_static(sse::KEEP_ALIVE)
    }

    /// The silence after which such bytes are sent; only for feeds whose [`Self::next`] may be dropped and called
    /// again.
    const KEEP_ALIVE: Option<Duration>;
}

type Turn<F> = Pin<Box<dyn Future<Output = (F, Option<io::Result<Bytes>>)> + Send>>;

/// A feed as the stream of a body.
pub struct Feeding<F> {
    turn: Option<Turn<F>>,
}

impl<F: Feed> Feeding<F> {
    /// Begins to feed.
    pub fn new(feed: F) -> Self {
        Self { turn: Some(turn(feed)) }
    }
}

fn turn<F: Feed>(mut feed: F) -> Turn<F> {
    Box::pin(async move {
        let Some(silence) = F::KEEP_ALIVE else {
            let next = feed.next().await;
            return (feed, next);
        };
        let next = tokio::time::timeout(silence, feed.next()).await;
        let next = next.unwrap_or_else(|_| Some(Ok(feed.keep_alive())));
        (feed, next)
    })
}

impl<F: Feed> Stream for Feeding<F> {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(current) = &mut self.turn else { return Poll::Ready(None) };
        let Poll::Ready((feed, next)) = current.as_mut().poll(context) else { return Poll::Pending };
        self.turn = next.is_some().then(|| turn(feed));
        Poll::Ready(next)
    }
}
