//! The `berth` binary: the service (`berth serve`) and every verb a person types.
//!
//! Exit codes: 0 done; 1 failed; 2 the command or the request is not valid; 3 not signed in or not allowed; 4 not
//! found; 5 in conflict with the present state; 6 the service cannot be reached, is not ready, or the time was up; 7
//! another service took the database from this one; 130 interrupted. `berth sandbox exec`, `run` and `shell` end with
//! the code of the program that they ran, and with 125 if Berth failed.

mod cli;
mod commands;
mod complete;
mod context;
mod credentials;
mod failure;
mod file_name;
mod global;
mod grammar;
mod id;
mod keyboard;
mod line;
mod made;
mod output;
mod own_key;
mod page;
mod pairs;
mod pick;
mod progress;
mod prompt;
mod report;
mod several;
mod size;
mod span;
mod status;
mod tips;
mod typed;
mod wait;
mod watch;

use std::process::ExitCode;

use berth_bridge::program as bridge;
use berth_egress::program;
use tikv_jemalloc_ctl::{Access, AsName, background_thread};

/// Thousands of streams that come and go leave holes in the heap of glibc, which keeps them: after rounds of 4,000
/// streams, the service still held 400 MB. This allocator gives memory back.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    if let Some(code) = berth_server::launch::answer() {
        return code;
    }
    // Before anything that takes memory, a thread or a setting.
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next() {
        Some(verb) if verb == program::VERB => return program::main(arguments),
        Some(verb) if verb == bridge::VERB => return bridge::main(arguments),
        _ => {}
    }
    complete::answer(grammar::command);
    let cli = match line::read() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let json = cli.global.look().is_json();
    if cli.runs_the_service() {
        give_memory_back();
    } else {
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
    // A command that waits for a key press must not delay the program's end.
    runtime.shutdown_background();
    match outcome {
        Ok(code) => code,
        Err(error) => report::report(&error, json),
    }
}

/// Lets a thread of the allocator free unused pages in idle times, one second after they became unused instead of ten:
/// a service that had just started held 15 MB of them. The setting applies to later arenas; the first one already
/// exists.
fn give_memory_back() {
    let after = |name: &'static [u8], milliseconds: isize| Access::write(name.name(), milliseconds);
    let done = after(b"arenas.dirty_decay_ms\0", 1_000)
        .and_then(|()| after(b"arenas.muzzy_decay_ms\0", 0))
        .and_then(|()| after(b"arena.0.dirty_decay_ms\0", 1_000))
        .and_then(|()| after(b"arena.0.muzzy_decay_ms\0", 0))
        .and_then(|()| background_thread::write(true));
    if let Err(error) = done {
        eprintln!("berth: the allocator keeps the memory of a burst for a while: {error}");
    }
}
