//! What the kernel says of a process (proc_pid_stat(5)).

use std::io;

use rustix::io::Errno;

/// What `/proc/PID/stat` says.
pub(crate) struct Stat {
    state: char,
    threads: u64,
    /// When the process began, in ticks since the host's boot.
    pub(crate) started: u64,
}

impl Stat {
    /// Where the kernel tells of a process.
    pub(crate) fn path(pid: i32) -> String {
        format!("/proc/{pid}/stat")
    }

    /// The name in parentheses may hold anything; what follows the last one is fixed.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse().ok();
        Some(Self { state: fields.first()?.chars().next()?, threads: number(17)?, started: number(19)? })
    }

    /// A process whose first thread ended looks like a dead one while others of its threads go on.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x') && self.threads <= 1
    }
}

/// Whether a failed look means that there is no such process.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_whose_first_thread_ended_is_still_there() {
        let line = |state: char, threads: u32| {
            format!("7 (a b) c) {state} 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 4711 0 0")
        };
        for (state, threads, over) in [('S', 1, false), ('Z', 2, false), ('Z', 1, true), ('X', 0, true)] {
            let stat = Stat::parse(&line(state, threads)).unwrap();
            assert_eq!((stat.is_over(), stat.started), (over, 4711), "{state} {threads}");
        }
        assert!(Stat::parse("7 (a").is_none() && Stat::parse("").is_none());
    }
}
