//! A conversation in the terminal: line by line, with everything said before.

use std::io::{BufRead, Write};
use std::process::ExitCode;

use anyhow::Result;
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::answer;
use super::asking::{Asking, message};
use crate::report;

/// The exit code of an interrupted program.
const INTERRUPTED: u8 = 130;

/// Talks until the person leaves. Ctrl-C ends an answer, or without one the conversation.
pub async fn run(asking: &Asking, mut messages: Vec<Value>) -> Result<ExitCode> {
    eprintln!("Talking to {}. Ctrl-C ends an answer; /exit or Ctrl-D ends this.", asking.model);
    let mut interrupts = signal(SignalKind::interrupt())?;
    loop {
        let typed = tokio::select! {
            typed = tokio::task::spawn_blocking(line) => typed??,
            _ = interrupts.recv() => {
                eprintln!();
                return Ok(INTERRUPTED.into());
            }
        };
        match said(typed.as_deref()) {
            Said::Nothing => {}
            Said::Enough => return Ok(ExitCode::SUCCESS),
            Said::Text(text) => turn(asking, &mut messages, text, &mut interrupts).await,
        }
    }
}

/// The meaning of a line.
#[derive(Debug, PartialEq, Eq)]
enum Said<'a> {
    Nothing,
    Enough,
    Text(&'a str),
}

fn said(line: Option<&str>) -> Said<'_> {
    match line.map(str::trim) {
        None | Some("/exit" | "/quit" | "/bye") => Said::Enough,
        Some("") => Said::Nothing,
        Some(text) => Said::Text(text),
    }
}

/// A line of the terminal; `None` at the end of input.
fn line() -> std::io::Result<Option<String>> {
    eprint!("> ");
    std::io::stderr().flush()?;
    let mut text = String::new();
    if std::io::stdin().lock().read_line(&mut text)? == 0 {
        eprintln!();
        return Ok(None);
    }
    Ok(Some(text))
}

/// Asks, and shows the answer. The shown part of an interrupted answer belongs to the conversation; a question that
/// failed does not.
async fn turn(asking: &Asking, messages: &mut Vec<Value>, text: &str, interrupts: &mut Signal) {
    messages.push(message("user", text));
    let request = asking.request(messages);
    let mut answer = String::new();
    let answered = async {
        let mut stream = asking.inference.chat_stream(&request).await?;
        answer::show(&mut stream, asking.screen, &mut answer).await
    };
    let outcome = tokio::select! {
        outcome = answered => Some(outcome),
        _ = interrupts.recv() => None,
    };
    match outcome {
        Some(Err(error)) => {
            // The conversation goes on after an error.
            let _ = report::report(&error, false);
            messages.pop();
        }
        Some(Ok(())) => messages.push(message("assistant", &answer)),
        None => {
            asking.screen.interrupted();
            keep_interrupted(messages, &answer);
        }
    }
}

fn keep_interrupted(messages: &mut Vec<Value>, answer: &str) {
    if answer.is_empty() {
        messages.pop();
    } else {
        messages.push(message("assistant", answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_mean_what_they_say() {
        assert_eq!(said(None), Said::Enough);
        assert_eq!(said(Some("/exit\n")), Said::Enough);
        assert_eq!(said(Some(" \n")), Said::Nothing);
        assert_eq!(said(Some(" how are you?\n")), Said::Text("how are you?"));
    }

    #[test]
    fn an_interrupted_answer_is_kept_as_far_as_it_came() {
        let mut messages = vec![message("user", "a")];
        keep_interrupted(&mut messages, "half");
        assert_eq!(messages, [message("user", "a"), message("assistant", "half")]);
        messages.push(message("user", "b"));
        keep_interrupted(&mut messages, "");
        assert_eq!(messages.len(), 2);
    }
}
