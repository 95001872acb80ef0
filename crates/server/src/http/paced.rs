//! Bodies that have to keep coming, and whose sender is checked again at the end.
//!
//! A body begins with a credit of [`Grace`]. Each byte that arrives adds to the credit, at [`PACE`] bytes a second, but
//! never beyond the initial credit. So a body that stalls for that long gets a 408, however much came before, and a
//! trickle gets it soon after. Only time in which the service waits for the sender counts: a full disk or a busy guest
//! costs the sender nothing. A body that is read into memory must be complete after ten minutes of waiting, however it
//! kept coming: until then it holds memory that others may need.
//!
//! After a body that the service waited for, it checks the sender again ([`Sender::recheck`]), before the reader learns
//! of the body's end: a file that is written whole or not at all is then not written.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::request::Parts;
use berth_domain::{Code, Error};
use bytes::Bytes;
use futures::future::BoxFuture;
use hyper::body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use super::authority::Sender;
use crate::config::Http;

/// How long the service waits for a stalled body, `[http] body_grace_seconds`. In the extensions of every request that
/// came over a connection.
#[derive(Clone, Copy, Debug)]
pub struct Grace(pub Duration);

impl Default for Grace {
    fn default() -> Self {
        Self(Duration::from_secs(Http::default().body_grace_seconds))
    }
}

/// Bytes a second that a body has to bring beyond that.
pub const PACE: u32 = 4 * 1024;
/// How long the service waits in all for a body that it reads into memory: as long as a request to a model takes at
/// most by default.
pub const WHOLE: Duration = Duration::from_mins(10);
/// How long the service waits in all for a body that becomes a file of a project's, which takes room on the host until then.
pub const FILE: Duration = Duration::from_hours(24);
/// After waiting this long for a body, the service checks its sender again: a revocation may take a second (contract,
/// section 2).
const AGED: Duration = Duration::from_secs(1);

/// Why the service does not read a body to its end.
#[derive(Debug)]
pub struct Broken(pub Error);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Broken {}

/// The refusal of a body that broke off.
pub fn broken(cause: &(dyn std::error::Error + Send + Sync)) -> Error {
    Error::new(Code::InvalidRequest, format!("The body could not be read: {cause}."))
}

fn stalled(grace: Duration) -> Error {
    let seconds = grace.as_secs();
    Error::new(
        Code::RequestTimeout,
        format!(
            "The body did not come: send it within {seconds} s of the head, and at least {PACE} bytes a second of what \
             is longer. Try again on a connection that can."
        ),
    )
}

fn too_slow(whole: Duration) -> Error {
    let minutes = whole.as_secs() / 60;
    Error::new(
        Code::RequestTimeout,
        format!("The body did not come whole within {minutes} minutes. Try again on a faster connection."),
    )
}

/// A body that has to keep coming.
pub struct Paced {
    inner: Body,
    patience: Patience,
    /// How long the service may wait from now on.
    left: Duration,
    /// How long it has waited.
    waited: Duration,
    /// Since when it waits, and until when at most.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
    /// The check of the sender.
    look: Option<BoxFuture<'static, berth_domain::Result<()>>>,
    ended: bool,
    over: bool,
    refusal: Refusal,
}

#[derive(Clone, Copy)]
struct Patience {
    grace: Duration,
    aged: Duration,
    whole: Duration,
}

/// Why a body broke off, for a caller that hands the body on and only sees a broken stream.
#[derive(Clone, Default)]
pub struct Refusal(Arc<OnceLock<Error>>);

impl Refusal {
    /// The reason, if the body was the cause.
    pub fn get(&self) -> Option<Error> {
        self.0.get().cloned()
    }
}

impl Paced {
    /// The body of a request.
    pub fn of(parts: &Parts, body: Body) -> Self {
        Self::within(parts, body, Duration::MAX)
    }

    /// The body of a request that is read into memory.
    pub fn whole(parts: &Parts, body: Body) -> Self {
        Self::within(parts, body, WHOLE)
    }

    /// The body of a request, for which the service waits no longer than `whole` in all.
    pub fn within(parts: &Parts, body: Body, whole: Duration) -> Self {
        let sender = parts.extensions.get::<Sender>().cloned();
        let look = sender.map(|sender| -> BoxFuture<'static, _> { Box::pin(async move { sender.recheck().await }) });
        let Grace(grace) = parts.extensions.get().copied().unwrap_or_default();
        Self::new(body, look, Patience { grace, aged: AGED, whole })
    }

    fn new(inner: Body, look: Option<BoxFuture<'static, berth_domain::Result<()>>>, patience: Patience) -> Self {
        Self {
            inner,
            patience,
            left: patience.grace,
            waited: Duration::ZERO,
            waiting: None,
            look,
            ended: false,
            over: false,
            refusal: Refusal::default(),
        }
    }

    /// Holds the reason, if the body breaks off.
    pub fn refusal(&self) -> Refusal {
        self.refusal.clone()
    }

    fn fail<T>(&mut self, error: Error) -> Poll<Option<Result<T, Broken>>> {
        self.over = true;
        // The first reason counts.
        let _ = self.refusal.0.set(error.clone());
        Poll::Ready(Some(Err(Broken(error))))
    }

    /// The next piece of the body, or an error if it did not come in time.
    fn piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if let Poll::Ready(piece) = Pin::new(&mut self.inner).poll_frame(context) {
            if let Some((since, _)) = self.waiting.take() {
                let waited = since.elapsed();
                self.waited += waited;
                self.left = self.left.saturating_sub(waited);
            }
            let bytes = piece.as_ref().and_then(|p| p.as_ref().ok()?.data_ref().map(Bytes::len)).unwrap_or_default();
            let earned = Duration::from_secs(1) * u32::try_from(bytes).unwrap_or(u32::MAX) / PACE;
            self.left = self.patience.grace.min(self.left + earned);
            return Poll::Ready(piece.map(|piece| piece.map_err(|e| broken(&e))));
        }
        let rest = self.patience.whole.saturating_sub(self.waited);
        let (_, end) = self.waiting.get_or_insert_with(|| {
            let now = Instant::now();
            (now, Box::pin(sleep_until(now + self.left.min(rest))))
        });
        ready!(end.as_mut().poll(context));
        Poll::Ready(Some(Err(if rest < self.left {
            too_slow(self.patience.whole)
        } else {
            stalled(self.patience.grace)
        })))
    }
}

impl HttpBody for Paced {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.over {
            return Poll::Ready(None);
        }
        if !self.ended {
            match ready!(self.piece(context)) {
                Some(Ok(piece)) => return Poll::Ready(Some(Ok(piece))),
                Some(Err(error)) => return self.fail(error),
                None => self.ended = true,
            }
        }
        if self.waited >= self.patience.aged
            && let Some(look) = &mut self.look
            && let Err(refusal) = ready!(look.as_mut().poll(context))
        {
            return self.fail(refusal);
        }
        self.over = true;
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        // A body that the service waited for must be polled for its end, too, since that starts the check.
        self.over || (self.inner.is_end_stream() && self.waited < self.patience.aged)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use futures::channel::mpsc;
    use futures::{SinkExt, StreamExt};
    use http_body_util::BodyExt;

    use super::*;

    /// A body that a test sends, and the reader's side of it.
    fn body(patience: Patience, refused: bool) -> (mpsc::Sender<Result<Bytes, std::io::Error>>, Paced) {
        let (sender, pieces) = mpsc::channel(8);
        let look = async move { if refused { Err(Error::new(Code::Unauthorized, "no longer")) } else { Ok(()) } };
        (sender, Paced::new(Body::from_stream(pieces), Some(Box::pin(look)), patience))
    }

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_hours(1);

    #[tokio::test]
    async fn a_body_that_stalls_is_refused_however_much_came_before() {
        let (mut sender, body) = body(Patience { grace: SHORT, aged: LONG, whole: LONG }, false);
        let refusal = body.refusal();
        sender.send(Ok(vec![0; 1 << 20].into())).await.unwrap();
        let error = body.collect().await.unwrap_err();
        assert_eq!((error.0.code, refusal.get().unwrap().code), (Code::RequestTimeout, Code::RequestTimeout));
    }

    #[tokio::test]
    async fn what_keeps_coming_has_to_come_to_an_end() {
        let (mut sender, mut body) = body(Patience { grace: LONG, aged: LONG, whole: SHORT }, false);
        let refusal = body.refusal();
        let trickle = tokio::spawn(async move {
            // Until the reader is gone.
            while sender.send(Ok(Bytes::from_static(b"x"))).await.is_ok() {
                tokio::time::sleep(SHORT / 4).await;
            }
        });
        let error = loop {
            match body.frame().await {
                Some(Ok(_)) => {}
                Some(Err(error)) => break error,
                None => panic!("it has no end of its own"),
            }
        };
        assert_eq!((error.0.code, refusal.get().unwrap().code), (Code::RequestTimeout, Code::RequestTimeout));
        drop(body);
        trickle.await.unwrap();
    }

    #[tokio::test]
    async fn a_file_comes_whole_within_a_day_of_waiting() {
        let parts = || axum::http::Request::new(()).into_parts().0;
        for (waited, comes) in [(FILE.saturating_sub(SHORT), true), (FILE, false)] {
            let (mut sender, pieces) = mpsc::channel::<Result<Bytes, std::io::Error>>(8);
            let mut body = Paced::within(&parts(), Body::from_stream(pieces), FILE);
            body.waited = waited;
            if comes {
                sender.send(Ok(Bytes::from_static(b"x"))).await.unwrap();
                assert!(body.frame().await.unwrap().is_ok());
            }
            // What comes no more is waited for until the day is over, and no longer.
            let error = body.frame().await.unwrap().unwrap_err();
            assert!(error.0.code == Code::RequestTimeout && error.0.message.contains("1440 minutes"), "{}", error.0);
        }
    }

    #[tokio::test]
    async fn what_comes_earns_time_and_never_more_than_there_was() {
        let (mut sender, mut body) = body(Patience { grace: LONG, aged: LONG, whole: LONG }, false);
        body.left = Duration::ZERO;
        sender.send(Ok(vec![0; PACE as usize * 3].into())).await.unwrap();
        body.frame().await.unwrap().unwrap();
        assert_eq!(body.left, Duration::from_secs(3));
        sender.send(Ok(vec![0; PACE as usize * 7200].into())).await.unwrap();
        body.frame().await.unwrap().unwrap();
        assert_eq!(body.left, LONG);
    }

    #[tokio::test]
    async fn the_reader_s_own_time_is_not_the_sender_s() {
        let (mut sender, mut body) = body(Patience { grace: SHORT, aged: LONG, whole: LONG }, false);
        for _ in 0..2 {
            sender.send(Ok(Bytes::from_static(b"x"))).await.unwrap();
        }
        body.frame().await.unwrap().unwrap();
        tokio::time::sleep(SHORT * 2).await;
        body.frame().await.unwrap().unwrap();
        drop(sender);
        assert!(body.frame().await.is_none());
    }

    #[tokio::test]
    async fn behind_a_body_that_was_waited_for_its_sender_is_looked_at_again() {
        for (aged, refused, expected) in [
            (Duration::ZERO, true, Err(Code::Unauthorized)),
            (Duration::ZERO, false, Ok(1)),
            // Complete at once: the sender was checked a moment ago.
            (LONG, true, Ok(1)),
        ] {
            let (mut sender, body) = body(Patience { grace: LONG, aged, whole: LONG }, refused);
            sender.send(Ok(Bytes::from_static(b"x"))).await.unwrap();
            drop(sender);
            let read = http_body_util::BodyDataStream::new(body).collect::<Vec<_>>().await;
            let read: Result<Vec<_>, _> = read.into_iter().collect();
            assert_eq!(read.map(|pieces| pieces.len()).map_err(|broken| broken.0.code), expected);
        }
    }
}
