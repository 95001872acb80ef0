//! Server-sent events, as the HTML standard has them (section 9.2.6, "Interpreting an event stream").
//!
//! Who passes a stream on needs to know where events end and what they say, and keeps the bytes: [`end_of_event`] and
//! [`data`] borrow. Who wants events has a [`Reader`], which is fed with pieces of any size. Both read by the same
//! rules, take time in proportion to what comes, however it is cut, and find the same in every cutting. All that is said
//! is written by [`write`] and [`event`].

mod cut;
mod reader;
#[cfg(test)]
mod reader_tests;
mod write;

pub use cut::{data, end_of_event};
pub use reader::{Bounds, Event, MESSAGE, Reader, Unreadable};
pub use write::{KEEP_ALIVE, event, write};
