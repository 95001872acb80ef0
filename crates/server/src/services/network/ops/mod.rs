//! One function for each verb. Each owns its transaction: intent, audit and event become true together, and the worker
//! is woken by the commit.

pub mod firewall;
pub mod network;
