//! A thousand machines.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use berth_bridge::ruleset::{Surroundings, change, whole};
use berth_bridge::{Settings, Wanted};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde_json::json;

use crate::place::leave;
use crate::world::{all, machine};

const PROTOCOLS: &str = "/etc/protocols";
const MANY: u16 = 1000;
/// Most lines and bytes of a change of one machine's rules, and of one that comes with a few ports.
const OF_RULES: (usize, usize) = (12, 600);
const OF_MACHINE: (usize, usize) = (80, 4500);

fn apply(text: &str) -> Option<String> {
    let mut command = Command::new("nft");
    command.env("PATH", "/usr/sbin:/sbin:/usr/bin").args(["-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (!output.status.success()).then(|| String::from_utf8(output.stderr).unwrap())
}

/// Has this thread's host know no names of protocols, as one without the package `netbase`.
fn without_protocols() {
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
    if Path::new(PROTOCOLS).exists() {
        mount(Some("/dev/null"), PROTOCOLS, none, MsFlags::MS_BIND, none).unwrap();
    }
}

fn is_below(text: &str, (lines, bytes): (usize, usize)) -> bool {
    text.lines().count() <= lines && text.len() <= bytes
}

#[test]
fn a_change_of_one_among_a_thousand_is_one_small_transaction() {
    let settings = Settings::default();
    let of = |slot: u16, rules| {
        let (one, other) = (format!("tcp/9.9.9.1:{}", 20_000 + slot), format!("udp/9.9.9.1:{}", 20_000 + slot));
        machine(&settings, slot, rules, &[(one.as_str(), 22), (other.as_str(), 53)])
    };
    let wanted = Wanted { settings: settings.clone(), machines: all((1..=MANY).map(|slot| of(slot, json!([])))) };
    wanted.check().unwrap();
    let all = whole(&wanted, &Surroundings::default());
    let denied = of(500, json!([{"direction": "out", "protocol": "tcp", "ports": [25], "action": "deny"}]));
    let before = of(500, json!([]));
    let changed = change(&settings, Some(&before), Some(&denied));
    assert!(is_below(&changed, OF_RULES), "{} lines, {} bytes:\n{changed}", changed.lines().count(), changed.len());
    let new = change(&settings, None, Some(&of(MANY + 1, json!([]))));
    assert!(is_below(&new, OF_MACHINE), "{} lines, {} bytes:\n{new}", new.lines().count(), new.len());
    let gone = change(&settings, Some(&denied), None);
    assert!(is_below(&gone, OF_MACHINE), "{gone}");
    assert_eq!(change(&settings, Some(&before), Some(&before)), "");
    if !nix::unistd::geteuid().is_root() {
        eprintln!("only root may try the rules");
        return;
    }
    leave();
    without_protocols();
    for text in [&all, &changed, &new, &gone, &all] {
        assert_eq!(apply(text), None);
    }
    // What is not so is refused as a whole.
    assert!(apply(&(gone.clone() + &gone)).is_some_and(|said| !said.is_empty()));
    assert_eq!(apply(&gone), None, "nothing of it was done");
}
