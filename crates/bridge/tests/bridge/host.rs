//! What of the host is touched, and what is asked of it.

use std::process::Command;

use berth_bridge::{Bridge, Error, Present, Settings, Wanted, close, lacks, present};
use serde_json::json;

use crate::place::{ip, nft, set};
use crate::world::{World, id};

fn ruleset() -> String {
    let output =
        Command::new("nft").env("PATH", "/usr/sbin:/sbin:/usr/bin").args(["list", "ruleset"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn what_is_the_hosts_own_stays_and_all_else_goes() {
    let Some(mut world) = World::new() else { return };
    world.bridge = None;
    world.block(close(&world.folder())).unwrap();
    assert_eq!(world.block(present(&world.settings)).unwrap(), Present::default());
    nft(
        "table inet own { set s { type ipv4_addr; elements = { 1.2.3.4 }; }; chain c { type filter hook forward priority 0; ip saddr @s drop; }; }",
    );
    nft("table bridge own { chain c { type filter hook forward priority 0; }; }");
    ip("tuntap add dev berth1-7 mode tap");
    let own = ruleset();
    world.open();
    world.set(&world.machine(7, json!([]), &[("tcp/9.9.9.1:2222", 22)]));
    assert!(ruleset().contains(&own[..20]) && ruleset().len() > own.len());
    world.block(world.bridge().remove(id(7))).unwrap();
    world.bridge = None;
    world.block(close(&world.folder())).unwrap();
    assert_eq!(ruleset(), own);
    assert_eq!(world.block(present(&world.settings)).unwrap(), Present::default());
    ip("link show berth1-7");
    // It comes again as if nothing had been.
    world.open();
}

#[test]
fn what_is_another_ones_is_refused() {
    let Some(mut world) = World::new() else { return };
    world.bridge = None;
    let refused = |settings: Settings| {
        let folder = tempfile::tempdir().unwrap();
        let opened = world.runtime.block_on(Bridge::open(settings, folder.path()));
        opened.err().expect("a refusal").to_string()
    };
    let subnet = |text: &str| Settings { name: "other".into(), subnet: text.parse().unwrap(), ..Settings::default() };
    for net in ["9.9.9.0/24", "9.9.9.8/29", "9.0.0.0/8", "10.127.0.0/24"] {
        let said = refused(subnet(net));
        assert!(said.contains("give the bridge another subnet"), "{net}: {said}");
    }
    let said = refused(Settings {
        name: "up0".into(),
        subnet: "10.9.0.0/16".parse().unwrap(),
        subnet6: None,
        ..Settings::default()
    });
    assert!(said.contains("give the bridge another name"), "{said}");
    ip("link add berth0-9 type veth peer name peer9");
    world.open();
    let machine = world.machine(8, json!([]), &[]);
    world.set(&machine);
    let mut same = world.machine(3, json!([]), &[]);
    same.address = machine.address;
    let taken = world.block(world.bridge().set(id(3), &same));
    assert!(matches!(&taken, Err(Error::Taken { thing, .. }) if *thing == machine.address.to_string()), "{taken:?}");
    assert!(!world.block(world.bridge().wanted()).contains_key(&id(3)), "nothing was changed");
}

#[test]
fn a_bridge_of_another_service_is_refused_and_stays_as_it_is() {
    let Some(mut world) = World::new() else { return };
    world.set(&world.machine(7, json!([]), &[("tcp/9.9.9.1:2222", 22)]));
    let so = world.block(world.bridge().look()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let open = |settings: &Settings, folder: &std::path::Path| {
        world.runtime.block_on(Bridge::open(settings.clone(), folder)).map(drop)
    };
    let said = open(&world.settings, folder.path()).expect_err("a refusal").to_string();
    let own = world.folder().canonicalize().unwrap();
    assert!(said.contains("set network.bridge and network.subnet"), "{said}");
    assert!(said.contains(&format!("the service of {} made", own.display())), "{said}");
    assert_eq!(world.block(world.bridge().look()).unwrap(), so, "refused");
    // One that had the same name before neither goes on with it nor takes it down.
    let noted = Wanted { settings: world.settings.clone(), ..Wanted::default() };
    std::fs::write(folder.path().join("bridge.json"), serde_json::to_vec(&noted).unwrap()).unwrap();
    open(&world.settings, folder.path()).expect_err("a refusal");
    world.block(close(folder.path())).unwrap();
    let subnet = "10.128.0.0/16".parse().unwrap();
    let own = Settings { name: "other0".into(), subnet, subnet6: None, ..Settings::default() };
    open(&own, folder.path()).unwrap();
    assert_eq!(world.block(world.bridge().look()).unwrap(), so, "another name");
    // The first one goes on with it.
    world.open();
    assert_eq!(world.block(world.bridge().look()).unwrap(), so);
    // One that no service made is nobody's to change.
    ip("link add lan0 type bridge");
    ip("address add 10.5.0.1/24 dev lan0");
    let folder = tempfile::tempdir().unwrap();
    let lan = Settings { name: "lan0".into(), subnet: "10.129.0.0/16".parse().unwrap(), ..own };
    let said = world.runtime.block_on(Bridge::open(lan, folder.path())).err().expect("a refusal").to_string();
    assert!(said.contains("somebody else made"), "{said}");
    let shown = Command::new("ip").args(["-4", "address", "show", "dev", "lan0"]).output().unwrap();
    assert!(String::from_utf8_lossy(&shown.stdout).contains("10.5.0.1/24"));
}

#[test]
fn an_address_that_the_host_was_given_since_takes_no_machine_its_network_away() {
    let Some(mut world) = World::new() else { return };
    let machine = world.machine(7, json!([]), &[]);
    world.set(&machine);
    ip("address add 10.127.9.9/24 dev up0");
    world.open();
    assert_eq!(world.block(world.bridge().wanted()).get(&id(7)), Some(&machine));
    // Addresses that it did not have before are refused as ever.
    world.bridge = None;
    for subnet in ["10.127.9.0/24", "10.126.0.0/15"] {
        let other = Settings { subnet: subnet.parse().unwrap(), ..world.settings.clone() };
        let said = world.runtime.block_on(Bridge::open(other, &world.folder())).err().expect("a refusal").to_string();
        assert!(said.contains("give the bridge another subnet"), "{said}");
    }
    world.open();
}

#[test]
fn the_doctor_says_what_to_type() {
    let Some(world) = World::new() else { return };
    let lacks = || world.block(lacks(&world.settings)).unwrap();
    assert_eq!(lacks(), Vec::<String>::new());
    set("ipv4/conf/up0/forwarding", "0");
    set("ipv6/conf/all/forwarding", "0");
    nft("table ip own { chain c { type filter hook forward priority 0; policy drop; }; }");
    nft("table inet closed { chain c { type filter hook input priority 0; policy drop; }; }");
    let said = lacks();
    assert_eq!(said.len(), 4, "{said:?}");
    for word in [
        "sudo nft insert rule inet closed c iifname berth0 accept",
        "net/ipv4/conf/up0/forwarding=1",
        "net/ipv6/conf/all/forwarding=1",
        "sudo nft insert rule ip own c iifname berth0 accept",
    ] {
        assert!(said.iter().any(|lack| lack.contains(word)), "{word}: {said:?}");
    }
    // Once it was typed it is not said again, wherever in those tables it stands.
    set("ipv4/conf/up0/forwarding", "1");
    set("ipv6/conf/all/forwarding", "1");
    nft("insert rule ip own c iifname berth0 accept");
    nft("table inet closed { chain users { iifname berth0 accept; }; chain c { jump users; }; }");
    assert_eq!(lacks(), Vec::<String>::new());
    set("ipv4/conf/up0/forwarding", "0");
    assert_eq!(
        std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap().trim(),
        "0",
        "nothing of all devices was changed"
    );
}

#[test]
fn a_host_without_ipv6_is_told_how_to_do_without() {
    let Some(mut world) = World::new() else { return };
    world.bridge = None;
    world.block(close(&world.folder())).unwrap();
    // One whose devices have none by default gives the bridge its own.
    set("ipv6/conf/all/disable_ipv6", "1");
    set("ipv6/conf/default/disable_ipv6", "1");
    world.open();
    world.bridge = None;
    world.block(close(&world.folder())).unwrap();
    // A kernel without it has no such settings.
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
    for arguments in [["--make-rprivate", "/"].as_slice(), &["-t", "tmpfs", "none", "/proc/sys/net/ipv6"]] {
        assert!(Command::new("mount").args(arguments).status().unwrap().success(), "{arguments:?}");
    }
    let opened = world.runtime.block_on(Bridge::open(world.settings.clone(), &world.folder()));
    let said = opened.err().expect("a refusal").to_string();
    assert!(said.contains("set network.subnet6 = \"none\""), "{said}");
    let said = world.block(lacks(&world.settings)).unwrap();
    assert!(said.iter().any(|lack| lack.contains("set network.subnet6 = \"none\"")), "{said:?}");
    world.settings.subnet6 = None;
    world.open();
    assert!(!world.block(lacks(&world.settings)).unwrap().iter().any(|lack| lack.contains("IPv6")));
}

#[test]
fn packets_are_as_large_as_the_way_out_takes_them() {
    let Some(mut world) = World::new() else { return };
    ip("link set up0 mtu 1400");
    world.open();
    world.set(&world.machine(7, json!([]), &[]));
    let there = world.block(world.bridge().look()).unwrap();
    assert_eq!((world.bridge().mtu(), there.devices["berth0-7"].mtu, there.devices["berth0"].mtu), (1400, 1400, 1400));
    world.settings.mtu = Some(1280);
    world.open();
    let there = world.block(world.bridge().look()).unwrap();
    assert_eq!((there.devices["berth0-7"].mtu, there.devices["berth0"].mtu), (1280, 1280));
}
