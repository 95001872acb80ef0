//! The programs beside an engine, for the tests of this crate: those that are shipped are `berth`'s.

use std::process::ExitCode;

fn main() -> ExitCode {
    berth_qemu::launch::answer().unwrap_or_else(|| berth_egress::program::main(std::env::args_os().skip(1)))
}
