//! Commands and processes with a terminal, and what is told of processes.

use berth_domain::agent::runtime::{Exit, OutputEvent};
use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Agent, Client, Frames, Reply, Told, request, until_async, whole};

const SIZE: [u16; 2] = [101, 33];

fn with_pty(cmd: &str) -> Value {
    json!({"cmd": cmd, "pty": {"cols": SIZE[0], "rows": SIZE[1]}})
}

/// What is shown to the end, and how it ended.
async fn shown(mut frames: Frames) -> (String, Exit) {
    let mut all = Vec::new();
    loop {
        match frames.next().await {
            Told::Output { stderr, bytes, .. } => {
                assert!(!stderr, "a terminal has one stream");
                all.extend(bytes);
            }
            Told::Event(OutputEvent::Exit(exit)) => return (String::from_utf8_lossy(&all).into_owned(), exit),
            Told::Event(other) => panic!("{other:?}"),
        }
    }
}

async fn run(client: &Client, body: Value) -> (String, Exit) {
    shown(client.frames(body).await).await
}

fn code(code: i32) -> Exit {
    Exit { code: Some(code), signal: None, timed_out: false }
}

async fn types(client: &Client, pid: impl std::fmt::Display, query: &str, bytes: &'static str) -> Reply {
    let path = format!("/runtime/processes/{pid}/stdin{query}");
    client.call(request(Method::POST, &path, whole(bytes))).await
}

/// Waits until a process has shown a text.
async fn shows(client: &Client, pid: i64, text: &str) {
    until_async(text, async || {
        let path = format!("/runtime/processes/{pid}/logs");
        let log = client.get(&path).await.ok();
        String::from_utf8_lossy(&log.bytes).contains(text)
    })
    .await;
}

#[tokio::test]
async fn all_three_streams_are_a_terminal_that_it_controls() {
    let (_agent, client) = Agent::start().await;
    let ask = "test -t 0 && test -t 1 && test -t 2 && stty size && echo to stderr >&2 && echo $TERM >/dev/tty; exit 7";
    assert_eq!(run(&client, with_pty(ask)).await, ("33 101\r\nto stderr\r\nxterm-256color\r\n".into(), code(7)));
    let mut body = with_pty("echo $TERM");
    body["env"] = json!({"TERM": "dumb"});
    assert_eq!(run(&client, body).await.0, "dumb\r\n");
}

#[tokio::test]
async fn what_is_given_first_is_typed_and_a_commands_input_then_ends() {
    let (_agent, client) = Agent::start().await;
    let mut body = with_pty("stty -echo; cat; echo end");
    body["stdin"] = json!("a\nb\n");
    let (text, exit) = run(&client, body).await;
    // It may be typed before the echo is off.
    assert!(text.ends_with("a\r\nb\r\nend\r\n") && exit == code(0), "{text:?}");
}

#[tokio::test]
async fn its_input_is_typed_and_ends_without_being_closed() {
    let (_agent, client) = Agent::start().await;
    let pid = client.start(with_pty("stty -echo; echo ready; cat; echo one; cat; echo two")).await;
    shows(&client, pid, "ready").await;
    assert_eq!(types(&client, pid, "", "typed\n").await.status, StatusCode::NO_CONTENT);
    shows(&client, pid, "typed").await;
    assert_eq!(types(&client, pid, "?eof=true", "").await.status, StatusCode::NO_CONTENT);
    shows(&client, pid, "one").await;
    types(&client, pid, "?eof=true", "more\n").await.ok();
    shows(&client, pid, "two").await;
    until_async("the end", async || client.get(&format!("/runtime/processes/{pid}")).await.json()["state"] == "exited")
        .await;
    types(&client, pid, "", "late").await.refused(409, "process_ended");
    let resize = format!("/runtime/processes/{pid}/resize");
    client.post(&resize, json!({"cols": 1, "rows": 1})).await.refused(409, "process_ended");
}

#[tokio::test]
async fn a_commands_terminal_takes_what_is_typed_while_it_runs() {
    let (_agent, client) = Agent::start().await;
    let frames = client.frames(with_pty("stty -echo; read line; echo got $line")).await;
    types(&client, frames.pid(), "", "it\n").await.ok();
    let (text, exit) = shown(frames).await;
    assert!(text.ends_with("got it\r\n") && exit == code(0), "{text:?}");
    let plain = client.frames(json!({"cmd": "sleep 1000"})).await;
    types(&client, plain.pid(), "", "x").await.refused(409, "process_ended");
}

#[tokio::test]
async fn its_size_can_be_changed() {
    let (_agent, client) = Agent::start().await;
    let pid = client.start(with_pty("stty -echo; echo ready; while read x; do stty size; done")).await;
    let resize = format!("/runtime/processes/{pid}/resize");
    shows(&client, pid, "ready").await;
    for (cols, rows) in [(1, 10_000), (10_000, 1)] {
        assert_eq!(client.post(&resize, json!({"cols": cols, "rows": rows})).await.status, StatusCode::NO_CONTENT);
        types(&client, pid, "", "\n").await.ok();
        shows(&client, pid, &format!("{rows} {cols}")).await;
    }
    client.post(&resize, json!({"cols": 0, "rows": 10_001})).await.names(&["cols", "rows"]);
    client.post(&resize, json!({"cols": 1})).await.names(&["rows"]);
    let plain = client.start(json!({"cmd": "exec sleep 1000"})).await;
    let plain = format!("/runtime/processes/{plain}/resize");
    client.post(&plain, json!({"cols": 1, "rows": 1})).await.refused(409, "conflict");
    client.post("/runtime/processes/tag:none/resize", json!({"cols": 1, "rows": 1})).await.refused(404, "not_found");
    let refused = client.post("/runtime/processes", json!({"cmd": "a", "pty": {"cols": 0}})).await;
    refused.names(&["pty.cols", "pty.rows"]);
}

#[tokio::test]
async fn it_ends_with_its_program_whoever_has_its_terminal() {
    let (_agent, client) = Agent::start().await;
    let away = "exec </dev/null >/dev/null 2>&1; sleep 0.3; echo back >/dev/tty; exit 5";
    assert_eq!(run(&client, with_pty(away)).await, ("back\r\n".into(), code(5)));
    let heir = "trap '' HUP; sleep 1000 & echo last; exit 3";
    assert_eq!(run(&client, with_pty(heir)).await, ("last\r\n".into(), code(3)));
    // A program that was sent away by its own terminal.
    let (_, exit) = run(&client, with_pty("kill -HUP $$; sleep 1000")).await;
    assert_eq!(exit.signal.as_deref(), Some("SIGHUP"));
}

#[tokio::test]
async fn nothing_of_what_it_shows_is_lost() {
    let (_agent, client) = Agent::start().await;
    for _ in 0..20 {
        let (text, exit) = run(&client, with_pty("seq 1 2000; echo END")).await;
        let expected = (1..=2000).map(|n| format!("{n}\r\n")).collect::<String>() + "END\r\n";
        assert!(text == expected && exit == code(0), "{} bytes", text.len());
    }
    // More than a log keeps, and its reader is waited for.
    let (text, _) = run(&client, with_pty("stty -opost; head -c 20000000 /dev/zero | tr '\\0' x")).await;
    assert_eq!(text.len(), 20_000_000);
}

#[tokio::test]
async fn time_limits_and_signals_reach_it() {
    let (_agent, client) = Agent::start().await;
    let mut body = with_pty("exec sleep 1000");
    body["timeout_seconds"] = json!(1);
    let (_, exit) = run(&client, body).await;
    assert!(exit.timed_out && exit.signal.as_deref() == Some("SIGTERM"), "{exit:?}");
    let pid = client.start(with_pty("trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done")).await;
    shows(&client, pid, "ready").await;
    types(&client, pid, "", "\u{3}").await.ok();
    shows(&client, pid, "caught").await;
}

#[tokio::test]
async fn a_process_tells_how_it_was_started() {
    let (agent, client) = Agent::start().await;
    agent.write("dir/a", b"");
    let body = json!({"argv": ["sh", "-c", "printf 12345; exec sleep 1000"], "cwd": "dir", "env": {"A": "b"}, "tag": "a b/ü",
        "pty": {"cols": 80, "rows": 24}});
    let pid = client.start(body).await;
    shows(&client, pid, "12345").await;
    let path = format!("/runtime/processes/{pid}");
    let view = client.get(&path).await.ok().json();
    let expected = [
        ("argv", json!(["sh", "-c", "printf 12345; exec sleep 1000"])),
        ("cwd", json!("dir")),
        ("tag", json!("a b/ü")),
        ("pty", json!(true)),
        ("output_bytes", json!(5)),
        ("env", Value::Null),
    ];
    for (name, value) in expected {
        assert_eq!(view[name], value, "{name}");
    }
    assert_eq!(client.get(&format!("{path}?env=true")).await.ok().json()["env"], json!({"A": "b"}));
    let all = client.get("/runtime/processes?env=true").await.ok().json();
    assert_eq!(all["data"][0]["env"], json!({"A": "b"}));
    client.get("/runtime/processes?env=2").await.names(&["env"]);
    let plain = client.start(json!({"cmd": "exit"})).await;
    let plain = client.get(&format!("/runtime/processes/{plain}")).await.ok().json();
    for absent in ["argv", "cwd", "tag", "pty", "env"] {
        assert_eq!(plain.get(absent), None, "{absent}");
    }
}

#[tokio::test]
async fn a_tag_names_the_newest_that_runs() {
    let (_agent, client) = Agent::start().await;
    let start = async || client.start(json!({"cmd": "exec sleep 1000", "tag": "a b/c"})).await;
    let (first, second) = (start().await, start().await);
    let path = "/runtime/processes/tag:a%20b%2Fc";
    assert_eq!(client.get(path).await.ok().json()["pid"], json!(second));
    client.delete(path).await.ok();
    assert_eq!(client.get(path).await.ok().json()["pid"], json!(first));
    client.post(&format!("{path}/signal"), json!({"signal": "SIGKILL"})).await.ok();
    until_async("the end", async || client.get(path).await.status == StatusCode::NOT_FOUND).await;
    client.get("/runtime/processes/tag:").await.refused(404, "not_found");
    client.post("/runtime/processes", json!({"cmd": "a", "tag": "t".repeat(257)})).await.names(&["tag"]);
}
