//! The network of one machine, as a program beside it. What it does stands in [`berth_egress::program`].

use std::process::ExitCode;

fn main() -> ExitCode {
    berth_egress::program::main(std::env::args_os().skip(1))
}
