//! Processes: their list, their logs, their input, their end.

use berth_domain::agent::runtime::{Exit, OutputEvent};
use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Agent, Client, Events, piecewise, request, until, whole};

async fn logs(client: &Client, pid: i64, query: &str) -> Events {
    client.events(request(Method::GET, &format!("/runtime/processes/{pid}/logs{query}"), whole(""))).await
}

fn text(events: &[OutputEvent]) -> Vec<(u64, String)> {
    let line = |event: &OutputEvent| match event {
        OutputEvent::Output { output, .. } => Some((output.offset, output.line.clone().unwrap())),
        _ => None,
    };
    events.iter().filter_map(line).collect()
}

async fn ended(client: &Client, pid: i64) -> Vec<OutputEvent> {
    logs(client, pid, "?follow=true").await.all().await
}

#[tokio::test]
async fn a_process_outlives_its_client_and_is_listed() {
    let (agent, client) = Agent::start().await;
    let gone = agent.client().await;
    let pid = gone.start(json!({"argv": ["sleep", "1000"]})).await;
    drop(gone);
    let shown = client.get(&format!("/runtime/processes/{pid}")).await.ok().json();
    assert_eq!(
        (shown["cmd"].clone(), shown["state"].clone(), shown.get("exit")),
        (json!("sleep 1000"), json!("running"), None)
    );
    assert!(shown["started_at"].as_str().unwrap().ends_with('Z'));
    let other = client.start(json!({"cmd": "exit 3"})).await;
    ended(&client, other).await;
    let list = client.get("/runtime/processes").await.ok().json();
    let pids = list["data"].as_array().unwrap().iter().map(|one| one["pid"].as_i64().unwrap()).collect::<Vec<_>>();
    assert_eq!(pids, [other, pid], "the newest first");
    let expected = json!({"code": 3, "signal": null, "timed_out": false});
    assert_eq!(list["data"][0]["exit"], expected);
    assert_eq!(list["data"][0]["state"], "exited");
}

#[tokio::test]
async fn logs_are_read_again_from_any_offset() {
    let (_agent, client) = Agent::start().await;
    let pid = client.start(json!({"cmd": "echo one; echo two >&2; sleep 0.2; echo three"})).await;
    let all = ended(&client, pid).await;
    assert_eq!(text(&all).len(), 3);
    assert!(matches!(all.last(), Some(OutputEvent::Exit(Exit { code: Some(0), .. }))));
    assert_eq!(logs(&client, pid, "").await.all().await, all);
    for event in &all {
        let OutputEvent::Output { output, .. } = event else { continue };
        let rest = logs(&client, pid, &format!("?offset={}", output.offset)).await.all().await;
        assert_eq!(rest, all[all.iter().position(|other| other == event).unwrap()..]);
    }
    let middle = logs(&client, pid, "?offset=1").await.all().await;
    assert_eq!(text(&middle)[0], (1, text(&all)[0].1[1..].to_owned()));
    let errors = logs(&client, pid, "?stream=stderr").await.all().await;
    assert!(
        errors.iter().all(|event| matches!(event, OutputEvent::Output { stderr: true, .. } | OutputEvent::Exit(_)))
    );
    assert_eq!(text(&errors)[0].1, "two");
    assert_eq!(text(&logs(&client, pid, "?stream=stdout").await.all().await).len(), 2);
    assert_eq!(logs(&client, pid, "?offset=1000").await.all().await.len(), 1, "only the exit");
    client
        .get(&format!("/runtime/processes/{pid}/logs?offset=-1&stream=x&follow=x"))
        .await
        .names(&["follow", "offset", "stream"]);
}

#[tokio::test]
async fn logs_without_follow_end_while_it_runs() {
    let (_agent, client) = Agent::start().await;
    let pid = client.start(json!({"cmd": "echo one; exec sleep 1000"})).await;
    let mut following = logs(&client, pid, "?follow=true").await;
    assert!(matches!(following.output().await, Some(OutputEvent::Output { .. })));
    let now = logs(&client, pid, "").await.all().await;
    assert_eq!(text(&now), [(0, "one".into())]);
    assert!(!now.last().unwrap().is_last());
    client.delete(&format!("/runtime/processes/{pid}")).await.ok();
    let rest = following.all().await;
    let expected = Exit { code: None, signal: Some("SIGTERM".into()), timed_out: false };
    assert_eq!(rest, [OutputEvent::Exit(expected)]);
}

#[tokio::test]
async fn old_output_goes_and_the_reader_is_told() {
    let (_agent, client) = Agent::start().await;
    // 12 MiB in lines of 1 KiB.
    let line = "x".repeat(1023);
    let pid = client.start(json!({"cmd": format!("yes {line} | head -n 12288")})).await;
    let all = ended(&client, pid).await;
    let follower_lost = all.iter().any(|event| matches!(event, OutputEvent::Truncated { .. }));
    assert!(follower_lost || text(&all).len() == 12_288, "all, or told");
    let kept = logs(&client, pid, "").await.all().await;
    let Some(OutputEvent::Truncated { from }) = kept.first() else { panic!("{:?}", kept.first()) };
    let lines = text(&kept);
    assert_eq!(lines[0].0, *from);
    let bytes = 12 * 1024 * 1024 - from;
    assert!((8 * 1024 * 1024..9 * 1024 * 1024).contains(&bytes), "{bytes}");
    assert!(lines.windows(2).all(|two| two[1].0 == two[0].0 + 1024) && lines.iter().all(|(_, text)| *text == line));
    let exact = logs(&client, pid, &format!("?offset={from}")).await.all().await;
    assert!(matches!(exact.first(), Some(OutputEvent::Output { .. })), "what is there is not called truncated");
}

#[tokio::test]
async fn input_is_typed_in_pieces_until_its_end() {
    let (_agent, client) = Agent::start().await;
    let pid = client.start(json!({"cmd": "cat; echo end", "stdin": "first\n"})).await;
    let path = format!("/runtime/processes/{pid}/stdin");
    let mut events = logs(&client, pid, "?follow").await;
    let mut line = async || text(&[events.output().await.unwrap()])[0].1.clone();
    assert_eq!(line().await, "first");
    let (sender, body) = piecewise();
    let typing = tokio::spawn({
        let (client, path) = (client.clone(), path.clone());
        async move { client.call(request(Method::POST, &path, body)).await }
    });
    sender.send("second\n".into()).await.unwrap();
    assert_eq!(line().await, "second", "before the body ends");
    drop(sender);
    assert_eq!(typing.await.unwrap().status, StatusCode::NO_CONTENT);
    let last = request(Method::POST, &format!("{path}?eof=true"), whole("third\n"));
    assert_eq!(client.call(last).await.status, StatusCode::NO_CONTENT);
    assert_eq!((line().await, line().await), ("third".into(), "end".into()));
    assert!(matches!(events.output().await, Some(OutputEvent::Exit(_))));
    client.call(request(Method::POST, &path, whole("more"))).await.refused(409, "process_ended");
    client.call(request(Method::POST, &format!("{path}?eof=7"), whole(""))).await.names(&["eof"]);
}

#[tokio::test]
async fn input_that_nobody_reads_ends_with_the_process() {
    let (_agent, client) = Agent::start().await;
    let pid = client.start(json!({"cmd": "exec sleep 1000"})).await;
    let path = format!("/runtime/processes/{pid}");
    let typing = tokio::spawn({
        let (client, path) = (client.clone(), format!("{path}/stdin"));
        async move { client.call(request(Method::POST, &path, whole(vec![b'x'; 1_000_000]))).await }
    });
    client.delete(&path).await.ok();
    typing.await.unwrap().refused(409, "process_ended");
}

#[tokio::test]
async fn signals_reach_the_group() {
    let (_agent, client) = Agent::start().await;
    let cmd = "trap 'echo caught; exit 5' USR1; echo ready; while :; do sleep 0.02; done";
    let pid = client.start(json!({ "cmd": cmd })).await;
    let path = format!("/runtime/processes/{pid}/signal");
    let mut events = logs(&client, pid, "?follow").await;
    events.output().await.unwrap();
    client.post(&path, json!({"signal": "SIGNOPE"})).await.names(&["signal"]);
    client.post(&path, json!({})).await.names(&["signal"]);
    assert_eq!(client.post(&path, json!({"signal": "SIGUSR1"})).await.status, StatusCode::NO_CONTENT);
    let rest = events.all().await;
    // The shell may report that its child got the signal, too.
    assert!(text(&rest).iter().any(|(_, line)| line == "caught"), "{rest:?}");
    assert!(matches!(rest.last(), Some(OutputEvent::Exit(Exit { code: Some(5), .. }))));
    client.post(&path, json!({"signal": "SIGINT"})).await.refused(409, "process_ended");
}

#[tokio::test]
async fn delete_ends_one_that_runs_and_forgets_one_that_ended() {
    let (agent, client) = Agent::start().await;
    let pid = client.start(json!({"cmd": "trap '' TERM; touch ready; while :; do sleep 0.1; done"})).await;
    until("the trap", || agent.path("ready").exists()).await;
    let path = format!("/runtime/processes/{pid}");
    assert_eq!(client.delete(&path).await.status, StatusCode::NO_CONTENT);
    let exit = client.get(&path).await.ok().json()["exit"].clone();
    assert_eq!(exit, json!({"code": null, "signal": "SIGKILL", "timed_out": false}));
    assert_eq!(client.delete(&path).await.status, StatusCode::NO_CONTENT);
    client.get(&path).await.refused(404, "not_found");
}

#[tokio::test]
async fn unknown_processes_are_not_found() {
    let (_agent, client) = Agent::start().await;
    for pid in ["999999999", "x", "-1", "1"] {
        let path = format!("/runtime/processes/{pid}");
        client.get(&path).await.refused(404, "not_found");
        client.delete(&path).await.refused(404, "not_found");
        client.get(&format!("{path}/logs")).await.refused(404, "not_found");
        client.post(&format!("{path}/signal"), json!({"signal": "SIGINT"})).await.refused(404, "not_found");
        client.call(request(Method::POST, &format!("{path}/stdin"), whole(""))).await.refused(404, "not_found");
    }
}

#[tokio::test]
async fn the_last_256_that_ended_are_kept() {
    let (_agent, client) = Agent::start().await;
    let first = client.start(json!({"argv": ["true"]})).await;
    ended(&client, first).await;
    for _ in 0..255 {
        let pid = client.start(json!({"argv": ["true"]})).await;
        ended(&client, pid).await;
    }
    client.get(&format!("/runtime/processes/{first}")).await.ok();
    let last = client.start(json!({"argv": ["true"]})).await;
    ended(&client, last).await;
    client.get(&format!("/runtime/processes/{first}")).await.refused(404, "not_found");
    let shown: Value = client.get("/runtime/processes").await.json();
    assert_eq!(shown["data"].as_array().unwrap().len(), 256);
}
