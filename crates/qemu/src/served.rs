//! Disks of a store that a host serves to a machine: a program beside it, `qemu-nbd`, that speaks to the store.
//!
//! ```text
//!   QEMU ── a connected socket, handed over open ── qemu-nbd ── the host's network ── Ceph
//!   (no network, sees neither)                      (a user and a folder of its own, the key for its start alone)
//! ```
//!
//! QEMU opens images of RBD itself. Then a machine that a guest took over would have the store's key, which is the key of all
//! disks, and a network to use it in. So what speaks to the store is another process, confined as a machine's is but for the
//! network, and the machine has one connection to one disk.
//!
//! It serves one connection and ends with it, so that no end of a machine, however it came, leaves anything that holds its disk.
//! Who ends a machine in order all the same waits for that: what it wrote last may still be on its way. One that stays is ended
//! by force, and the store refuses what comes late from it: whoever opens the image next takes its lock, and Ceph shuts out the
//! one before (rbd(8), `exclusive-lock`). That lock is no veto: whoever asks for it gets it. So a disk that anybody has open, on
//! whichever host, is not served: Ceph tells who watches it, which it knows for half a minute after whoever did so died.
//!
//! Like a machine's, its process is noted in its folder before it begins, and known by that to whichever service comes next.

use std::fs::{File, Permissions};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use berth_process::{Process, folder};
use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::timeout;
use uuid::Uuid;

use crate::disk::last_line;
use crate::error::at;
use crate::groups::{self, Limits};
use crate::host::tool;
use crate::launch::{Order, Part};
use crate::machine::jail::{self, Needs};
use crate::machine::{Jail, Lock, QEMU_LOG, process};
use crate::rbd::{Pool, secret_at, without_keys};
use crate::{Error, Result, confinement};

/// The socket at which it listens, in its folder.
const SOCKET: &str = "nbd";
/// The file that has the key until it has begun.
const KEY: &str = "key";
/// Most bytes of a socket's path (unix(7)).
const LONGEST: usize = 107;
/// Memory that one may take, in MiB: those of guests that write small files take some 40.
const MEMORY_MB: u64 = 512;
/// How long it may take until it listens, which it does after some 60 ms.
const START: Duration = Duration::from_secs(15);
/// How long it may take to end once its machine let go of it: it writes nothing late of its own.
const END: Duration = Duration::from_secs(3);
/// How long it may take to end by force.
const KILLED: Duration = Duration::from_secs(10);
/// Between two looks.
const TICK: Duration = Duration::from_millis(2);

/// A disk to be served.
#[derive(Clone, Copy, Debug)]
pub struct Spec<'a> {
    /// The disk's id.
    pub id: Uuid,
    /// The folder of what serves it, which is made.
    pub dir: &'a Path,
    /// Where the disk lies.
    pub pool: &'a Pool,
    /// What it is called there.
    pub image: &'a str,
    /// How the process is confined.
    pub jail: Jail,
}

/// What serves a disk, to whoever has this. Until it is dropped nobody else ends that, and who does so later waits.
#[derive(Debug)]
pub struct Server {
    /// The one connection, over which the server has said its greeting.
    pub connection: Arc<OwnedFd>,
    _lock: Lock,
}

fn socket(dir: &Path) -> PathBuf {
    dir.join(SOCKET)
}

/// Finds out whether this host can serve disks that have their folders in this one. `data` is a folder in which the service may
/// make others.
///
/// # Errors
/// A sentence for an operator.
pub async fn check(data: &Path, folder: &Path, jail: Jail) -> Result<()> {
    require_short(&socket(&folder.join(Uuid::nil().to_string())))?;
    user(rustix::process::geteuid().is_root(), jail, confinement::of_host(data).await?.parts()).map(drop)
}

/// Refuses the path of a socket that is too long for one.
fn require_short(path: &Path) -> Result<()> {
    match path.as_os_str().as_bytes().len().saturating_sub(LONGEST) {
        0 => Ok(()),
        over => Err(Error::Invalid(format!(
            "the data folder's name is too long for disks of a store; choose one that is shorter by {over} or more characters"
        ))),
    }
}

/// Has a disk served. What an earlier one left is ended before.
///
/// # Errors
/// [`Error::Store`] where the store does not give the disk, or somebody else has it open, [`Error::Timeout`] where it does not answer.
pub async fn start(spec: Spec<'_>) -> Result<Server> {
    require_short(&socket(spec.dir))?;
    end(spec.dir, spec.id).await?;
    spec.pool.require_closed(spec.image).await?;
    std::fs::create_dir_all(spec.dir).map_err(at("cannot make", spec.dir))?;
    let lock = Lock::take(spec.dir).await?.ok_or_else(|| Error::Invalid("the disk's folder is gone".into()))?;
    let order = order(&spec).await?;
    let key = spec.dir.join(KEY);
    give(&key, order.user, spec.pool)?;
    let begun = begin(&spec, &order, &lock).await;
    let forgotten = forget(&key).map_err(at("cannot remove", &key));
    match begun.and_then(|connection| forgotten.map(|()| connection)) {
        Ok(connection) => Ok(Server { connection: Arc::new(connection), _lock: lock }),
        Err(error) => {
            drop(lock);
            // What made it fail is what counts; the next one ends what is left.
            let _ = end_by_force(spec.dir, spec.id).await;
            Err(error)
        }
    }
}

async fn begin(spec: &Spec<'_>, order: &Order, lock: &Lock) -> Result<OwnedFd> {
    let ended = process::spawn(order, &[], spec.id, lock).await?;
    let refused = || Error::Store(said(spec.dir, &spec.pool.key));
    match timeout(START, connect(spec.dir, &ended)).await {
        Err(_) => Err(Error::Timeout("the disk store")),
        Ok(Some(connection)) => connection.map_err(at("cannot connect to", &socket(spec.dir))),
        Ok(None) => Err(refused()),
    }
}

/// Connects, and waits for the greeting: it listens before it has opened the disk, and greets when it has. None where it ended
/// before that.
async fn connect(dir: &Path, ended: &watch::Receiver<bool>) -> Option<std::io::Result<OwnedFd>> {
    let path = socket(dir);
    let stream = loop {
        match folder::connect(&path).await {
            Ok(stream) => break stream,
            Err(_) if *ended.borrow() => return None,
            Err(_) => tokio::time::sleep(TICK).await,
        }
    };
    let look = || Ok(recv(&stream, &mut [0; 1], RecvFlags::PEEK)?.1);
    match stream.async_io(Interest::READABLE, look).await {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(plain(stream)),
    }
}

/// A connection as QEMU is given one, which sets it as it likes it.
fn plain(stream: UnixStream) -> std::io::Result<OwnedFd> {
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    Ok(stream.into())
}

/// What one that ended said last, without the key: Ceph's library prints one that it cannot read.
pub fn last_words(dir: &Path) -> String {
    without_keys(&last_line(&folder::tail(&dir.join(QEMU_LOG), folder::END_OF_LOG).unwrap_or_default()))
}

fn said(dir: &Path, key: &str) -> String {
    last_words(dir).replace(key, "(key)")
}

/// Writes the key where only the process and the service read it, and gives the process its folder.
fn give(path: &Path, user: Option<u32>, pool: &Pool) -> Result<()> {
    folder::write(path, pool.key.as_bytes()).map_err(at("cannot write", path))?;
    let dir = path.parent().unwrap_or(path);
    std::fs::set_permissions(dir, Permissions::from_mode(0o700)).map_err(at("cannot change", dir))?;
    for own in [path, dir] {
        if user.is_some() {
            chown(own, user, user).map_err(at("cannot give away", own))?;
        }
    }
    Ok(())
}

/// Removes the key, for good: no crash of the host brings it back.
fn forget(key: &Path) -> std::io::Result<()> {
    std::fs::remove_file(key)?;
    File::open(key.parent().unwrap_or(key))?.sync_all()
}

/// What its launcher is told.
async fn order(spec: &Spec<'_>) -> Result<Order> {
    let program = tool("qemu-nbd")?;
    let arguments = [
        "--shared=1".to_owned(),
        "--cache=none".to_owned(),
        "--discard=unmap".to_owned(),
        format!("--socket={}", socket(spec.dir).display()),
        "--object".to_owned(),
        secret_at(KEY),
        "--image-opts".to_owned(),
        spec.pool.options(spec.image),
    ];
    let needs = Needs {
        program: &program,
        arguments: arguments.map(Into::into).into(),
        dir: spec.dir,
        read: Vec::new(),
        write: Vec::new(),
        lend: None,
        given: 0,
        devices: Vec::new(),
        locked_bytes: None,
        limits: Limits { memory_mb: MEMORY_MB, vcpus: 1 },
        disk_bytes: 0,
    };
    let order = jail::order(spec.id, spec.jail, needs).await?;
    let parts: Vec<_> = order.parts.iter().copied().filter(|part| *part != Part::Network).collect();
    let user = user(rustix::process::geteuid().is_root(), spec.jail, &parts)?;
    Ok(Order { parts, user, ..order })
}

/// The user that it begins as. Another one has no way to its folder, which nobody else may look into, but in a tree of its own;
/// and root, with the network and the whole tree of the host, is too much for what parses a store's answers.
fn user(is_root: bool, jail: Jail, parts: &[Part]) -> Result<Option<u32>> {
    if parts.contains(&Part::Files) {
        return Ok(jail.user);
    }
    if is_root {
        let text = "what serves disks of a store has to have a tree of files of its own where the service is root; `berth doctor` \
                    says why it has none, or run the service as another user";
        return Err(Error::Unconfined(text.into()));
    }
    Ok(None)
}

/// Whether the process lives that serves a disk in this folder.
pub fn runs(dir: &Path, id: Uuid) -> bool {
    process::find(dir, id).is_some()
}

/// Ends what serves a disk, and removes its folder; fine where there is none. Whoever uses the disk has let go of it: it is
/// waited for a little, and then ended by force.
pub async fn end(dir: &Path, id: Uuid) -> Result<()> {
    end_within(dir, id, END).await
}

async fn end_by_force(dir: &Path, id: Uuid) -> Result<()> {
    end_within(dir, id, Duration::ZERO).await
}

async fn end_within(dir: &Path, id: Uuid, patience: Duration) -> Result<()> {
    let lock = match Lock::take_within(dir, END).await {
        // A launcher that does not come to an end is in its groups.
        Err(Error::Timeout(_)) => {
            groups::kill(&groups::name(dir, id));
            Lock::take(dir).await?
        }
        outcome => outcome?,
    };
    if lock.is_none() {
        return Ok(());
    }
    if let Some(process) = process::hold(dir, id)? {
        end_process(&process, patience).await?;
    }
    groups::end(&groups::name(dir, id)).await?;
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(at("cannot remove", dir)(error)),
        _ => Ok(()),
    }
}

/// The same, unless somebody else is starting or ending it. Whether nothing is left of it.
pub async fn end_if_idle(dir: &Path, id: Uuid) -> Result<bool> {
    match Lock::take_within(dir, Duration::ZERO).await {
        Err(Error::Timeout(_)) => return Ok(false),
        lock => drop(lock?),
    }
    end(dir, id).await.map(|()| true)
}

async fn end_process(process: &Process, patience: Duration) -> Result<()> {
    if gone(process, patience).await? {
        return Ok(());
    }
    if !patience.is_zero() {
        tracing::warn!("what serves a disk of a store does not end with its machine, and is ended by force");
    }
    process.kill().map_err(|e| Error::io("cannot end what serves a disk", e))?;
    if gone(process, KILLED).await? { Ok(()) } else { Err(Error::Timeout("the process that serves a disk")) }
}

async fn gone(process: &Process, patience: Duration) -> Result<bool> {
    match timeout(patience, process.ended()).await {
        Ok(ended) => ended.map(|()| true).map_err(|e| Error::io("cannot wait for what serves a disk", e)),
        Err(_) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_serves_no_disk_without_a_tree_of_files() {
        let jail = Jail { user: Some(7), required: false };
        let (with, without) = ([Part::Processes, Part::Files], [Part::Processes]);
        assert_eq!(
            [user(true, jail, &with).expect("a user"), user(false, jail, &with).expect("a user")],
            [Some(7), Some(7)]
        );
        assert!(matches!(user(true, jail, &without), Err(Error::Unconfined(why)) if why.contains("berth doctor")));
        assert!(user(true, Jail { user: None, ..jail }, &without).is_err());
        assert_eq!(user(false, jail, &without).expect("no user"), None);
    }

    #[test]
    fn a_socket_has_a_path_that_is_short_enough() {
        let path = |bytes: usize| PathBuf::from(format!("/{}", "x".repeat(bytes - 1)));
        assert!(require_short(&path(LONGEST)).is_ok());
        let refused = |bytes| require_short(&path(bytes)).expect_err("it is refused").to_string();
        assert!(refused(LONGEST + 1).contains("shorter by 1 or more"), "{}", refused(LONGEST + 1));
        assert!(refused(LONGEST + 30).contains("shorter by 30 or more"));
        // A data folder of 59 characters, and one of 60.
        let of = |bytes: usize| socket(&path(bytes).join("served").join(Uuid::nil().to_string()));
        assert!(require_short(&of(59)).is_ok() && require_short(&of(60)).is_err());
    }

    #[test]
    fn what_it_said_last_is_told_without_a_key_and_the_key_goes() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join(QEMU_LOG), "begun\nno key: AQAAAAAAAAAAABAAAAECAwQFBgcICQoLDA0ODw==\n")
            .expect("a file");
        assert_eq!(last_words(dir.path()), "no key: (key)");
        let key = dir.path().join(KEY);
        std::fs::write(&key, "a key").expect("a file");
        forget(&key).expect("it goes");
        assert!(!key.exists() && forget(&key).is_err());
    }
}
