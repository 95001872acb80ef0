//! Shows an answer as it comes.

use std::io::{self, IsTerminal, Write};

use anyhow::Result;
use berth_client::{ChatChunk, Result as Answered};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};

/// Where and how answers are shown.
#[derive(Clone, Copy)]
pub struct Screen {
    /// Show each piece as a line of JSON.
    json: bool,
    reasoning: bool,
    out_is_terminal: bool,
    err_is_terminal: bool,
}

impl Screen {
    /// On this program's streams.
    pub fn new(json: bool, reasoning: bool) -> Self {
        let (out_is_terminal, err_is_terminal) = (io::stdout().is_terminal(), io::stderr().is_terminal());
        Self { json, reasoning, out_is_terminal, err_is_terminal }
    }

    /// Notes that the person interrupted an answer.
    pub fn interrupted(self) {
        let plain = if self.reasoning && self.err_is_terminal { "\x1b[0m" } else { "" };
        eprintln!("{plain}\nThe answer was ended.");
    }
}

/// Shows an answer to its end, and adds its text to `said`.
pub async fn show(
    stream: &mut BoxStream<'static, Answered<ChatChunk>>,
    screen: Screen,
    said: &mut String,
) -> Result<()> {
    let mut answer = Answer { screen, out: io::stdout(), err: io::stderr(), thinks: false, finish: None };
    let told = answer.follow(stream, said).await;
    answer.end(said)?;
    told
}

struct Answer<O, E> {
    screen: Screen,
    out: O,
    err: E,
    /// Whether the last piece shown was the model's reasoning.
    thinks: bool,
    finish: Option<String>,
}

impl<O: Write, E: Write> Answer<O, E> {
    async fn follow(&mut self, stream: &mut BoxStream<'static, Answered<ChatChunk>>, said: &mut String) -> Result<()> {
        loop {
            // Writes everything that has arrived at once.
            let at_once = stream.next().now_or_never();
            let next = if let Some(next) = at_once {
                next
            } else {
                self.out.flush()?;
                stream.next().await
            };
            let Some(chunk) = next else { return Ok(()) };
            self.put(&chunk?, said)?;
        }
    }

    fn put(&mut self, chunk: &ChatChunk, said: &mut String) -> Result<()> {
        if let Some(reason) = chunk.finish_reason() {
            self.finish = Some(reason.to_owned());
        }
        said.push_str(chunk.text());
        if self.screen.json {
            return Ok(writeln!(self.out, "{}", chunk.0)?);
        }
        if self.screen.reasoning && !chunk.reasoning().is_empty() {
            self.think(chunk.reasoning())?;
        }
        if !chunk.text().is_empty() {
            self.end_thought()?;
            self.out.write_all(shown(chunk.text(), self.screen.out_is_terminal).as_bytes())?;
        }
        Ok(())
    }

    fn think(&mut self, text: &str) -> Result<()> {
        if !self.thinks && self.screen.err_is_terminal {
            self.out.flush()?;
            self.err.write_all(b"\x1b[2m")?;
        }
        self.thinks = true;
        Ok(self.err.write_all(shown(text, self.screen.err_is_terminal).as_bytes())?)
    }

    fn end_thought(&mut self) -> Result<()> {
        if std::mem::take(&mut self.thinks) {
            let end = if self.screen.err_is_terminal { "\x1b[0m\n\n" } else { "\n\n" };
            self.err.write_all(end.as_bytes())?;
        }
        Ok(())
    }

    /// Ends the last line, and says so if the answer is incomplete.
    fn end(&mut self, said: &str) -> Result<()> {
        self.end_thought()?;
        if !self.screen.json && !said.is_empty() && !said.ends_with('\n') {
            self.out.write_all(b"\n")?;
        }
        self.out.flush()?;
        match self.finish.as_deref() {
            Some("length") => writeln!(self.err, "berth: the answer has as many tokens as it may; more: --max-tokens")?,
            Some("content_filter") => writeln!(self.err, "berth: the model's provider held the rest back")?,
            _ => {}
        }
        Ok(())
    }
}

/// A text without control characters, for a terminal: a model must not move its cursor, or write to its clipboard.
fn shown(text: &str, is_terminal: bool) -> String {
    let plain = |c: &char| !is_terminal || !c.is_control() || ['\n', '\t'].contains(c);
    text.chars().filter(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_client::Error;
    use futures::stream;
    use serde_json::{Value, json};

    #[expect(clippy::unnecessary_wraps, reason = "it is a piece of a stream that may fail")]
    fn piece(delta: Value, finish: Option<&str>) -> Answered<ChatChunk> {
        Ok(ChatChunk(json!({"choices": [{"delta": delta, "finish_reason": finish}]})))
    }

    /// The content of both streams, and the text.
    async fn told(screen: Screen, pieces: Vec<Answered<ChatChunk>>) -> (Result<()>, String, String, String) {
        let mut answer = Answer { screen, out: Vec::new(), err: Vec::new(), thinks: false, finish: None };
        let mut said = String::new();
        let told = answer.follow(&mut stream::iter(pieces).boxed(), &mut said).await;
        answer.end(&said).unwrap();
        (told, String::from_utf8(answer.out).unwrap(), String::from_utf8(answer.err).unwrap(), said)
    }

    fn screen(json: bool, reasoning: bool, terminal: bool) -> Screen {
        Screen { json, reasoning, out_is_terminal: terminal, err_is_terminal: terminal }
    }

    fn thoughtful() -> Vec<Answered<ChatChunk>> {
        vec![
            piece(json!({"role": "assistant"}), None),
            piece(json!({"reasoning_content": "hm"}), None),
            piece(json!({"content": "a\u{1b}]52;c;eA==\u{7}"}), None),
            piece(json!({"content": "b"}), Some("length")),
        ]
    }

    #[tokio::test]
    async fn text_comes_as_it_is_said() {
        let (done, out, err, said) = told(screen(false, false, false), thoughtful()).await;
        assert!(done.is_ok());
        assert_eq!((out.as_str(), said.as_str()), ("a\u{1b}]52;c;eA==\u{7}b\n", "a\u{1b}]52;c;eA==\u{7}b"));
        assert!(err.contains("--max-tokens") && !err.contains("hm"), "{err}");
    }

    #[tokio::test]
    async fn a_terminal_gets_no_controls_and_thoughts_where_asked() {
        let (_, out, err, _) = told(screen(false, true, true), thoughtful()).await;
        assert_eq!(out, "a]52;c;eA==b\n");
        assert!(err.starts_with("\u{1b}[2mhm\u{1b}[0m\n\n"), "{err:?}");
    }

    #[tokio::test]
    async fn programs_get_a_line_for_each_piece() {
        let (_, out, _, said) = told(screen(true, false, false), thoughtful()).await;
        let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 4);
        assert!(said.ends_with('b'));
    }

    #[tokio::test]
    async fn what_breaks_off_is_shown_and_is_an_error() {
        let pieces = vec![piece(json!({"content": "half"}), None), Err(Error::Protocol("broke off".into()))];
        let (done, out, _, said) = told(screen(false, false, true), pieces).await;
        assert!(done.unwrap_err().to_string().contains("broke off"));
        assert_eq!((out.as_str(), said.as_str()), ("half\n", "half"));
    }
}
