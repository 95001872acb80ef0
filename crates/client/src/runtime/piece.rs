//! Pieces of a program's output.

use berth_domain::agent::runtime::OutputEvent;
use bytes::Bytes;

/// The next piece of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// An event; with [`Form::Bytes`](super::Form::Bytes) none of output, unless the service sends lines.
    Event(OutputEvent),
    /// Bytes of the output, newlines among them.
    Bytes {
        /// Whether they belong to the error output.
        stderr: bool,
        /// The offset of the first byte since the start of the process.
        offset: u64,
        /// The bytes.
        bytes: Bytes,
    },
}
