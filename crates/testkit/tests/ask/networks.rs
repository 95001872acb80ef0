//! Scenarios of networks.

use std::net::Ipv4Addr;

use berth_domain::firewall::Rules;
use berth_domain::host::ask::network;
use berth_domain::host::network::{Member, Membership, NetworkSpec};
use berth_domain::ids::{MachineId, NetworkId};
use berth_host::EngineError;

use crate::way::{Asked, Way, id, verbs};

/// What the scenarios here drive.
pub const NOUNS: [&[&str]; 2] = [network::Ask::VERBS, &["host.scan_networks"]];

const NETWORK: NetworkId = NetworkId(id(80));

/// The membership of a machine, by the end of its address.
pub fn membership(host: u8) -> Membership {
    let cidr = "10.128.0.0/24".parse().expect("a network");
    let cidr6 = Some("fd00:20::/64".parse().expect("a network"));
    Membership { network: NETWORK, cidr, cidr6, address: Ipv4Addr::new(10, 128, 0, host) }
}

/// Firewall rules of every form.
pub fn rules() -> Rules {
    let rules = serde_json::json!([
        {"direction": "in", "protocol": "tcp", "ports": [22, "8000-8100"], "source": "10.0.0.0/8", "action": "allow"},
        {"direction": "out", "protocol": "any", "action": "deny"},
    ]);
    serde_json::from_value(rules).expect("rules")
}

fn spec() -> NetworkSpec {
    let member = |number: u8, names: &[&str]| Member {
        machine: MachineId(id(number.into())),
        address: membership(number).address,
        names: names.iter().map(|name| (*name).to_owned()).collect(),
    };
    let members = vec![member(2, &["web", "a-vm"]), member(3, &[])];
    let Membership { cidr, cidr6, .. } = membership(2);
    NetworkSpec { id: NETWORK, revision: 3, name: "front".into(), cidr, cidr6, members, rules: rules() }
}

/// What is answered, in order.
async fn life(way: &Way) -> Vec<String> {
    let (mut said, engine) = (Vec::new(), &way.network);
    macro_rules! note {
        ($($answer:expr),* $(,)?) => { $(said.push(format!("{:?}", $answer));)* };
    }
    note!(engine.scan().await, engine.set(&spec()).await, engine.set(&spec()).await, engine.scan().await);
    assert_eq!(way.networks.spec(&NETWORK.to_string()), Some(spec()), "it is told as it was said");
    let fewer = NetworkSpec { members: Vec::new(), ..spec() };
    note!(engine.set(&fewer).await);
    assert_eq!(engine.set(&NetworkSpec { revision: 2, ..spec() }).await, Err(EngineError::Outdated(3)));
    assert_eq!(way.networks.spec(&NETWORK.to_string()), Some(fewer));
    for error in [EngineError::Transient("not now".into()), EngineError::Permanent("never".into())] {
        for call in ["set", "remove", "scan"] {
            way.networks.refuse(call, error.clone());
        }
        note!(engine.set(&spec()).await, engine.remove(NETWORK).await, engine.scan().await);
    }
    for call in ["set", "remove", "scan"] {
        way.networks.allow(call);
    }
    note!(engine.remove(NETWORK).await, engine.remove(NETWORK).await, engine.scan().await);
    said
}

#[tokio::test]
async fn networks_are_made_the_same_in_process_and_by_bytes() {
    let asked = Asked::default();
    let (near, far) = (Way::near(), Way::far(&asked).await);
    assert_eq!(life(&near).await, life(&far).await);
    let verbs = verbs(&asked);
    let missing: Vec<_> = NOUNS.iter().flat_map(|all| all.iter()).filter(|verb| !verbs.contains(*verb)).collect();
    assert!(missing.is_empty(), "no scenario drives {missing:?}");
}
