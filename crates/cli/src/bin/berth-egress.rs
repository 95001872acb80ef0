//! The network of one machine, as a program beside it. What it does stands in [`berth_egress::program`]; it is a program
//! of its own so that it is small.

use std::process::ExitCode;

fn main() -> ExitCode {
    berth_egress::program::main(std::env::args_os().skip(1))
}
