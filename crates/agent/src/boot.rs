//! From an initramfs to the sandbox's own root file system.

use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_domain::agent::control::{Boot, Booted, LONGEST_ACCOUNT, absolute, is_account};
use berth_domain::fields::{Fields, Parsed, boolean, text};
use http::StatusCode;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount, mount_move};
use serde_json::Value;

use crate::accounts::{self, Account, NewAccount};
use crate::agent::Agent;
use crate::body::{Answer, reply};
use crate::call::Call;
use crate::error::{Refusal, Result};
use crate::grow::grow;
use crate::place::Place;

/// How long the disk may take to appear.
const PATIENCE: Duration = Duration::from_secs(10);
/// The cgroup of everything that users run.
const USER_CGROUP: &str = "/sys/fs/cgroup/user";

/// `POST /control/boot`.
pub async fn boot(call: Call) -> Result<Answer> {
    let agent = call.agent.clone();
    let body = call.json().await?;
    let wanted = parse(&body)?;
    if agent.place.get().is_none() {
        let booting = agent.clone();
        let place = tokio::task::spawn_blocking(move || enter(&booting, &wanted)).await.map_err(Refusal::internal)?;
        let place = place.map_err(|error| Refusal::internal(format!("the root file system: {error}")))?;
        // After two boots at once: the kernel let only one of them mount.
        let _ = agent.place.set(Arc::new(place));
    }
    let place = agent.place()?;
    let workspace = place.workspace.to_string_lossy().into_owned();
    let booted = Booted { user: place.account.name.clone(), uid: place.account.uid, workspace };
    Ok(reply(StatusCode::OK, &booted))
}

fn parse(body: &Value) -> Result<Boot> {
    let name = |value: &Value| -> Parsed<String> {
        match text(value)? {
            name if is_account(name) => Ok(name.to_owned()),
            _ => {
                let rule = "of a-z, 0-9, '-' and '_', and begin with a letter or '_'";
                Err(format!("must have 1 to {LONGEST_ACCOUNT} {rule}"))
            }
        }
    };
    let mut fields = Fields::among_others(body);
    let root = fields.required("root", absolute);
    let (user, workspace) = (fields.optional("user", name), fields.optional("workspace", absolute));
    let bare = fields.optional("bare", boolean).unwrap_or_default();
    Ok(fields.finish(root.map(|root| Boot { root, user, workspace, bare }))?)
}

/// Mounts the kernel's file systems; the agent calls this first of all.
pub fn mount_kernel_file_systems() -> io::Result<()> {
    let plain = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let systems = [
        ("proc", "/proc", "proc", plain, None),
        ("sysfs", "/sys", "sysfs", plain, None),
        ("devtmpfs", "/dev", "devtmpfs", MountFlags::NOSUID, Some(c"mode=0755")),
        (
            "devpts",
            "/dev/pts",
            "devpts",
            MountFlags::NOSUID | MountFlags::NOEXEC,
            Some(c"mode=0620,gid=5,ptmxmode=0666"),
        ),
        ("tmpfs", "/dev/shm", "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(c"mode=1777")),
        // Every command moves into a group; without the option each move waits for all processors (cgroups(7)).
        ("cgroup2", "/sys/fs/cgroup", "cgroup2", plain, Some(c"favordynmods")),
        ("tmpfs", "/run", "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(c"mode=0755")),
    ];
    for (source, target, kind, flags, options) in systems {
        // On sysfs the kernel has made the directory.
        let _ = std::fs::create_dir_all(target);
        match mount(source, target, kind, flags, options) {
            // The kernel may have mounted devtmpfs itself.
            Ok(()) | Err(Errno::BUSY) => {}
            Err(error) => return Err(io::Error::other(format!("mounting {target}: {error}"))),
        }
    }
    let links = [("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")];
    for (name, target) in links {
        let _ = std::os::unix::fs::symlink(target, Path::new("/dev").join(name));
    }
    Ok(())
}

fn enter(agent: &Agent, wanted: &Boot) -> io::Result<Place> {
    let new = Path::new("/newroot");
    std::fs::create_dir_all(new)?;
    wait_for(Path::new(&wanted.root))?;
    mount(wanted.root.as_str(), new, "ext4", MountFlags::NOATIME, Some(c"noinit_itable"))?;
    if let Err(error) = grow(Path::new(&wanted.root), new) {
        // It keeps its size, and works otherwise.
        eprintln!("berth-agent: the root file system could not be grown: {error}");
    }
    for name in ["dev", "proc", "sys", "run"] {
        std::fs::create_dir_all(new.join(name))?;
        mount_move(Path::new("/").join(name), new.join(name))?;
    }
    std::fs::create_dir_all(new.join("tmp"))?;
    std::fs::set_permissions(new.join("tmp"), Permissions::from_mode(0o1777))?;
    std::env::set_current_dir(new)?;
    mount_move(".", "/")?;
    rustix::process::chroot(".")?;
    std::env::set_current_dir("/")?;
    let vm = Path::new("/proc/sys/vm");
    for (name, centiseconds) in [("dirty_writeback_centisecs", "100"), ("dirty_expire_centisecs", "100")] {
        std::fs::write(vm.join(name), centiseconds)?;
    }
    // An idle machine need neither count nor compact memory. A kernel without these settings refuses the write.
    for (name, value) in [("stat_interval", "60"), ("compaction_proactiveness", "0")] {
        let _ = std::fs::write(vm.join(name), value);
    }
    // Without the kernel's count, metrics count only what the agent started itself.
    let _ = std::fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+pids");
    agent.freezer.set_up(Path::new(USER_CGROUP))?;
    if wanted.bare {
        return place(Account::root(), PathBuf::from("/"));
    }
    let name = wanted.user.as_deref().unwrap_or("user");
    let account = Account::lookup(Path::new("/"), name).map_or_else(|| make_account(name), Ok)?;
    let workspace = PathBuf::from(wanted.workspace.as_ref().unwrap_or(&account.home));
    make_workspace(&workspace, &account)?;
    place(account, workspace)
}

/// Makes the place, whose workspace exists.
pub fn place(account: Account, workspace: PathBuf) -> io::Result<Place> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(&workspace, flags, Mode::empty())?;
    // People write most commands for bash.
    let shell = if Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
    Ok(Place { root, workspace, account, shell })
}

fn wait_for(device: &Path) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !device.exists() {
        if Instant::now() >= deadline {
            return Err(io::Error::other(format!("{} is not there", device.display())));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn make_account(name: &str) -> io::Result<Account> {
    let read = |path: &str| accounts::read(Path::new(path)).unwrap_or_default();
    let (mut passwd, group) = (read("/etc/passwd"), read("/etc/group"));
    std::fs::create_dir_all("/etc")?;
    let shell = if Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
    if passwd.is_empty() {
        append("/etc/passwd", &passwd, "root:x:0:0:root:/root:/bin/sh\n", 0o644)?;
        passwd = read("/etc/passwd");
    }
    let new = NewAccount::plan(&passwd, &group, name, shell);
    let shadow = read("/etc/shadow");
    append("/etc/passwd", &passwd, &new.passwd, 0o644)?;
    append("/etc/group", &group, &new.group, 0o644)?;
    append("/etc/shadow", &shadow, &new.shadow, 0o640)?;
    Account::lookup(Path::new("/"), name).ok_or_else(|| io::Error::other("the account could not be made"))
}

fn append(path: &str, before: &str, line: &str, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    // With this flag, opening a pipe in its place does not wait for the other end.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let mut file = OpenOptions::new().append(true).create(true).mode(mode).custom_flags(flags).open(path)?;
    // A last line without a newline must not swallow ours.
    let gap = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
    file.write_all(format!("{gap}{line}").as_bytes())
}

fn make_workspace(workspace: &Path, account: &Account) -> io::Result<()> {
    for directory in [Path::new(&account.home), workspace] {
        if !directory.is_dir() {
            std::fs::create_dir_all(directory)?;
            rustix::fs::chown(directory, Some(account.uid()), Some(account.gid()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_wrong_field_is_named() {
        let body = json!({"root": "vda", "user": "no way", "workspace": 7});
        let fields = parse(&body).unwrap_err().details.into_iter().map(|d| d.field).collect::<Vec<_>>();
        assert_eq!(fields, ["root", "user", "workspace"]);
        assert!(parse(&json!({"root": "/dev/vda", "user": "a".repeat(32)})).is_ok());
        assert!(parse(&json!({"root": "/dev/vda", "user": "a".repeat(33)})).is_err());
        assert!(parse(&json!({"root": "/dev/vda", "user": "_apt"})).is_ok(), "as the rule says");
    }
}
