//! A service that is killed at every step.

use std::process::Command;

use berth_bridge::{Present, Wanted};
use serde_json::json;

use crate::packets::{carries, dial, serve};
use crate::place::{ip, nft, set};
use crate::world::{OUTSIDE, World, all, machine};

fn before(world: &World) -> Wanted {
    let ports = [("tcp/9.9.9.1:2222", 22)];
    let machines =
        all([1, 2].map(|slot| machine(&world.settings, slot, json!([]), if slot == 1 { &ports } else { &[] })));
    Wanted { settings: world.settings.clone(), machines }
}

/// One changed, one is gone, one came; what one had is another's.
fn after(world: &World) -> Wanted {
    let deny = json!([{"direction": "in", "protocol": "udp", "action": "deny"}]);
    let mut changed = machine(&world.settings, 1, deny, &[("tcp/9.9.9.1:2223", 22)]);
    changed.mac = "52:54:00:aa:00:01".parse().unwrap();
    let new = machine(&world.settings, 3, json!([]), &[("tcp/9.9.9.1:2222", 22)]);
    Wanted { settings: world.settings.clone(), machines: all([changed, new]) }
}

/// What a host has that knew nothing before.
fn made(wanted: &Wanted) -> Present {
    let wanted = wanted.clone();
    let made = std::thread::spawn(move || {
        let world = World::new().unwrap();
        world.block(world.bridge().reconcile(&wanted.machines)).unwrap();
        world.block(world.bridge().look()).unwrap()
    });
    made.join().unwrap()
}

/// Whether a service that makes it so was killed before a step; it ends where it takes fewer.
fn killed(world: &World, wanted: &Wanted, step: usize) -> bool {
    let file = world.dir.path().join("wanted.json");
    std::fs::write(&file, serde_json::to_vec(wanted).unwrap()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_bridge-alone"));
    let status = command.arg("crash").arg(world.folder()).arg(file).arg(step.to_string()).status().unwrap();
    assert!(status.success() || status.code().is_none(), "{status}");
    !status.success()
}

#[test]
fn whatever_step_it_is_killed_at_the_next_service_makes_all_equal() {
    let Some(mut world) = World::new() else { return };
    let (before, after) = (before(&world), after(&world));
    let (of_before, of_after) = (made(&before), made(&after));
    assert_ne!(of_before, of_after);
    let mut seen = [0, 0];
    for step in 1.. {
        world.block(world.bridge().reconcile(&before.machines)).unwrap();
        world.bridge = None;
        let was_killed = killed(&world, &after, step);
        world.open();
        let is_new = world.block(world.bridge().wanted()) == after.machines;
        seen[usize::from(is_new)] += 1;
        let expected = if is_new { &of_after } else { &of_before };
        assert_eq!(&world.block(world.bridge().look()).unwrap(), expected, "killed before step {step}");
        if !was_killed {
            assert!(is_new);
            break;
        }
    }
    assert!(seen[0] > 5 && seen[1] > 10, "killed {seen:?} times");
}

#[test]
fn a_host_that_somebody_meddled_with_comes_out_equal() {
    let Some(mut world) = World::new() else { return };
    serve(&world.internet, 80);
    let guest = world.guest(1, json!([]), &[("tcp/9.9.9.1:2222", 22)]);
    let mut open = guest.place.run(|| dial((OUTSIDE.parse::<std::net::IpAddr>().unwrap(), 80).into(), true).unwrap().0);
    let so = world.block(world.bridge().look()).unwrap();
    let meddle: [&dyn Fn(); 8] = [
        &|| nft("flush chain inet berth0 judge"),
        &|| nft("delete table bridge berth0"),
        &|| nft("add element inet berth0 begins4 { 10.127.9.9 : goto out_1 }"),
        &|| ip("link set berth0-1 type bridge_slave isolated off learning on"),
        &|| ip("link set berth0-1 nomaster"),
        &|| ip("neighbour replace 10.127.0.77 lladdr 52:54:00:00:00:01 dev berth0 nud permanent"),
        &|| ip("tuntap add dev berth0-77 mode tap"),
        &|| ip("address add 10.127.0.5/16 dev berth0"),
    ];
    for (number, meddle) in meddle.into_iter().enumerate() {
        meddle();
        assert_ne!(world.block(world.bridge().look()).unwrap(), so, "{number}");
        world.open();
        assert_eq!(world.block(world.bridge().look()).unwrap(), so, "{number}");
        assert!(carries(&mut open, true), "{number}: what was open is not cut");
    }
}

#[test]
fn damage_is_seen_and_made_up_while_the_service_runs() {
    let Some(world) = World::new() else { return };
    let machine = world.machine(1, json!([]), &[("tcp/9.9.9.1:2222", 22)]);
    world.set(&machine);
    let stands = || world.block(world.bridge().stands()).unwrap();
    let so = world.block(world.bridge().look()).unwrap();
    assert!(stands());
    let damage: [&dyn Fn(); 8] = [
        &|| nft("flush table inet berth0"),
        &|| nft("flush table bridge berth0"),
        &|| nft("flush chain inet berth0 input"),
        &|| nft("delete table inet berth0"),
        &|| nft("flush ruleset"),
        &|| set("ipv4/conf/berth0/forwarding", "0"),
        &|| set("ipv6/conf/berth0/forwarding", "0"),
        &|| ip("link set berth0 down"),
    ];
    for (number, damage) in damage.into_iter().enumerate() {
        damage();
        assert!(!stands(), "{number}");
        world.block(world.bridge().reconcile(&all([machine.clone()]))).unwrap();
        assert!(stands(), "{number}");
        assert_eq!(world.block(world.bridge().look()).unwrap(), so, "{number}");
    }
}

#[test]
fn changes_come_out_equal_to_what_is_made_at_once() {
    let Some(world) = World::new() else { return };
    let (before, after) = (before(&world), after(&world));
    world.block(world.bridge().reconcile(&before.machines)).unwrap();
    for id in before.machines.keys().filter(|id| !after.machines.contains_key(*id)) {
        world.block(world.bridge().remove(*id)).unwrap();
        // Once more, as by who was not told.
        world.block(world.bridge().remove(*id)).unwrap();
    }
    for (id, machine) in &after.machines {
        world.block(world.bridge().set(*id, machine)).unwrap();
        world.block(world.bridge().set(*id, machine)).unwrap();
    }
    assert_eq!(world.block(world.bridge().look()).unwrap(), made(&after));
}
