//! Protocols of others, spoken over the API.
//!
//! A facade translates: what it is asked it asks the API's own routes, in this process and with its caller's credential, and
//! answers with what they answer. So who may do what, limits, audit and idempotency are those of the API, and no service
//! knows of any facade. What the words mean stands in the domain.

pub mod api;
pub mod e2b;
