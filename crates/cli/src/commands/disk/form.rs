//! What is typed of a data disk that is to be made.

use clap::ValueEnum;

use crate::typed::Words;

/// How large a data disk is where nothing is said of it, in GiB.
pub const SMALLEST: i64 = 10;

/// The option for each field.
pub const WORDS: Words = &[
    ("name", "NAME"),
    ("type", "--kind"),
    ("size_gb", "--size"),
    ("region_id", "--region"),
    ("snapshot_id", "--snapshot"),
    ("on_host", "--on-host"),
];

/// Its form in the guest.
#[derive(Clone, Copy, ValueEnum)]
pub enum Kind {
    Filesystem,
    Block,
}

impl Kind {
    /// As the service calls it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Filesystem => "filesystem",
            Self::Block => "block",
        }
    }
}
