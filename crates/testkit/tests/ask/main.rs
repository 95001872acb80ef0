//! What may be asked of a host, in the same process and by bytes: the same scenarios, and the same answers.

mod bytes;
mod link;
mod networks;
mod sandboxes;
mod streams;
mod travels;
mod vms;
mod way;
