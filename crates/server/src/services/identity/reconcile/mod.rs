//! Making the world agree with identity's rows: messages, keys, what is old.

pub mod housekeeping;
pub mod outbox;
