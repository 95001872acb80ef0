//! A machine's firewall rules.

use serde_json::{Value, json};

use crate::packets::{Answered, Silent, at, carries, dial, ping, serve, tcp, udp};
use crate::world::{HOST, OUTSIDE, OUTSIDE6, World};

fn deny(direction: &str) -> Value {
    json!({"direction": direction, "protocol": "any", "action": "deny"})
}

#[test]
fn the_first_rule_that_matches_decides() {
    let Some(world) = World::new() else { return };
    for port in [80, 443, 8005, 8100, 8101] {
        serve(&world.internet, port);
    }
    let rules = json!([
        {"direction": "out", "protocol": "tcp", "ports": [443], "action": "deny"},
        {"direction": "out", "protocol": "tcp", "ports": [80, 443, "8000-8100", "8050-8060"], "source": "8.0.0.0/8", "action": "allow"},
        {"direction": "out", "protocol": "udp", "ports": [80], "source": "2a00:1::/32", "action": "allow"},
        {"direction": "out", "protocol": "icmp", "source": "::/0", "action": "allow"},
        {"direction": "out", "protocol": "tcp", "source": "label:app=web", "action": "allow"},
        deny("out"),
    ]);
    let guest = world.guest(7, rules, &[]);
    for (to, port, by_tcp, by_udp) in [
        (OUTSIDE, 80, Answered, Silent),
        (OUTSIDE, 443, Silent, Silent),
        (OUTSIDE, 8005, Answered, Silent),
        (OUTSIDE, 8100, Answered, Silent),
        (OUTSIDE, 8101, Silent, Silent),
        (OUTSIDE6, 80, Silent, Answered),
    ] {
        let got = guest.place.run(move || (tcp(at(to, port), by_tcp), udp(at(to, port), by_udp)));
        assert_eq!(got, (by_tcp, by_udp), "{to} {port}");
    }
    let got = guest.place.run(|| [ping(OUTSIDE.parse().unwrap(), Silent), ping(OUTSIDE6.parse().unwrap(), Answered)]);
    assert_eq!(got, [Silent, Answered]);
}

#[test]
fn rules_of_what_comes_in_speak_of_the_guests_port_and_of_who_comes() {
    let Some(world) = World::new() else { return };
    let ports = [("tcp/9.9.9.1:2222", 22), ("tcp/9.9.9.1:8080", 80)];
    let rule = |port: u16, source: &str| json!([{"direction": "in", "protocol": "tcp", "ports": [port], "source": source, "action": "allow"}, deny("in")]);
    let guest = world.guest(7, rule(22, "9.9.9.9"), &ports);
    serve(&guest.place, 22);
    serve(&guest.place, 80);
    serve(&world.internet, 80);
    assert_eq!(world.internet.run(|| [tcp(at(HOST, 2222), Answered), tcp(at(HOST, 8080), Silent)]), [Answered, Silent]);
    world.set(&world.machine(7, rule(22, "9.9.9.8/31"), &ports));
    assert_eq!(world.internet.run(|| tcp(at(HOST, 2222), Answered)), Answered);
    world.set(&world.machine(7, rule(22, "9.9.9.8"), &ports));
    assert_eq!(world.internet.run(|| tcp(at(HOST, 2222), Silent)), Silent);
    assert_eq!(guest.place.run(|| tcp(at(OUTSIDE, 80), Answered)), Answered, "answers come in");
}

#[test]
fn a_change_ends_what_it_does_not_allow_and_nothing_else() {
    let Some(world) = World::new() else { return };
    serve(&world.internet, 80);
    serve(&world.internet, 81);
    let guest = world.guest(7, json!([]), &[("tcp/9.9.9.1:2222", 22)]);
    serve(&guest.place, 22);
    let (mut stays, mut goes) =
        guest.place.run(|| [80, 81].map(|port| dial(at(OUTSIDE, port), true).unwrap().0)).into();
    let mut comes = world.internet.run(|| dial(at(HOST, 2222), true).unwrap().0);
    let deny81 = json!({"direction": "out", "protocol": "tcp", "ports": [81], "action": "deny"});
    world.set(&world.machine(7, json!([deny81]), &[("tcp/9.9.9.1:2222", 22)]));
    assert!(carries(&mut stays, true) && carries(&mut comes, true));
    assert!(!carries(&mut goes, false), "it ended");
    world.set(&world.machine(7, json!([deny("in")]), &[("tcp/9.9.9.1:2222", 22)]));
    assert!(carries(&mut stays, true), "what it began, whatever may come in");
    assert!(!carries(&mut comes, false));
}
