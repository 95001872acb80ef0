//! What requests may take and what they took: tokens and money, from the reservation to the database.
//!
//! [`allowance`] sets aside what a request may take, [`bill`] counts what it takes, [`meter`] writes that to the
//! [`journal`] and moves what it sums up to ([`totals`]) to the database. [`trace`] tells the same to a collector.
//!
//! This room may use the gateway's `store` and no other: `books` counts what the other rooms report, so that a change
//! to a request's path does not change what a token costs.

pub mod allowance;
pub mod bill;
pub mod bound;
pub mod journal;
pub mod meter;
pub mod record;
pub mod totals;
pub mod trace;
