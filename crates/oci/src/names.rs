//! How much the names of an archive's members may take of the memory.
//!
//! A few bytes of an archive that is compressed can be a great many names, and a path names the directories above it.

use crate::{Error, Result};

/// Most bytes that the names of an archive's members may take, with what is kept of each.
const MAX_NAMES: usize = 64 * 1024 * 1024;
/// Bytes that are kept with a name, about.
const BESIDES: usize = 64;

/// How many bytes names may still take.
#[derive(Debug)]
pub struct Names {
    left: usize,
}

impl Default for Names {
    fn default() -> Self {
        Self::within(MAX_NAMES)
    }
}

impl Names {
    /// Names that may take so many bytes.
    pub fn within(bytes: usize) -> Self {
        Self { left: bytes }
    }

    /// Counts a name that is kept.
    pub fn keep(&mut self, name: &str) -> Result<()> {
        let left = self.left.checked_sub(name.len() + BESIDES);
        let message = "The names of what is in the archive take too much memory; pack fewer or shorter ones.";
        self.left = left.ok_or_else(|| Error::TooLarge(message.to_owned()))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_take_their_bytes_and_no_more() {
        let keep = |bytes: usize| {
            let mut names = Names::within(bytes);
            names.keep("abc").and_then(|()| names.keep("de"))
        };
        assert!(keep(2 * BESIDES + 5).is_ok());
        assert!(matches!(keep(2 * BESIDES + 4), Err(Error::TooLarge(_))));
    }
}
