//! Terminals: what is typed and shown, sizes, attachments, the end.

use berth_domain::agent::runtime::OutputEvent;
use berth_domain::agent::terminal::{Decoder, Frame, FromServer, encode};
use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::harness::{Agent, Client, PATIENCE, piecewise, request, until, whole};

/// One attachment.
struct Seat {
    typing: mpsc::Sender<Bytes>,
    body: Incoming,
    decoder: Decoder,
    seen: Vec<u8>,
    id: String,
}

impl Seat {
    async fn take(client: &Client, query: &str) -> Self {
        let (typing, body) = piecewise();
        let response = client.send(request(Method::POST, &format!("/runtime/terminal{query}"), body)).await;
        assert_eq!(response.status(), StatusCode::OK);
        let mut seat = Self {
            typing,
            body: response.into_body(),
            decoder: Decoder::default(),
            seen: Vec::new(),
            id: String::new(),
        };
        match seat.frame().await {
            Some(Frame::Text(text)) => match serde_json::from_str(&text).unwrap() {
                FromServer::Ready { id, pid } if pid > 1 => seat.id = id,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
        seat
    }

    async fn frame(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.decoder.next().unwrap() {
                return Some(frame);
            }
            let next = tokio::time::timeout(PATIENCE, self.body.frame()).await.expect("a frame in time")?;
            self.decoder.feed(&next.unwrap().into_data().unwrap());
        }
    }

    /// Reads until the terminal has shown a text.
    async fn shows(&mut self, text: &str) {
        while !String::from_utf8_lossy(&self.seen).contains(text) {
            match self.frame().await {
                Some(Frame::Bytes(bytes)) => self.seen.extend(bytes),
                other => panic!("{other:?} after {:?}", String::from_utf8_lossy(&self.seen)),
            }
        }
    }

    async fn says(&mut self) -> Option<FromServer> {
        loop {
            match self.frame().await? {
                Frame::Bytes(bytes) => self.seen.extend(bytes),
                Frame::Text(text) => return Some(serde_json::from_str(&text).unwrap()),
            }
        }
    }

    async fn types(&self, text: &str) {
        self.typing.send(encode(&Frame::Bytes(text.into())).into()).await.unwrap();
    }

    async fn tells(&self, wish: Value) {
        self.typing.send(encode(&Frame::Text(wish.to_string())).into()).await.unwrap();
    }
}

#[tokio::test]
async fn what_was_typed_right_before_a_connection_dropped_is_executed() {
    let (agent, client) = Agent::start().await;
    for number in 0..20 {
        let seat = Seat::take(&client, "?cmd=exec+sh").await;
        seat.types(&format!("touch typed{number}; exit\n")).await;
        // The frame is on its way, and the reset right behind it.
        tokio::task::yield_now().await;
        drop(seat);
        until("what was typed", || agent.path(&format!("typed{number}")).exists()).await;
    }
}

#[tokio::test]
async fn a_shell_answers_and_its_end_is_told_last() {
    let (_agent, client) = Agent::start().await;
    let mut seat = Seat::take(&client, "?cmd=exec+sh").await;
    seat.types("echo $((6 * 7)) $TERM; tty\n").await;
    seat.shows("42 xterm-256color").await;
    seat.shows("/dev/pts/").await;
    seat.types("exit 3\n").await;
    assert_eq!(seat.says().await, Some(FromServer::Exit { code: Some(3), signal: None }));
    assert!(seat.frame().await.is_none());
}

#[tokio::test]
async fn what_a_program_said_last_is_shown_before_its_end_is_told() {
    let (_agent, client) = Agent::start().await;
    for _ in 0..50 {
        let mut seat = Seat::take(&client, "?cmd=echo+first%3B+tty").await;
        assert_eq!(seat.says().await, Some(FromServer::Exit { code: Some(0), signal: None }));
        let seen = String::from_utf8_lossy(&seat.seen);
        assert!(seen.starts_with("first\r\n/dev/pts/") && seen.ends_with("\r\n"), "{seen:?}");
    }
}

#[tokio::test]
async fn an_agent_goes_on_when_more_is_typed_than_a_program_that_ends_reads() {
    let (_agent, client) = Agent::start().await;
    for _ in 0..5 {
        let mut seat = Seat::take(&client, "?cmd=exec+sh").await;
        seat.types(&format!("exit 4\n{}", "# nobody reads this\n".repeat(5_000))).await;
        assert_eq!(seat.says().await, Some(FromServer::Exit { code: Some(4), signal: None }));
        assert_eq!(client.get("/runtime/processes").await.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn the_login_shell_is_the_accounts() {
    let (agent, client) = Agent::start().await;
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
    let line = passwd.lines().find(|line| line.starts_with(&format!("{}:", agent.user))).unwrap();
    let mut seat = Seat::take(&client, "").await;
    if line.ends_with("nologin") {
        seat.shows("not available").await;
        assert_eq!(seat.says().await, Some(FromServer::Exit { code: Some(1), signal: None }));
    } else {
        seat.types("echo $0\n").await;
        seat.shows(&format!("-{}", line.rsplit('/').next().unwrap())).await;
    }
}

#[tokio::test]
async fn it_has_the_environment_that_commands_have() {
    let (agent, client) = Agent::start().await;
    let ask = "env | grep -E '^(A|B|HOME|LANG|LOGNAME|PATH|SHELL|TERM|USER)=' | sort";
    for env in [json!({"A": "a b", "B": ""}), json!({"A": "x", "PATH": "/opt:/usr/bin:/bin", "TERM": "dumb"})] {
        client.identify(json!({ "env": env })).await.ok();
        let events = client.run(ask).await;
        let line = |event: &OutputEvent| match event {
            OutputEvent::Output { output, .. } => output.line.clone(),
            _ => None,
        };
        let mut expected: Vec<String> = events.iter().filter_map(line).collect();
        assert!(expected.contains(&format!("USER={}", agent.user)) && expected.contains(&"LANG=C.UTF-8".to_owned()));
        if !expected.contains(&"TERM=dumb".to_owned()) {
            expected.push("TERM=xterm-256color".to_owned());
            expected.sort();
        }
        let mut seat = Seat::take(&client, "?cmd=exec+sh").await;
        seat.types(&format!("stty -echo -opost; PS1=; echo be''gin; {ask}; echo e''nd\n")).await;
        seat.shows("begin\n").await;
        seat.shows("end\n").await;
        let seen = String::from_utf8(seat.seen).unwrap();
        let said = seen.split_once("begin\n").unwrap().1.split_once("end\n").unwrap().0;
        let mut said: Vec<_> = said.lines().collect();
        said.sort_unstable();
        assert_eq!(said, expected);
    }
}

#[tokio::test]
async fn its_size_is_seen_inside() {
    let (_agent, client) = Agent::start().await;
    let mut seat = Seat::take(&client, "?cols=101&rows=33&cmd=exec+sh").await;
    seat.types("stty size\n").await;
    seat.shows("33 101").await;
    seat.tells(json!({"type": "resize", "cols": 77, "rows": 11})).await;
    seat.types("stty size\n").await;
    seat.shows("11 77").await;
    for (cols, rows) in [(0, 1), (1, 0), (10_001, 1)] {
        seat.tells(json!({"type": "resize", "cols": cols, "rows": rows})).await;
        assert!(matches!(seat.says().await, Some(FromServer::Error { code, .. }) if code == "invalid_request"));
    }
    seat.tells(json!({"type": "resize", "cols": 10_000, "rows": 1})).await;
    seat.types("stty size\n").await;
    seat.shows("1 10000").await;
}

#[tokio::test]
async fn signals_reach_what_runs_in_the_foreground() {
    let (_agent, client) = Agent::start().await;
    let mut seat = Seat::take(&client, "?cmd=exec+sh+-i").await;
    seat.types("sleep 1000 || echo inter''rupted\n").await;
    seat.shows("sleep 1000").await;
    seat.tells(json!({"type": "signal", "signal": "NOPE"})).await;
    assert!(matches!(seat.says().await, Some(FromServer::Error { .. })));
    seat.tells(json!({"what": 1})).await;
    assert!(matches!(seat.says().await, Some(FromServer::Error { .. })));
    seat.tells(json!({"type": "signal", "signal": "SIGHUP"})).await;
    // The shell may not have given the foreground away yet; then the signal ends the shell.
    loop {
        match seat.frame().await {
            Some(Frame::Bytes(bytes)) => seat.seen.extend(bytes),
            Some(Frame::Text(text)) => {
                assert!(text.contains("exit"), "{text}");
                break;
            }
            None => panic!("no end"),
        }
        if String::from_utf8_lossy(&seat.seen).contains("interrupted") {
            break;
        }
    }
}

#[tokio::test]
async fn it_survives_a_dropped_connection_and_shows_what_it_showed() {
    let (agent, client) = Agent::start().await;
    let dropped = agent.client().await;
    let mut first = Seat::take(&dropped, "?cmd=exec+sh").await;
    first.types("A=kept; echo be''fore\n").await;
    first.shows("before").await;
    let id = first.id.clone();
    drop((first, dropped));
    let mut second = Seat::take(&client, &format!("?id={id}&cols=60&rows=20")).await;
    assert_eq!(second.id, id);
    second.shows("before").await;
    second.types("echo $A; stty size\n").await;
    second.shows("kept").await;
    second.shows("20 60").await;
}

#[tokio::test]
async fn several_see_the_same() {
    let (_agent, client) = Agent::start().await;
    let mut one = Seat::take(&client, "?cmd=exec+sh").await;
    let mut two = Seat::take(&client, &format!("?id={}", one.id)).await;
    one.types("echo from''one\n").await;
    two.types("echo from''two\n").await;
    for seat in [&mut one, &mut two] {
        seat.shows("fromone").await;
        seat.shows("fromtwo").await;
    }
    one.types("exit\n").await;
    for seat in [&mut one, &mut two] {
        assert_eq!(seat.says().await, Some(FromServer::Exit { code: Some(0), signal: None }));
    }
}

#[tokio::test]
async fn the_last_256_kib_are_shown_again() {
    let (agent, client) = Agent::start().await;
    let mut first = Seat::take(
        &client,
        "?cmd=stty+-opost%3B+head+-c+400000+/dev/zero+%7C+tr+%27%5C0%27+x%3B+echo+END%3B+exec+sleep+1000",
    )
    .await;
    first.shows("END").await;
    assert_eq!(first.seen.len(), 400_004);
    let other = agent.client().await;
    let mut second = Seat::take(&other, &format!("?id={}", first.id)).await;
    second.shows("END").await;
    assert_eq!(second.seen.len(), 256 * 1024);
}

#[tokio::test]
async fn one_that_ended_is_told_of_once_more() {
    let (agent, client) = Agent::start().await;
    let dropped = agent.client().await;
    let seat = Seat::take(&dropped, "?cmd=while+%5B+!+-e+go+%5D%3B+do+sleep+0.01%3B+done%3B+echo+last%3B+exit+9").await;
    let id = seat.id.clone();
    drop((seat, dropped));
    // Once the agent has answered a later request of another session, it has seen the attachment go.
    agent.write("go", b"");
    let mut late = Seat::take(&client, &format!("?id={id}")).await;
    late.shows("last").await;
    assert_eq!(late.says().await, Some(FromServer::Exit { code: Some(9), signal: None }));
    client
        .call(request(Method::POST, &format!("/runtime/terminal?id={id}"), whole("")))
        .await
        .refused(404, "not_found");
}

#[tokio::test]
async fn what_is_wrong_is_refused() {
    let (_agent, client) = Agent::start().await;
    let ask =
        async |query: &str| client.call(request(Method::POST, &format!("/runtime/terminal{query}"), whole(""))).await;
    ask("?id=unknown").await.refused(404, "not_found");
    ask("?cols=0&rows=10001&user=me").await.names(&["cols", "rows", "user"]);
    ask("?cwd=/etc").await.refused(400, "invalid_path");
    ask("?cwd=missing").await.refused(404, "not_found");
    let seat = Seat::take(&client, "?cmd=exec+sh").await;
    seat.typing.send(Bytes::from_static(&[9, 0, 0, 0, 0])).await.unwrap();
    let mut seat = seat;
    assert!(matches!(seat.says().await, Some(FromServer::Error { .. })));
}

#[tokio::test]
async fn there_are_64_at_most() {
    let (_agent, client) = Agent::start().await;
    let mut seats = Vec::new();
    for _ in 0..64 {
        seats.push(Seat::take(&client, "?cmd=exec+cat").await);
    }
    let full = client.call(request(Method::POST, "/runtime/terminal?cmd=exec+cat", whole(""))).await;
    full.refused(429, "too_many");
    let last = seats.last_mut().unwrap();
    last.types("\u{4}").await;
    assert!(matches!(last.says().await, Some(FromServer::Exit { .. })));
    Seat::take(&client, "?cmd=exec+cat").await;
}
