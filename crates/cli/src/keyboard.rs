//! The keyboard of a terminal whose every key is somebody else's.

use anyhow::Result;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// The terminal passes every key on for as long as this lives.
pub struct Raw(Termios);

impl Raw {
    /// Takes the terminal of standard input.
    pub fn enter() -> Result<Self> {
        let before = tcgetattr(rustix::stdio::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        // What was typed ahead is not lost.
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

/// Columns of the window that standard output is, if it is one.
pub fn columns() -> Option<usize> {
    tcgetwinsize(rustix::stdio::stdout()).ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0)
}
