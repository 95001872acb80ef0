//! A terminal in a sandbox on one of this machine.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::{LocalModes, tcgetattr, tcsetwinsize};
use tokio::process::Child;

use crate::harness::{BOX, Here, PATIENCE, err, out, terminal, until, window};

/// The account of a test may have no shell.
const BASH: [&str; 6] = ["exec", "-t", BOX, "--", "bash", "--norc"];

/// Somebody at a terminal.
struct Person {
    master: OwnedFd,
    slave: OwnedFd,
    child: Child,
    seen: String,
}

impl Person {
    fn at(here: &Here, arguments: &[&str]) -> Self {
        let (master, slave) = terminal(100, 30);
        let mut command = here.berth(&[&["sandbox"], arguments].concat());
        let side = || std::process::Stdio::from(slave.try_clone().expect("a handle"));
        command.stdin(side()).stdout(side()).stderr(side());
        let child = command.spawn().expect("a process");
        rustix::io::ioctl_fionbio(&master, true).expect("no waiting");
        Self { master, slave, child, seen: String::new() }
    }

    fn types(&self, text: &str) {
        rustix::io::write(&self.master, text.as_bytes()).expect("typing");
    }

    /// Waits until this is seen, and forgets what came until then.
    async fn sees(&mut self, text: &str) {
        let waited = tokio::time::timeout(PATIENCE, async {
            while !self.seen.contains(text) {
                let mut buffer = [0; 4096];
                match rustix::io::read(&self.master, &mut buffer) {
                    Ok(read) => self.seen.push_str(&String::from_utf8_lossy(&buffer[..read])),
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        });
        assert!(waited.await.is_ok(), "{text:?} was not seen in {:?}", self.seen);
        let end = self.seen.find(text).expect("a place") + text.len();
        self.seen.drain(..end);
    }

    async fn code(&mut self) -> Option<i32> {
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        ended.expect("an end in time").expect("an end").code()
    }

    fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.slave).expect("modes").local_modes;
        !modes.contains(LocalModes::ICANON) && !modes.contains(LocalModes::ECHO)
    }

    fn tell(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().expect("a number").cast_signed()).expect("a process");
        kill_process(pid, signal).expect("a signal");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shell_is_a_terminal() {
    let here = Here::start().await;
    let mut person = Person::at(&here, &BASH);
    person.types("echo $((6 * 7)) && stty size\n");
    person.sees("42\r\n").await;
    person.sees("30 100\r\n").await;
    assert!(person.is_raw());
    tcsetwinsize(&person.master, window(77, 33)).unwrap();
    person.tell(Signal::WINCH);
    until("the new size", async || {
        let size = here.exec(&["sh", "-c", "for t in /dev/pts/*; do stty size <$t; done 2>/dev/null"]).await;
        out(&size).contains("33 77")
    })
    .await;
    // Ctrl-C is the program's, not this one's.
    person.types("sleep 601\n");
    person.sees("sleep 601").await;
    until("its start", async || !out(&here.exec(&["pgrep", "-x", "-f", "sleep 601"]).await).is_empty()).await;
    person.types("\x03");
    person.types("echo code=$?\n");
    person.sees("code=130").await;
    person.types("exit 5\n");
    assert_eq!(person.code().await, Some(5));
    assert!(!person.is_raw(), "the terminal is as it was");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_survives_its_connection() {
    let here = Here::start().await;
    let mut person = Person::at(&here, &BASH);
    person.types("V=kept; echo at=first=$((1 + 1))\n");
    person.sees("at=first=2").await;
    here.way.cut();
    person.sees("connecting again").await;
    person.sees("at=first=2").await;
    person.types("echo V=$V-$((2 + 2))\n");
    person.sees("V=kept-4").await;
    person.types("exit 3\n");
    assert_eq!(person.code().await, Some(3));
    assert!(!person.is_raw());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_terminal_is_given_back_whatever_happens() {
    let here = Here::start().await;
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut person = Person::at(&here, &BASH);
        person.types("echo up=$((1 + 1))\n");
        person.sees("up=2").await;
        assert!(person.is_raw());
        person.tell(signal);
        assert_eq!(person.code().await, Some(code));
        assert!(!person.is_raw());
    }
    let mut person = Person::at(&here, &BASH);
    person.types("echo up=$((1 + 1))\n");
    person.sees("up=2").await;
    here.fine(&["delete", BOX]).await;
    here.way.cut();
    assert_eq!(person.code().await, Some(125));
    assert!(!person.is_raw());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shell_reads_a_script() {
    let here = Here::start().await;
    let output = here.fed(&BASH, b"echo sum=$((40 + 2))\nexit 6\n").await;
    assert!(out(&output).contains("sum=42"), "{output:?}");
    assert_eq!(output.status.code(), Some(6), "{output:?}");
    let variables = ["exec", "-t", "-e", "A=it's me", BOX, "--", "sh", "-c", "echo [$A]; tty"];
    let output = here.sandbox(&variables).await;
    assert!(out(&output).contains("[it's me]\r\n/dev/pts/"), "{output:?} {}", err(&output));
}
