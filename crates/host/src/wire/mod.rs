//! A host that is asked by bytes.
//!
//! ```text
//!   Remote: Engine + SandboxEngine + NetworkEngine ── Carrier ── bytes ── serve ── Host ── engines
//! ```
//!
//! A connection carries one question. Messages are JSON behind four bytes of length ([`frame`](self::frame)); the first
//! one has the question and the version of both ([`message`](self::message)). While the host works it says so every few
//! seconds: who hears nothing for longer gives the host up, and a host whose asker leaves stops working on it, as an
//! engine does whose caller drops the call. A question that becomes a stream turns its connection into that stream
//! after its answer ([`turn`](self::turn)).
//!
//! Hosts and the service need not be of one version: a host says which it speaks ([`VERSION`]) when a connection begins, and is
//! asked in that where it is an earlier one. So a question never changes once it was spoken; what is to be asked otherwise
//! is another question, until no version that is spoken has the former.
//!
//! What carries the bytes ([`Carrier`]) is no matter of this module: a stream of HTTP/2, a socket, a pipe in a test. It
//! tells who is on the other side; here everybody who asks may.

mod cache;
mod follow;
mod frame;
mod gone;
mod message;
mod networks;
mod remote;
mod sandboxes;
mod serve;
mod tell;
mod turn;
mod vms;

pub use gone::Gone;
pub use message::{ANSWER, OLDEST, QUESTION, VERSION};
pub use remote::{Carrier, Remote};
pub use serve::serve;
