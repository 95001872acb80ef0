//! What a request goes through, from the reading of its body to the last byte of its answer.
//!
//! [`admission`] lets it in, [`dispatch`] looks for an answer, [`attempt`] asks one upstream, [`relay`] passes a stream
//! on, and [`parking`] ends the stream of a client that does not read. Here stands what happens in which order and what
//! the client is told. What a request costs is for the books, and how an upstream is reached is for `upstream`.
//!
//! It may use `books` and `upstream`, and knows neither the gateway that holds all of them nor who asks: what it needs
//! of those is handed to it.

pub mod admission;
pub mod attempt;
pub mod dispatch;
pub mod parking;
pub mod relay;
