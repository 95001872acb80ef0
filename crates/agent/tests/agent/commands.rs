//! Commands: their streams, and their ends.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use berth_domain::agent::runtime::{Exit, Output, OutputEvent};
use http::Method;
use serde_json::{Value, json};

use crate::harness::{Agent, Client, Told, posting, request, until, whole};

fn lines(events: &[OutputEvent], wanted: bool) -> Vec<(u64, String, bool)> {
    let line = |event: &OutputEvent| match event {
        OutputEvent::Output { stderr, output } if *stderr == wanted => {
            Some((output.offset, output.line.clone().expect("text"), output.partial))
        }
        _ => None,
    };
    events.iter().filter_map(line).collect()
}

fn exit(events: &[OutputEvent]) -> &Exit {
    match events.last() {
        Some(OutputEvent::Exit(exit)) => exit,
        other => panic!("no exit but {other:?}"),
    }
}

fn code(code: i32) -> Exit {
    Exit { code: Some(code), signal: None, timed_out: false }
}

#[tokio::test]
async fn a_command_tells_its_lines_and_its_code() {
    let (_agent, client) = Agent::start().await;
    let events = client.run("echo one; echo; printf three; exit 7").await;
    assert!(matches!(events[0], OutputEvent::Start { pid } if pid > 1));
    let expected = [(0, "one".into(), false), (4, String::new(), false), (5, "three".into(), true)];
    assert_eq!(lines(&events, false), expected);
    assert_eq!(*exit(&events), code(7));
}

#[tokio::test]
async fn both_streams_share_one_count_of_bytes() {
    let (agent, client) = Agent::start().await;
    let cmd = "echo out; while [ ! -e go ]; do sleep 0.01; done; echo err >&2";
    let mut events = client.command(json!({ "cmd": cmd })).await;
    let start = events.output().await.unwrap();
    let first = events.output().await.unwrap();
    agent.write("go", b"");
    let rest = events.all().await;
    assert!(matches!(start, OutputEvent::Start { .. }));
    assert_eq!(lines(&[first], false), [(0, "out".into(), false)]);
    assert_eq!(lines(&rest, true), [(4, "err".into(), false)]);
}

#[tokio::test]
async fn lines_come_when_they_are_said_and_whole() {
    let (agent, client) = Agent::start().await;
    let cmd = "echo first; printf 'name? '; while [ ! -e go ]; do sleep 0.01; done; echo last";
    let mut events = client.command(json!({ "cmd": cmd })).await;
    assert!(matches!(events.output().await, Some(OutputEvent::Start { .. })));
    let mut next = async || match events.output().await {
        Some(OutputEvent::Output { output, .. }) => output,
        other => panic!("{other:?}"),
    };
    assert_eq!(next().await, Output { line: Some("first".into()), offset: 0, ..Output::default() });
    // Longer than any pause after which half a line might be sent.
    tokio::time::sleep(Duration::from_millis(300)).await;
    agent.write("go", b"");
    assert_eq!(next().await, Output { line: Some("name? last".into()), offset: 6, ..Output::default() });
}

#[tokio::test]
async fn a_line_is_cut_where_the_other_stream_has_its_turn() {
    let (agent, client) = Agent::start().await;
    let cmd =
        "printf ab; while [ ! -e a ]; do sleep 0.01; done; echo x >&2; while [ ! -e b ]; do sleep 0.01; done; echo c";
    let mut bytes = client.frames(json!({ "cmd": cmd })).await;
    assert_eq!(bytes.output().await, (false, 0, b"ab".to_vec()));
    let pid = bytes.pid();
    let log = format!("/runtime/processes/{pid}/logs?follow");
    let lines_of = client.events(request(Method::GET, &log, whole(""))).await;
    agent.write("a", b"");
    assert_eq!(bytes.output().await, (true, 2, b"x\n".to_vec()));
    agent.write("b", b"");
    let events = lines_of.all().await;
    assert_eq!(lines(&events, false), [(0, "ab".into(), true), (4, "c".into(), false)]);
    assert_eq!(lines(&events, true), [(2, "x".into(), false)]);
    assert_eq!(bytes.output().await, (false, 4, b"c\n".to_vec()));
}

#[tokio::test]
async fn who_reads_bytes_sees_a_prompt_and_gets_many_lines_at_once() {
    let (agent, client) = Agent::start().await;
    let cmd = "printf 'name? '; while [ ! -e go ]; do sleep 0.01; done; seq 100000; printf '\\377\\0'; exit 3";
    let mut frames = client.frames(json!({ "cmd": cmd })).await;
    assert_eq!(frames.output().await, (false, 0, b"name? ".to_vec()));
    agent.write("go", b"");
    let (mut text, mut count) = (b"name? ".to_vec(), 0);
    let exit = loop {
        match frames.next().await {
            Told::Output { stderr, offset, bytes } => {
                assert_eq!((stderr, offset), (false, text.len() as u64));
                text.extend_from_slice(&bytes);
                count += 1;
            }
            Told::Event(OutputEvent::Exit(exit)) => break exit,
            other @ Told::Event(_) => panic!("{other:?}"),
        }
    };
    let mut expected = "name? ".to_owned().into_bytes();
    (1..=100_000).for_each(|n| expected.extend_from_slice(format!("{n}\n").as_bytes()));
    expected.extend_from_slice(b"\xff\0");
    assert!(text == expected, "every byte");
    assert!(count < 2_000, "{count} frames for 100,000 lines");
    assert_eq!(exit, code(3));
}

#[tokio::test]
async fn what_is_no_text_comes_in_base64_and_characters_stay_whole() {
    let (_agent, client) = Agent::start().await;
    let events = client.run(r"printf 'a\377b\n'; printf '\342\202'; sleep 0.3; printf '\254\n'").await;
    let output = |event: &OutputEvent| match event {
        OutputEvent::Output { output, .. } => Some(output.clone()),
        _ => None,
    };
    let outputs = events.iter().filter_map(output).collect::<Vec<_>>();
    let expected = Output { base64: Some(BASE64_STANDARD.encode(b"a\xffb")), ..Output::default() };
    assert_eq!(outputs[0], expected);
    assert_eq!(outputs[1], Output { line: Some("€".into()), offset: 4, ..Output::default() });
    assert_eq!(outputs.len(), 2);
}

#[tokio::test]
async fn long_lines_come_in_pieces_of_64_kib() {
    let (_agent, client) = Agent::start().await;
    for (length, pieces) in [(65_536, 1), (65_537, 2), (200_000, 4)] {
        let events = client.run(&format!("head -c {length} /dev/zero | tr '\\0' x; echo")).await;
        let lines = lines(&events, false);
        assert_eq!(lines.len(), pieces, "{length}");
        assert!(lines.iter().all(|(_, line, _)| line.len() <= 65_536));
        assert_eq!(lines.iter().map(|(_, line, _)| line.len()).sum::<usize>(), length);
        assert!(lines.iter().rev().skip(1).all(|(.., partial)| *partial) && !lines.last().unwrap().2);
    }
}

#[tokio::test]
async fn how_it_ended_is_never_made_up() {
    let (_agent, client) = Agent::start().await;
    assert_eq!(
        *exit(&client.run("kill -KILL $$").await),
        Exit { code: None, signal: Some("SIGKILL".into()), timed_out: false }
    );
    assert_eq!(*exit(&client.run("no-such-program-at-all").await), code(127));
    assert_eq!(*exit(&client.run("exit 255").await), code(255));
}

#[tokio::test]
async fn a_program_runs_without_a_shell() {
    let (_agent, client) = Agent::start().await;
    let events = client.command(json!({"argv": ["printf", "%s|", "a b", "$HOME", "*"]})).await.all().await;
    assert_eq!(lines(&events, false), [(0, "a b|$HOME|*|".into(), true)]);
}

#[tokio::test]
async fn what_cannot_start_is_told_before_the_stream() {
    let (agent, client) = Agent::start().await;
    let refused = async |body: Value, status, code| client.post("/runtime/commands", body).await.refused(status, code);
    refused(json!({"argv": ["no-such-program-at-all"]}), 400, "command_not_found").await;
    refused(json!({"argv": ["./missing"]}), 400, "command_not_found").await;
    agent.write("plain", b"#!/bin/sh\n");
    refused(json!({"argv": ["./plain"]}), 400, "spawn_failed").await;
    refused(json!({"cmd": "true", "cwd": "missing"}), 404, "not_found").await;
    refused(json!({"cmd": "true", "cwd": "plain"}), 400, "not_a_directory").await;
    refused(json!({"cmd": "true", "cwd": "/tmp"}), 400, "invalid_path").await;
    refused(json!({"cmd": "true", "cwd": "../.."}), 400, "invalid_path").await;
    client
        .post("/runtime/commands", json!({"cmd": "", "argv": [], "user": "me"}))
        .await
        .names(&["cmd", "argv", "user"]);
}

#[tokio::test]
async fn it_has_its_directory_its_environment_and_its_account() {
    let (agent, client) = Agent::start().await;
    agent.write("sub/file", b"");
    client.identify(json!({"env": {"A": "identity", "B": "identity"}})).await.ok();
    let body =
        json!({"cmd": "echo $A $B $LANG $USER; id -un; ls; cat", "cwd": "sub", "env": {"B": "own"}, "stdin": "typed"});
    let events = client.command(body).await.all().await;
    let said = lines(&events, false).into_iter().map(|(_, line, _)| line).collect::<Vec<_>>();
    assert_eq!(said, [&format!("identity own C.UTF-8 {}", agent.user), &agent.user, "file", "typed"]);
}

#[tokio::test]
async fn root_is_to_be_had_where_there_is_one() {
    let (_agent, client) = Agent::start().await;
    let body = json!({"cmd": "id -u; echo $HOME", "user": "root"});
    if rustix::process::geteuid().is_root() {
        let events = client.command(body).await.all().await;
        let said = lines(&events, false).into_iter().map(|(_, line, _)| line).collect::<Vec<_>>();
        assert_eq!(said, ["0", "/root"]);
    } else {
        client.post("/runtime/commands", body).await.refused(403, "permission_denied");
    }
}

#[tokio::test]
async fn without_input_there_is_none_and_a_session_is_its_own() {
    let (_agent, client) = Agent::start().await;
    let events = client.run("cat; ps -o pid=,pgid=,sid= -p $$ | tr -s ' '").await;
    let said = &lines(&events, false)[0].1;
    let numbers = said.split_whitespace().collect::<Vec<_>>();
    assert!(numbers.len() == 3 && numbers.iter().all(|number| *number == numbers[0]), "{said}");
}

#[tokio::test]
async fn an_end_is_told_while_a_grandchild_holds_the_streams() {
    let (_agent, client) = Agent::start().await;
    let events = client.run("sleep 1000 & echo started $!").await;
    assert_eq!(*exit(&events), code(0));
    let said = &lines(&events, false)[0].1;
    let grandchild = said.strip_prefix("started ").unwrap().to_owned();
    assert!(alive(&grandchild), "it goes on");
    client.run(&format!("kill {grandchild}")).await;
}

#[tokio::test]
async fn a_grandchild_that_goes_on_speaking_is_not_ended_by_it() {
    let (agent, client) = Agent::start().await;
    let cmd = "(trap '' HUP; until [ -e ended ]; do sleep 0.05; done; echo late || exit 1; echo later || exit 1; \
               touch survived) & echo early";
    let events = client.run(cmd).await;
    std::fs::write(agent.path("ended"), "").unwrap();
    assert_eq!(lines(&events, false), [(0, "early".into(), false)]);
    until("the grandchild's end", || agent.path("survived").exists()).await;
}

#[tokio::test]
async fn time_is_up_gently() {
    let (_agent, client) = Agent::start().await;
    let body = json!({"cmd": "trap 'echo asked; exit 3' TERM; while :; do sleep 0.05; done", "timeout_seconds": 1});
    let events = client.command(body).await.all().await;
    // The shell may report the child's signal, too.
    assert_eq!(lines(&events, false).last().map(|(_, line, _)| line.as_str()), Some("asked"));
    assert_eq!(*exit(&events), Exit { code: Some(3), signal: None, timed_out: true });
}

#[tokio::test]
async fn who_ignores_that_time_is_up_is_killed_with_all_its_group() {
    let (_agent, client) = Agent::start().await;
    let cmd =
        "trap '' TERM; sh -c 'trap \"\" TERM; echo $$; while :; do sleep 1; done' & wait; while :; do sleep 1; done";
    let started = Instant::now();
    let events = client.command(json!({"cmd": cmd, "timeout_seconds": 1})).await.all().await;
    assert!(started.elapsed() >= Duration::from_secs(6), "five seconds lie between the two");
    assert_eq!(*exit(&events), Exit { code: None, signal: Some("SIGKILL".into()), timed_out: true });
    let child = lines(&events, false)[0].1.clone();
    until("the child's end", || !alive(&child)).await;
}

/// Runs a command, learns its number, and leaves.
async fn leave(agent: &Agent, body: Value) -> String {
    let client = agent.client().await;
    let mut events = client.events(posting("/runtime/commands", &body)).await;
    let Some(OutputEvent::Start { pid }) = events.output().await else { panic!("no start") };
    let Some(OutputEvent::Output { .. }) = events.output().await else { panic!("no line") };
    pid.to_string()
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_command_unless_it_is_detached() {
    let (agent, client) = Agent::start().await;
    let pid = leave(&agent, json!({"cmd": "echo here; sleep 1000"})).await;
    until("the end", || !alive(&pid)).await;
    let pid = leave(&agent, json!({"cmd": "echo here; sleep 1000", "detach": true})).await;
    let shown = client.get(&format!("/runtime/processes/{pid}")).await.json();
    assert!(shown["state"] == "running" && alive(&pid), "{shown}");
    client.delete(&format!("/runtime/processes/{pid}")).await.ok();
}

#[tokio::test]
async fn orphans_are_collected_and_codes_are_not_lost() {
    let (agent, client) = Agent::start().await;
    let client = &client;
    let run = |n: i32| async move {
        let events = client.run(&format!("(sleep 0.0{} &) ; exit {n}", n % 5)).await;
        assert_eq!(*exit(&events), code(n));
    };
    let all = (0..40).map(run).collect::<Vec<_>>();
    for one in all {
        one.await;
    }
    let status = || std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", agent.pid())).unwrap();
    until("the end of every orphan", || status().trim().is_empty()).await;
}

#[tokio::test]
async fn many_at_once_each_have_their_own() {
    let (_agent, client) = Agent::start().await;
    let one = |n: i32| {
        let client: Client = client.clone();
        tokio::spawn(async move {
            let events = client.run(&format!("echo {n}; exit {n}")).await;
            assert_eq!((lines(&events, false)[0].1.as_str(), exit(&events)), (n.to_string().as_str(), &code(n)));
        })
    };
    for handle in (0..50).map(one).collect::<Vec<_>>() {
        handle.await.unwrap();
    }
}

fn alive(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}
