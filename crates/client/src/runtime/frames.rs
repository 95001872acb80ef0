//! Frames of a program's output: [`berth_domain::agent::output`].

use berth_domain::agent::output::{self, HEADER_LEN, Header, Kind};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::BoxStream;
use reqwest::Response;

use super::events::{Broken, SILENCE, patient};
use super::piece::Piece;

/// Frames as they come.
pub(super) struct Frames {
    bytes: BoxStream<'static, Result<Bytes, Broken>>,
    rest: BytesMut,
}

impl Frames {
    /// The frames of an answer.
    pub(super) fn of(response: Response) -> Self {
        Self { bytes: Box::pin(patient(response.bytes_stream(), SILENCE)), rest: BytesMut::new() }
    }

    /// The next frame with content. Dropping its future loses nothing.
    pub(super) async fn next(&mut self) -> Option<Result<Piece, Broken>> {
        loop {
            match self.take() {
                Ok(Some(piece)) => return Some(Ok(piece)),
                Ok(None) => {}
                Err(error) => return Some(Err(Broken::Nonsense(error.to_string()))),
            }
            match self.bytes.next().await? {
                Ok(bytes) => self.rest.extend_from_slice(&bytes),
                Err(broken) => return Some(Err(broken)),
            }
        }
    }

    fn take(&mut self) -> Result<Option<Piece>, output::FrameError> {
        while let Some(header) = Header::parse(&self.rest)? {
            if self.rest.len() < HEADER_LEN + header.length {
                return Ok(None);
            }
            let payload = self.rest.split_to(HEADER_LEN + header.length).split_off(HEADER_LEN).freeze();
            let piece = match header.kind {
                Kind::Nothing => None,
                Kind::Stdout | Kind::Stderr => {
                    Some(Piece::Bytes { stderr: header.kind == Kind::Stderr, offset: header.offset, bytes: payload })
                }
                Kind::Event => output::event(&payload)?.map(Piece::Event),
            };
            if piece.is_some() {
                return Ok(piece);
            }
        }
        Ok(None)
    }
}
