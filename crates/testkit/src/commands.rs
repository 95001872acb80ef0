//! Commands in a sandbox, as their events tell of them.

use serde_json::{Value, json};

use crate::Caller;

/// What a command came to.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    /// What it printed.
    pub stdout: String,
    /// What it complained of.
    pub stderr: String,
    /// How it ended: the last event.
    pub last: (String, Value),
}

/// Events of a stream: names and data.
pub fn events(text: &str) -> Vec<(String, Value)> {
    let event = |block: &str| {
        let name = block.lines().find_map(|line| line.strip_prefix("event: "))?;
        let data = block.lines().find_map(|line| line.strip_prefix("data: "))?;
        Some((name.to_owned(), serde_json::from_str(data).expect("data in JSON")))
    };
    text.split("\n\n").filter_map(event).collect()
}

fn joined(events: &[(String, Value)], stream: &str) -> String {
    let lines = events.iter().filter(|(name, _)| name == stream);
    lines
        .map(|(_, data)| {
            let end = if data["partial"] == true { "" } else { "\n" };
            format!("{}{end}", data["line"].as_str().expect("a line"))
        })
        .collect()
}

/// Runs a command to its end.
pub async fn run(caller: &Caller, sandbox: &str, body: Value) -> Outcome {
    let answer = caller.post(&format!("/sandbox/{sandbox}/commands"), body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let events = events(answer.body.as_str().expect("a stream"));
    assert_eq!(events[0].0, "start", "{events:?}");
    let ends = events.iter().filter(|(name, _)| name == "exit" || name == "error").count();
    assert_eq!(ends, 1, "{events:?}");
    let last = events.last().expect("an end").clone();
    Outcome { stdout: joined(&events, "stdout"), stderr: joined(&events, "stderr"), last }
}

/// Runs a line of shell that has to succeed; what it printed.
pub async fn shell(caller: &Caller, sandbox: &str, line: &str) -> String {
    let outcome = run(caller, sandbox, json!({"cmd": line})).await;
    assert_eq!((outcome.last.0.as_str(), &outcome.last.1["code"]), ("exit", &json!(0)), "{line}: {outcome:?}");
    outcome.stdout
}
