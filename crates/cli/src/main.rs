//! The `berth` binary: the service (`berth serve`) and every verb a person types.
//!
//! Exit codes: 0 done; 1 failed; 2 the command or the request is not valid; 3 not signed in or not
//! allowed; 4 not found; 5 in conflict with how things stand; 6 the service cannot be reached, is not
//! ready, or time was over; 130 interrupted. `berth sandbox exec`, `run` and `shell` end as what they ran did, and
//! with 125 where Berth failed.

mod cli;
mod commands;
mod context;
mod credentials;
mod failure;
mod keyboard;
mod output;
mod pairs;
mod pick;
mod progress;
mod prompt;
mod span;

use std::process::ExitCode;

use crate::cli::Cli;

/// Thousands of streams that come and go leave holes in the heap of glibc, which it keeps: after rounds of 4,000 that had
/// left, the service held 400 MB. This one gives memory back.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let cli = Cli::read();
    if !cli.runs_the_service() {
        // `berth vm list | head -n 1` ends quietly, as other tools do.
        sigpipe::reset();
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("berth: no threads can be started: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(commands::run(cli));
    // A command that waits for a key press must not keep the program.
    runtime.shutdown_background();
    match outcome {
        Ok(code) => code,
        Err(error) => failure::report(&error),
    }
}
