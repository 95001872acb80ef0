//! What a machine's process may use: control groups of the kernel, of version 2 where the host has them, else of
//! version 1. A machine's process joins its groups before it becomes QEMU, so that nothing of it ever ran without.
//!
//! As root the service has a folder of its own at the top of each tree. Another user has what was delegated to them
//! (systemd.resource-control(5), `Delegate=`): then the machines' groups lie beside the service's own, in the highest
//! folder above it that is the user's. Elsewhere machines run without, and `berth doctor` says so.
//!
//! Groups are called after a machine's id and the inode of its folder: while a machine goes from one host to another one, and both
//! are on one computer, there are two of that id. Those of an earlier Berth are called after the id alone.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Access, access};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use uuid::Uuid;

use crate::{Error, Result};

/// Where the kernel shows control groups.
const GROUPS: &str = "/sys/fs/cgroup";
/// The folder of ours in each tree.
const OURS: &str = "berth";
/// Threads of a machine beside its processors: its loop, and those that read and write its disk (64 at most, QEMU,
/// `util/thread-pool.c`).
const THREADS: u32 = 96;
/// Processor time is shared in periods of 100 ms, the kernel's default.
const PERIOD_MICROS: u64 = 100_000;
/// The share of one processor, of version 1 and of version 2: the kernel's defaults for a group.
const SHARES: u64 = 1024;
const WEIGHT: u64 = 100;
/// Largest weight (Linux, Documentation/admin-guide/cgroup-v2.rst, `cpu.weight`).
const MOST_WEIGHT: u64 = 10_000;
/// How long what was killed may take to leave its group.
const LEAVE: Duration = Duration::from_secs(10);
/// Between two looks at a group that empties.
const TICK: Duration = Duration::from_millis(2);

/// What a machine's process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Memory of the guest and of QEMU itself, in MiB; none of it is swapped.
    pub(crate) memory_mb: u64,
    /// Virtual CPUs. They are its share of the host's processors, and one more than them the most it gets.
    pub(crate) vcpus: u32,
}

/// A file of a group, what is written to it, and whether every kernel has it.
type Setting = (&'static str, String, bool);

impl Limits {
    fn bytes(self) -> u64 {
        self.memory_mb << 20
    }

    fn tasks(self) -> String {
        (THREADS + self.vcpus).to_string()
    }

    fn quota(self) -> u64 {
        (u64::from(self.vcpus) + 1) * PERIOD_MICROS
    }

    fn second(self) -> Vec<Setting> {
        vec![
            ("memory.max", self.bytes().to_string(), true),
            ("memory.swap.max", "0".into(), false),
            ("pids.max", self.tasks(), true),
            ("cpu.weight", (WEIGHT * u64::from(self.vcpus)).clamp(1, MOST_WEIGHT).to_string(), false),
            ("cpu.max", format!("{} {PERIOD_MICROS}", self.quota()), false),
        ]
    }

    fn first(self, tree: &str) -> Vec<Setting> {
        match tree {
            "memory" => vec![
                ("memory.limit_in_bytes", self.bytes().to_string(), true),
                ("memory.memsw.limit_in_bytes", self.bytes().to_string(), false),
                ("memory.swappiness", "0".into(), false),
            ],
            "pids" => vec![("pids.max", self.tasks(), true)],
            "cpu" => vec![
                ("cpu.shares", (SHARES * u64::from(self.vcpus)).to_string(), true),
                ("cpu.cfs_period_us", PERIOD_MICROS.to_string(), false),
                ("cpu.cfs_quota_us", self.quota().to_string(), false),
            ],
            // A tree without controllers, beside those of version 1: all at once can be ended in it.
            _ => Vec::new(),
        }
    }
}

/// Machines that run without limits although this service may set them.
static UNLIMITED: AtomicU64 = AtomicU64::new(0);

/// Machines since this service began that run without limits although it may set them.
pub fn unlimited() -> u64 {
    UNLIMITED.load(Ordering::Relaxed)
}

/// Whether this service may set limits at all; else the sentence says what is missing.
pub fn possible() -> std::result::Result<(), String> {
    Groups::of_host().possible()
}

/// What the groups of the machine in a folder are called.
pub(crate) fn name(dir: &Path, id: Uuid) -> String {
    // A folder that is gone has no machine.
    fs::metadata(dir).map_or_else(|_| id.to_string(), |about| format!("{id}-{:x}", about.ino()))
}

/// What the groups of a machine are called that a process is in, if it is in some: an earlier Berth's have another name.
pub(crate) fn of_process(pid: i32, id: Uuid) -> Option<String> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let name = |line: &str| {
        let (folder, name) = line.rsplit_once('/')?;
        (folder.ends_with(&format!("/{OURS}")) && name.starts_with(&id.to_string())).then(|| name.to_owned())
    };
    groups.lines().find_map(name)
}

/// Makes the groups of a machine that does not run: the folders that its process joins. None where the host does not
/// let the service make any.
pub(crate) fn make(name: &str, limits: Limits) -> Vec<PathBuf> {
    let groups = Groups::of_host();
    if groups.possible().is_err() {
        return Vec::new();
    }
    groups.make(name, limits).unwrap_or_else(|error| {
        UNLIMITED.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(name, %error, "a machine runs without limits of memory, threads and processors");
        Vec::new()
    })
}

/// Ends by force whatever is in a machine's groups now.
pub(crate) fn kill(name: &str) {
    let groups = Groups::of_host();
    groups.trees.iter().map(|tree| Groups::group(tree, name)).filter(|group| group.is_dir()).for_each(|group| {
        kill_group(&group);
    });
}

/// Ends whatever is left in a machine's groups and removes them. While somebody is left this is an error.
pub(crate) async fn end(name: &str) -> Result<()> {
    Groups::of_host().end(name).await
}

/// Removes the groups of machines of an id that somebody else ended, where nobody is in them any more. Whether none is left.
pub fn remove_empty(id: Uuid) -> bool {
    let of_tree = |tree: Tree| fs::read_dir(tree.base.join(OURS)).into_iter().flatten().flatten();
    let groups = Groups::of_host().trees.into_iter().flat_map(of_tree);
    let groups = groups.filter(|group| group.file_name().to_string_lossy().starts_with(&id.to_string()));
    // Each is tried, whatever became of those before.
    groups.filter(|group| fs::remove_dir(group.path()).is_err() && group.path().exists()).count() == 0
}

/// A tree of groups.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Tree {
    /// The folder of which ours is one.
    base: PathBuf,
    /// The controller of version 1, or none for version 2.
    first: Option<&'static str>,
}

/// The trees of a host in which this service may make groups.
#[derive(Debug)]
struct Groups {
    trees: Vec<Tree>,
}

impl Groups {
    fn of_host() -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::below(Path::new(GROUPS), &own)
    }

    /// The trees below a folder, for a service that is in `own` (as `/proc/PID/cgroup` says it).
    fn below(root: &Path, own: &str) -> Self {
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        if controllers.split_whitespace().any(|name| name == "memory") {
            let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
            return Self { trees: vec![Tree { base: base(root, &root.join(own)), first: None }] };
        }
        let trees = ["memory", "pids", "cpu", "unified"].into_iter();
        let there = trees.filter(|tree| root.join(tree).join("cgroup.procs").exists());
        Self { trees: there.map(|tree| Tree { base: root.join(tree), first: Some(tree) }).collect() }
    }

    fn possible(&self) -> std::result::Result<(), String> {
        let limits = |tree: &&Tree| matches!(tree.first, None | Some("memory" | "pids"));
        let has = |name: &str| self.trees.iter().any(|tree| tree.first.is_none_or(|first| first == name));
        for (tree, what) in [("memory", "memory"), ("pids", "threads")] {
            if !has(tree) {
                return Err(format!("the host shows no control groups for {what}"));
            }
        }
        for tree in self.trees.iter().filter(limits) {
            let ours = tree.base.join(OURS);
            // One that is there may be another user's.
            if fs::create_dir_all(&ours).is_err() || access(&ours, Access::WRITE_OK | Access::EXEC_OK).is_err() {
                return Err(format!("{} is not this service's to make control groups in", tree.base.display()));
            }
        }
        Ok(())
    }

    fn group(tree: &Tree, name: &str) -> PathBuf {
        tree.base.join(OURS).join(name)
    }

    fn make(&self, name: &str, limits: Limits) -> io::Result<Vec<PathBuf>> {
        let mut made = Vec::new();
        for tree in &self.trees {
            match fill(tree, &Self::group(tree, name), limits) {
                Ok(group) => made.push(group),
                // Shares of processors are good to have, and so is the tree in which all is ended at once.
                Err(_) if matches!(tree.first, Some("cpu" | "unified")) => {}
                Err(error) => {
                    for group in &made {
                        let _ = fs::remove_dir(group);
                    }
                    return Err(error);
                }
            }
        }
        Ok(made)
    }

    async fn end(&self, name: &str) -> Result<()> {
        let deadline = Instant::now() + LEAVE;
        // One that is not there, or that only others may look at, has nobody of ours.
        for group in self.trees.iter().map(|tree| Self::group(tree, name)).filter(|group| group.is_dir()) {
            loop {
                match fs::remove_dir(&group) {
                    Ok(()) => break,
                    Err(e) if e.kind() == ErrorKind::NotFound => break,
                    Err(_) if Instant::now() < deadline => kill_group(&group),
                    Err(_) => {
                        let text = format!("the machine's processes in the control group {}", group.display());
                        tracing::error!(group = %group.display(), "a machine's control group does not get empty");
                        return Err(Error::Invalid(format!("{text} do not end")));
                    }
                }
                tokio::time::sleep(TICK).await;
            }
        }
        Ok(())
    }
}

/// Where our folder lies for a service in `own`: at the top where it may be, else in the highest folder above `own` that
/// was delegated. In `own` itself none can be made: a group that has processes hands nothing down.
fn base(root: &Path, own: &Path) -> PathBuf {
    let may = |folder: &Path| {
        let writable = |path: &Path| access(path, Access::WRITE_OK).is_ok();
        writable(folder) && ["cgroup.procs", "cgroup.subtree_control"].iter().all(|name| writable(&folder.join(name)))
    };
    let ours = root.join(OURS);
    if may(root) || access(&ours, Access::WRITE_OK).is_ok() {
        return root.to_path_buf();
    }
    let above = own.ancestors().skip(1).take_while(|folder| folder.starts_with(root) && may(folder));
    above.last().unwrap_or(root).to_path_buf()
}

fn fill(tree: &Tree, group: &Path, limits: Limits) -> io::Result<PathBuf> {
    let ours = tree.base.join(OURS);
    fs::create_dir_all(&ours)?;
    if tree.first.is_none() {
        // What the tree hands down has to be switched on above first; it usually is.
        for controllers in ["+memory +pids", "+cpu"] {
            for folder in [&tree.base, &ours] {
                let _ = fs::write(folder.join("cgroup.subtree_control"), controllers);
            }
        }
    }
    // One that an earlier machine left is empty, or this fails.
    match fs::remove_dir(group) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => fs::create_dir(group)?,
    }
    let settings = tree.first.map_or_else(|| limits.second(), |tree| limits.first(tree));
    for (file, value, needed) in settings {
        let written = fs::write(group.join(file), value);
        if needed && written.is_err() {
            let _ = fs::remove_dir(group);
            written?;
        }
    }
    Ok(group.to_path_buf())
}

/// Ends everything in a group: at once, where the kernel does that (Linux 5.14), else one after the other.
fn kill_group(group: &Path) {
    let at_once = group.join("cgroup.kill");
    if at_once.exists() && fs::write(at_once, "1").is_ok() {
        return;
    }
    let processes = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    for pid in processes.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
        // One that ended meanwhile is as it should be. Whoever got its number since is not in this group: it is looked
        // at once more.
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        let again = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        if again.lines().any(|line| line == pid.to_string()) {
            let _ = pidfd_send_signal(&handle, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: Limits = Limits { memory_mb: 768, vcpus: 2 };

    fn second(root: &Path) -> Groups {
        fs::write(root.join("cgroup.controllers"), "cpu memory pids\n").unwrap();
        Groups::below(root, "0::/\n")
    }

    #[test]
    fn version_2_is_preferred() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("memory")).unwrap();
        let groups = second(root.path());
        assert_eq!(groups.trees, [Tree { base: root.path().into(), first: None }]);
        let made = groups.make("one", SOME).unwrap();
        let value = |file: &str| fs::read_to_string(made[0].join(file)).unwrap();
        assert_eq!(made, [root.path().join(OURS).join("one")]);
        let values = ["memory.max", "memory.swap.max", "pids.max", "cpu.weight", "cpu.max"].map(value);
        assert_eq!(values, [&(768u64 << 20).to_string(), "0", "98", "200", "300000 100000"]);
    }

    #[test]
    fn version_1_has_a_tree_for_each() {
        let root = tempfile::tempdir().unwrap();
        for tree in ["memory", "pids", "cpu", "freezer", "unified"] {
            fs::create_dir_all(root.path().join(tree)).unwrap();
            fs::write(root.path().join(tree).join("cgroup.procs"), "").unwrap();
        }
        let groups = Groups::below(root.path(), "");
        let names: Vec<_> = groups.trees.iter().filter_map(|tree| tree.first).collect();
        assert_eq!(names, ["memory", "pids", "cpu", "unified"]);
        assert_eq!(groups.possible(), Ok(()));
        let made = groups.make("one", SOME).unwrap();
        let value = |index: usize, file: &str| fs::read_to_string(made[index].join(file)).unwrap();
        assert_eq!(value(0, "memory.limit_in_bytes"), (768u64 << 20).to_string());
        assert_eq!((value(1, "pids.max"), value(2, "cpu.shares")), ("98".into(), "2048".into()));
        assert_eq!(value(2, "cpu.cfs_quota_us"), "300000");
    }

    #[test]
    fn machines_of_one_id_have_groups_of_their_own_by_their_folders() {
        let [one, other] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let names = [&one, &other].map(|dir| name(dir.path(), Uuid::nil()));
        assert!(names[0] != names[1] && names.iter().all(|name| name.starts_with(&Uuid::nil().to_string())));
        assert_eq!(name(one.path(), Uuid::nil()), names[0]);
        assert_eq!(name(&one.path().join("none"), Uuid::nil()), Uuid::nil().to_string());
    }

    #[test]
    fn without_a_tree_nothing_is_possible() {
        let root = tempfile::tempdir().unwrap();
        let groups = Groups::below(root.path(), "");
        assert!(groups.trees.is_empty() && groups.possible().is_err());
        // Threads alone would leave out what matters most; with processors alone there is none.
        for (tree, possible) in [("cpu", false), ("pids", false), ("memory", true)] {
            fs::create_dir_all(root.path().join(tree)).unwrap();
            fs::write(root.path().join(tree).join("cgroup.procs"), "").unwrap();
            assert_eq!(Groups::below(root.path(), "").possible().is_ok(), possible, "{tree}");
        }
        fs::remove_dir_all(root.path().join("pids")).unwrap();
        assert!(Groups::below(root.path(), "").possible().is_err(), "memory alone");
    }

    #[test]
    fn a_group_that_is_not_empty_is_nobody_else_s() {
        let root = tempfile::tempdir().unwrap();
        let groups = second(root.path());
        let made = groups.make("one", SOME).unwrap();
        // In the kernel's tree the files are no content; here they stand for processes.
        assert!(groups.make("one", SOME).is_err());
        fs::remove_dir_all(&made[0]).unwrap();
        groups.make("one", SOME).unwrap();
    }

    #[tokio::test]
    async fn the_end_of_a_group_that_keeps_somebody_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let groups = second(root.path());
        groups.end("one").await.unwrap();
        let made = groups.make("one", SOME).unwrap();
        fs::write(made[0].join("cgroup.procs"), "").unwrap();
        fs::write(made[0].join("cgroup.kill"), "").unwrap();
        let files: Vec<_> = fs::read_dir(&made[0]).unwrap().flatten().map(|entry| entry.path()).collect();
        let ended = groups.end("one");
        tokio::pin!(ended);
        assert!(tokio::time::timeout(TICK, &mut ended).await.is_err(), "somebody is left");
        assert_eq!(fs::read_to_string(made[0].join("cgroup.kill")).unwrap(), "1");
        for file in files {
            fs::remove_file(file).unwrap();
        }
        ended.await.unwrap();
        assert!(!made[0].exists());
    }

    #[test]
    fn what_was_delegated_begins_above_the_service() {
        // Whoever may do everything has the top.
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("user.slice/user@1000.service/app.slice/berth.service");
        fs::create_dir_all(&own).unwrap();
        for folder in own.ancestors().take_while(|folder| *folder != root.path()) {
            for file in ["cgroup.procs", "cgroup.subtree_control"] {
                fs::write(folder.join(file), "").unwrap();
            }
        }
        fs::remove_file(root.path().join("user.slice/cgroup.procs")).unwrap();
        assert_eq!(base(root.path(), &own), root.path().join("user.slice/user@1000.service"));
        fs::write(root.path().join("cgroup.procs"), "").unwrap();
        fs::write(root.path().join("cgroup.subtree_control"), "").unwrap();
        assert_eq!(base(root.path(), &own), root.path());
    }
}
