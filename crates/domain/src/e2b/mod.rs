//! E2B's wire, as its published SDKs speak it, translated: what their requests mean to Berth, and how Berth's answers read
//! to them.
//!
//! E2B has two sides. The *control* side creates and lists sandboxes with a project's key. *Inside* one, the SDK speaks with a
//! program that E2B calls envd, on port 49983 of the sandbox, by the Connect protocol and with a token of that sandbox. Both are
//! words for what Berth's own API does, so nothing but words is here.
//!
//! Unknown fields are passed over, unlike in Berth's own requests: these bodies are a protocol of others, which grows without
//! us. What would change what a sandbox may do and is not understood is refused by name.

pub mod address;
pub mod connect;
pub mod entry;
pub mod key;
pub mod listing;
pub mod network;
pub mod process;
pub mod sandbox;
pub mod signature;
pub mod token;
