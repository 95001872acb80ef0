//! The end of a WebSocket.

use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message};
use futures::{Sink, SinkExt, Stream, StreamExt};

/// How long the other side may take to answer the close.
const GOODBYE: Duration = Duration::from_secs(2);

/// Closes a WebSocket and waits until the other side has read why. Closing a connection with unread input resets it,
/// and the reset overtakes the last message: the exit code of a program.
pub async fn close<E>(
    mut socket: impl Sink<Message, Error = E> + Stream<Item = Result<Message, E>> + Unpin,
    frame: Option<CloseFrame>,
) {
    if socket.send(Message::Close(frame)).await.is_err() {
        // The other side is already gone.
        return;
    }
    let last = async { while let Some(Ok(_)) = socket.next().await {} };
    let _ = tokio::time::timeout(GOODBYE, last).await;
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use super::*;

    /// A socket whose other side sends so many more messages, and then ends or falls silent.
    struct Scripted {
        more: usize,
        ends: bool,
        sent: Vec<Message>,
    }

    impl Stream for &mut Scripted {
        type Item = Result<Message, ()>;

        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            match (self.more, self.ends) {
                (0, true) => Poll::Ready(None),
                (0, false) => Poll::Pending,
                _ => {
                    self.more -= 1;
                    Poll::Ready(Some(Ok(Message::Text("typed".into()))))
                }
            }
        }
    }

    impl Sink<Message> for &mut Scripted {
        type Error = ();

        fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
            Poll::Ready(Ok(()))
        }

        fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), ()> {
            self.sent.push(message);
            Ok(())
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn what_is_still_typed_is_read_and_nobody_is_waited_for_too_long() {
        for ends in [true, false] {
            let mut socket = Scripted { more: 100, ends, sent: Vec::new() };
            close(&mut socket, None).await;
            assert_eq!((socket.more, socket.sent), (0, vec![Message::Close(None)]), "ends: {ends}");
        }
    }
}
