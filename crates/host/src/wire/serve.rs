//! The side of the host.

use std::io::{self, ErrorKind};

use berth_domain::host::Ask;
use tokio::time::timeout;

use super::message::{Asked, QUESTION, SILENCE, Told};
use super::tell::{Stream, attend, end};
use super::{frame, turn};
use crate::{EngineError, Host};

/// Answers the question of one connection. When whoever asked it leaves, the host stops working on it.
///
/// # Errors
/// Where the connection broke off, or said something after its question. Nobody is left to be told.
pub async fn serve(host: &Host, mut stream: impl Stream) -> io::Result<()> {
    let asked = timeout(SILENCE, frame::read(&mut stream, QUESTION)).await?;
    let ask = match asked.map(|bytes| Asked::read(&bytes)) {
        Ok(Ok(ask)) => ask,
        Ok(Err(refusal)) => return end(&mut stream, Told::Failed(refusal)).await,
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            return end(&mut stream, Told::Failed(EngineError::Permanent(error.to_string()))).await;
        }
        Err(error) => return Err(error),
    };
    if let Ask::Stream(ask) = ask {
        return turn::turn(host, ask, stream).await;
    }
    match attend(&mut stream, host.answer(ask)).await? {
        Some(answer) => end(&mut stream, answer.into()).await,
        None => Ok(()),
    }
}
