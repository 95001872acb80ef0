//! A WebSocket that carries the bytes of a machine's console or screen.
//!
//! Whoever is at its other side may be gone without a word, and would keep a place at the machine for as long as that says
//! nothing. So it is asked now and then whether it is there, and one that answers nothing is let go.

use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::extract::ws::{Message, WebSocketUpgrade};
use axum::http::request::Parts;
use axum::response::Response;
use berth_domain::ids::VmId;
use berth_domain::vm::Status;
use berth_domain::{Code, Error};
use berth_host::vm::Console;
use futures::{Sink, SinkExt, Stream, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::vm::not_found;
use crate::db::machine::Machine;
use crate::http::auth::Scope;
use crate::http::envelope::ApiError;
use crate::http::websocket;
use crate::services::vm::{Vms, store};

/// Bytes of a machine in one message.
const PIECE: usize = 32 << 10;
/// Most bytes of a client's message; what is pasted has no more in VNC either.
const MESSAGE: usize = 1 << 20;
/// Between two pings.
const PING: Duration = Duration::from_secs(30);
/// After so many pings without a word the client is gone.
const UNANSWERED: u32 = 2;

/// The upgrade, if the request asks for one: so that authentication is decided first.
pub(super) struct MaybeUpgrade(Option<WebSocketUpgrade>);

impl<S: Send + Sync> FromRequestParts<S> for MaybeUpgrade {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        Ok(Self(WebSocketUpgrade::from_request_parts(parts, state).await.ok()))
    }
}

impl MaybeUpgrade {
    /// The upgrade, which the route is for.
    pub(super) fn required(self) -> Result<WebSocketUpgrade, Error> {
        self.0.ok_or_else(|| Error::new(Code::InvalidRequest, "Connect to this route with a WebSocket."))
    }
}

/// The machine of a VM that runs. A refusal says what is there only then.
pub(super) async fn running(vms: &Vms, scope: &Scope, id: VmId, there: &str) -> Result<Machine, Error> {
    let vm = store::vm::find(vms.db(), scope.into(), id).await?.ok_or_else(not_found)?;
    if vm.status == Status::Running {
        return Ok(vm.machine);
    }
    Err(Error::new(Code::InvalidStatus, format!("The VM is {}; {there} while it runs.", vm.status)))
}

/// Carries bytes both ways, in binary messages, until one side ends, or the caller may not any more.
pub(super) fn carry(
    upgrade: WebSocketUpgrade,
    machine: Box<dyn Console>,
    over: impl Future<Output = ()> + Send + 'static,
) -> Response {
    upgrade.max_message_size(MESSAGE).on_upgrade(async move |mut socket| {
        // A client that takes nothing holds the one back, and must not hold the other.
        tokio::select! {
            () = over => {}
            () = relay(&mut socket, machine, PING) => {}
        }
        // One that is gone does not take the end either.
        let _ = timeout(PING, websocket::close(socket, None)).await;
    })
}

/// The same for one socket, whose client is asked every so often whether it is there.
async fn relay<S, E>(socket: &mut S, mut machine: impl Console, every: Duration)
where
    S: Stream<Item = Result<Message, E>> + Sink<Message> + Unpin,
{
    let mut buffer = vec![0; PIECE];
    let mut pings = interval(every);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pings.reset();
    let mut unanswered = 0;
    loop {
        let message = tokio::select! {
            read = machine.read(&mut buffer) => match read {
                Ok(0) | Err(_) => break,
                Ok(n) => Message::Binary(buffer[..n].to_vec().into()),
            },
            message = socket.next() => {
                unanswered = 0;
                let bytes = match message {
                    Some(Ok(Message::Binary(bytes))) => bytes,
                    Some(Ok(Message::Text(text))) => text.into(),
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                    Some(Ok(Message::Close(_)) | Err(_)) | None => break,
                };
                if machine.write_all(&bytes).await.is_err() {
                    break;
                }
                continue;
            }
            _ = pings.tick() => {
                if unanswered == UNANSWERED {
                    break;
                }
                unanswered += 1;
                Message::Ping(Vec::new().into())
            }
        };
        // One that is gone takes nothing at last.
        if !matches!(timeout(every * UNANSWERED, socket.send(message)).await, Ok(Ok(()))) {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};

    use super::*;

    /// The service's side of a WebSocket.
    struct Side {
        from: UnboundedReceiver<Message>,
        to: Option<UnboundedSender<Message>>,
    }

    impl Stream for Side {
        type Item = Result<Message, ()>;

        fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            self.from.poll_next_unpin(cx).map(|message| message.map(Ok))
        }
    }

    impl Sink<Message> for Side {
        type Error = ();

        /// Without a way to its client it takes nothing.
        fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
            if self.to.is_some() { Poll::Ready(Ok(())) } else { Poll::Pending }
        }

        fn start_send(self: Pin<&mut Self>, message: Message) -> Result<(), ()> {
            self.to.as_ref().ok_or(())?.unbounded_send(message).map_err(|_| ())
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn a_client_that_is_gone_is_let_go() {
        for takes_something in [true, false] {
            let ((_typed, from), (to, mut seen)) = (unbounded(), unbounded());
            let (machine, _at_it) = tokio::io::duplex(64);
            let mut side = Side { from, to: takes_something.then_some(to) };
            relay(&mut side, machine, Duration::from_millis(10)).await;
            drop(side);
            let mut pings = 0;
            while let Some(Message::Ping(_)) = seen.next().await {
                pings += 1;
            }
            assert_eq!(pings, if takes_something { UNANSWERED } else { 0 });
        }
    }

    #[tokio::test]
    async fn a_client_that_answers_stays() {
        let ((typed, from), (to, mut seen)) = (unbounded(), unbounded());
        let (machine, mut at_it) = tokio::io::duplex(64);
        let mut side = Side { from, to: Some(to) };
        let client = async {
            for _ in 0..=UNANSWERED {
                assert!(matches!(seen.next().await, Some(Message::Ping(_))));
                typed.unbounded_send(Message::Pong(Vec::new().into())).expect("a listener");
            }
            typed.unbounded_send(Message::Text("ls".into())).expect("a listener");
            let mut bytes = [0; 2];
            at_it.read_exact(&mut bytes).await.expect("bytes");
            at_it.write_all(b"lost+found").await.expect("bytes are taken");
            let mut shown = seen.next().await;
            while let Some(Message::Ping(_)) = shown {
                shown = seen.next().await;
            }
            assert_eq!((&bytes, shown), (b"ls", Some(Message::Binary("lost+found".into()))));
            drop(typed);
        };
        tokio::join!(relay(&mut side, machine, Duration::from_millis(200)), client);
    }
}
