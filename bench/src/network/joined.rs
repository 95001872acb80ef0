//! What carries networks, as the host starts it: the programs beside machines, and the switch that joins them.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use berth_domain::ids::NetworkId;
use berth_domain::sandbox::network_policy::NetworkPolicy;
use berth_egress::network::{Member, Roster};
use berth_egress::program::process::{self, Executable, Kind, Start};
use berth_egress::program::{Control, pair, switch};
use serde_json::{Value, json};

use super::guest::OUTSIDE;

/// The first of the users that programs become.
const USER: u32 = 0x7080_0001;
/// The network's addresses.
const CIDR: &str = "10.128.0.0/24";

/// The program of a machine.
pub struct Program {
    pub pid: i32,
    control: Control,
}

/// A network of machines.
pub struct Switch {
    pub pid: i32,
    /// Ends with the conversation until it has links.
    _control: switch::Control,
}

/// The address of a member.
pub fn address(index: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 128, 0, 2 + index)
}

fn folder_of(below: &Path, name: &str) -> Result<PathBuf> {
    let dir = below.join(name);
    fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// Who a program is, by its note.
fn pid(dir: &Path) -> Result<i32> {
    let note: Value = serde_json::from_slice(&fs::read(dir.join("egress.json"))?)?;
    Ok(i32::try_from(note["pid"].as_i64().context("a process")?)?)
}

impl Program {
    /// Starts one for the machine whose card is at a socket.
    pub async fn start(below: &Path, name: &str, socket: &Path, user: Option<u32>) -> Result<Self> {
        let (dir, executable) = (folder_of(below, name)?, Executable::installed());
        let start = Start { executable: &executable, kind: Kind::Machine, dir: &dir, id: name, user };
        let mut control = process::spawn(start)?.note(&dir)?;
        control.set_rules(&rules()?).await?;
        control.set_link(&UnixStream::connect(socket)?.into()).await?;
        Ok(Self { pid: pid(&dir)?, control })
    }
}

/// Nothing is outside but one address, which is the host's own: the namespace has no other.
fn rules() -> Result<NetworkPolicy> {
    let outside = OUTSIDE.to_string();
    let said = NetworkPolicy::try_from(&json!({"egress": "deny", "allow": [outside]}));
    let said = said.map_err(|error| anyhow::anyhow!("rules: {error:?}"))?;
    Ok(NetworkPolicy { unlock: vec![format!("{outside}/32").parse()?], ..said })
}

impl Switch {
    /// Starts one that joins programs.
    pub async fn start(below: &Path, programs: &mut [&mut Program], user: Option<u32>) -> Result<Self> {
        let (dir, executable) = (folder_of(below, "switch")?, Executable::installed());
        let start = Start { executable: &executable, kind: Kind::Switch, dir: &dir, id: "switch", user };
        let mut control = process::spawn(start)?.note_switch(&dir)?;
        let members = (0..u8::try_from(programs.len())?).map(|index| Member {
            machine: index.to_string(),
            address: address(index),
            names: Vec::new(),
        });
        let cidr = CIDR.parse().context("addresses")?;
        control.set(Roster { name: "benchmark".into(), cidr, cidr6: None, members: members.collect() }).await?;
        let network: NetworkId = serde_json::from_value(json!("01900000-0000-7000-8000-000000000000"))?;
        for (index, program) in (0..).zip(programs) {
            let (near, far) = pair()?;
            control.link(address(index), &near).await?;
            program.control.join(network, (cidr, address(index)), Some(&far)).await?;
        }
        Ok(Self { pid: pid(&dir)?, _control: control })
    }
}

/// A user of its own, where there are users.
pub fn user(index: u32, are_users: bool) -> Option<u32> {
    are_users.then_some(USER + index)
}

/// Memory that a process has of its own, in MiB: without what its file maps, which all programs share.
pub fn private(process: i32) -> Result<f64> {
    let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
    let lines = rollup.lines().filter(|line| line.starts_with("Anonymous:") || line.starts_with("Private_Hugetlb:"));
    let kib = lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u32>().ok()).sum::<u32>();
    Ok(f64::from(kib) / 1024.0)
}
