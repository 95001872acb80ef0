//! Who looks all the time where machines run: one that has two processes is a machine that runs twice on one disk, unless it is
//! on its way from one host to another, where at most one of both goes on.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use berth_testkit::eventually;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// What was seen.
#[derive(Default)]
struct Seen {
    looks: usize,
    most: usize,
    twice: BTreeSet<String>,
}

/// A thread that looks into the data folders of hosts.
pub struct Watch {
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Has it begin.
    pub fn over(folders: &[PathBuf]) -> Self {
        let folders = folders.to_vec();
        let (seen, stop): (Arc<Mutex<Seen>>, Arc<AtomicBool>) = (Arc::default(), Arc::default());
        let (notes, ends) = (seen.clone(), stop.clone());
        let thread = thread::spawn(move || {
            while !ends.load(Ordering::SeqCst) {
                let mut once = BTreeSet::new();
                let twice: Vec<_> = machines(&folders).into_iter().filter(|id| !once.insert(id.clone())).collect();
                let mut seen = notes.lock().expect("no panic");
                seen.looks += 1;
                seen.most = seen.most.max(once.len());
                seen.twice.extend(twice);
                drop(seen);
                thread::sleep(PAUSE);
            }
        });
        Self { seen, stop, thread: Some(thread) }
    }

    /// Which machines it saw twice since it was asked last; a look that is under way counts, too.
    pub fn twice(&self) -> BTreeSet<String> {
        let (before, _) = self.looks();
        eventually("another look", 60, || (self.looks().0 >= before + 2).then_some(()));
        std::mem::take(&mut self.seen.lock().expect("no panic").twice)
    }

    /// How often it looked, and how many machines it saw at once at most.
    pub fn looks(&self) -> (usize, usize) {
        let seen = self.seen.lock().expect("no panic");
        (seen.looks, seen.most)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The VMs of which machines run in these data folders: one for each process.
fn machines(folders: &[PathBuf]) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let vm = |process: &Path| {
        let works = std::fs::read_link(process.join("cwd")).ok()?;
        let within = folders.iter().find_map(|folder| works.strip_prefix(folder.join("machines")).ok())?;
        let program = std::fs::read_link(process.join("exe")).ok()?;
        let id = within.iter().next()?.to_string_lossy().into_owned();
        program.to_string_lossy().contains("qemu").then_some(id)
    };
    processes.filter_map(|process| vm(&process.path())).collect()
}
