//! Options for waiting, for every command: whether to wait, and how long at most.

use clap::Args;

use crate::span;

/// Whether to wait until it is done, and how long at most.
#[derive(Args, Clone, Copy)]
pub struct WaitArgs {
    /// Wait until it is done
    #[arg(long, short, overrides_with = "no_wait")]
    wait: bool,
    /// Return at once
    #[arg(long, overrides_with = "wait")]
    no_wait: bool,
    /// Longest wait, as 90s or 5m
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    wait_timeout: Option<u64>,
}

impl WaitArgs {
    /// Whether to wait, given the command's default.
    pub const fn wanted(self, by_itself: bool) -> bool {
        self.wait || (by_itself && !self.no_wait)
    }

    /// Seconds to wait at most, if typed.
    pub const fn most(self) -> Option<u64> {
        self.wait_timeout
    }

    /// Seconds to wait at most, with the command's own bound.
    pub fn longest(self, seconds: u64) -> u64 {
        self.wait_timeout.unwrap_or(seconds)
    }
}
