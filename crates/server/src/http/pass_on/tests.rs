//! A standby before an active replica: real sockets, real TLS, routes that say what they were asked.

mod passing;
mod strangers;
mod world;
