//! A provisioner whose disks are maps.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use berth_domain::agent::control::Pack;
use berth_domain::agent::runtime::Exit;
use berth_domain::sandbox::dockerfile::ImageConfig;
use berth_domain::sandbox::dockerfile::plan::Run;
use berth_oci::Image;
use futures::{StreamExt, TryStreamExt};
use tar::{Builder, EntryType, Header};
use tokio::sync::Notify;

use crate::sandbox::build::{Beginning, BuildError, BuildMachine, Lines, Opened, Provisioner, Tar, Unpack};

/// Files by path; a directory's content is `/`.
pub type Disk = BTreeMap<String, String>;

/// What happened.
#[derive(Default)]
pub struct World {
    /// Everything, in order.
    pub told: Vec<String>,
    /// An image that has to be unpacked, called `oci`.
    pub image: Option<PathBuf>,
    /// Told when a program hangs.
    pub hangs: Arc<Notify>,
    opened: usize,
}

#[derive(Clone, Default)]
pub struct Shop(pub Arc<Mutex<World>>);

impl Shop {
    pub fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    fn image(&self) -> Image {
        let path = self.world().image.clone().unwrap();
        Image::open(&path, path.parent().unwrap(), 1 << 20).unwrap()
    }
}

#[async_trait]
impl Provisioner for Shop {
    async fn inspect(&mut self, name: &str) -> Result<ImageConfig, BuildError> {
        self.world().told.push(format!("inspect {name}"));
        if name == "none" {
            return Err(BuildError::Image(berth_oci::Error::NotFound("there is no such image".into())));
        }
        if name == "oci" {
            return Ok(self.image().config);
        }
        let mut config = ImageConfig { cmd: Some(vec!["bash".into()]), ..ImageConfig::default() };
        config.set("PATH", "/bin".into());
        Ok(config)
    }

    async fn open(&mut self, beginning: Beginning<'_>) -> Result<Opened, BuildError> {
        let layers = if beginning == Beginning::Image("oci") { self.image().layers } else { Vec::new() };
        let mut world = self.world();
        world.opened += 1;
        let id = world.opened;
        let (what, disk) = match beginning {
            Beginning::Empty => ("empty".to_owned(), Disk::new()),
            Beginning::Image(name) => (name.to_owned(), Disk::from([(format!("from/{name}"), "1".to_owned())])),
        };
        world.told.push(format!("{id}: open {what}"));
        drop(world);
        Ok(Opened { machine: Box::new(MapMachine { id, disk, shop: self.clone() }), layers })
    }
}

pub struct MapMachine {
    id: usize,
    pub disk: Disk,
    shop: Shop,
}

impl MapMachine {
    fn tell(&self, what: &str) {
        self.shop.world().told.push(format!("{}: {what}", self.id));
    }
}

impl Drop for MapMachine {
    fn drop(&mut self) {
        self.tell("gone");
    }
}

#[async_trait]
impl BuildMachine for MapMachine {
    async fn unpack(&mut self, tar: Tar, how: Unpack) -> Result<(), BuildError> {
        let bytes = tar.try_concat_bytes().await.map_err(|error| BuildError::Host(error.to_string()))?;
        if let Some(path) = &how.path {
            self.disk.insert(path.trim_matches('/').to_owned(), "/".into());
        }
        for entry in tar::Archive::new(&bytes[..]).entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().to_str().unwrap().trim_end_matches('/').to_owned();
            let mut content = String::new();
            entry.read_to_string(&mut content).unwrap();
            if entry.header().entry_type() == EntryType::Directory {
                content = "/".into();
            } else if how.owner.is_some() || how.mode.is_some() {
                content = format!("{content} {} {:o}", how.owner.as_deref().unwrap_or_default(), how.mode.unwrap_or(0));
            }
            self.disk.insert(path, content);
        }
        Ok(())
    }

    async fn pack(&mut self, what: Pack) -> Result<Tar, BuildError> {
        let mut builder = Builder::new(Vec::new());
        let to = what.to.trim_matches('/');
        for source in what.sources.iter().map(|source| source.trim_matches(['/', '.'])) {
            for (path, content) in &self.disk {
                let name = if path == source { path.rsplit('/').next() } else { None };
                let below =
                    if source.is_empty() { Some(path.as_str()) } else { path.strip_prefix(&format!("{source}/")) };
                let Some(rest) = below.or(name.filter(|_| content != "/")) else { continue };
                let whole = if name.is_some() && !what.into { to.to_owned() } else { format!("{to}/{rest}") };
                let mut header = Header::new_gnu();
                header.set_size(content.len() as u64);
                builder.append_data(&mut header, whole.trim_matches('/'), content.as_bytes()).unwrap();
            }
        }
        let bytes = builder.into_inner().unwrap();
        Ok(futures::stream::iter([Ok(bytes.into())]).boxed())
    }

    async fn is_directory(&mut self, path: &str) -> Result<bool, BuildError> {
        Ok(self.disk.get(path.trim_matches('/')).is_some_and(|content| content == "/"))
    }

    async fn furnish(&mut self) -> Result<(), BuildError> {
        self.tell("furnish");
        Ok(())
    }

    /// `write PATH TEXT`, `say TEXT`, `exit CODE`, `kill`, `late`, or `hang`.
    async fn run(&mut self, run: &Run, patience: Duration, line: &mut Lines<'_>) -> Result<Exit, BuildError> {
        let command = run.argv.last().unwrap().clone();
        self.tell(&command);
        let words = command.split(' ').collect::<Vec<_>>();
        let mut exit = Exit { code: Some(0), signal: None, timed_out: false };
        match words[..] {
            ["write", path, text] => drop(self.disk.insert(path.to_owned(), text.to_owned())),
            ["exit", code] => exit.code = Some(code.parse().unwrap()),
            ["kill"] => (exit.code, exit.signal) = (None, Some("SIGKILL".into())),
            ["late"] => {
                line(&format!("{} s were not enough", patience.as_secs()));
                (exit.code, exit.signal, exit.timed_out) = (None, Some("SIGKILL".into()), true);
            }
            ["hang"] => {
                let hangs = self.shop.world().hangs.clone();
                hangs.notify_one();
                futures::future::pending::<()>().await;
            }
            _ => line(&command),
        }
        Ok(exit)
    }
}

trait Concat {
    async fn try_concat_bytes(self) -> std::io::Result<Vec<u8>>;
}

impl Concat for Tar {
    async fn try_concat_bytes(self) -> std::io::Result<Vec<u8>> {
        let chunks: Vec<bytes::Bytes> = self.try_collect().await?;
        Ok(chunks.concat())
    }
}
