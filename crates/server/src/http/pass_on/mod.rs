//! A standby passes every request on to the active replica.
//!
//! A standby works on nothing, but its addresses are as good as any: what comes to them goes over mutual TLS to the active
//! replica, which answers its client through the standby. Bodies are passed on as they come, in both directions, and a
//! connection that leaves HTTP is joined byte for byte. Limits apply where they did: this replica's to the connections of
//! its clients, the active one's to everything else. Whoever leaves ends what they asked for there.
//!
//! [`front`] is a door of a standby; [`passing`] sends a request and brings the answer; [`line`] has the connections to one
//! active replica; [`head`] says which headers go on.

mod front;
mod head;
mod line;
mod passing;
#[cfg(test)]
mod tests;

pub use front::{Front, Metrics};
pub use line::Active;
pub use passing::PassOn;
