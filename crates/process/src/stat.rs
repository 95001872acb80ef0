//! What the kernel says of a process (proc_pid_stat(5)).

use std::io;

use rustix::io::Errno;

/// What `/proc/PID/stat` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    state: char,
    threads: u64,
    /// Time of processors that it used, in ticks.
    pub cpu_ticks: u64,
    /// Resident memory, in pages.
    pub resident_pages: u64,
    /// When the process began, in ticks since the host's boot.
    pub(crate) started: u64,
}

/// What the kernel says is not as it was.
pub(crate) fn unreadable() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what the kernel says of a process cannot be read")
}

impl Stat {
    /// Of a process that lives, or is not waited for yet.
    ///
    /// # Errors
    /// There is none of that number.
    pub fn of(pid: i32) -> io::Result<Self> {
        Self::parse(&std::fs::read_to_string(Self::path(pid))?).ok_or_else(unreadable)
    }

    /// Where the kernel tells of a process.
    pub(crate) fn path(pid: i32) -> String {
        format!("/proc/{pid}/stat")
    }

    /// The name in parentheses may hold anything; what follows the last one is fixed.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Self {
            state: fields.first()?.chars().next()?,
            threads: number(17)?,
            cpu_ticks: number(11)?.saturating_add(number(12)?),
            resident_pages: number(21)?,
            started: number(19)?,
        })
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
            format!("7 (a b) c) {state} 1 1 1 0 -1 0 0 0 0 0 30 12 0 0 20 0 {threads} 0 4711 0 9")
        };
        for (state, threads, over) in [('S', 1, false), ('Z', 2, false), ('Z', 1, true), ('X', 0, true)] {
            let stat = Stat::parse(&line(state, threads)).unwrap();
            assert_eq!((stat.is_over(), stat.started), (over, 4711), "{state} {threads}");
            assert_eq!((stat.cpu_ticks, stat.resident_pages), (42, 9));
        }
        assert!(Stat::parse("7 (a").is_none() && Stat::parse("").is_none());
    }
}
