//! What a request goes through, from the reading of its body to the last byte of its answer.
//!
//! [`admission`] lets a request in, [`dispatch`] looks for an answer, [`attempt`] asks one upstream, [`relay`] passes a
//! stream on, and [`parking`] ends the stream of a client that does not read. This room decides the order of these
//! steps and what the client gets. `books` decides what a request costs, and `upstream` how to reach a server.
//!
//! This room may use `books` and `upstream`. It knows neither the gateway that holds all of them nor the caller: it
//! gets what it needs of those as arguments.

pub mod admission;
pub mod attempt;
pub mod dispatch;
pub mod parking;
pub mod relay;
