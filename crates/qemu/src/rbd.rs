//! Disks that lie in a pool of Ceph, as images of RBD: made, filled, grown, renamed and removed by Ceph's own program.
//!
//! Librbd would be a library of another license and language in the service; a program that is told everything on its command
//! line, and ends, cannot take the service with it. It is told where the monitors are and needs no file of Ceph's on the host.
//! The key comes as a file that lies in memory alone (memfd_create(2)), so that no end of the service leaves it anywhere. What
//! the program says is read for a person alone; what happened is told by the number that it ends with, which is that of the
//! system's error (errno(3)).
//!
//! Monitors that do not answer would be waited for without end, so that every call has a deadline, and what is begun ends with
//! whoever waits for it.

mod fence;
mod snapshot;

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::process::Command;
use tokio::time::timeout;

use crate::disk::{end_with_service, last_line, leave_service};
use crate::error::at;
use crate::host::tool;
use crate::{Error, Result};

/// How long the monitors may take to know a user.
const MONITORS: Duration = Duration::from_secs(5);
/// How long each answer of the store may take. It knows of a program that died for 30 s, for which whoever wants the same image waits,
/// and who gives up is the next one to be waited for; one whose OSD is killed and starts again takes 13 s.
const ANSWER: Duration = Duration::from_secs(50);
/// How long a look may take in all.
const LOOK: Duration = Duration::from_secs(10);
/// How long what writes little may take: two answers, of which each may wait for a program that died.
const LITTLE: Duration = Duration::from_mins(2);
/// How long removing a disk may take, each part of which may be an object of its own.
const REMOVING: Duration = Duration::from_hours(12);
/// The slowest that a disk is written at, in bytes a second.
const SLOWEST: u64 = 2 << 20;
/// Letters of the shortest key.
const SHORTEST_KEY: usize = 40;
/// What QEMU's programs call the key.
const SECRET: &str = "key";
/// How QEMU's programs say that they were built without Ceph, or lack what is packaged apart.
const NO_DRIVER: &str = "Unknown driver";

/// A pool, and the user that reaches it.
#[derive(Clone)]
pub struct Pool {
    /// Where Ceph's monitors are.
    pub monitors: Vec<SocketAddr>,
    /// What it is called.
    pub name: String,
    /// The user, without `client.`.
    pub user: String,
    /// The user's key, as base64.
    pub key: String,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:?} as client.{}", self.name, self.monitors, self.user)
    }
}

/// How a program of Ceph's ended.
struct Ended {
    /// The system's error, or none where all went well.
    error: Option<Errno>,
    out: Vec<u8>,
    /// Its last words.
    why: String,
}

/// What an image is.
#[derive(Deserialize)]
struct About {
    id: String,
    size: u64,
    parent: Option<Parent>,
}

/// What an image reads from.
#[derive(Deserialize)]
struct Parent {
    pool: String,
    image: String,
}

#[derive(Deserialize)]
struct Status {
    watchers: Vec<Watcher>,
}

/// Who has an image open.
#[derive(Deserialize)]
struct Watcher {
    address: String,
}

impl Watcher {
    /// Ceph writes `10.0.0.2:0/4157`: address, port, and the program's number.
    fn address(&self) -> Result<IpAddr> {
        let address = self.address.split_once('/').map_or(&*self.address, |(address, _)| address);
        let parsed = address.parse::<SocketAddr>().map(|at| at.ip());
        parsed.map_err(|error| Error::Store(format!("{}: {error}", self.address)))
    }
}

impl Pool {
    /// Finds out whether this host can do all that its disks need: whether it has the programs, and whether the pool answers.
    ///
    /// # Errors
    /// A sentence for an operator, within seconds.
    pub async fn reach(&self) -> Result<Vec<IpAddr>> {
        for program in ["rbd", "qemu-img", "qemu-nbd"] {
            tool(program)?;
        }
        // Reads one small object, which need not be there, however much lies in the pool.
        let look = ["namespace", "ls", self.name.as_str()];
        let (answers, opens) = tokio::join!(self.rbd(&look, LOOK), self.has_driver());
        opens?;
        let ended = answers.map_err(|error| match error {
            Error::Timeout(_) => self.late(&format!("nothing came within {} seconds", LOOK.as_secs())),
            other => other,
        })?;
        let (user, pool, why) = (&self.user, &self.name, &ended.why);
        match ended.error {
            None => self.own_addresses(),
            Some(Errno::TIMEDOUT) => Err(self.late(why)),
            Some(Errno::SHUTDOWN) => Err(Error::Invalid(format!(
                "Ceph refuses this host, which was lost and is shut out of its pools: `ceph osd blocklist ls` names it. Where \
                 nobody lifts that, type as an administrator of Ceph, with this host's address: ceph osd blocklist rm \
                 ADDRESS:0/0 ({why})"
            ))),
            Some(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::INVAL) => Err(Error::Invalid(format!(
                "Ceph does not let client.{user} in: look at the key and at `ceph auth get client.{user}`, which has to say \
                 mon 'profile rbd' and osd 'profile rbd pool={pool}' ({why})"
            ))),
            Some(Errno::NOENT) => Err(Error::Invalid(format!("Ceph has no pool {pool} ({why})"))),
            Some(_) => Err(Error::Invalid(format!("the pool {pool} does not answer as it should: {why}"))),
        }
    }

    /// The addresses of this host by which it reaches the monitors: Ceph's programs choose one of those.
    fn own_addresses(&self) -> Result<Vec<IpAddr>> {
        let failed = |error| Error::io("cannot tell this host's address", error);
        let mut own = BTreeSet::new();
        for monitor in &self.monitors {
            let any: IpAddr =
                if monitor.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            let socket = UdpSocket::bind((any, 0)).map_err(failed)?;
            // Nothing is sent: the kernel chooses the way. Where it knows none, no program gets there either.
            if socket.connect(monitor).is_ok() {
                own.insert(socket.local_addr().map_err(failed)?.ip());
            }
        }
        Ok(own.into_iter().collect())
    }

    /// Refuses an image that somebody has open: wherever that is, it may write.
    pub async fn require_closed(&self, image: &str) -> Result<()> {
        match self.openers(image).await?.first() {
            None => Ok(()),
            Some(opener) => Err(Error::Store(format!("the disk is still open at {opener}"))),
        }
    }

    /// From where an image is open; from nowhere where there is no such image. Ceph knows that of a program that died for half a
    /// minute.
    pub async fn openers(&self, image: &str) -> Result<Vec<IpAddr>> {
        let ended = self.rbd(&["status", "--format", "json", &self.spec(image)], LITTLE).await?;
        let status: Option<Status> = ended.found()?;
        status.into_iter().flat_map(|status| status.watchers).map(|watcher| watcher.address()).collect()
    }

    /// The size of an image in bytes; none where there is no such image.
    pub async fn size(&self, image: &str) -> Result<Option<u64>> {
        Ok(self.about(&self.spec(image)).await?.map(|about| about.size))
    }

    /// The size in bytes of an image that has to be there.
    async fn size_of(&self, image: &str) -> Result<u64> {
        self.size(image).await?.ok_or_else(|| Error::Store(format!("it has no {image}")))
    }

    async fn about(&self, spec: &str) -> Result<Option<About>> {
        self.rbd(&["info", "--format", "json", spec], LITTLE).await?.found()
    }

    /// Makes an image of so many bytes with nothing on it, in the place of one that is there.
    pub async fn create(&self, image: &str, bytes: u64) -> Result<()> {
        self.anew(image, &["create", "--size", &format!("{bytes}B"), &self.spec(image)], LITTLE).await
    }

    /// Has an image that nobody has open grow to so many bytes. One that is as large already is left as it is.
    pub async fn grow(&self, image: &str, bytes: u64) -> Result<()> {
        let now = self.size(image).await?.ok_or_else(|| Error::Invalid("the disk store has no such disk".into()))?;
        if now >= bytes {
            return Ok(());
        }
        let resize = ["resize", "--no-progress", "--size", &format!("{bytes}B"), &self.spec(image)];
        self.rbd(&resize, LITTLE).await?.done()
    }

    /// Gives an image that is whole its name. Where that is taken, what has it stays, and the image goes.
    pub async fn publish(&self, image: &str, name: &str) -> Result<()> {
        let ended = self.rbd(&["rename", &self.spec(image), &self.spec(name)], LITTLE).await?;
        if ended.error == Some(Errno::EXIST) { self.remove(image).await } else { ended.done() }
    }

    /// Removes an image; fine where there is none. What was cloned from it stays.
    pub async fn remove(&self, image: &str) -> Result<()> {
        let rm = ["rm", "--no-progress", &self.spec(image)];
        let mut ended = self.rbd(&rm, REMOVING).await?;
        if ended.error == Some(Errno::NOTEMPTY) {
            self.forget_moments(image).await?;
            ended = self.rbd(&rm, REMOVING).await?;
        }
        ended.done_or(Errno::NOENT)
    }

    /// Makes an image of a file, as large as that, in the place of one that is there.
    pub async fn import(&self, file: &Path, image: &str) -> Result<()> {
        let bytes = std::fs::metadata(file).map_err(at("cannot look at", file))?.len();
        let import = ["import", "--no-progress", &plain(file)?, &self.spec(image)];
        self.anew(image, &import, slowest(bytes)).await
    }

    /// Makes a file of an image; there is none yet. An image of more bytes than it may have is refused.
    pub async fn export(&self, image: &str, file: &Path, most: u64) -> Result<()> {
        let bytes = self.size_of(image).await?;
        if bytes > most {
            let text = format!("{image} has {bytes} bytes in its pool, more than the {most} that it may have");
            return Err(Error::Damaged(text));
        }
        let export = ["export", "--no-progress", &self.spec(image), &plain(file)?];
        self.rbd(&export, slowest(bytes)).await?.done()
    }

    /// Fills an image, which has nothing on it, with what a disk has that builds on no other.
    pub async fn fill(&self, image: &str, from: &Path, format: &str) -> Result<()> {
        let mut source = json!({"driver": format, "file": {"driver": "file", "filename": from.to_string_lossy()}});
        if format == "qcow2" {
            source["backing"] = serde_json::Value::Null;
        }
        let key = self.key_file()?;
        let mut command = Command::new(tool("qemu-img")?);
        command.args(["convert", "-n", "--target-is-zero", "-W", "-t", "writeback", "--object", &secret(&key)]);
        command.args(["--target-image-opts", &format!("json:{source}"), &self.options(image)]);
        let bytes = std::fs::metadata(from).map_err(at("cannot look at", from))?.len();
        self.run(&mut command, &key, slowest(bytes)).await?.done()
    }

    /// An image as QEMU's programs are told of it, which know the key by [`SECRET`].
    pub(crate) fn options(&self, image: &str) -> String {
        let (name, user) = (&self.name, &self.user);
        let monitors = self
            .monitors
            .iter()
            .enumerate()
            .map(|(number, at)| format!(",server.{number}.host={},server.{number}.port={}", at.ip(), at.port()));
        let monitors: String = monitors.collect();
        format!("driver=rbd,pool={name},image={image},user={user}{monitors},key-secret={SECRET}")
    }

    /// Whether QEMU's programs open images of RBD on this host.
    async fn has_driver(&self) -> Result<()> {
        let key = self.key_file()?;
        let mut command = Command::new(tool("qemu-img")?);
        // A name that no disk has; that it is not found, or nobody answers, is fine.
        command.args(["info", "--object", &secret(&key), "--image-opts", &self.options(".none")]);
        match self.run(&mut command, &key, LOOK).await {
            Err(Error::Timeout(_)) => Ok(()),
            Ok(ended) if ended.why.contains(NO_DRIVER) => {
                Err(Error::Missing { tool: "QEMU's driver of rbd".into(), package: "qemu-block-extra" })
            }
            other => other.map(drop),
        }
    }

    /// Monitors answer nobody whose key is another one; whether OSDs answer, only Ceph's administrators see.
    fn late(&self, why: &str) -> Error {
        let monitors: Vec<_> = self.monitors.iter().map(ToString::to_string).collect();
        Error::Invalid(format!(
            "Ceph's monitors ({}) or its OSDs do not answer client.{}: type `ceph -s` as an administrator of Ceph; if all is \
             well there, look whether this host reaches them, and whether the key is that user's ({why})",
            monitors.join(", "),
            self.user
        ))
    }

    /// An image as Ceph's programs call it.
    fn spec(&self, image: &str) -> String {
        format!("{}/{image}", self.name)
    }

    /// Does what makes an image. One that is there was left half made, and goes.
    async fn anew(&self, image: &str, arguments: &[&str], patience: Duration) -> Result<()> {
        let ended = self.rbd(arguments, patience).await?;
        if ended.error != Some(Errno::EXIST) {
            return ended.done();
        }
        self.remove(image).await?;
        self.rbd(arguments, patience).await?.done()
    }

    async fn rbd(&self, arguments: &[&str], patience: Duration) -> Result<Ended> {
        let key = self.key_file()?;
        let mut command = self.program("rbd", &key)?;
        // Who is ended by force in the middle of an answer is waited for as well.
        let answer = ANSWER.min(patience.saturating_sub(MONITORS)).as_secs().to_string();
        command.args(["--client-mount-timeout", &MONITORS.as_secs().to_string()]);
        command.args(["--rados-mon-op-timeout", &answer, "--rados-osd-op-timeout", &answer]);
        let ended = self.run(command.args(arguments), &key, patience).await?;
        Ok(Ended { why: format!("rbd {}: {}", arguments.join(" "), ended.why), ..ended })
    }

    /// One of Ceph's programs, told where the monitors are and who asks them.
    fn program(&self, name: &'static str, key: &File) -> Result<Command> {
        let monitors: Vec<_> = self.monitors.iter().map(ToString::to_string).collect();
        let mut command = Command::new(tool(name)?);
        command.args(["-c", "/dev/null", "-m", &monitors.join(","), "--id", &self.user, "--keyfile", &path_of(key)]);
        Ok(command)
    }

    async fn run(&self, command: &mut Command, key: &File, patience: Duration) -> Result<Ended> {
        leave_service(command, [key.as_raw_fd()], None);
        end_with_service(command);
        let program = command.as_std().get_program().to_string_lossy().into_owned();
        let running = command.stdin(std::process::Stdio::null()).kill_on_drop(true).output();
        let late = || Error::Timeout("the disk store");
        let said = timeout(patience, running).await.map_err(|_| late())?;
        let said = said.map_err(at("cannot run", Path::new(&program)))?;
        let error = match said.status.code() {
            Some(0) => None,
            Some(number) => Some(Errno::from_raw_os_error(number)),
            None => Some(Errno::INTR),
        };
        // Ceph's library prints a key that it cannot read.
        let why = last_line(&said.stderr).replace(&self.key, "(key)");
        Ok(Ended { error, out: said.stdout, why })
    }

    /// The key as a file that only this process has, and what it starts with it.
    fn key_file(&self) -> Result<File> {
        let failed = |error: std::io::Error| Error::io("cannot hand a key over", error);
        let mut file = File::from(memfd_create("key", MemfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?);
        file.write_all(self.key.as_bytes()).map_err(failed)?;
        Ok(file)
    }
}

impl Ended {
    /// What is said in JSON of something; none where there is no such thing.
    fn found<T: DeserializeOwned>(self) -> Result<Option<T>> {
        if self.error == Some(Errno::NOENT) {
            return Ok(None);
        }
        let said = serde_json::from_slice(&self.out).map_err(|error| Error::Store(error.to_string()));
        self.done()?;
        said.map(Some)
    }

    /// Well where all went well, or this is what was wrong.
    fn done_or(self, fine: Errno) -> Result<()> {
        if self.error == Some(fine) { Ok(()) } else { self.done() }
    }

    fn done(self) -> Result<()> {
        match self.error {
            None => Ok(()),
            Some(Errno::NOSPC | Errno::DQUOT) => Err(Error::StoreFull(self.why)),
            Some(_) => Err(Error::Store(self.why)),
        }
    }
}

/// A text without what may be a key, of whichever user.
pub(crate) fn without_keys(text: &str) -> String {
    let is_of_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
    let runs = text.split_inclusive(|c| !is_of_key(c)).map(|run| {
        let rest = run.trim_start_matches(is_of_key);
        if run.len() - rest.len() < SHORTEST_KEY { run.to_owned() } else { format!("(key){rest}") }
    });
    runs.collect()
}

/// A key as QEMU's programs are told of it that find it in this file.
fn secret(key: &File) -> String {
    secret_at(&path_of(key))
}

/// The same of a file by its name.
pub(crate) fn secret_at(path: &str) -> String {
    format!("secret,id={SECRET},format=base64,file={path}")
}

/// The name of a file for a program's command line: one that does not begin so would be an option, or its input.
fn plain(file: &Path) -> Result<String> {
    let wrong = || Error::Invalid(format!("{} has to be named from the root on, as text", file.display()));
    file.to_str().filter(|_| file.is_absolute()).map(str::to_owned).ok_or_else(wrong)
}

fn path_of(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// How long writing or reading so many bytes may take.
fn slowest(bytes: u64) -> Duration {
    LITTLE + Duration::from_secs(bytes / SLOWEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> Pool {
        let monitors = ["10.0.0.1:3300", "[2001:db8::1]:3301"].map(|at| at.parse().unwrap()).to_vec();
        Pool {
            monitors,
            name: "rbd".into(),
            user: "berth".into(),
            key: "AQAAAAAAAAAAABAAAAECAwQFBgcICQoLDA0ODw==".into(),
        }
    }

    #[test]
    fn who_has_an_image_open_is_told_by_address() {
        let address = |text: &str| Watcher { address: text.into() }.address().ok();
        assert_eq!(address("10.0.0.2:0/4157"), Some([10, 0, 0, 2].into()));
        assert_eq!(address("[2001:db8::1]:0/1"), "2001:db8::1".parse().ok());
        assert_eq!(address("somewhere"), None);
    }

    #[test]
    fn a_host_is_known_by_the_address_by_which_it_reaches_each_monitor() {
        let monitors = ["127.0.0.1:3300", "127.0.0.2:3300"].map(|at| at.parse().unwrap()).to_vec();
        let own = Pool { monitors, ..pool() }.own_addresses().unwrap();
        assert!(!own.is_empty() && own.iter().all(IpAddr::is_loopback), "{own:?}");
    }

    #[test]
    fn programs_are_told_of_all_monitors_and_not_of_the_key() {
        let options = pool().options("a-b");
        assert_eq!(
            options,
            "driver=rbd,pool=rbd,image=a-b,user=berth,server.0.host=10.0.0.1,server.0.port=3300,\
             server.1.host=2001:db8::1,server.1.port=3301,key-secret=key"
        );
        assert!(!format!("{:?}", pool()).contains("AQAA"));
    }

    #[tokio::test]
    async fn a_program_has_the_key_as_a_file_and_not_what_the_service_has() {
        let (pool, mut command) = (pool(), Command::new("sh"));
        let key = pool.key_file().unwrap();
        let script = format!("cat {}; echo said {} >&2; env >&2; exit 17", path_of(&key), pool.key);
        let ended = pool.run(command.args(["-c", &script]), &key, LITTLE).await.unwrap();
        assert_eq!((ended.error, ended.out), (Some(Errno::EXIST), pool.key.clone().into_bytes()));
        assert!(!ended.why.contains("AQAA"), "{}", ended.why);
        let mut command = Command::new("sh");
        let late = pool.run(command.args(["-c", "exec sleep 1000"]), &key, Duration::from_millis(10)).await;
        assert!(matches!(late, Err(Error::Timeout(_))));
    }

    #[test]
    fn no_text_has_a_key_in_it() {
        let key = pool().key;
        assert_eq!(without_keys(&format!("cannot decode {key}: é {key}")), "cannot decode (key): é (key)");
        let plain =
            "qemu-nbd: /var/lib/berth/served/01980000-0000-7000-8000-000000000000/nbd: (110) Connection timed out";
        assert_eq!(without_keys(plain), plain);
    }

    #[test]
    fn what_is_long_may_take_long() {
        assert_eq!(slowest(0), LITTLE);
        assert_eq!(slowest(2 << 30), LITTLE + Duration::from_secs(1024));
    }
}
