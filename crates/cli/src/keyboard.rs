//! Passes every key of the terminal on, for a remote program.

use anyhow::Result;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// While this lives, the terminal passes every key on.
pub struct Raw(Termios);

impl Raw {
    /// Takes the terminal of standard input.
    pub fn enter() -> Result<Self> {
        let before = tcgetattr(rustix::stdio::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        // Keeps what was typed ahead.
        tcsetattr(rustix::stdio::stdin(), OptionalActions::Drain, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Drain, &self.0);
    }
}

/// Columns and rows of the window; 80 and 24 where there is none.
pub fn window() -> (u16, u16) {
    let of = |size: rustix::io::Result<rustix::termios::Winsize>| {
        size.ok().map(|size| (size.ws_col, size.ws_row)).filter(|(cols, rows)| *cols > 0 && *rows > 0)
    };
    of(tcgetwinsize(rustix::stdio::stdout())).or_else(|| of(tcgetwinsize(rustix::stdio::stdin()))).unwrap_or((80, 24))
}

/// Columns of standard output's window, if it is a terminal.
pub fn columns() -> Option<usize> {
    tcgetwinsize(rustix::stdio::stdout()).ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0)
}
