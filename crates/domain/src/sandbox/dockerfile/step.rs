//! Steps of a build, with everything resolved.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The base of a stage.
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
    /// Its action.
    pub action: Action,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Runs a program.
    Run(Run),
    /// Copies files.
    Copy(Copy),
    /// Makes a directory and its missing parents.
    MakeDirectory(String),
}

/// A program to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Its environment; the agent adds `PATH` and `HOME` if they are not in it. Programs share it while no instruction
    /// changes it.
    pub env: Arc<BTreeMap<String, String>>,
    /// Its working directory, an absolute path.
    pub cwd: String,
    /// Its user, `name[:group]` or numbers; by default root.
    pub user: Option<String>,
    /// Whether it has a network.
    pub network: bool,
}

/// Files to copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Their source.
    pub origin: Origin,
    /// Patterns of the files, relative to the origin's root.
    pub sources: Vec<String>,
    /// Files whose content is in the Dockerfile itself.
    pub inline: Vec<Inline>,
    /// The destination, an absolute path.
    pub to: String,
    /// Whether the destination is a directory, even if nothing is there.
    pub into: bool,
    /// The owner of the copies, `name[:group]` or numbers. By default files of a context are root's, and others keep
    /// theirs.
    pub owner: Option<String>,
    /// Their permissions; by default those of the origin.
    pub mode: Option<u32>,
    /// Whether to unpack archives of a context.
    pub extract: bool,
}

/// The source of copied files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The files sent with the Dockerfile.
    Context,
    /// A stage or an image.
    Base(Base),
}

/// A file whose content is in the Dockerfile itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inline {
    /// Its name.
    pub name: String,
    /// Its content.
    pub content: String,
}
