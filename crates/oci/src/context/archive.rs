//! Reads an archive within a budget.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use crate::compression::Decoder;
use crate::members::{Member, each};
use crate::{Budget, Error, Result};

/// Calls a function with every member of an archive.
pub(super) fn read(
    archive: &Path,
    budget: &Budget,
    visit: impl FnMut(Member, &mut dyn Read) -> Result<()>,
) -> Result<()> {
    let decoder = Decoder::sniff(BufReader::new(File::open(archive)?)).map_err(Error::from_stream)?;
    let mut archive = tar::Archive::new(Spending { reader: decoder, budget });
    let entries = archive.entries()?;
    each(entries, visit)
}

/// A reader that spends a budget.
pub(super) struct Spending<'a, R> {
    /// The source.
    pub reader: R,
    /// The budget for reading it.
    pub budget: &'a Budget,
}

impl<R: Read> Read for Spending<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let n = self.reader.read(buffer)?;
        self.budget.spend(n as u64).map_err(Error::into_stream)?;
        Ok(n)
    }
}
