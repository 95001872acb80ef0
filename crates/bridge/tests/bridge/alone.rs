//! The program of the bridge, for the tests of this crate: the one that is shipped is `berth`'s. By the word `crash` it is a
//! service that is killed at a step.

#[path = "crash_victim.rs"]
mod crash_victim;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    match arguments.next_if(|first| first == "crash") {
        Some(_) => crash_victim::main(arguments),
        None => berth_bridge::program::main(arguments),
    }
}
