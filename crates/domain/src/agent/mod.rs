//! The protocol between the agent in a sandbox and its host.
//!
//! One byte stream joins the two. [`marker`] says where a session on it begins; from there it is HTTP/2 without
//! negotiation, with the agent as the server. [`control`] is for the host alone, [`runtime`] is the API that users
//! reach through it, and [`terminal`] cuts the two bodies of a terminal into frames. Nothing here does I/O.

pub mod control;
pub mod error;
pub mod marker;
pub mod output;
pub mod runtime;
pub mod terminal;

/// The largest HTTP/2 frame that either side accepts, in bytes. The first bytes of [`marker::MAGIC`], read as a length,
/// exceed it, so that a marker in the middle of a session is an error of the protocol.
pub const MAX_FRAME: u32 = 256 * 1024;
/// The window of one stream, in bytes.
pub const STREAM_WINDOW: u32 = 256 * 1024;
/// The window of the whole session, in bytes: room for every stream, so that a stream without a reader blocks only
/// itself.
pub const SESSION_WINDOW: u32 = MAX_STREAMS * STREAM_WINDOW;
/// The largest list of headers, in bytes.
pub const MAX_HEADERS: u32 = 64 * 1024;
/// Requests under way at once in one session.
pub const MAX_STREAMS: u32 = 256;
