//! Output that comes faster than a client reads it: who waits for whom, and what ends that.

use berth_domain::agent::STREAM_WINDOW;
use berth_domain::agent::runtime::{Exit, OutputEvent};
use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Agent, Client, Events, posting, request, until, until_async, whole};

const MIB: u64 = 1024 * 1024;
/// How far a reader may be behind, plus what is on its way, in pipes, and between two notes of the program.
const UNDER_WAY: u64 = MIB + STREAM_WINDOW as u64 + 2 * MIB;

/// The text of an event, which must continue the earlier ones.
fn follows(event: &OutputEvent, offset: &mut u64) -> Option<String> {
    let OutputEvent::Output { output, .. } = event else {
        assert!(!matches!(event, OutputEvent::Truncated { .. }), "{event:?}");
        return None;
    };
    assert_eq!(output.offset, *offset);
    let text = output.line.clone().expect("text") + if output.partial { "" } else { "\n" };
    *offset += text.len() as u64;
    Some(text)
}

/// Everything to the end without gaps: its bytes, and the exit.
async fn rest(mut events: Events, mut offset: u64) -> (u64, Exit) {
    loop {
        match events.output().await.expect("an exit") {
            OutputEvent::Exit(exit) => return (offset, exit),
            event => drop(follows(&event, &mut offset)),
        }
    }
}

/// Starts a program that writes for ever; returns its number.
async fn flood(client: &Client, mut body: Value) -> (Events, i32) {
    body["cmd"] = json!("yes 0123456789012345678901234567890123456789012345678901234567890");
    let mut events = client.command(body).await;
    let Some(OutputEvent::Start { pid }) = events.output().await else { panic!("no start") };
    (events, pid)
}

/// The bytes that a process has written.
async fn written(client: &Client, pid: i32) -> u64 {
    let logs = request(Method::GET, &format!("/runtime/processes/{pid}/logs"), whole(""));
    let all = client.events(logs).await.all().await;
    let last = all.iter().rev().find_map(|event| match event {
        OutputEvent::Output { output, .. } => Some(output.offset + output.line.as_ref().unwrap().len() as u64),
        _ => None,
    });
    last.unwrap_or(0)
}

/// Waits until a process has written as much as it may without a reader.
async fn held(client: &Client, pid: i32) {
    let full = u64::from(STREAM_WINDOW) / 2 + MIB;
    until_async("as much output as may be", async || written(client, pid).await > full).await;
}

#[tokio::test]
async fn a_slow_reader_gets_all_of_64_mib() {
    let (agent, client) = Agent::start().await;
    let program = "for n in $(seq 1 64); do seq -f \"$n %01020g\" 1 1024; echo $n >count; done";
    let mut events = client.command(json!({"argv": ["bash", "-c", program]})).await;
    let mut count = 0;
    let (mut read, mut all) = (0, String::new());
    loop {
        let event = events.output().await.expect("an exit");
        if let OutputEvent::Exit(exit) = event {
            assert_eq!(exit, Exit { code: Some(0), signal: None, timed_out: false });
            break;
        }
        let Some(text) = follows(&event, &mut read) else { continue };
        all.push_str(&text);
        if read / MIB == count {
            continue;
        }
        count = read / MIB;
        let noted = std::fs::read_to_string(agent.path("count")).ok().and_then(|text| text.trim().parse().ok());
        let ahead = noted.map_or(0, |noted: u64| (noted * MIB).saturating_sub(read));
        assert!(ahead <= UNDER_WAY, "the program is {ahead} bytes ahead");
    }
    let line = |block: usize, n: usize| format!("{block} {n:0>1020}\n");
    let expected: String = (1..=64).flat_map(|block| (1..=1024).map(move |n| line(block, n))).collect();
    assert!(all == expected, "{} bytes of {}", all.len(), expected.len());
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 48 * 1024, "{peak} KiB");
}

#[tokio::test]
async fn who_stops_to_read_and_leaves_ends_the_command() {
    let (agent, client) = Agent::start().await;
    let leaving = agent.client().await;
    let (events, pid) = flood(&leaving, json!({})).await;
    held(&client, pid).await;
    drop((events, leaving));
    let shown = async || client.get(&format!("/runtime/processes/{pid}")).await.ok().json();
    until_async("the end", async || shown().await["state"] == "exited").await;
    assert_eq!(shown().await["exit"], json!({"code": null, "signal": "SIGTERM", "timed_out": false}));
}

#[tokio::test]
async fn what_is_held_back_ends_when_its_time_is_up() {
    let (agent, client) = Agent::start().await;
    let reading = agent.client().await;
    let (events, pid) = flood(&reading, json!({"timeout_seconds": 1})).await;
    let path = format!("/runtime/processes/{pid}");
    until_async("the end", async || client.get(&path).await.ok().json()["state"] == "exited").await;
    let (bytes, exit) = rest(events, 0).await;
    assert_eq!(exit, Exit { code: None, signal: Some("SIGTERM".into()), timed_out: true });
    assert!((MIB..=UNDER_WAY).contains(&bytes), "{bytes}");
}

#[tokio::test]
async fn what_is_held_back_ends_when_it_is_told_to() {
    let (agent, client) = Agent::start().await;
    for signal in [None, Some("SIGUSR1")] {
        let reading = agent.client().await;
        let (events, pid) = flood(&reading, json!({})).await;
        held(&client, pid).await;
        let path = format!("/runtime/processes/{pid}");
        match signal {
            None => client.delete(&path).await.ok(),
            Some(signal) => client.post(&format!("{path}/signal"), json!({ "signal": signal })).await.ok(),
        };
        let (_, exit) = rest(events, 0).await;
        let name = signal.unwrap_or("SIGTERM").to_owned();
        assert_eq!(exit, Exit { code: None, signal: Some(name), timed_out: false });
    }
}

#[tokio::test]
async fn readers_who_do_not_read_hold_nobody_else_up() {
    let (agent, client) = Agent::start().await;
    let mut stalled = Vec::new();
    for _ in 0..24 {
        stalled.push(flood(&client, json!({})).await);
    }
    let other = agent.client().await;
    for (_, pid) in &stalled {
        held(&other, *pid).await;
    }
    client.run("echo through").await;
    client.get("/control/metrics").await.ok();
}

#[tokio::test]
async fn what_is_detached_waits_for_nobody() {
    let (agent, client) = Agent::start().await;
    let slow = agent.client().await;
    let body = json!({"cmd": "head -c 40000000 /dev/zero | tr '\\0' x | fold -w 1000; touch done", "detach": true});
    let events = slow.command(body).await;
    until("the end of the process", || agent.path("done").exists()).await;
    let all = events.all().await;
    assert!(matches!(all.last(), Some(OutputEvent::Exit(Exit { code: Some(0), .. }))));
    assert!(all.iter().any(|event| matches!(event, OutputEvent::Truncated { .. })), "it fell behind and was told");
    client.get("/runtime/processes").await.ok();
}

const LINES: &str = "seq -f %01023g 1 32768; touch done";
const BYTES: u64 = 32 * MIB;

async fn holding(client: &Client, pid: i32, offset: u64) -> Events {
    let path = format!("/runtime/processes/{pid}/logs?follow=true&hold=true&offset={offset}");
    client.events(request(Method::GET, &path, whole(""))).await
}

#[tokio::test]
async fn a_process_that_is_held_waits_for_its_first_reader() {
    let (agent, client) = Agent::start().await;
    let started = client.post("/runtime/processes", json!({"cmd": LINES, "hold": true})).await;
    assert_eq!(started.status, StatusCode::CREATED);
    let pid = i32::try_from(started.json()["pid"].as_i64().unwrap()).unwrap();
    until_async("some output", async || written(&client, pid).await > MIB).await;
    assert!(written(&client, pid).await <= UNDER_WAY && !agent.path("done").exists());
    let (bytes, exit) = rest(holding(&client, pid, 0).await, 0).await;
    assert_eq!((bytes, exit.code), (BYTES, Some(0)));
}

#[tokio::test]
async fn a_held_command_waits_for_a_reader_who_comes_back() {
    let (agent, client) = Agent::start().await;
    let body = json!({"cmd": LINES, "hold": true, "detach": true});
    let breaking = agent.client().await;
    let mut events = breaking.events(posting("/runtime/commands", &body)).await;
    let Some(OutputEvent::Start { pid }) = events.output().await else { panic!("no start") };
    let mut offset = 0;
    for _ in 0..2000 {
        follows(&events.output().await.unwrap(), &mut offset);
    }
    // A reader that comes while the old one is there takes over; one that only looks delays nobody.
    let second = agent.client().await;
    let mut next = holding(&second, pid, offset).await;
    for _ in 0..2000 {
        follows(&next.output().await.unwrap(), &mut offset);
    }
    drop((next, second));
    let path = format!("/runtime/processes/{pid}/logs?follow=true&offset={offset}");
    let _looking = client.events(request(Method::GET, &path, whole(""))).await;
    let third = agent.client().await;
    let (bytes, exit) = rest(holding(&third, pid, offset).await, offset).await;
    assert_eq!((bytes, exit.code), (BYTES, Some(0)));
    drop(events);
}
