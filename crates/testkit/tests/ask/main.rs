//! What may be asked of a host, in the same process and by bytes: the same scenarios, and the same answers.

mod bytes;
mod guests;
mod layers;
mod link;
mod memories;
mod migrations;
mod networks;
mod sandboxes;
mod shared_disks;
mod spoken;
mod streams;
mod travels;
mod vms;
mod way;
