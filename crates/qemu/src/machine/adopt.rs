//! Machines that an older Berth started, which noted nothing but a number: known once by the folder they work in and
//! by the id on their command line, and noted then.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use berth_process::{Note, folder};
use uuid::Uuid;

use super::files::{COMMANDS, PID};
use crate::launch::NOTE;

/// Longest file of a number that is read, in bytes.
const LONGEST: u64 = 32;

/// Finds the process of a folder that has no note, and notes it.
pub(super) fn adopt(dir: &Path, id: Uuid) -> Option<Note> {
    // It wrote its number, and listens. Where there is neither there is no such machine, and looking at every process of
    // the host would cost much for each folder.
    let is_there = |name: &str| fs::symlink_metadata(dir.join(name)).is_ok();
    if !is_there(PID) && !is_there(COMMANDS) {
        return None;
    }
    let noted = folder::read(&dir.join(PID), LONGEST).ok();
    let noted = noted.and_then(|text| String::from_utf8_lossy(&text).trim().parse().ok());
    let pid = match noted {
        Some(pid) if is_machine(pid, dir, id) => pid,
        // Started a moment ago, or its number was lost: it is still known by its folder.
        _ => pids().find(|pid| is_machine(*pid, dir, id))?,
    };
    let note = Note::of(pid, dir).ok()?;
    match note.write(&dir.join(NOTE)) {
        Ok(()) => tracing::info!(pid, dir = %dir.display(), "took over a machine of an older version"),
        // It is looked for in the same way again.
        Err(error) => tracing::warn!(pid, %error, dir = %dir.display(), "a machine cannot be noted"),
    }
    Some(note)
}

fn pids() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether a process works in the folder and was started for this machine. A zombie has neither.
fn is_machine(pid: i32, dir: &Path, id: Uuid) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let id = id.to_string();
    line.split(|b| *b == 0).any(|arg| arg == id.as_bytes()) && works_in(pid, dir)
}

/// The folder itself is compared, not its path: a process that was started in another mount namespace, by an earlier
/// run of the service in a unit or a container of its own, may see it elsewhere. Who takes it for dead starts a second
/// machine on its disk.
fn works_in(pid: i32, dir: &Path) -> bool {
    let place = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    match (place(Path::new(&format!("/proc/{pid}/cwd"))), place(dir)) {
        (Ok(cwd), Ok(dir)) => cwd == dir,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    use super::super::find;
    use super::*;

    /// A process in a folder of a mount namespace of its own, where `dir` is mounted; it ends with its input.
    fn process_elsewhere(dir: &Path, other: &Path, id: Uuid) -> Child {
        let script = r#"mount --bind "$1" "$2" && cd "$2" && echo there && exec sh -c "read x" "$3""#;
        let mut command = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--mount", "sh", "-c", script, "sh"]).args([dir, other]).arg(id.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "there\n", "no mount namespace could be made");
        child
    }

    #[test]
    fn a_machine_of_an_older_version_is_found_by_its_folder_and_noted() {
        let root = tempfile::tempdir().unwrap();
        let (dir, other) = (root.path().join("machine"), root.path().join("other"));
        fs::create_dir(&dir).unwrap();
        fs::create_dir(&other).unwrap();
        let id = Uuid::from_u128(7);
        let mut child = process_elsewhere(&dir, &other, id);
        let pid = i32::try_from(child.id()).unwrap();
        assert_ne!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), dir);
        assert_eq!((find(&other, id), find(&dir, Uuid::from_u128(8))), (None, None));
        assert_eq!(find(&dir, id), None, "it listens nowhere");
        fs::write(dir.join(COMMANDS), "").unwrap();
        assert_eq!(find(&dir, id), Some(pid));
        // Noted, it is known whatever it says of itself.
        assert_eq!(find(&dir, Uuid::from_u128(8)), Some(pid));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(find(&dir, id), None);
    }
}
