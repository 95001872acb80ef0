//! What comes of a program's output.

use berth_domain::agent::runtime::OutputEvent;
use bytes::Bytes;

/// What a stream tells next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// An event; with [`Form::Bytes`](super::Form::Bytes) none of output, unless the service tells lines.
    Event(OutputEvent),
    /// Bytes of the output, newlines among them.
    Bytes {
        /// Whether they are of the error output.
        stderr: bool,
        /// Where the first of them stands, counted since the process was started.
        offset: u64,
        /// They.
        bytes: Bytes,
    },
}
