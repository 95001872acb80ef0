//! Signals by name.

use rustix::process::Signal;

const NAMES: &[(&str, Signal)] = &[
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("ILL", Signal::ILL),
    ("TRAP", Signal::TRAP),
    ("ABRT", Signal::ABORT),
    ("BUS", Signal::BUS),
    ("FPE", Signal::FPE),
    ("KILL", Signal::KILL),
    ("USR1", Signal::USR1),
    ("SEGV", Signal::SEGV),
    ("USR2", Signal::USR2),
    ("PIPE", Signal::PIPE),
    ("ALRM", Signal::ALARM),
    ("TERM", Signal::TERM),
    ("STKFLT", Signal::STKFLT),
    ("CHLD", Signal::CHILD),
    ("CONT", Signal::CONT),
    ("STOP", Signal::STOP),
    ("TSTP", Signal::TSTP),
    ("TTIN", Signal::TTIN),
    ("TTOU", Signal::TTOU),
    ("URG", Signal::URG),
    ("XCPU", Signal::XCPU),
    ("XFSZ", Signal::XFSZ),
    ("VTALRM", Signal::VTALARM),
    ("PROF", Signal::PROF),
    ("WINCH", Signal::WINCH),
    ("IO", Signal::IO),
    ("PWR", Signal::POWER),
    ("SYS", Signal::SYS),
];

/// The signal with a name, such as `SIGINT` or `INT`.
pub fn by_name(name: &str) -> Option<Signal> {
    let name = name.strip_prefix("SIG").unwrap_or(name);
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, signal)| *signal)
}

/// A signal's name, such as `SIGINT`; real-time signals are numbers above `SIGRTMIN`.
pub fn name(number: i32) -> String {
    match NAMES.iter().find(|(_, signal)| signal.as_raw() == number) {
        Some((known, _)) => format!("SIG{known}"),
        None => format!("SIGRTMIN+{}", number - 34),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for (known, signal) in NAMES {
            assert_eq!(by_name(&name(signal.as_raw())), Some(*signal));
            assert_eq!(by_name(known), Some(*signal));
        }
        assert_eq!((by_name("SIGNOPE"), by_name("")), (None, None));
        assert_eq!(name(35), "SIGRTMIN+1");
    }
}
