//! Where the paths of a request begin: at the workspace, which they cannot leave, or at the machine's root.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::OFlags;

use crate::error::Result;
use crate::files::beneath::{Located, required};
use crate::place::Place;

/// Where paths begin.
#[derive(Clone)]
pub struct Base {
    place: Arc<Place>,
    /// The home of who acts, where paths are taken from the machine's root.
    home: Option<Arc<str>>,
}

impl Base {
    /// The workspace.
    pub fn workspace(place: Arc<Place>) -> Self {
        Self { place, home: None }
    }

    /// The machine's root, for an account with this home.
    pub fn machine(place: Arc<Place>, home: &str) -> Self {
        let home = if home.starts_with('/') { home } else { "/" };
        Self { place, home: Some(home.into()) }
    }

    /// The handle beneath which paths of the workspace are resolved.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.place.root.as_fd()
    }

    /// A path; the empty text means where relative paths begin.
    pub fn locate(&self, text: &str) -> Result<Located> {
        match &self.home {
            None => Located::parse(text),
            Some(home) => Located::from_root(home, text),
        }
    }

    /// A path that must name something.
    pub fn locate_required(&self, text: &str) -> Result<Located> {
        required(text)?;
        self.locate(text)
    }

    /// Opens a path.
    pub fn open(&self, path: &Located, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        path.open(self.root(), flags, 0)
    }

    /// Opens a directory to work in.
    pub fn open_directory(&self, text: &str) -> Result<OwnedFd> {
        Ok(self.open(&self.locate(text)?, OFlags::PATH | OFlags::DIRECTORY)?)
    }
}
