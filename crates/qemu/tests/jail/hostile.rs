//! A QEMU that its guest took over. It is started with QEMU's command line, does what the file `plan` in its folder says,
//! confines itself as QEMU would, and then answers QMP as QEMU does, but for `quit`, which it does not hear. A line of the
//! plan that begins with `early` is tried before it confines itself: a disk's header is read then.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::mount::{MountFlags, mount};
use rustix::process::{Pid, Signal, chroot, kill_process};
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde_json::json;

/// What this program is called once it has thrown its command line away.
const PLAY: &str = "an-innocent-program";
/// More threads than any machine may have.
const MANY: usize = 2_000;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).map(String::as_str) == Some("--version") {
        println!("QEMU emulator version 7.2.0");
        return Ok(());
    }
    if arguments.get(1).map(String::as_str) != Some(PLAY) {
        // The same process, without a word of the machine that it was started as.
        return Err(Command::new(&arguments[0]).arg0(PLAY).arg(PLAY).args(confining(&arguments)).exec());
    }
    let plan = fs::read_to_string("plan").unwrap_or_default();
    let commands = UnixListener::bind("qmp.sock")?;
    let (early, late): (Vec<_>, Vec<_>) = plan.lines().partition(|line| line.starts_with("early "));
    for line in early {
        report(line, line.trim_start_matches("early "));
    }
    confine(&arguments)?;
    for line in late {
        report(line, line);
    }
    println!("played");
    // What begins with a memory stands still until it is told to go on.
    let waits: &AtomicBool = Box::leak(Box::new(AtomicBool::new(arguments.iter().any(|argument| argument == "-S"))));
    for stream in commands.incoming().flatten() {
        std::thread::spawn(move || answer(&stream, waits));
    }
    Ok(())
}

/// The arguments by which QEMU confines itself, and that by which it waits.
fn confining(arguments: &[String]) -> Vec<String> {
    let pairs = arguments.windows(2).filter(|pair| ["-chroot", "-runas"].contains(&pair[0].as_str()));
    pairs.flatten().chain(arguments.iter().filter(|argument| *argument == "-S")).cloned().collect()
}

/// Confines itself as QEMU does: `os_setup_post` of its `os-posix.c`.
fn confine(arguments: &[String]) -> io::Result<()> {
    for pair in arguments.windows(2) {
        match (pair[0].as_str(), pair[1].split_once(':')) {
            ("-chroot", _) => {
                chroot(pair[1].as_str())?;
                rustix::process::chdir("/")?;
            }
            ("-runas", Some((user, group))) => {
                let (user, group) = (Uid::from_raw(number(user)?), Gid::from_raw(number(group)?));
                set_thread_groups(&[group])?;
                set_thread_res_gid(group, group, group)?;
                set_thread_res_uid(user, user, user)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn number<T: std::str::FromStr>(text: &str) -> io::Result<T> {
    text.parse().map_err(|_| io::Error::other(format!("{text} is no number")))
}

fn report(line: &str, what: &str) {
    match attempt(what) {
        Ok(won) => println!("OPEN {line}: {won}"),
        Err(refusal) => println!("refused {line}: {refusal}"),
    }
}

fn attempt(line: &str) -> io::Result<String> {
    let (verb, what) = line.split_once(' ').unwrap_or((line, ""));
    let done = |()| "done".to_owned();
    match verb {
        "read" => fs::read(what).map(|bytes| format!("{} bytes", bytes.len())),
        "write" => File::options().read(true).write(true).open(what).map(|_| "opened".into()),
        "alter" => alter(what),
        "make" => File::create(what).map(|_| "made".into()),
        "remove" => fs::remove_file(what).map(done),
        "link" => std::os::unix::fs::symlink("/etc/passwd", what).map(done),
        "connect" => TcpStream::connect_timeout(&number(what)?, Duration::from_secs(5)).map(|_| "connected".into()),
        "abstract" => UnixStream::connect_addr(&SocketAddr::from_abstract_name(what)?).map(|_| "connected".into()),
        "signal" => kill_process(pid(what)?, Signal::KILL).map(done).map_err(Into::into),
        "mount" => mount("none", what, "tmpfs", MountFlags::empty(), None).map(done).map_err(Into::into),
        "device" => mknodat(CWD, what, FileType::CharacterDevice, Mode::RUSR, rustix::fs::makedev(1, 1))
            .map(done)
            .map_err(Into::into),
        "climb" => climb(what),
        "ask" => ask(number(what)?),
        "threads" => Ok(threads().to_string()),
        _ => Err(io::Error::other("nobody knows how")),
    }
}

fn pid(text: &str) -> io::Result<Pid> {
    Pid::from_raw(number(text)?).ok_or_else(|| io::Error::other("no process"))
}

/// Writes to a file that it opens as QEMU opens a memory.
fn alter(what: &str) -> io::Result<String> {
    let mut file = File::options().read(true).write(true).open(what)?;
    println!("opened {what}");
    file.write_all(b"taken over").map(|()| "written".into())
}

/// Out of a root folder, as root gets out of one that is nothing else (chroot(2), "Notes").
fn climb(what: &str) -> io::Result<String> {
    fs::create_dir("steps")?;
    chroot("steps")?;
    for _ in 0..64 {
        rustix::process::chdir("..")?;
    }
    chroot(".")?;
    fs::read(what).map(|bytes| format!("{} bytes", bytes.len()))
}

/// Makes a system call whose arguments are nothing that the kernel would do anything with.
#[expect(unsafe_code, reason = "no library makes these calls")]
fn ask(call: i64) -> io::Result<String> {
    // SAFETY: pointers and descriptors among the arguments are none, and the kernel says so.
    let outcome = unsafe { libc::syscall(call, -1, 0, -1, 0, 0) };
    match io::Error::last_os_error() {
        _ if outcome >= 0 => Ok("done".into()),
        // The kernel looked at it.
        error if error.raw_os_error() != Some(libc::ENOSYS) => Ok(error.to_string()),
        error => Err(error),
    }
}

/// How many threads it may have.
fn threads() -> usize {
    let (hold, end) = std::sync::mpsc::channel::<()>();
    let end = std::sync::Arc::new(std::sync::Mutex::new(end));
    let mut all = Vec::new();
    while all.len() < MANY {
        let end = end.clone();
        let wait = move || drop(end.lock().map(|end| end.recv()));
        match std::thread::Builder::new().stack_size(64 << 10).spawn(wait) {
            Ok(thread) => all.push(thread),
            Err(_) => break,
        }
    }
    drop(hold);
    let count = all.len();
    for thread in all {
        drop(thread.join());
    }
    count
}

/// Answers as a machine does that runs, or that waits to be told to.
fn answer(stream: &UnixStream, waits: &AtomicBool) {
    let (mut writer, reader) = (stream, BufReader::new(stream));
    let mut say = |value: serde_json::Value| writeln!(writer, "{value}").is_ok();
    if !say(json!({"QMP": {}})) {
        return;
    }
    for line in reader.lines().map_while(Result::ok) {
        if line.contains("\"cont\"") {
            waits.store(false, Ordering::Relaxed);
        }
        let status = if waits.load(Ordering::Relaxed) { "paused" } else { "running" };
        let answer = match &line {
            line if line.contains("query-status") => json!({"status": status}),
            line if line.contains("info network") => json!("n0: index=0,type=stream,listening"),
            _ => json!({}),
        };
        if !say(json!({"return": answer})) {
            return;
        }
    }
}
