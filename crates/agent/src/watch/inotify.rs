//! Gets changes from the kernel, as who asked: files that they may not read are not watched.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{Dir, FileType, OFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot, watch as changes};

use crate::error::{Refusal, Result};
use crate::files::{Base, Worker, join, named, open as open_beneath};
use crate::lock::lock;
use crate::watch::ring::{Event, Ring};
use crate::watch::tree::{Effect, Raw, Tree};
use crate::watch::{Readers, Subject, Watch};

/// The most directories of one watch.
const MAX_DIRECTORIES: usize = 8192;
/// The most events that are read before they are handled.
const MAX_EVENTS: usize = 1024;
/// How often so many are read for who asks for all.
const MAX_TURNS: usize = 64;
/// How long the second half of a move may take.
const MOVE: Duration = Duration::from_millis(50);

/// A directory that is now watched.
struct Entered {
    descriptor: i32,
    path: String,
    /// What it contained: names, and whether each is a directory.
    held: Vec<(String, bool)>,
}

struct Watching {
    worker: Worker,
    /// Who wants everything read that the kernel has told so far.
    asked: mpsc::Receiver<oneshot::Sender<()>>,
    device: Arc<OwnedFd>,
    tree: Tree,
    watch: Arc<Watch>,
}

/// Begins to watch.
pub async fn open(worker: Worker, subject: Subject) -> Result<Arc<Watch>> {
    let device = Arc::new(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(Refusal::internal)?);
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).map_err(Refusal::internal)?;
    let (ask, asked) = mpsc::channel(1);
    let watch = Arc::new(Watch {
        id: u64::from_ne_bytes(random),
        subject: subject.clone(),
        ring: Mutex::new(Ring::default()),
        changed: changes::Sender::new(()),
        readers: Mutex::new(Readers::default()),
        ask,
    });
    let tree = Tree::new(subject.recursive);
    let mut watching = Watching { worker, asked, device, tree, watch: watch.clone() };
    watching.enter_first(subject.path).await?;
    lock(&watch.readers).task = Some(tokio::spawn(watching.run()).abort_handle());
    Ok(watch)
}

impl Watching {
    async fn enter_first(&mut self, path: String) -> Result<()> {
        let (device, recursive) = (self.device.clone(), self.watch.subject.recursive);
        let add = move |base: &Base| {
            let mut all = vec![add(base, &device, path, false)?];
            let mut next = 0;
            while recursive && next < all.len() && all.len() < MAX_DIRECTORIES {
                for below in directories(&all[next]) {
                    // A directory that vanished meanwhile, or that the user may not read, is not watched.
                    all.extend(self::add(base, &device, below, true).ok());
                }
                next += 1;
            }
            Ok(all)
        };
        for entered in self.worker.run(add).await? {
            self.tree.watched(entered.descriptor, entered.path);
        }
        if self.tree.len() >= MAX_DIRECTORIES {
            lock(&self.watch.ring).push(Event::Overflow);
        }
        Ok(())
    }

    /// Runs until the watch is ended from outside.
    async fn run(mut self) {
        #[expect(deprecated, reason = "an owned descriptor stays the same and open, which is all its successor asks")]
        let Ok(readiness) = AsyncFd::new(self.device.clone()) else { return };
        loop {
            let wait = if self.tree.is_moving() { MOVE } else { Duration::MAX };
            let ready = tokio::select! {
                ready = tokio::time::timeout(wait, readiness.readable()) => ready,
                Some(tell) = self.asked.recv() => {
                    self.catch_up().await;
                    // Who asked may have left.
                    let _ = tell.send(());
                    continue;
                }
            };
            match ready {
                Ok(Ok(mut ready)) => {
                    if self.take().await {
                        ready.clear_ready();
                    }
                }
                Ok(Err(_)) => return,
                Err(_elapsed) => {
                    let effects = self.tree.settle();
                    self.apply(effects).await;
                }
            }
            self.watch.changed.send_replace(());
        }
    }

    /// Takes events that are there; returns whether these were all.
    async fn take(&mut self) -> bool {
        let (events, all) = read(&self.device);
        for raw in events {
            let effects = self.tree.event(raw);
            self.apply(effects).await;
        }
        all
    }

    /// Takes all events, but not for ever, if somebody goes on making some.
    async fn catch_up(&mut self) {
        for _ in 0..MAX_TURNS {
            if self.take().await {
                break;
            }
        }
        self.watch.changed.send_replace(());
    }

    async fn apply(&mut self, effects: Vec<Effect>) {
        let mut effects = VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Tell(change) => lock(&self.watch.ring).push(Event::Change(change)),
                Effect::TellIfThere(change) => {
                    if self.is_there(change.path.clone()).await {
                        lock(&self.watch.ring).push(Event::Change(change));
                    }
                }
                Effect::Overflow => lock(&self.watch.ring).push(Event::Overflow),
                Effect::Leave(descriptor) => drop(inotify::remove_watch(&self.device, descriptor)),
                Effect::Enter(path) => effects.extend(self.enter(path).await),
            }
        }
    }

    async fn is_there(&self, path: String) -> bool {
        let look = move |base: &Base| Ok(base.open(&base.locate(&path)?, OFlags::PATH | OFlags::NOFOLLOW)?);
        self.worker.run(look).await.is_ok()
    }

    /// Watches a new directory, reports what it already contains, and returns the directories among that.
    async fn enter(&mut self, path: String) -> Vec<Effect> {
        if self.tree.len() >= MAX_DIRECTORIES {
            return vec![Effect::Overflow];
        }
        let device = self.device.clone();
        // A directory that vanished meanwhile, or that the user may not read, is not watched.
        let added = self.worker.run(move |base| add(base, &device, path, true)).await;
        let Ok(Entered { descriptor, path, held }) = added else { return Vec::new() };
        self.tree.watched(descriptor, path.clone());
        let mut effects = Vec::new();
        for (name, directory) in held {
            let Some(change) = self.tree.found(descriptor, &name) else { continue };
            let below = change.path.clone();
            effects.push(Effect::Tell(change));
            effects.extend(directory.then_some(Effect::Enter(below)));
        }
        effects
    }
}

fn directories(entered: &Entered) -> Vec<String> {
    let below = |name: &String| join(&entered.path, name);
    entered.held.iter().filter(|(_, directory)| *directory).map(|(name, _)| below(name)).collect()
}

/// Watches a path, then reads its content: in this order, so that no change is missed in between.
fn add(base: &Base, device: &OwnedFd, path: String, directory: bool) -> Result<Entered> {
    let kind = if directory { OFlags::DIRECTORY | OFlags::NOFOLLOW } else { OFlags::empty() };
    let handle = base.open(&base.locate(&path)?, OFlags::PATH | kind)?;
    let flags = WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MODIFY
        | WatchFlags::ATTRIB
        | WatchFlags::MOVE
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF;
    // Only the end of the first thing itself is news; the parents of the others report their ends.
    let flags = if directory { flags - WatchFlags::DELETE_SELF - WatchFlags::MOVE_SELF } else { flags };
    // The kernel takes a path: this is the handle's own, so that nothing can be swapped in between.
    let descriptor = inotify::add_watch(device, named(&handle), flags)?;
    let mut held = Vec::new();
    if let Ok(directory) = open_beneath(handle.as_fd(), ".", OFlags::RDONLY | OFlags::DIRECTORY, 0) {
        for found in Dir::read_from(&directory)?.flatten().take(MAX_DIRECTORIES) {
            let name = found.file_name().to_string_lossy().into_owned();
            if !matches!(name.as_str(), "." | "..") {
                held.push((name, found.file_type() == FileType::Directory));
            }
        }
    }
    Ok(Entered { descriptor, path, held })
}

/// Reads the kernel's events, and whether these are all.
fn read(device: &OwnedFd) -> (Vec<Raw>, bool) {
    let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
    let mut reader = inotify::Reader::new(device, &mut buffer);
    let mut events = Vec::new();
    while events.len() < MAX_EVENTS {
        match reader.next() {
            Ok(event) => events.push(Raw {
                descriptor: event.wd(),
                flags: event.events(),
                cookie: event.cookie(),
                name: event.file_name().map(|name| name.to_string_lossy().into_owned()),
            }),
            Err(Errno::INTR) => {}
            Err(_nothing_more) => return (events, true),
        }
    }
    (events, false)
}
