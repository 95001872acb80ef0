//! Steps of a build, in which nothing is left to look up.

use std::collections::BTreeMap;
use std::sync::Arc;

/// What a stage begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Base {
    /// Nothing.
    Scratch,
    /// The end of an earlier stage of the plan.
    Stage(usize),
    /// A template, an uploaded archive or an image of a registry.
    Image(String),
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The line it stands at.
    pub line: usize,
    /// Its text, for the log.
    pub text: String,
    /// What it is.
    pub action: Action,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Runs a program.
    Run(Run),
    /// Copies files.
    Copy(Copy),
    /// Makes a directory, and those above it, unless it is there.
    MakeDirectory(String),
}

/// A program that is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// It and its arguments.
    pub argv: Vec<String>,
    /// Its environment, besides `PATH` and `HOME` where they are not in it. Programs share it as long as nothing
    /// changes it.
    pub env: Arc<BTreeMap<String, String>>,
    /// Where it runs, an absolute path.
    pub cwd: String,
    /// As whom, `name[:group]` or numbers; root without.
    pub user: Option<String>,
    /// Whether it has a network.
    pub network: bool,
}

/// Files that are copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Where from.
    pub origin: Origin,
    /// Patterns of what is copied, relative to the origin's root.
    pub sources: Vec<String>,
    /// Files that stand in the Dockerfile itself.
    pub inline: Vec<Inline>,
    /// Where to, an absolute path.
    pub to: String,
    /// Whether that is a directory, also if nothing is there.
    pub into: bool,
    /// Whose the copies are, `name[:group]` or numbers. Without, those of a context are root's and others stay.
    pub owner: Option<String>,
    /// Their permissions, if not those of the origin.
    pub mode: Option<u32>,
    /// Whether archives of a context are unpacked.
    pub extract: bool,
}

/// Where files are copied from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The files that were sent with the Dockerfile.
    Context,
    /// A stage or an image.
    Base(Base),
}

/// A file that stands in the Dockerfile itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inline {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub content: String,
}
