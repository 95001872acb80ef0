//! Disks: instant clones, empty disks, file systems.
//!
//! A disk is made under a temporary name beside its place and renamed when it is whole, so that what
//! has the name is a disk, whatever was interrupted.

use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, Signal};
use serde::Deserialize;
use tokio::process::Command;

use crate::error::at;
use crate::host::tool;
use crate::{Error, Result, qcow2};

/// What a disk's header says.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct DiskInfo {
    /// `qcow2` or `raw`.
    pub format: String,
    /// Size for the guest, in bytes.
    #[serde(rename = "virtual-size")]
    pub virtual_size: u64,
    /// Space it takes on the host, in bytes.
    #[serde(rename = "actual-size")]
    pub actual_size: u64,
    /// The disk it builds on.
    #[serde(rename = "full-backing-filename")]
    pub backing: Option<PathBuf>,
}

fn temporary(dst: &Path) -> PathBuf {
    let mut name = dst.as_os_str().to_owned();
    name.push(".tmp");
    name.into()
}

/// Makes `dst` by `fill`, which writes a temporary file. Nothing is done where `dst` is there already.
async fn make<F: Future<Output = Result<()>>>(dst: &Path, fill: impl FnOnce(PathBuf) -> F) -> Result<()> {
    if tokio::fs::try_exists(dst).await.map_err(at("cannot look at", dst))? {
        return Ok(());
    }
    replace(dst, fill).await
}

/// The same, whether `dst` is there or not.
async fn replace<F: Future<Output = Result<()>>>(dst: &Path, fill: impl FnOnce(PathBuf) -> F) -> Result<()> {
    let tmp = temporary(dst);
    remove_one(&tmp).await?;
    if let Err(error) = fill(tmp.clone()).await {
        // What is half made serves nobody; the error is what matters.
        let _ = remove_one(&tmp).await;
        return Err(error);
    }
    tokio::fs::rename(&tmp, dst).await.map_err(at("cannot rename", &tmp))
}

/// Clones an image: an overlay that holds only what is written to it. Independent of the size.
pub async fn clone_image(base: &Path, dst: &Path, size_bytes: u64) -> Result<()> {
    make(dst, async |tmp| overlay(base, &tmp, size_bytes).await).await
}

/// Clones an image in place of a disk, which is whole until the clone is on the host's disk, and gone then.
pub async fn clone_image_anew(base: &Path, dst: &Path, size_bytes: u64) -> Result<()> {
    replace(dst, async |tmp| {
        overlay(base, &tmp, size_bytes).await?;
        let file = tokio::fs::File::open(&tmp).await.map_err(at("cannot open", &tmp))?;
        file.sync_all().await.map_err(at("cannot write", &tmp))
    })
    .await
}

async fn overlay(base: &Path, dst: &Path, size_bytes: u64) -> Result<()> {
    let base = base.canonicalize().map_err(at("cannot find the image", base))?;
    qcow2::header(&base)?;
    let mut command = Command::new(tool("qemu-img")?);
    // What that one lies on is not opened: its header may be what a guest's machine wrote.
    command.args(["create", "-q", "-u", "-f", "qcow2", "-F", "qcow2", "-b"]).arg(&base).arg(dst);
    run(command.arg(size_bytes.to_string())).await
}

/// Makes an empty disk that takes space only where it is written.
pub async fn create_block(dst: &Path, size_bytes: u64) -> Result<()> {
    make(dst, async |tmp| sparse(&tmp, size_bytes).await).await
}

/// Makes a disk with an ext4 file system, labelled with the first 16 characters of `label`.
pub async fn create_filesystem(dst: &Path, size_bytes: u64, label: &str) -> Result<()> {
    let label: String = label.chars().take(16).collect();
    make(dst, async |tmp| {
        sparse(&tmp, size_bytes).await?;
        let mut command = Command::new(tool("mkfs.ext4")?);
        command.args(["-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", "-L", &label]);
        run(command.arg(&tmp)).await
    })
    .await
}

pub(crate) async fn sparse(path: &Path, size_bytes: u64) -> Result<()> {
    let file = tokio::fs::File::create(path).await.map_err(at("cannot create", path))?;
    file.set_len(size_bytes).await.map_err(at("cannot size", path))
}

/// Copies a disk of a format into a qcow2 file that builds on no other.
pub async fn flatten(from: &Path, format: &str, dst: &Path) -> Result<()> {
    let mut command = Command::new(tool("qemu-img")?);
    run(command.args(["convert", "-f", format, "-O", "qcow2"]).arg(from).arg(dst)).await
}

/// Address space of a conversion, in bytes: several times what qemu-img takes, and little beside a host's memory
/// (OpenStack's Glance allows 1 GiB).
const ADDRESS_SPACE: u64 = 2 << 30;

#[expect(unsafe_code, reason = "the standard library has no way to bound what a child may take")]
fn bound(command: &mut Command, file_bytes: u64, time: Duration) {
    let limits = [
        (Resource::Fsize, file_bytes),
        (Resource::Cpu, time.as_secs() + 1),
        (Resource::As, ADDRESS_SPACE),
        (Resource::Core, 0),
    ];
    let set = move || {
        for (resource, most) in limits {
            rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec only the system call prlimit64 is made; it touches no memory of others and no lock.
    unsafe { command.pre_exec(set) };
}

/// Has a program begin with these descriptors and nothing else of the service: not its environment, folder, rights or, where
/// another is named, user.
#[expect(unsafe_code, reason = "the standard library has no way to hand descriptors over, or to give up new rights")]
pub(crate) fn leave_service<const N: usize>(command: &mut Command, descriptors: [RawFd; N], user: Option<u32>) {
    command.env_clear().current_dir("/");
    if let Some(user) = user {
        // Other groups go with it.
        command.uid(user).gid(user);
    }
    let set = move || {
        rustix::thread::set_no_new_privs(true)?;
        for descriptor in descriptors {
            // SAFETY: the caller holds the descriptor until the program has ended.
            let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
            rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::empty())?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec only the system calls prctl and fcntl are made; they touch no memory of others and no lock.
    unsafe { command.pre_exec(set) };
}

#[expect(unsafe_code, reason = "the standard library has no way to have a child end with its parent")]
pub(crate) fn end_with_service(command: &mut Command) {
    let set = || Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: between fork and exec only the system call prctl is made; it touches no memory of others and no lock.
    unsafe { command.pre_exec(set) };
}

/// Removes a disk and what an interrupted creation left of it.
pub async fn remove(dst: &Path) -> Result<()> {
    remove_one(&temporary(dst)).await?;
    remove_one(dst).await
}

async fn remove_one(path: &Path) -> Result<()> {
    match tokio::fs::remove_file(path).await {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(at("cannot remove", path)(e)),
        _ => Ok(()),
    }
}

/// What a disk's header says. `format` keeps QEMU from guessing.
pub async fn info(path: &Path, format: &str) -> Result<DiskInfo> {
    let mut command = Command::new(tool("qemu-img")?);
    command.args(["info", "-U", "--output=json", "-f", format]).arg(path);
    let out = command.output().await.map_err(at("cannot look at", path))?;
    if !out.status.success() {
        return Err(Error::Damaged(last_line(&out.stderr)));
    }
    serde_json::from_slice(&out.stdout).map_err(|e| Error::Damaged(e.to_string()))
}

pub(crate) async fn run(command: &mut Command) -> Result<()> {
    judged(&output(command).await?)
}

/// Signals that end a program for what it does itself.
const DEADLY: [Signal; 7] =
    [Signal::SEGV, Signal::ABORT, Signal::BUS, Signal::ILL, Signal::TRAP, Signal::FPE, Signal::SYS];

/// Runs a program over a disk that a machine wrote to, in a process that may take no more than this.
pub(crate) async fn run_bounded(command: &mut Command, file_bytes: u64, time: Duration) -> Result<()> {
    bound(command, file_bytes, time);
    let late = || Error::Timeout("the program that works on a disk");
    let out = tokio::time::timeout(time, output(command)).await.map_err(|_| late())??;
    match out.status.signal() {
        None => judged(&out),
        Some(signal) if signal == Signal::XCPU.as_raw() => Err(late()),
        Some(signal) if signal == Signal::XFSZ.as_raw() => Err(Error::NoSpace),
        // It died of what it read.
        Some(signal) if DEADLY.iter().any(|deadly| deadly.as_raw() == signal) => {
            Err(Error::Damaged(format!("the program that works on the disk died of signal {signal}")))
        }
        // The host ended it, whatever the disk has: for the lack of memory, or as its operator typed.
        Some(signal) => {
            let ended = std::io::Error::other(format!("it was ended by signal {signal}"));
            Err(Error::io("a program that works on a disk did not end by itself", ended))
        }
    }
}

/// What a program says in the end. It ends with the service: one that went on would make a file that the next service has
/// removed already, and that nobody owns.
async fn output(command: &mut Command) -> Result<Output> {
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    end_with_service(command);
    let command = command.stdin(std::process::Stdio::null()).kill_on_drop(true);
    command.output().await.map_err(at("cannot run", Path::new(&program)))
}

fn judged(out: &Output) -> Result<()> {
    if out.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&out.stderr);
    Err(if text.contains("No space left on device") {
        Error::NoSpace
    } else if text.contains("Could not open") || text.contains("not in qcow2 format") {
        Error::Damaged(last_line(&out.stderr))
    } else {
        Error::Qemu(last_line(&out.stderr))
    })
}

pub(crate) fn last_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no reason was given").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    async fn base(dir: &Path) -> PathBuf {
        let path = dir.join("base.qcow2");
        let mut command = Command::new(tool("qemu-img").unwrap());
        run(command.args(["create", "-q", "-f", "qcow2"]).arg(&path).arg("1G")).await.unwrap();
        path
    }

    #[tokio::test]
    async fn who_ended_a_program_is_told_apart() {
        let ended = async |signal: &str| {
            let mut command = Command::new("sh");
            run_bounded(command.args(["-c", &format!("kill -{signal} $$; sleep 9")]), GIB, Duration::from_secs(9)).await
        };
        assert!(matches!(ended("XCPU").await, Err(Error::Timeout(_))));
        assert!(matches!(ended("XFSZ").await, Err(Error::NoSpace)));
        assert!(matches!(ended("KILL").await, Err(Error::Io { .. })));
        // What it read is to blame where it died by itself.
        for signal in ["SEGV", "ABRT"] {
            assert!(matches!(ended(signal).await, Err(Error::Damaged(_))), "{signal}");
        }
    }

    #[test]
    fn a_program_ends_with_who_started_it() {
        let dir = tempfile::tempdir().unwrap();
        let pid = dir.path().join("pid");
        let script = format!("echo $$ >{0}.tmp; mv {0}.tmp {0}; exec sleep 1000", pid.display());
        // The kernel looks at the thread, which is a service here. Its runtime outlives it, and nothing is dropped.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        let is_started = pid.clone();
        std::thread::spawn(move || {
            let mut command = Command::new("sh");
            command.args(["-c", &script]);
            let mut running = Box::pin(async move { output(&mut command).await });
            let started = async {
                while !is_started.exists() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            handle.block_on(async {
                tokio::select! {
                    _ = &mut running => panic!("it ended"),
                    () = started => {}
                }
            });
            std::mem::forget(running);
        })
        .join()
        .unwrap();
        let pid: i32 = std::fs::read_to_string(pid).unwrap().trim().parse().unwrap();
        let has_ended = || berth_process::Stat::of(pid).is_err() || state(pid) == Some('Z');
        let began = std::time::Instant::now();
        while !has_ended() {
            assert!(began.elapsed() < Duration::from_secs(30), "it goes on");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn state(pid: i32) -> Option<char> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        text.rsplit_once(") ")?.1.chars().next()
    }

    #[tokio::test]
    async fn a_clone_is_made_once_and_knows_its_base() {
        let dir = tempfile::tempdir().unwrap();
        let (base, dst) = (base(dir.path()).await, dir.path().join("clone.qcow2"));
        std::fs::write(temporary(&dst), "left by a crash").unwrap();
        for _ in 0..2 {
            clone_image(&base, &dst, 20 * GIB).await.unwrap();
        }
        let info = info(&dst, "qcow2").await.unwrap();
        assert_eq!((info.virtual_size, info.backing), (20 * GIB, Some(base.canonicalize().unwrap())));
        assert!(info.actual_size < 1 << 20);
        assert!(!temporary(&dst).exists());
        std::fs::write(&dst, "what was there before").unwrap();
        std::fs::write(temporary(&dst), "left by a crash").unwrap();
        clone_image_anew(&base, &dst, 21 * GIB).await.unwrap();
        assert_eq!(super::info(&dst, "qcow2").await.unwrap().virtual_size, 21 * GIB);
        assert!(!temporary(&dst).exists());
        remove(&dst).await.unwrap();
        remove(&dst).await.unwrap();
        assert!(!dst.exists());
    }

    #[tokio::test]
    async fn the_largest_file_system_takes_little_space() {
        let dir = tempfile::tempdir().unwrap();
        let dst = dir.path().join("data.raw");
        create_filesystem(&dst, 2048 * GIB, "a-name-of-twenty-chr").await.unwrap();
        let info = info(&dst, "raw").await.unwrap();
        assert_eq!(info.virtual_size, 2048 * GIB);
        assert!(info.actual_size < 600 << 20, "{}", info.actual_size);
        let mut label = [0; 16];
        std::os::unix::fs::FileExt::read_exact_at(&std::fs::File::open(&dst).unwrap(), &mut label, 1024 + 120).unwrap();
        assert_eq!(&label, b"a-name-of-twenty");
    }

    #[tokio::test]
    async fn a_damaged_base_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("base.qcow2");
        std::fs::write(&base, "no disk").unwrap();
        let error = info(&base, "qcow2").await.unwrap_err();
        assert!(matches!(error, Error::Damaged(_)), "{error}");
        let dst = dir.path().join("clone.qcow2");
        assert!(clone_image(&base, &dst, GIB).await.is_err());
        assert!(!dst.exists() && !temporary(&dst).exists());
    }
}
