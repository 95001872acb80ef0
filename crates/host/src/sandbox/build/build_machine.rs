//! Where something is built, and who makes such places.

use std::any::Any;
use std::io;
use std::time::Duration;

use async_trait::async_trait;
use berth_domain::agent::control::Pack;
use berth_domain::agent::runtime::Exit;
use berth_domain::sandbox::dockerfile::ImageConfig;
use berth_domain::sandbox::dockerfile::plan::Run;
use berth_oci::ImageLayer;
use bytes::Bytes;
use futures::stream::BoxStream;

use super::BuildError;

/// A tar archive as it comes.
pub type Tar = BoxStream<'static, io::Result<Bytes>>;

/// Told each line of a program's output.
pub type Lines<'a> = dyn FnMut(&str) + Send + 'a;

/// How an archive is unpacked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unpack {
    /// Beneath which directory, which is made if it is not there; the root without.
    pub path: Option<String>,
    /// Whether it is a copy, which leaves directories as they are, and not a layer, which replaces and takes away.
    pub keep: bool,
    /// Whose everything becomes, `name[:group]` or numbers of the disk's accounts.
    pub owner: Option<String>,
    /// Permissions that everything gets.
    pub mode: Option<u32>,
}

/// A machine with a disk that is being built. Dropping it ends what runs in it.
#[async_trait]
pub trait BuildMachine: Any + Send {
    /// Unpacks an archive onto it.
    async fn unpack(&mut self, tar: Tar, how: Unpack) -> Result<(), BuildError>;

    /// Packs what a copy takes.
    async fn pack(&mut self, what: Pack) -> Result<Tar, BuildError>;

    /// Whether a directory is at a path, links followed.
    async fn is_directory(&mut self, path: &str) -> Result<bool, BuildError>;

    /// Makes it ready for programs, once its base is on it: what they need to find of the machine, such as a
    /// resolver.
    async fn furnish(&mut self) -> Result<(), BuildError> {
        Ok(())
    }

    /// Runs a program, and tells each line of its output.
    async fn run(&mut self, run: &Run, patience: Duration, line: &mut Lines<'_>) -> Result<Exit, BuildError>;
}

/// What a machine begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning<'a> {
    /// Nothing.
    Empty,
    /// An image that was inspected before.
    Image(&'a str),
}

/// A build machine, and what has to be unpacked onto its disk first.
pub struct Opened {
    /// The machine.
    pub machine: Box<dyn BuildMachine>,
    /// Layers, the lowest first; none where the disk has everything already.
    pub layers: Vec<ImageLayer>,
}

/// Who makes build machines.
#[async_trait]
pub trait Provisioner: Send {
    /// Finds an image: a template, an uploaded archive, or one of a registry, which is fetched. Gives what it says
    /// about its programs.
    async fn inspect(&mut self, name: &str) -> Result<ImageConfig, BuildError>;

    /// Makes a machine.
    async fn open(&mut self, beginning: Beginning<'_>) -> Result<Opened, BuildError>;
}
