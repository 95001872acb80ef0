//! How long an agent is waited for that has not begun to answer: a guest may be up, and say nothing.
//!
//! What counts is the time in which it takes nothing of a request and says nothing. While the caller's body is waited
//! for, whose pace is looked after elsewhere ([`crate::http::paced`]), nobody waits for the agent.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::time::{Instant, sleep_until};

/// Since when an agent is waited for; `None` while its caller is.
#[derive(Clone)]
pub(super) struct Since(Arc<Mutex<Option<Instant>>>);

impl Since {
    /// Returns once the agent has been waited for as long as this.
    pub(super) async fn over(&self, patience: Duration) {
        loop {
            let since = self.get();
            sleep_until(since.unwrap_or_else(Instant::now) + patience).await;
            if since.is_some() && self.get() == since {
                return;
            }
        }
    }

    fn get(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, since: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }
}

/// A body on its way to an agent.
pub(super) struct Sent {
    body: Body,
    since: Since,
}

impl Sent {
    /// A body that is about to be sent, and since when the agent is waited for.
    pub(super) fn of(body: Body) -> (Self, Since) {
        let since = Since(Arc::new(Mutex::new(Some(Instant::now()))));
        (Self { body, since: since.clone() }, since)
    }
}

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let piece = Pin::new(&mut self.body).poll_frame(context);
        self.since.set(piece.is_ready().then(Instant::now));
        piece
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::pin;

    use futures::channel::mpsc;
    use futures::{FutureExt, SinkExt};
    use http_body_util::BodyExt;
    use tokio::time::timeout;

    use super::*;

    const SHORT: Duration = Duration::from_millis(5);

    #[tokio::test]
    async fn an_agent_is_waited_for_while_it_takes_nothing_and_not_while_its_caller_is() {
        let (mut sender, pieces) = mpsc::channel::<Result<Bytes, Infallible>>(1);
        let (mut body, since) = Sent::of(Body::from_stream(pieces));
        // It takes nothing at all.
        since.over(SHORT).await;
        // It takes what there is, and wants more.
        assert!(body.frame().now_or_never().is_none());
        let mut over = pin!(since.over(SHORT));
        assert!(timeout(SHORT * 10, &mut over).await.is_err());
        // More is there, and it does not come back for the rest.
        sender.send(Ok(Bytes::from_static(b"x"))).await.unwrap();
        assert!(body.frame().await.is_some_and(|piece| piece.is_ok()));
        over.await;
        // It has the whole.
        assert!(body.frame().now_or_never().is_none());
        drop(sender);
        assert!(body.frame().await.is_none());
        since.over(SHORT).await;
    }
}
