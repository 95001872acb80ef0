//! Sandboxes: small machines for agents, made, copied and thrown away in a blink.

pub mod engine;
