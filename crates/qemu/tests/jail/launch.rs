//! The launcher of machines as a program of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    berth_qemu::launch::answer().unwrap_or(ExitCode::FAILURE)
}
