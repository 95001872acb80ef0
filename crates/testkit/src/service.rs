//! A service in its own process, over real machines: for tests with SIGKILL and the command line.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_qemu::groups;
use berth_qemu::image::{BootKind, MANIFEST, Manifest};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::platform::pause;
use crate::port::free_port;
use crate::{Caller, still};

const EMAIL: &str = "admin@example.com";
const PASSWORD: &str = "a quiet harbour at night";

/// Has a service ask its host by bytes.
const BY_BYTES: &str = "BERTH_HOST_BY_BYTES";
/// Cheap hashes: an administrator signs in with each start.
const HASHES: &str = "[identity]\nargon2_memory_kib = 64\nargon2_passes = 1\n";
/// What the configuration says of captured boots.
const BOOTS: &str = "captured_boots = false";

/// The folder of built images; `script/test` builds them.
pub fn images() -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let dir = std::env::var_os("BERTH_TEST_IMAGES").map_or_else(|| repository.join(".berth/images"), PathBuf::from);
    assert!(dir.join("micro/image.json").is_file(), "no images in {}; type: script/test", dir.display());
    dir
}

/// Repeats a check until it returns something.
pub fn eventually<T>(what: &str, seconds: u64, mut check: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(began.elapsed() < Duration::from_secs(seconds), "{what}: not within {seconds} s");
        std::thread::sleep(pause(began));
    }
}

/// A service. Dropping it ends its machines and processes, and removes its files.
pub struct Service {
    /// Its data folder.
    pub dir: TempDir,
    /// Its address.
    pub base: String,
    binary: PathBuf,
    listen: String,
    _port: UnixDatagram,
    child: Option<Child>,
    environment: Vec<(String, String)>,
    launcher: Vec<String>,
    images: Vec<String>,
    /// Length of its log when it started last.
    log_before: usize,
    _original: Option<Arc<Service>>,
}

impl Service {
    /// A service with these images that is not started yet.
    pub fn new(binary: &str, wanted: &[&str]) -> Self {
        let dir = tempfile::Builder::new().prefix("berth-test-").tempdir_in("/var/tmp").expect("a folder");
        for image in wanted {
            link(&images().join(image), &dir.path().join("images").join(image));
        }
        let (port, held) = free_port();
        let listen = format!("127.0.0.1:{port}");
        // Each service gives out its own addresses, so that concurrent tests do not collide.
        let config =
            format!("{HASHES}[vm]\n{BOOTS}\nfirst_address = \"127.{}.{}.1\"\n", 65 + port / 256 % 60, port % 256);
        std::fs::write(dir.path().join("berth.toml"), config).expect("a file");
        let base = format!("http://{listen}");
        Self {
            dir,
            base,
            binary: binary.into(),
            listen,
            _port: held,
            child: None,
            environment: std::env::var(BY_BYTES).into_iter().map(|value| (BY_BYTES.to_owned(), value)).collect(),
            launcher: Vec::new(),
            images: wanted.iter().map(|i| (*i).to_owned()).collect(),
            log_before: 0,
            _original: None,
        }
    }

    /// The same whose guests stand still ([`still`]): for tests that ask nothing of a guest but that its machine is there.
    pub fn with_still_guests(binary: &str, wanted: &[&str]) -> Self {
        let service = Self::new(binary, wanted);
        for image in wanted {
            still::put_into(&service.dir.path().join("images").join(image));
        }
        service
    }

    /// Has an image's kernel be told more words. Its files are linked to by other tests' services, and stay as they are.
    pub fn tell_kernel(&self, image: &str, words: &str) {
        let folder = self.dir.path().join("images").join(image);
        let mut manifest = Manifest::load(&folder).expect("an image");
        let BootKind::Kernel { cmdline, .. } = &mut manifest.boot else {
            panic!("the image has a boot loader of its own")
        };
        cmdline.push(' ');
        cmdline.push_str(words);
        let (file, told) = (folder.join(MANIFEST), serde_json::to_vec(&manifest).expect("JSON"));
        std::fs::remove_file(&file).and_then(|()| std::fs::write(&file, told)).expect("a file");
    }

    /// A service on a copy of the folder of a stopped one, with everything that one made.
    pub fn copy_of(original: Arc<Self>) -> Self {
        let mut copy = Self::new(&original.binary.to_string_lossy(), &[]);
        let own = std::fs::read(copy.dir.path().join("berth.toml")).expect("a file");
        let from = original.dir.path().join(".");
        let copied = Command::new("cp").args(["-a", "--sparse=always"]).arg(from).arg(copy.dir.path()).status();
        assert!(copied.is_ok_and(|status| status.success()), "the folder was not copied");
        std::fs::write(copy.dir.path().join("berth.toml"), own).expect("a file");
        let _ = std::fs::remove_file(copy.log_file());
        copy.images.clone_from(&original.images);
        copy._original = Some(original);
        copy
    }

    /// A service that is started and ready.
    pub fn started(binary: &str, wanted: &[&str]) -> Self {
        let mut service = Self::new(binary, wanted);
        service.start();
        service
    }

    /// The same with the files that sandboxes need to boot and start.
    #[must_use]
    pub fn with_sandboxes(self) -> Self {
        let (built, own) = (images().join("../sandbox"), self.dir.path().join("sandbox"));
        // With the tests' own agent, if there is one: the repository's service boots another one.
        let guest = std::env::var_os("BERTH_TEST_GUEST").map_or_else(|| built.join("guest"), PathBuf::from);
        assert!(guest.join("guest.json").is_file(), "no guest in {}; type: script/test", guest.display());
        link(&guest, &own.join("guest"));
        self.with_template("base")
    }

    /// The same with one more of the platform's templates.
    #[must_use]
    pub fn with_template(self, name: &str) -> Self {
        let (built, own) = (images().join("../sandbox/templates"), self.dir.path().join("sandbox/templates"));
        assert!(built.join(name).is_dir(), "no template {name} in {}; type: script/test", built.display());
        link(&built.join(name), &own.join(name));
        self
    }

    /// Has another version of the program serve from the next start on.
    pub fn upgrade(&mut self, binary: &str) {
        self.binary = binary.into();
    }

    /// Has later starts listen at an address of a network of the test's own, where no other program has a port.
    pub fn listen_at(&mut self, address: SocketAddr) {
        self.listen = address.to_string();
        self.base = format!("http://{address}");
    }

    /// Sets a variable for later starts.
    pub fn set(&mut self, name: &str, value: &str) {
        self.environment.retain(|(n, _)| n != name);
        self.environment.push((name.into(), value.into()));
    }

    /// Has another program, which becomes the service's, begin later starts: by its name and arguments.
    pub fn launch_by(&mut self, launcher: &[&str]) {
        self.launcher = launcher.iter().map(|word| (*word).to_owned()).collect();
    }

    /// Has later starts ask their host by bytes, as if it were elsewhere; all services do where the tests' own environment
    /// says so.
    pub fn ask_by_bytes(&mut self) {
        self.set(BY_BYTES, "1");
    }

    /// Has later starts capture boots, and begin with them: else a service that is tested for something else would be
    /// busy with that.
    pub fn capture_boots(&self) {
        let file = self.dir.path().join("berth.toml");
        let before = std::fs::read_to_string(&file).expect("a file");
        std::fs::write(file, before.replace(BOOTS, "captured_boots = true")).expect("a file");
    }

    /// Adds configuration for later starts: whole sections, or keys of the last one, in the place of those that are there.
    pub fn configure(&self, text: &str) {
        let file = self.dir.path().join("berth.toml");
        let before = std::fs::read_to_string(&file).expect("a file");
        let (sections, last) = before.split_at(before.rfind("\n[").unwrap_or_default());
        let key = |line: &str| line.split_once(" = ").map(|(key, _)| key.to_owned());
        let new: Vec<_> = text.lines().take_while(|line| !line.starts_with('[')).filter_map(key).collect();
        let kept = last.split_inclusive('\n').filter(|line| !key(line).is_some_and(|key| new.contains(&key)));
        std::fs::write(file, format!("{sections}{}{text}", kept.collect::<String>())).expect("a file");
    }

    /// The command that starts it.
    pub fn command(&self) -> Command {
        self.command_of("serve")
    }

    /// A command of the program for its data folder.
    pub fn command_of(&self, verb: &str) -> Command {
        let mut words = self.launcher.iter().map(OsStr::new).chain([self.binary.as_os_str(), OsStr::new(verb)]);
        let mut command = Command::new(words.next().expect("a program"));
        command.args(words).env("BERTH_DATA_DIR", self.dir.path()).env("BERTH_LISTEN", &self.listen);
        command.env("BERTH_CONFIG", self.dir.path().join("berth.toml")).env("BERTH_ACCEL", "tcg");
        command.env("BERTH_FAULT_LATER", self.later_faults());
        command.env("BERTH_ADMIN_EMAIL", EMAIL).env("BERTH_ADMIN_PASSWORD", PASSWORD);
        command.envs(self.environment.iter().map(|(n, v)| (n, v))).stdin(Stdio::null());
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.log_file()).expect("a log");
        command.stdout(log.try_clone().expect("a log")).stderr(log);
        command
    }

    /// Where a service that runs finds more faults.
    fn later_faults(&self) -> PathBuf {
        self.dir.path().join("faults")
    }

    /// Whether its process was started and not waited for yet.
    pub const fn is_started(&self) -> bool {
        self.child.is_some()
    }

    /// Adds faults, as `BERTH_FAULT` has them, to those of a service that runs; the next start has none of them.
    pub fn add_faults(&self, faults: &str) {
        let file = self.later_faults();
        let whole = file.with_extension("new");
        std::fs::write(&whole, faults).and_then(|()| std::fs::rename(whole, file)).expect("a file");
    }

    /// Removes faults that were added to a service which ended before it came to them.
    fn forget_later_faults(&self) {
        let _ = std::fs::remove_file(self.later_faults());
    }

    fn log_file(&self) -> PathBuf {
        self.dir.path().join("service.log")
    }

    /// Everything that it printed and logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// How often, since it started last, it passed a fault point that was to do this: `kill`, `fail` or `wait`.
    pub fn reached(&self, point: &str, action: &str) -> usize {
        let log = self.log();
        log.get(self.log_before..).unwrap_or_default().matches(&format!("fault point {point}: {action}")).count()
    }

    /// Whether it said this since it started last.
    pub fn said(&self, text: &str) -> bool {
        self.log().get(self.log_before..).is_some_and(|log| log.contains(text))
    }

    /// Starts it and waits until it is ready.
    pub fn start(&mut self) {
        let command = self.command();
        self.start_as(command);
    }

    /// The id of its running process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("a service").id()
    }

    /// Starts it by another command, and waits until it is ready. A listening port is not enough: a child that its
    /// killed predecessor had just forked holds the port until it executes its program, and then cuts off every client
    /// that waits there.
    pub fn start_as(&mut self, mut command: Command) {
        assert!(self.child.is_none(), "it was started before");
        self.forget_later_faults();
        self.log_before = self.log().len();
        let child = self.child.insert(command.spawn().expect("the service starts"));
        eventually("the service", 120, || {
            assert_eq!(child.try_wait().ok().flatten(), None, "the service ended");
            answers(&self.listen).then_some(())
        });
    }

    /// Kills it, as a power failure would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Ends it as an operator does, within five minutes; returns its exit code.
    pub fn stop(&mut self) -> Option<i32> {
        let pid = self.child.as_ref().and_then(|child| i32::try_from(child.id()).ok()).and_then(Pid::from_raw)?;
        let _ = kill_process(pid, Signal::TERM);
        self.ended().code()
    }

    /// Has it end by itself at a fault point of what it does as soon as it starts. Later starts have no faults.
    pub fn start_and_die_at(&mut self, point: &str) {
        self.set("BERTH_FAULT", &format!("{point}=kill"));
        self.forget_later_faults();
        self.log_before = self.log().len();
        self.child = Some(self.command().spawn().expect("the service starts"));
        self.died_at(point);
    }

    /// Waits until it has ended by itself at a fault point. Later starts have no faults.
    pub fn died_at(&mut self, point: &str) {
        self.died();
        assert_eq!(self.reached(point, "kill"), 1, "{point} was not reached: {}", self.log());
        self.set("BERTH_FAULT", "");
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        let ended = self.child.as_mut().is_none_or(|child| child.try_wait().ok().flatten().is_some());
        if ended {
            self.child = None;
        }
        ended
    }

    /// Waits until it has ended by itself.
    pub fn died(&mut self) {
        self.ended();
    }

    fn ended(&mut self) -> ExitStatus {
        // It stays in `child` until it has ended, so that the test kills one that does not end.
        let child = self.child.as_mut().expect("a service");
        let status = eventually("the service's end", 300, || child.try_wait().ok().flatten());
        self.child = None;
        status
    }

    /// The administrator, once the service has looked at its images.
    pub async fn admin(&self) -> Caller {
        let caller = Caller::login(&self.base, EMAIL, PASSWORD).await;
        for image in &self.images {
            let path = format!("/api/v1/images/{image}");
            caller
                .until("the image", |c| {
                    let path = path.clone();
                    async move { c.get(&path).await.body["status"] == "ready" }
                })
                .await;
        }
        caller
    }

    /// Signs a new person up, with a project of their own.
    pub async fn sign_up(&self, email: &str) -> Caller {
        let body = serde_json::json!({"email": email, "password": PASSWORD});
        let answer = self.admin().await.anonymous().post("/api/v1/auth/signup", body).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        self.signed_in(email).await
    }

    /// Signs in a person who signed up before.
    pub async fn signed_in(&self, email: &str) -> Caller {
        Caller::login(&self.base, email, PASSWORD).await
    }

    /// Name and password of the administrator.
    pub const fn login(&self) -> (&'static str, &'static str) {
        (EMAIL, PASSWORD)
    }

    /// Waits for the newest mail to an address with this in its text.
    pub fn mail(&self, to: &str, with: &str) -> String {
        let read = |name: &String| {
            let text = std::fs::read_to_string(self.dir.path().join("outbox").join(name)).ok()?;
            // Of the characters that the mail encoding changes, a link contains only line ends and `=`.
            let printable = text.contains("quoted-printable");
            Some(if printable { text.replace("=\r\n", "").replace("=3D", "=") } else { text })
        };
        eventually("the mail", 30, || {
            let mut names = self.files("outbox");
            names.retain(|name| name.ends_with(".eml"));
            names.sort();
            let fits = |mail: &String| mail.contains(&format!("To: {to}")) && mail.contains(with);
            names.iter().rev().filter_map(read).find(fits)
        })
    }

    /// The process of a VM's machine, if it has one.
    pub fn machine(&self, vm: &str) -> Option<Pid> {
        machine_in(&self.dir.path().join("machines").join(vm))
    }

    /// The process of a sandbox's machine, if it has one.
    pub fn sandbox(&self, id: &str) -> Option<Pid> {
        machine_in(&self.sandbox_machine(id)?)
    }

    /// The folder of a sandbox's machine, if it has one.
    pub fn sandbox_machine(&self, id: &str) -> Option<PathBuf> {
        let folders =
            self.files("sandbox/machines").into_iter().map(|name| self.dir.path().join("sandbox/machines").join(name));
        let guest = |folder: &PathBuf| {
            let text = std::fs::read_to_string(folder.join("incarnation.json")).ok()?;
            let told: serde_json::Value = serde_json::from_str(&text).ok()?;
            Some(told["guest"].as_str()?.to_owned())
        };
        folders.into_iter().find(|folder| guest(folder).as_deref() == Some(id))
    }

    /// Processes that use a folder of the data folder.
    pub fn processes(&self, folder: &str) -> Vec<i32> {
        processes_in(&self.dir.path().join(folder))
    }

    /// Removes the control groups of machines that were ended from here. One that is not empty yet stays.
    fn remove_groups(&self) {
        let machines = ["machines", "sandbox/machines"].map(|folder| self.files(folder));
        for id in machines.iter().flatten().filter_map(|id| id.parse().ok()) {
            groups::remove_empty(id);
        }
    }

    /// Names of the files in a folder of the data folder.
    pub fn files(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path().join(folder)).into_iter().flatten().flatten();
        entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
    }

    /// A command of the command line, without a sign-in.
    pub fn berth(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        let home = self.dir.path().join("home");
        let _ = std::fs::create_dir_all(&home);
        command.args(arguments).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", &home).stdin(Stdio::null());
        command
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill();
        end_all_in(self.dir.path());
        self.remove_groups();
        if std::thread::panicking() {
            let log = self.log();
            eprintln!("the service's log:\n{}", &log[log.len().saturating_sub(8000)..]);
        }
    }
}

/// Processes that work in a folder or below it.
pub(crate) fn processes_in(folder: &Path) -> Vec<i32> {
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let works = |pid: &i32| std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(folder));
    pids.filter(works).collect()
}

/// Ends what works in a data folder: machines outlive their service, also those of builds and boot snapshots. A machine that was
/// just being started may appear in its folder a moment later.
pub fn end_all_in(folder: &Path) {
    for _ in 0..2 {
        for pid in processes_in(folder).into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a service answers at an address.
fn answers(address: &str) -> bool {
    let asked = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: berth\r\nconnection: close\r\n\r\n")?;
        let mut begin = [0; b"HTTP/1.1".len()];
        stream.read_exact(&mut begin).map(|()| begin)
    };
    asked().is_ok_and(|begin: [u8; 8]| &begin == b"HTTP/1.1")
}

/// Links an image, so that a hundred tests share its bytes.
fn link(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for file in std::fs::read_dir(from).expect("an image").flatten() {
        let target = to.join(file.file_name());
        if std::fs::hard_link(file.path(), &target).is_err() {
            std::fs::copy(file.path(), &target).expect("a copy");
        }
    }
}

/// The process of the machine in a folder, if it has one.
pub(crate) fn machine_in(folder: &Path) -> Option<Pid> {
    let note = berth_process::Note::read(&folder.join("process.json")).ok()??;
    let program = std::fs::read_link(format!("/proc/{}/exe", note.pid)).ok()?;
    let is_machine = program.to_string_lossy().contains("qemu") && note.lives_for(folder);
    is_machine.then(|| Pid::from_raw(note.pid)).flatten()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn service() -> Service {
        Service::new("/bin/false", &[])
    }

    fn sleeper(dir: &Path) -> Child {
        Command::new("sleep").arg("1000").current_dir(dir).spawn().expect("a process")
    }

    #[test]
    fn whatever_works_in_its_folder_goes_with_it() {
        let service = service();
        let site = service.dir.path().join("sandbox/builds/template/site");
        std::fs::create_dir_all(&site).expect("a folder");
        let (mut within, mut elsewhere) = (sleeper(&site), sleeper(Path::new("/")));
        drop(service);
        let status = eventually("its end", 10, || within.try_wait().expect("a look"));
        assert_eq!(status.signal(), Some(9));
        assert!(elsewhere.try_wait().expect("a look").is_none(), "what is not the service's goes on");
        elsewhere.kill().and_then(|()| elsewhere.wait()).expect("an end");
    }

    #[test]
    fn a_stop_asks_and_waits() {
        let mut service = service();
        assert_eq!(service.stop(), None, "nothing runs");
        let script = "trap 'sleep 0.2; exit 7' TERM; echo >up; while :; do sleep 0.02; done";
        let up = service.dir.path().join("up");
        let mut command = Command::new("sh");
        service.child = Some(command.args(["-c", script]).current_dir(service.dir.path()).spawn().expect("a process"));
        eventually("its trap", 10, || up.exists().then_some(()));
        assert_eq!(service.stop(), Some(7));
        assert!(service.child.is_none());
    }
}
