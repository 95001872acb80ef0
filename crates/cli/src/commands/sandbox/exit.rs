//! The exit codes of `exec`, `run` and `shell`: that of the program in the sandbox. Like env(1) and timeout(1), they
//! use 124 for a program whose time was up, 125 for a failure of Berth, 126 for a program that cannot run, and 127 for
//! a missing one.

use std::process::ExitCode;

use berth_client::{Error, Exit};

use crate::report;

/// The time limit was exceeded.
const TIMED_OUT: u8 = 124;
/// Berth failed; this says nothing about the program.
pub const FAILED: u8 = 125;
const NOT_RUNNABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Signals by their number, from 1.
const SIGNALS: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];
/// The number of `SIGRTMIN`.
const REAL_TIME: u8 = 34;

/// The exit code for an end; nothing if the end has neither code nor signal.
pub fn code_of(exit: &Exit) -> Option<u8> {
    if exit.timed_out {
        return Some(TIMED_OUT);
    }
    match (&exit.signal, exit.code) {
        (Some(signal), _) => number(signal).map(after_signal),
        // The lowest eight bits, as the kernel keeps them.
        (None, Some(code)) => Some((code & 0xff).to_le_bytes()[0]),
        (None, None) => None,
    }
}

/// The exit code with which a shell reports a program that a signal ended.
fn after_signal(number: u8) -> u8 {
    128_u8.saturating_add(number)
}

/// The exit code after a signal ended this program.
pub fn told(signal: &str) -> ExitCode {
    ExitCode::from(number(signal).map_or(FAILED, after_signal))
}

/// The number of a signal.
fn number(signal: &str) -> Option<u8> {
    let name = signal.strip_prefix("SIG").unwrap_or(signal);
    if let Some(above) = name.strip_prefix("RTMIN+") {
        return above.parse::<u8>().ok().filter(|above| *above <= 30).map(|above| REAL_TIME + above);
    }
    let index = SIGNALS.iter().position(|known| *known == name)?;
    u8::try_from(index + 1).ok()
}

/// Reports a failure from before the program's end; returns a code that no program's exit has.
pub fn failed(error: &anyhow::Error, json: bool) -> ExitCode {
    let _ = report::report(error, json);
    ExitCode::from(match error.downcast_ref::<Error>().and_then(Error::code) {
        Some("command_not_found") => NOT_FOUND,
        Some("spawn_failed" | "permission_denied") => NOT_RUNNABLE,
        _ => FAILED,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(code: Option<i32>, signal: Option<&str>, timed_out: bool) -> Exit {
        Exit { code, signal: signal.map(str::to_owned), timed_out }
    }

    #[test]
    fn ends_become_codes() {
        for (code, signal, timed_out, expected) in [
            (Some(0), None, false, Some(0)),
            (Some(255), None, false, Some(255)),
            (Some(256 + 7), None, false, Some(7)),
            (Some(-1), None, false, Some(255)),
            (None, Some("SIGHUP"), false, Some(129)),
            (None, Some("SIGKILL"), false, Some(137)),
            (None, Some("SIGTERM"), false, Some(143)),
            (None, Some("SIGSYS"), false, Some(159)),
            (None, Some("SIGRTMIN+1"), false, Some(163)),
            (None, Some("SIGRTMIN+31"), false, None),
            (None, Some("SIGNOPE"), false, None),
            (None, Some("SIGTERM"), true, Some(124)),
            (Some(0), None, true, Some(124)),
            (None, None, false, None),
        ] {
            let exit = exit(code, signal, timed_out);
            assert_eq!(code_of(&exit), expected, "{exit:?}");
        }
    }

    #[test]
    fn refusals_before_the_start_have_codes_of_their_own() {
        let refused = |code: &str| {
            anyhow::Error::from(Error::Api {
                status: 400,
                code: code.into(),
                message: "no".into(),
                details: Vec::new(),
                retry_after: None,
                request_id: String::new(),
            })
        };
        for (code, expected) in [("command_not_found", 127), ("spawn_failed", 126), ("sandbox_paused", 125)] {
            assert_eq!(failed(&refused(code), false), ExitCode::from(expected), "{code}");
        }
        assert_eq!(failed(&anyhow::anyhow!("else"), true), ExitCode::from(125));
    }
}
