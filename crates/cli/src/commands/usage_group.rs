//! How rows of usage are grouped, for models and for machines.

use clap::ValueEnum;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Group {
    Model,
    Key,
    Day,
    Resource,
    Project,
}

impl Group {
    /// The word in a query.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Key => "key",
            Self::Day => "day",
            Self::Resource => "resource",
            Self::Project => "project",
        }
    }

    /// Whether only usage of machines can be grouped by it.
    pub const fn is_of_machines(self) -> bool {
        matches!(self, Self::Day | Self::Resource | Self::Project)
    }
}
