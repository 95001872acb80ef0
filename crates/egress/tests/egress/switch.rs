//! The switch of a network, as a process that a test started; what it does for machines is `networks`'.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use berth_domain::ids::NetworkId;
use berth_domain::network::address6;
use berth_egress::network::{At, Member, Roster};
use berth_egress::program::process::{self, Executable, Kind, Start};
use berth_egress::program::{pair, switch};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::beside::{Beside, IDLE_BYTES, eventually, is_root, note};

/// The user that the switch becomes, where the test may choose.
const USER: u32 = 0x7090_0007;

/// A switch and who started it.
pub struct Switch {
    pub runtime: Runtime,
    pub dir: TempDir,
    pub control: Option<switch::Control>,
    pub network: NetworkId,
    roster: Roster,
}

impl Switch {
    /// A switch of a network whose members are called so, beginning with the address that ends with 2.
    pub fn of(members: &[&str]) -> Self {
        Self::at([10, 128, 0, 0], members)
    }

    /// The same with other addresses.
    pub fn at(network: [u8; 4], members: &[&str]) -> Self {
        Self::with(network, None, members)
    }

    /// The same with IPv6 addresses beside those.
    pub fn with(network: [u8; 4], cidr6: Option<&str>, members: &[&str]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let [a, b, c, _] = network;
        let member = |(index, name): (usize, &&str)| {
            let address = Ipv4Addr::new(a, b, c, u8::try_from(index + 2).unwrap());
            Member { machine: (*name).to_owned(), address, names: vec![(*name).to_owned()] }
        };
        let members = members.iter().enumerate().map(member).collect();
        let cidr = format!("{}/24", Ipv4Addr::from(network)).parse().unwrap();
        let cidr6 = cidr6.map(|cidr6| cidr6.parse().unwrap());
        let roster = Roster { name: "front".into(), cidr, cidr6, members };
        let network = NetworkId(uuid_of(network));
        let mut switch = Self { runtime, dir: tempfile::tempdir().unwrap(), control: None, network, roster };
        switch.start();
        switch
    }

    /// Begins, or begins anew.
    pub fn start(&mut self) {
        let executable = Executable::at(env!("CARGO_BIN_EXE_egress-alone"));
        let (dir, roster) = (self.dir.path(), self.roster.clone());
        self.control = Some(self.runtime.block_on(async {
            let user = is_root().then_some(USER);
            let start = Start { executable: &executable, kind: Kind::Switch, dir, id: "a-network", user };
            let mut control = process::spawn(start).unwrap().note_switch(dir).unwrap();
            control.set(roster).await.unwrap();
            control
        }));
    }

    pub fn control<T>(&mut self, ask: impl AsyncFnOnce(&mut switch::Control) -> T) -> T {
        self.runtime.block_on(ask(self.control.as_mut().unwrap()))
    }

    pub fn address(&self, name: &str) -> Ipv4Addr {
        self.roster.members.iter().find(|member| member.machine == name).unwrap().address
    }

    /// A member's IPv6 address.
    pub fn address6(&self, name: &str) -> Ipv6Addr {
        address6(self.roster.cidr, self.address(name), self.roster.cidr6.unwrap())
    }

    fn place(&self, name: &str) -> At {
        At { cidr: self.roster.cidr, cidr6: self.roster.cidr6, own: self.address(name) }
    }

    /// Links a member's program to it.
    pub fn link(&mut self, beside: &mut Beside, name: &str) {
        let (ours, theirs) = pair().unwrap();
        let (network, address, at) = (self.network, self.address(name), self.place(name));
        self.control(async |control| control.link(address, &ours).await).unwrap();
        beside.control(async |control| control.join(network, at, Some(&theirs)).await).unwrap();
    }

    /// Has a program know that its machine is a member, without a link.
    pub fn announce(&self, beside: &mut Beside, name: &str) {
        let (network, at) = (self.network, self.place(name));
        beside.control(async |control| control.join(network, at, None).await).unwrap();
    }

    /// Has no members any more but these.
    pub fn keep(&mut self, names: &[&str]) {
        self.roster.members.retain(|member| names.contains(&member.machine.as_str()));
        let roster = self.roster.clone();
        self.control(async |control| control.set(roster).await).unwrap();
    }

    /// The members that it has links of.
    pub fn links(&mut self) -> Vec<String> {
        let status = self.control(async |control| control.status().await).unwrap();
        let mut links: Vec<_> = status.links.into_iter().map(|linked| linked.machine).collect();
        links.sort_unstable();
        links
    }

    pub fn kill(&mut self) {
        self.runtime.block_on(process::end(self.dir.path())).unwrap();
    }

    fn lives(&self) -> bool {
        process::find(self.dir.path()).unwrap().is_some()
    }

    fn proc(&self, name: &str) -> PathBuf {
        format!("/proc/{}/{name}", note(self.dir.path())["pid"]).into()
    }

    fn status(&self, line: &str) -> String {
        let status = fs::read_to_string(self.proc("status")).unwrap();
        let found = status.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':'));
        found.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let ended = self.runtime.block_on(process::end(self.dir.path()));
        assert!(ended.is_ok() || std::thread::panicking(), "{ended:?}");
    }
}

/// An id that is the same for the same number.
fn uuid_of(network: [u8; 4]) -> uuid::Uuid {
    uuid::Uuid::from_u128(u32::from_be_bytes(network).into())
}

#[test]
fn it_ends_with_the_last_of_its_links_and_conversations() {
    let mut switch = Switch::of(&["web"]);
    let (ours, theirs) = pair().unwrap();
    let address = switch.address("web");
    switch.control(async |control| control.link(address, &ours).await).unwrap();
    drop(ours);
    switch.control = None;
    // Another service finds it.
    let connected = switch.runtime.block_on(process::connect_switch(switch.dir.path())).unwrap();
    switch.control = Some(connected);
    assert_eq!(switch.links(), ["web"]);
    drop(theirs);
    eventually("the end of the link", || switch.links().is_empty().then_some(()));
    assert!(switch.lives());
    switch.control = None;
    eventually("its end", || (!switch.lives()).then_some(()));
}

#[test]
fn it_takes_links_of_members_alone() {
    let mut switch = Switch::of(&["web", "db"]);
    let mut link = |address: [u8; 4], link: OwnedFd| {
        switch.control(async |control| control.link(address.into(), &link).await).err().map(|error| error.to_string())
    };
    for address in [[10, 128, 0, 0], [10, 128, 0, 1], [10, 128, 0, 4], [10, 128, 0, 255], [10, 129, 0, 2]] {
        assert!(link(address, pair().unwrap().0).unwrap().contains("no member's"), "{address:?}");
    }
    let stream = std::os::unix::net::UnixStream::pair().unwrap().0;
    assert!(link([10, 128, 0, 2], stream.into()).unwrap().contains("no socket for messages"));
    let (ours, theirs) = pair().unwrap();
    assert_eq!(link([10, 128, 0, 2], ours), None);
    assert_eq!(switch.links(), ["web"]);
    // Who is no member any more has no link.
    switch.keep(&["db"]);
    assert_eq!(switch.links(), Vec::<String>::new());
    let end = || rustix::net::recv(&theirs, &mut [0; 8][..], rustix::net::RecvFlags::empty()).ok();
    assert_eq!(eventually("the end of the link", end).0, 0);
    let twice = vec![Member { machine: "a".into(), address: [10, 128, 0, 2].into(), names: vec![] }; 2];
    let roster = Roster { name: String::new(), cidr: "10.128.0.0/24".parse().unwrap(), cidr6: None, members: twice };
    assert!(switch.control(async |control| control.set(roster).await).is_err());
}

#[test]
fn it_is_confined() {
    let mut switch = Switch::of(&["web"]);
    let (ours, _theirs) = pair().unwrap();
    let address = switch.address("web");
    switch.control(async |control| control.link(address, &ours).await).unwrap();
    let none = "0".repeat(16);
    assert_eq!((switch.status("NoNewPrivs"), switch.status("Seccomp")), ("1".into(), "2".into()));
    assert_eq!(
        (switch.status("CapEff"), switch.status("CapPrm"), switch.status("Threads")),
        (none.clone(), none, "1".into())
    );
    if is_root() {
        let user = [USER.to_string().as_str(); 4].join(" ");
        assert_eq!(
            (switch.status("Uid"), switch.status("Gid"), switch.status("Groups")),
            (user.clone(), user, String::new())
        );
        assert_eq!(fs::read_dir(switch.proc("root")).unwrap().count(), 0, "an empty root");
    }
    assert!(fs::read(switch.proc("environ")).unwrap().is_empty());
    assert_eq!(fs::read_dir(switch.proc("cwd")).unwrap().count(), 0);
    // Nothing but sockets of this kind, what it waits by, what it says of itself, and nothing.
    let open = fs::read_dir(switch.proc("fd")).unwrap().flatten();
    let open: Vec<_> = open.map(|entry| fs::read_link(entry.path()).unwrap().display().to_string()).collect();
    let of_kernel = ["socket:[", "anon_inode:[event", "/dev/null"];
    let log = switch.dir.path().join("egress.log").display().to_string();
    for file in &open {
        assert!(of_kernel.iter().any(|kind| file.starts_with(kind)) || *file == log, "{open:?}");
    }
    assert!(open.len() < 16, "{open:?}");
}

#[test]
fn it_takes_little_memory() {
    let mut switch = Switch::of(&["web", "db"]);
    let links: Vec<_> = ["web", "db"].map(|name| (switch.address(name), pair().unwrap())).into_iter().collect();
    for (address, (ours, _)) in &links {
        switch.control(async |control| control.link(*address, ours).await).unwrap();
    }
    let text = fs::read_to_string(switch.proc("smaps_rollup")).unwrap();
    let private = text.lines().filter(|line| line.starts_with("Anonymous:") || line.starts_with("Private_Hugetlb"));
    let kilobytes: u64 = private.map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()).sum();
    assert!(kilobytes * 1024 <= IDLE_BYTES, "{kilobytes} KiB\n{text}");
}
