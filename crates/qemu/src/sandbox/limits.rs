//! Limits of a machine's process, where this service may set them: control groups, of version 2 where the
//! host has them, else of version 1. Elsewhere the machine runs without, and `berth doctor` says so.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Access, access};
use uuid::Uuid;

/// Where the kernel shows control groups.
pub(super) const GROUPS: &str = "/sys/fs/cgroup";
/// The folder of ours in each tree.
const OURS: &str = "berth";
/// What QEMU needs beside the guest's memory: itself, its buffers, and what an emulated processor's code is
/// translated to, in MiB.
const BESIDE_MB: u64 = 256;
/// Threads of a machine: its processors, its loop, and those that read and write its disk.
const MOST_THREADS: u32 = 96;

/// What a process may use.
#[derive(Clone, Copy, Debug)]
struct Limits {
    memory_bytes: u64,
    threads: u32,
}

/// Machines that run without limits although this service may set them.
static UNLIMITED: AtomicU64 = AtomicU64::new(0);

/// Machines since this service began that run without limits although it may set them.
pub fn unlimited() -> u64 {
    UNLIMITED.load(Ordering::Relaxed)
}

/// Limits a machine's process by the control groups below a folder; whether that was possible. A machine that begins with
/// a captured memory stands still until this is done; one that boots runs nothing of a user's.
pub(super) fn apply(root: &Path, id: Uuid, pid: i32, memory_mb: u32) -> bool {
    let limits = Limits { memory_bytes: (u64::from(memory_mb) + BESIDE_MB) << 20, threads: MOST_THREADS };
    let (possible, mut failed) = (is_possible_below(root), false);
    let applied = files(root, limits).iter().all(|(folder, settings)| {
        let group = folder.join(OURS).join(id.to_string());
        let outcome = fill(&group, settings, pid);
        if let Err(error) = &outcome {
            failed = true;
            if possible {
                tracing::warn!(group = %group.display(), %error, "a machine runs without limits of memory and threads");
            }
        }
        outcome.is_ok()
    });
    if failed && possible {
        UNLIMITED.fetch_add(1, Ordering::Relaxed);
    }
    applied && possible
}

/// Whether this service may set limits at all.
pub fn is_possible() -> bool {
    is_possible_below(Path::new(GROUPS))
}

fn is_possible_below(root: &Path) -> bool {
    let ours = files(root, Limits { memory_bytes: 0, threads: 0 }).into_iter().map(|(folder, _)| folder.join(OURS));
    let is_ours = |folder: PathBuf| {
        // One that is there may be another user's.
        fs::create_dir_all(&folder).is_ok() && access(&folder, Access::WRITE_OK | Access::EXEC_OK).is_ok()
    };
    ours.clone().count() > 0 && ours.clone().all(is_ours)
}

/// Removes what limited a process that ended.
pub(super) fn release(id: Uuid) {
    for (folder, _) in files(Path::new(GROUPS), Limits { memory_bytes: 0, threads: 0 }) {
        // One that was never made, or is not empty yet, is no harm.
        let _ = fs::remove_dir(folder.join(OURS).join(id.to_string()));
    }
}

/// The trees that can limit, and what is written in a group of each.
fn files(root: &Path, limits: Limits) -> Vec<(PathBuf, Vec<(&'static str, String)>)> {
    let (memory, threads) = (limits.memory_bytes.to_string(), limits.threads.to_string());
    let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
    if controllers.split_whitespace().any(|name| name == "memory") {
        // What the tree hands down has to be switched on above first; it usually is.
        let _ = fs::create_dir_all(root.join(OURS));
        let _ = fs::write(root.join("cgroup.subtree_control"), "+memory +pids");
        let _ = fs::write(root.join(OURS).join("cgroup.subtree_control"), "+memory +pids");
        let settings = vec![("memory.max", memory), ("pids.max", threads)];
        return vec![(root.to_path_buf(), settings)];
    }
    let trees = [("memory", "memory.limit_in_bytes", memory), ("pids", "pids.max", threads)];
    let there = trees.into_iter().filter(|(tree, ..)| root.join(tree).join("cgroup.procs").exists());
    there.map(|(tree, file, value)| (root.join(tree), vec![(file, value)])).collect()
}

fn fill(group: &Path, settings: &[(&str, String)], pid: i32) -> io::Result<()> {
    fs::create_dir_all(group)?;
    for (file, value) in settings {
        fs::write(group.join(file), value)?;
    }
    fs::write(group.join("cgroup.procs"), pid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: Limits = Limits { memory_bytes: 512 << 20, threads: 96 };

    #[test]
    fn version_2_is_preferred() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "cpu memory pids\n").unwrap();
        fs::create_dir_all(root.path().join("memory")).unwrap();
        let files = files(root.path(), SOME);
        assert_eq!(files.len(), 1);
        assert_eq!(files[0].1[0], ("memory.max", (512u64 << 20).to_string()));
    }

    #[test]
    fn version_1_has_a_tree_for_each() {
        let root = tempfile::tempdir().unwrap();
        for tree in ["memory", "pids", "cpu"] {
            fs::create_dir_all(root.path().join(tree)).unwrap();
            fs::write(root.path().join(tree).join("cgroup.procs"), "").unwrap();
        }
        let found = files(root.path(), SOME);
        let names: Vec<&str> = found.iter().map(|(_, settings)| settings[0].0).collect();
        assert_eq!(names, ["memory.limit_in_bytes", "pids.max"]);
        let group = found[0].0.join("berth/x");
        fill(&group, &found[0].1, 7).unwrap();
        assert_eq!(fs::read_to_string(group.join("cgroup.procs")).unwrap(), "7");
    }

    #[test]
    fn a_machine_without_limits_that_could_be_set_is_counted() {
        let root = tempfile::tempdir().unwrap();
        let (limited, unlucky) = (Uuid::now_v7(), Uuid::now_v7());
        fs::write(root.path().join("cgroup.controllers"), "memory pids\n").unwrap();
        let before = unlimited();
        assert!(apply(root.path(), limited, 7, 512));
        let group = root.path().join(OURS).join(limited.to_string());
        assert_eq!(fs::read_to_string(group.join("memory.max")).unwrap(), ((512 + BESIDE_MB) << 20).to_string());
        assert_eq!(fs::read_to_string(group.join("cgroup.procs")).unwrap(), "7");
        // Where there are no groups, nobody could set any.
        assert!(!apply(&root.path().join("none"), Uuid::now_v7(), 7, 512));
        assert_eq!(unlimited(), before);
        // A folder where its limit is to be written cannot be written to by anybody.
        fs::create_dir_all(root.path().join(OURS).join(unlucky.to_string()).join("memory.max")).unwrap();
        assert!(!apply(root.path(), unlucky, 7, 512));
        assert_eq!(unlimited(), before + 1);
    }

    #[test]
    fn a_host_without_any_has_none() {
        let root = tempfile::tempdir().unwrap();
        assert!(files(root.path(), SOME).is_empty());
    }
}
