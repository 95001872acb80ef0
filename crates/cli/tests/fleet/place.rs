//! Hosts on a switch: network namespaces without names, which go with the threads and processes in them.

use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use nix::sched::{CloneFlags, unshare};

type Task = Box<dyn FnOnce() + Send>;

/// A namespace, and a thread that does in it what it is told.
pub struct Place {
    tasks: Sender<Task>,
    tid: i32,
}

/// Has this thread, and those that it makes, leave for a namespace of their own.
fn leave() {
    unshare(CloneFlags::CLONE_NEWNET).expect("a namespace");
    ip("link set lo up");
}

fn ip(arguments: &str) {
    run("ip", arguments);
}

fn run(program: &str, arguments: &str) {
    let output = Command::new(program).args(arguments.split(' ')).output().expect("a program");
    assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Place {
    fn new() -> Self {
        let (tasks, todo) = channel::<Task>();
        let (tell, told) = channel();
        thread::spawn(move || {
            leave();
            tell.send(nix::unistd::gettid().as_raw()).expect("a listener");
            for task in todo {
                task();
            }
        });
        Self { tasks, tid: told.recv().expect("a thread") }
    }

    /// Does something there and waits for it. A process that it begins may end with the thread, which lives as long as this.
    pub fn run<T: Send + 'static>(&self, act: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, told) = channel();
        self.tasks.send(Box::new(move || drop(tell.send(act())))).expect("a thread");
        told.recv().expect("what was asked for panicked")
    }

    /// What begins a program there, which ends with the thread that calls for it.
    pub fn launcher(&self) -> Vec<String> {
        let space = format!("--net=/proc/{}/task/{}/ns/net", std::process::id(), self.tid);
        ["nsenter", &space, "setpriv", "--pdeathsig", "KILL"].map(str::to_owned).to_vec()
    }

    /// Has nothing that is sent here reach an address, or again; what comes from there is heard.
    pub fn silences(&self, number: u8, silences: bool) {
        let verb = if silences { "add" } else { "del" };
        self.ip(&format!("route {verb} blackhole {}/32", address(number)));
    }

    /// Has no more than so many megabits a second go out from here, or as many as can again.
    pub fn narrows(&self, megabits: Option<u32>) {
        let words = match megabits {
            Some(megabits) => format!("qdisc add dev eth0 root tbf rate {megabits}mbit burst 64kb latency 100ms"),
            None => "qdisc del dev eth0 root".into(),
        };
        self.run(move || run("tc", &words));
    }

    /// Has so many of a hundred packets that come here be lost, or none again.
    pub fn loses(&self, of_hundred: u8) {
        let hook = "type filter hook input priority 0 ;";
        let rules = match of_hundred {
            0 => "delete table ip loss".into(),
            _ => format!("table ip loss {{ chain here {{ {hook} numgen random mod 100 < {of_hundred} drop ; }} ; }}"),
        };
        self.run(move || run("nft", &rules));
    }

    /// Has `ip` do something there.
    pub fn ip(&self, arguments: &str) {
        let arguments = arguments.to_owned();
        self.run(move || ip(&arguments));
    }
}

/// A switch, hosts with an address each of 10.77.0.0/24, and this thread as one of them.
pub struct Lan {
    switch: Place,
}

impl Lan {
    /// Makes a switch, and has this thread and those that it makes be at an address.
    pub fn around(number: u8) -> Self {
        leave();
        let lan = Self { switch: Place::new() };
        lan.switch.ip("link add br0 type bridge");
        lan.switch.ip("link set br0 up");
        ip(&format!("link add eth0 type veth peer name p{number} netns {}", lan.switch.tid));
        lan.join(number);
        ip(&format!("address add {}/24 dev eth0", address(number)));
        ip("link set eth0 up");
        lan
    }

    /// Another host.
    pub fn host(&self, number: u8) -> Place {
        let place = Place::new();
        place.ip(&format!("link add eth0 type veth peer name p{number} netns {}", self.switch.tid));
        self.join(number);
        place.ip(&format!("address add {}/24 dev eth0", address(number)));
        place.ip("link set eth0 up");
        place
    }

    /// Takes a host's port off the switch: whoever asks it hears nothing, and nobody is told.
    pub fn cut(&self, number: u8) {
        self.switch.ip(&format!("link set p{number} nomaster"));
    }

    /// Puts the port back.
    pub fn join(&self, number: u8) {
        self.switch.ip(&format!("link set p{number} master br0 up"));
    }
}

/// A host's address.
pub fn address(number: u8) -> String {
    format!("10.77.0.{number}")
}
