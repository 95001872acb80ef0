//! A tree of files of a process' own: what it needs and nothing else, at the same paths as on the host.
//!
//! The tree is a small file system in memory with mounts in it: the programs and libraries of the host and single files
//! of the machine, which cannot be written to, and its folder and disks. The host's own tree is let go of, so that there
//! is no way back to it, with whatever rights.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_change, mount_remount,
    move_mount, open_tree, unmount,
};
use rustix::process::{chdir, pivot_root, umask};

use super::failure::{Failure, Step};
use super::order::{NOTE, Order};
use super::seal::seal;

/// Where hosts keep programs, libraries and firmware, and what tells which libraries those are.
const PROGRAMS: [&str; 11] = [
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/bin",
    "/sbin",
    "/nix/store",
    "/gnu/store",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
];
/// Devices that QEMU opens.
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/kvm"];
/// The file system of the tree holds folders and names alone.
const TREE: &std::ffi::CStr = c"mode=755,size=1m,nr_inodes=4096";

/// How a part of the tree is mounted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Program,
    Device,
    Read,
    Write,
}

/// A part of the host's tree that the process keeps.
struct Kept {
    path: PathBuf,
    mount: OwnedFd,
    is_folder: bool,
    kind: Kind,
}

/// A step that failed, and at what.
fn at<'a>(what: &'a str, path: &'a Path) -> impl FnOnce(io::Error) -> Failure + 'a {
    move |error| Failure::of(&format!("{what} {}", path.display()), error)
}

/// A mount that failed, and where: the host may have none for this process.
fn mounting<'a>(what: &'a str, path: &'a Path) -> impl FnOnce(Errno) -> Failure + 'a {
    move |error| Failure::of_part(&format!("{what} {}", path.display()), error)
}

/// Has this process see its own tree, from the folder of its machine.
pub(super) fn enter(order: &Order) -> Step {
    let root = Path::new("/");
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change(root, private).map_err(mounting("cannot leave the mounts of", root))?;
    let kept = kept(order)?;
    let base = &order.dir;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", base, "tmpfs", flags, TREE).map_err(mounting("cannot mount a tree at", base))?;
    let mask = umask(rustix::fs::Mode::from_raw_mode(0o022));
    let built = links(base, order).and_then(|()| kept.iter().try_for_each(|kept| attach(base, kept)));
    umask(mask);
    built?;
    turn(base).map_err(mounting("cannot turn to the tree at", base))?;
    mount_remount(root, MountFlags::BIND | MountFlags::RDONLY | flags, "").map_err(mounting("cannot seal", root))?;
    chdir(&order.dir).map_err(|e| at("cannot go to", &order.dir)(e.into()))
}

/// What the process keeps of the host, opened while it is still seen. A folder comes before what lies in it.
fn kept(order: &Order) -> Step<Vec<Kept>> {
    let mut kept = Vec::new();
    for (names, kind) in [(&PROGRAMS[..], Kind::Program), (&DEVICES[..], Kind::Device)] {
        // What a host does not have it does not need.
        let there = names.iter().map(Path::new).filter(|path| path.exists() && !path.is_symlink());
        kept.extend(there.filter_map(|path| keep(path, kind).ok()));
    }
    for path in &order.devices {
        kept.push(keep(path, Kind::Device)?);
    }
    for own in home(&order.program, &order.dir)? {
        kept.push(keep(&own, Kind::Program)?);
    }
    kept.iter().filter(|kept| kept.kind == Kind::Program).try_for_each(|kept| apart(&kept.path, &order.dir))?;
    kept.push(keep(&order.dir, Kind::Write)?);
    for path in &order.write {
        kept.push(keep(path, Kind::Write)?);
    }
    for path in order.read.iter().chain([&order.dir.join(NOTE)]) {
        kept.push(keep(path, Kind::Read)?);
    }
    Ok(kept)
}

fn keep(path: &Path, kind: Kind) -> Step<Kept> {
    let is_folder = fs::metadata(path).map_err(at("cannot look at", path))?.is_dir();
    let all = if is_folder { OpenTreeFlags::AT_RECURSIVE } else { OpenTreeFlags::empty() };
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | all;
    let mount = open_tree(CWD, path, flags).map_err(mounting("cannot keep", path))?;
    Ok(Kept { path: path.to_path_buf(), mount, is_folder, kind })
}

/// What a program needs that lies elsewhere: of one that is installed in a folder of its own, `/opt/qemu/bin/…`, its
/// programs, libraries and firmware, and of one that was just built, itself and its firmware.
fn home(program: &Path, dir: &Path) -> Step<Vec<PathBuf>> {
    let program = program.canonicalize().map_err(at("cannot start", program))?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    if PROGRAMS.iter().any(|known| program.starts_with(known)) {
        return Ok(Vec::new());
    }
    let prefix = folder.parent().filter(|prefix| folder.ends_with("bin") && prefix.parent().is_some());
    let Some(prefix) = prefix else {
        let firmware = ["pc-bios", "qemu-bundle"].map(|name| folder.join(name)).into_iter();
        let firmware: Vec<_> = firmware.filter(|path| path.exists()).collect();
        return Ok(std::iter::once(program).chain(firmware).collect());
    };
    apart(prefix, dir)?;
    let entries = fs::read_dir(prefix).map_err(at("cannot look at", prefix))?.flatten();
    let is_needed = |name: &[u8]| name == b"bin" || name.starts_with(b"lib");
    let folders = entries.filter(|entry| is_needed(entry.file_name().as_bytes())).map(|entry| entry.path());
    Ok(folders.chain([prefix.join("share/qemu")]).filter(|path| path.is_dir()).collect())
}

/// Refuses a folder that machines see and that has the folders of machines in it.
fn apart(shown: &Path, dir: &Path) -> Step {
    let (shown, dir) = (shown.canonicalize(), dir.canonicalize());
    match (shown, dir) {
        (Ok(shown), Ok(dir)) if dir.starts_with(&shown) => {
            let (shown, dir) = (shown.display(), dir.display());
            Err(Failure::of(
                "QEMU cannot be told apart from what is others'",
                format!(
                    "{dir} lies in {shown}, which every machine sees; install QEMU elsewhere, or choose another data folder"
                ),
            ))
        }
        _ => Ok(()),
    }
}

/// Names that lead to other folders on this host, as `/lib` leads to `/usr/lib`, do the same here. A program that was
/// named by such a name is found by it.
fn links(base: &Path, order: &Order) -> Step {
    let own = order.program.is_symlink().then_some(order.program.as_path());
    for path in PROGRAMS.iter().map(Path::new).chain(own).filter(|path| path.is_symlink()) {
        let target = fs::read_link(path).map_err(at("cannot look at", path))?;
        let here = below(base, path);
        if here.symlink_metadata().is_err()
            && PROGRAMS.iter().all(|known| !path.starts_with(known) || path == Path::new(known))
        {
            fs::create_dir_all(here.parent().unwrap_or(base)).map_err(at("cannot make a folder for", path))?;
            std::os::unix::fs::symlink(target, &here).map_err(at("cannot make", &here))?;
        }
    }
    Ok(())
}

fn below(base: &Path, path: &Path) -> PathBuf {
    base.join(path.strip_prefix("/").unwrap_or(path))
}

fn attach(base: &Path, kept: &Kept) -> Step {
    let here = below(base, &kept.path);
    let made = match (here.exists(), kept.is_folder) {
        (true, _) => Ok(()),
        (false, true) => fs::create_dir_all(&here),
        (false, false) => {
            fs::create_dir_all(here.parent().unwrap_or(base)).and_then(|()| fs::File::create(&here).map(drop))
        }
    };
    made.map_err(at("cannot make room for", &kept.path))?;
    move_mount(&kept.mount, "", CWD, &here, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(mounting("cannot mount", &kept.path))?;
    let flags = match kept.kind {
        Kind::Device => return Ok(()),
        Kind::Program => MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV,
        Kind::Read => MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
        Kind::Write => MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
    };
    seal(&here, flags).map_err(mounting("cannot seal", &kept.path))
}

/// Makes the tree this process' root and lets go of the host's (pivot_root(2), "pivot_root(".", ".")").
fn turn(base: &Path) -> rustix::io::Result<()> {
    chdir(base)?;
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    chdir("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_program_s_own_folder_only_what_it_needs_is_seen() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let (prefix, dir) = (root.join("opt"), root.join("machine"));
        for folder in ["bin", "lib64", "libexec", "share/qemu", "share/private", "etc", ".ssh"] {
            fs::create_dir_all(prefix.join(folder)).unwrap();
        }
        fs::create_dir(&dir).unwrap();
        let program = prefix.join("bin/qemu");
        fs::write(&program, "").unwrap();
        let mut seen = home(&program, &dir).unwrap();
        seen.sort();
        assert_eq!(seen, ["bin", "lib64", "libexec", "share/qemu"].map(|name| prefix.join(name)));
        // One whose prefix has the machines in it would show them all.
        let inside = prefix.join("data");
        fs::create_dir(&inside).unwrap();
        assert!(home(&program, &inside).unwrap_err().line.contains("which every machine sees"));
        let built = root.join("qemu");
        fs::write(&built, "").unwrap();
        assert_eq!(home(&built, &dir).unwrap(), [built]);
        assert_eq!(home(Path::new("/usr/bin/env"), &dir).unwrap(), [] as [PathBuf; 0]);
    }

    #[test]
    fn what_machines_see_has_no_machine_in_it() {
        let root = tempfile::tempdir().unwrap();
        assert!(apart(root.path(), &root.path().join(".")).is_err());
        assert!(apart(&root.path().join("none"), root.path()).is_ok() && apart(Path::new("/usr"), root.path()).is_ok());
    }
}
