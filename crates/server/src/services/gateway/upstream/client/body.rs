//! The body of an answer, read as it comes. After its end, the connection waits for the next request.

use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use berth_domain::gateway::framing::{Decoder, Framing};
use bytes::BytesMut;

use super::connection::{Connection, Outgoing};
use super::{ClientError, Keeper};

/// How long reading the unwanted rest of a body may take.
const END: Duration = Duration::from_secs(1);

/// A body. Dropped before its end, it closes the connection.
pub struct Body {
    /// `None` at the end.
    connection: Option<Connection>,
    decoder: Decoder,
    /// Content that came with the head.
    early: BytesMut,
    /// Takes the connection back; `None` where it cannot serve again.
    keeper: Option<Keeper>,
    /// The rest of a request that the server accepted before it had read all of it.
    rest: Option<Box<Outgoing>>,
}

impl Body {
    /// The body on a connection. `rest` of the request is still to be sent over it.
    pub fn new(connection: Connection, framing: Framing, keeper: Option<Keeper>, rest: Option<Box<Outgoing>>) -> Self {
        Self { connection: Some(connection), decoder: Decoder::new(framing), early: BytesMut::new(), keeper, rest }
    }

    /// The same body, of which these bytes came already.
    pub fn after(mut self, bytes: &[u8]) -> Result<Self, ClientError> {
        let content = &mut self.early;
        let taken = self.decoder.decode(bytes, |piece| content.extend_from_slice(piece));
        self.took(taken.map_err(|_| ClientError::Malformed)? == bytes.len());
        Ok(self)
    }

    /// Appends the next bytes; false at the end of the body. Dropping the future loses nothing.
    pub async fn read(&mut self, into: &mut BytesMut) -> Result<bool, ClientError> {
        std::future::poll_fn(|context| self.poll(context, into)).await
    }

    /// Gives up the rest of the body. A task reads a short rest, so that the connection can serve again.
    pub fn finish(&mut self) {
        let (Some(connection), Some(keeper)) = (self.connection.take(), self.keeper.take()) else { return };
        let (decoder, rest) = (self.decoder.clone(), self.rest.take());
        let mut end =
            Self { connection: Some(connection), decoder, early: BytesMut::new(), keeper: Some(keeper), rest };
        tokio::spawn(tokio::time::timeout(END, async move {
            let mut unwanted = BytesMut::new();
            while let Ok(true) = end.read(&mut unwanted).await {
                unwanted.clear();
            }
        }));
    }

    fn poll(&mut self, context: &mut Context<'_>, into: &mut BytesMut) -> Poll<Result<bool, ClientError>> {
        if !self.early.is_empty() {
            into.extend_from_slice(&std::mem::take(&mut self.early));
            return Poll::Ready(Ok(true));
        }
        let before = into.len();
        while let Some(connection) = &mut self.connection {
            if let Some(Poll::Ready(sent)) = self.rest.as_mut().map(|rest| rest.poll(connection, context)) {
                // Reading finds out about a broken connection, too.
                self.keeper = self.keeper.take().filter(|_| sent.is_ok());
                self.rest = None;
            }
            let decoder = &mut self.decoder;
            let taken = ready!(connection.poll_read(context, |bytes| {
                let taken = decoder.decode(bytes, |piece| into.extend_from_slice(piece));
                (!bytes.is_empty()).then(|| taken.map(|taken| taken == bytes.len()))
            }))?;
            match taken {
                Some(taken) => self.took(taken.map_err(|_| ClientError::Malformed)?),
                None if self.decoder.may_close() => self.connection = None,
                None => return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())),
            }
            if into.len() > before {
                return Poll::Ready(Ok(true));
            }
        }
        Poll::Ready(Ok(false))
    }

    /// At the end of the body, gives the connection back. Bytes behind the end have no meaning, so it is closed then.
    fn took(&mut self, everything: bool) {
        if !self.decoder.is_done() {
            return;
        }
        let serves_again = everything && self.rest.is_none();
        if let (Some(connection), Some(keeper), true) = (self.connection.take(), self.keeper.take(), serves_again) {
            keeper.keep(connection);
        }
    }
}
