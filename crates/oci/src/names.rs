//! Bounds the memory for the names of an archive's members.
//!
//! A few bytes of a compressed archive can hold very many names, and a path also names its parent directories.

use crate::{Error, Result};

/// Most bytes for the names of an archive's members, including what is stored with each.
const MAX_NAMES: usize = 64 * 1024 * 1024;
/// Approximate bytes stored with a name.
const BESIDES: usize = 64;

/// How many more bytes names may take.
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
    /// A bound of so many bytes.
    pub fn within(bytes: usize) -> Self {
        Self { left: bytes }
    }

    /// Counts a stored name; fails beyond the bound.
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
