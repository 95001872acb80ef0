//! Answers the guests of a bridge. What it does stands in [`berth_bridge::program`]; it is a program of its own so that it is
//! small.

use std::process::ExitCode;

fn main() -> ExitCode {
    berth_bridge::program::main(std::env::args_os().skip(1))
}
