//! The pieces of a form on their way to who parses it.
//!
//! The parser takes what there is before it gives anything, and looks for the end of a part's headers as far as it has to. So
//! it gets a piece at a time, and only so much without a file in it: what is packed may have no end.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::{Body, BodyDataStream};
use bytes::Bytes;
use futures::Stream;

/// Bytes before a file, and between two: a part's headers, and what comes in one piece with them.
const HEADERS: usize = 1 << 20;

/// How many bytes may come that are no file's.
#[derive(Clone)]
pub struct Allowance(Arc<AtomicUsize>);

impl Allowance {
    /// The pieces of a body, and what they may be.
    pub fn over(body: Body) -> (Pieces, Self) {
        let allowance = Self(Arc::new(AtomicUsize::new(HEADERS)));
        (Pieces { body: body.into_data_stream(), allowance: allowance.clone(), gave: false }, allowance)
    }

    /// A file comes now.
    pub fn lift(&self) {
        self.0.store(usize::MAX, Ordering::Relaxed);
    }

    /// A file has come.
    pub fn set(&self) {
        self.0.store(HEADERS, Ordering::Relaxed);
    }

    /// Takes from it; whether there was as much.
    fn take(&self, bytes: usize) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        let rest = if left == usize::MAX { Some(left) } else { left.checked_sub(bytes) };
        self.0.store(rest.unwrap_or(0), Ordering::Relaxed);
        rest.is_some()
    }
}

/// The pieces of a form, one for each time that somebody asks.
pub struct Pieces {
    body: BodyDataStream,
    allowance: Allowance,
    /// Whether the last one who asked got a piece.
    gave: bool,
}

impl Stream for Pieces {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if std::mem::take(&mut self.gave) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let piece = ready!(Pin::new(&mut self.body).poll_next(context));
        let piece = piece.map(|piece| match piece {
            Ok(bytes) if self.allowance.take(bytes.len()) => Ok(bytes),
            Ok(_) => Err(io::Error::other("a part's headers are too long")),
            Err(error) => Err(io::Error::other(error)),
        });
        self.gave = piece.is_some();
        Poll::Ready(piece)
    }
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt, stream};

    use super::*;

    /// How much of an endless body a parser takes that looks for headers, and for a file.
    async fn taken(prefix: &'static str) -> (usize, bool) {
        let taken = Arc::new(AtomicUsize::new(0));
        let counted = taken.clone();
        let endless = stream::repeat(Bytes::from(vec![b'x'; 64 << 10])).map(move |piece| {
            counted.fetch_add(piece.len(), Ordering::Relaxed);
            Ok::<_, io::Error>(piece)
        });
        let body = Body::from_stream(stream::iter([Ok(Bytes::from(prefix))]).chain(endless));
        let (pieces, allowance) = Allowance::over(body);
        let mut form = multer::Multipart::new(pieces, "line");
        let Ok(Some(mut part)) = form.next_field().await else { return (taken.load(Ordering::Relaxed), false) };
        allowance.lift();
        let mut read = 0;
        while read < 8 << 20 {
            read += part.chunk().await.unwrap().unwrap().len();
        }
        (taken.load(Ordering::Relaxed) - read, true)
    }

    #[tokio::test]
    async fn a_form_is_taken_no_faster_than_it_is_read() {
        let (ahead, found) = taken("--line\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n").await;
        assert!(found && ahead < 1 << 20, "{ahead}");
        for prefix in ["", "--line\r\n", "--line\r\nX: "] {
            let (read, found) = taken(prefix).await;
            assert!(!found && read <= HEADERS + (128 << 10), "{prefix:?}: {read}");
        }
    }
}
