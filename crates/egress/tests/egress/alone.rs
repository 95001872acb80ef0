//! The program beside a machine, for the tests of this crate: the one that is shipped is `berth`'s.

use std::process::ExitCode;

fn main() -> ExitCode {
    berth_egress::program::main(std::env::args_os().skip(1))
}
