//! Processes that outlive the service: the QEMU of a machine, and the program that carries its network; [what they
//! leave in their folder](folder), and [what they may ask of the kernel](filter).
//!
//! A service that comes back has to know them again. A number alone may be another process' by now, and what a process
//! says of itself (its command line, its name) it can overwrite. The kernel says when a process began, and nobody can
//! change that: number, beginning and boot of the host together are nobody else's. A [`Note`] in the folder of the machine
//! holds them, and the folder itself, since folders are copied. A [`Process`] is one that a note was found to mean, held by
//! a descriptor, so that whoever ends it or waits for it cannot meet another one.

pub mod filter;
pub mod folder;
mod inherited;
mod note;
mod process;
mod stat;

pub use inherited::close_inherited;
pub use note::{Note, boot_id};
pub use process::Process;
pub use stat::Stat;
