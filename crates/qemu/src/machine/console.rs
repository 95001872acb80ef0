//! What a machine says: its serial console and its ready line, kept within bounds.

use std::path::Path;

use berth_process::folder::{self, length};
use tokio::net::UnixStream;
use uuid::Uuid;

use super::files::{CONSOLE, CONSOLE_LOG, QEMU_LOG, READY_LOG};
use crate::Result;
use crate::error::at;
use crate::qmp::connect_in;

/// Largest log of a console, and as much again of what came before.
const CONSOLE_BOUND: u64 = 1 << 20;
/// Largest file of ready lines.
const READY_BOUND: u64 = 64 << 10;
/// Largest log of QEMU.
const QEMU_BOUND: u64 = 256 << 10;

/// The console's earlier log.
fn earlier(dir: &Path) -> std::path::PathBuf {
    dir.join(format!("{CONSOLE_LOG}.1"))
}

/// The last bytes of the console.
pub fn console_tail(dir: &Path, most: usize) -> Result<Vec<u8>> {
    let mut text = tail(&dir.join(CONSOLE_LOG), most as u64)?;
    if text.len() < most {
        let mut before = tail(&earlier(dir), (most - text.len()) as u64)?;
        before.append(&mut text);
        text = before;
    }
    Ok(text)
}

fn tail(path: &Path, most: u64) -> Result<Vec<u8>> {
    match folder::tail(path, most) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        outcome => outcome.map_err(at("cannot read", path)),
    }
}

/// Connects to the console of a running machine. One client at a time; the next one waits.
pub async fn console_connect(dir: &Path) -> Result<UnixStream> {
    connect_in(dir, CONSOLE).await
}

/// Whether the guest said that its boot has finished. What it writes is not trusted beyond that line.
/// UEFI and the boot loaders it starts speak on every serial port, before the line and at its beginning.
pub fn is_ready(dir: &Path, instance: Uuid) -> bool {
    says(dir, &format!("berth ready {instance}"))
}

/// Whether the guest said so, at the end of a line.
pub(super) fn says(dir: &Path, wanted: &str) -> bool {
    tail(&dir.join(READY_LOG), READY_BOUND)
        .is_ok_and(|text| text.split(|b| *b == b'\n').any(|line| line.trim_ascii().ends_with(wanted.as_bytes())))
}

/// Keeps a machine's logs within their bounds. QEMU appends, so a file that is emptied goes on from its
/// beginning.
pub fn bound_logs(dir: &Path) -> Result<()> {
    let console = dir.join(CONSOLE_LOG);
    if length(&console) > CONSOLE_BOUND {
        let keep = tail(&console, CONSOLE_BOUND)?;
        folder::write(&earlier(dir), &keep).map_err(at("cannot write", &console))?;
        empty(&console)?;
    }
    for (name, bound) in [(READY_LOG, READY_BOUND), (QEMU_LOG, QEMU_BOUND)] {
        let path = dir.join(name);
        if length(&path) > bound {
            empty(&path)?;
        }
    }
    Ok(())
}

fn empty(path: &Path) -> Result<()> {
    folder::empty(path).map_err(at("cannot empty", path))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_log_stays_within_its_bound_and_keeps_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(CONSOLE_LOG);
        let bound = usize::try_from(CONSOLE_BOUND).unwrap();
        fs::write(&path, vec![b'a'; bound]).unwrap();
        bound_logs(dir.path()).unwrap();
        assert_eq!(length(&path), CONSOLE_BOUND);
        let mut text = vec![b'a'; bound];
        text.extend_from_slice(b"the end");
        fs::write(&path, text).unwrap();
        bound_logs(dir.path()).unwrap();
        assert_eq!(length(&path), 0);
        assert!(console_tail(dir.path(), 100).unwrap().ends_with(b"the end"));
        fs::write(&path, " and on").unwrap();
        assert_eq!(console_tail(dir.path(), 14).unwrap(), b"the end and on");
    }

    #[test]
    fn only_the_line_of_this_instance_counts() {
        let dir = tempfile::tempdir().unwrap();
        let id = Uuid::now_v7();
        assert!(!is_ready(dir.path(), id));
        fs::write(dir.path().join(READY_LOG), format!("berth ready {}\n", Uuid::now_v7())).unwrap();
        assert!(!is_ready(dir.path(), id));
        fs::write(dir.path().join(READY_LOG), format!("berth ready {id}0\n")).unwrap();
        assert!(!is_ready(dir.path(), id));
        fs::write(dir.path().join(READY_LOG), format!("\r\nberth ready {id}\r\n")).unwrap();
        assert!(is_ready(dir.path(), id));
    }

    #[test]
    fn a_loader_that_speaks_before_the_guest_hides_nothing() {
        let (dir, id) = (tempfile::tempdir().unwrap(), Uuid::now_v7());
        let menu = "\x1b[0m\x1b[37m\x1b[40mWelcome to GRUB!\n\r".repeat(1000);
        fs::write(dir.path().join(READY_LOG), format!("{menu}\x1b[0m\x1b[37m\x1b[40mberth ready {id}\r\n")).unwrap();
        assert!(is_ready(dir.path(), id));
    }

    #[test]
    fn a_link_in_place_of_a_log_is_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let (others, dir) = (root.path().join("others"), root.path().join("machine"));
        fs::create_dir(&dir).unwrap();
        let secret = vec![b's'; usize::try_from(CONSOLE_BOUND).unwrap() + 1];
        fs::write(&others, &secret).unwrap();
        let link = |name: &str| std::os::unix::fs::symlink(&others, dir.join(name)).unwrap();
        for name in [CONSOLE_LOG, READY_LOG, QEMU_LOG] {
            link(name);
        }
        assert!(console_tail(&dir, 9).is_err() && !is_ready(&dir, Uuid::nil()));
        bound_logs(&dir).unwrap();
        // The earlier log may be one, too.
        fs::remove_file(dir.join(CONSOLE_LOG)).unwrap();
        fs::write(dir.join(CONSOLE_LOG), vec![b'c'; secret.len()]).unwrap();
        std::os::unix::fs::symlink(&others, earlier(&dir)).unwrap();
        bound_logs(&dir).unwrap();
        assert_eq!(console_tail(&dir, 9).unwrap(), b"ccccccccc");
        assert!(fs::read(&others).unwrap() == secret, "it was written to");
    }
}
