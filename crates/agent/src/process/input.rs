//! The input of a process.

use std::io;
use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe::Sender;

use crate::terminal::Device;

/// What a terminal takes for the end of its input, at the beginning of a line (^D).
const END_OF_INPUT: u8 = 4;

/// What a process reads.
pub enum Input {
    /// A pipe.
    Pipe(Sender),
    /// Its terminal.
    Terminal(Arc<Device>),
}

impl Input {
    /// Writes everything. Waits for a process that does not read, even one that has ended.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Pipe(pipe) => pipe.write_all(bytes).await,
            Self::Terminal(device) => device.type_in(bytes, || false).await,
        }
    }
}

/// Ends the input. A terminal stays open: its program may read on.
pub async fn end(stdin: &mut Option<Input>) -> io::Result<()> {
    if let Some(terminal @ Input::Terminal(_)) = stdin {
        return terminal.write(&[END_OF_INPUT]).await;
    }
    *stdin = None;
    Ok(())
}
