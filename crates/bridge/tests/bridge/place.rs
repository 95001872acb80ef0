//! A network namespace, and a thread that does in it what it is told.

use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use nix::sched::{CloneFlags, unshare};

type Task = Box<dyn FnOnce() + Send>;

pub struct Place {
    tasks: Sender<Task>,
    pub tid: i32,
}

/// Has this thread, and those that it makes, leave for a namespace of their own.
pub fn leave() {
    unshare(CloneFlags::CLONE_NEWNET).expect("a namespace");
    ip("link set lo up");
}

impl Place {
    pub fn new() -> Self {
        let (tasks, todo) = channel::<Task>();
        let (tell, told) = channel();
        thread::spawn(move || {
            leave();
            tell.send(nix::unistd::gettid().as_raw()).unwrap();
            for task in todo {
                task();
            }
        });
        Self { tasks, tid: told.recv().unwrap() }
    }

    /// Does something there and waits for it.
    pub fn run<T: Send + 'static>(&self, act: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, told) = channel();
        self.tasks.send(Box::new(move || drop(tell.send(act())))).unwrap();
        told.recv().expect("what was asked for panicked")
    }

    pub fn ip(&self, arguments: &str) {
        let arguments = arguments.to_owned();
        self.run(move || ip(&arguments));
    }

    pub fn set(&self, path: &'static str, value: &'static str) {
        self.run(move || set(path, value));
    }
}

pub fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

pub fn nft(text: &str) {
    let output = Command::new("nft").env("PATH", "/usr/sbin:/sbin:/usr/bin").arg(text).output().unwrap();
    assert!(output.status.success(), "nft {text}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A setting of the kernel, below `/proc/sys/net`, of this thread's namespace.
pub fn set(path: &str, value: &str) {
    std::fs::write(format!("/proc/sys/net/{path}"), value).unwrap_or_else(|error| panic!("{path}: {error}"));
}
