//! One connection to a terminal: frames in both bodies.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use berth_domain::agent::error::code;
use berth_domain::agent::terminal::{Decoder, Frame, FromClient, FromServer, encode, header};
use bytes::Bytes;
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::{mpsc, watch};

use crate::acting::Acting;
use crate::body::{Answer, Body, typed};
use crate::call::Call;
use crate::error::Result;
use crate::events::{Feed, Feeding};
use crate::lock::lock;
use crate::process::{signal_by_name, signal_name};
use crate::query::Query;
use crate::terminal::device::{SIZES, size};
use crate::terminal::pty::{Wanted, open};
use crate::terminal::{Terminal, Terminals};

/// The most bytes of one frame of output.
const CHUNK: usize = 64 * 1024;
/// How long the program may take to read what was typed before a connection ended.
const LAST_WORDS: Duration = Duration::from_mins(1);
/// The most refusals that wait for the client to read them.
const REFUSALS: usize = 8;

/// `POST terminal`.
pub async fn terminal(mut call: Call) -> Result<Answer> {
    let sized = call.query.text("cols").is_some() || call.query.text("rows").is_some();
    let (id, wanted) = parse(&mut call.query);
    call.query.finish()?;
    let agent = call.agent;
    let terminal = if let Some(id) = id {
        let terminal = agent.terminals.get(&id)?;
        if sized {
            // A terminal that has ended has no size any more.
            let _ = terminal.resize(wanted.size);
        }
        terminal
    } else {
        let opener = agent.clone();
        // In a task of its own: a client that leaves meanwhile must not leave the terminal half made.
        let opening = tokio::spawn(async move { open(&opener, wanted).await });
        opening.await.map_err(crate::error::Refusal::internal)??
    };
    let (refusals, refused) = mpsc::channel(REFUSALS);
    let (typed_into, gone) = (terminal.clone(), refusals.clone());
    tokio::spawn(async move {
        // What was typed before the connection dropped may still be in the stream: a reset comes right behind it.
        let late = async {
            gone.closed().await;
            tokio::time::sleep(LAST_WORDS).await;
        };
        tokio::select! {
            () = listen(typed_into, call.body, refusals) => {}
            () = late => {}
        }
    });
    let changes = terminal.changed.subscribe();
    let terminals = agent.terminals.clone();
    let number = lock(&terminal.readers).add(lock(&terminal.screen).end());
    let attachment =
        Attachment { terminal, terminals, number, changes, refused, offset: 0, greeted: false, done: false };
    let body = Body::Chunks(Box::pin(Feeding::new(attachment)));
    Ok(typed(StatusCode::OK, "application/octet-stream", body))
}

fn parse(query: &mut Query) -> (Option<String>, Wanted) {
    let cols = query.number("cols", SIZES, 80);
    let rows = query.number("rows", SIZES, 24);
    let size = size(u16::try_from(cols).unwrap_or(80), u16::try_from(rows).unwrap_or(24));
    let text = |name: &str| query.text(name).map(str::to_owned);
    let (id, cmd, cwd, user) = (text("id"), text("cmd"), text("cwd"), text("user"));
    let root = query.flag("root");
    if !root && user.as_deref().is_some_and(|user| !matches!(user, "user" | "root")) {
        query.fail("user", "must be user or root");
    }
    if cmd.as_deref().is_some_and(|cmd| cmd.contains('\0')) {
        query.fail("cmd", "must not contain the character NUL");
    }
    (id, Wanted { size, cmd, cwd, acting: Acting::new(root, user) })
}

/// Takes the client's frames until they end or are malformed.
async fn listen(terminal: Arc<Terminal>, mut body: Incoming, refusals: mpsc::Sender<FromServer>) {
    let refuse = async |message: String| {
        let refusal = FromServer::Error { code: code::INVALID_REQUEST.to_owned(), message };
        // Without a reader, the refusal is lost.
        let _ = refusals.send(refusal).await;
    };
    let mut decoder = Decoder::default();
    while let Some(Ok(frame)) = body.frame().await {
        decoder.feed(&frame.into_data().unwrap_or_default());
        loop {
            match decoder.next() {
                Ok(None) => break,
                Ok(Some(Frame::Bytes(bytes))) => {
                    if terminal.type_in(&bytes).await.is_err() {
                        return;
                    }
                }
                Ok(Some(Frame::Text(text))) => {
                    if let Err(message) = obey(&terminal, &text) {
                        refuse(message).await;
                    }
                }
                Err(error) => return refuse(format!("The frames cannot be read: {error}; attach again.")).await,
            }
        }
    }
}

fn obey(terminal: &Terminal, text: &str) -> Result<(), String> {
    let wish = serde_json::from_str(text).map_err(|error| format!("The text is not understood: {error}."))?;
    let failed = |_| "The terminal has ended.".to_owned();
    match wish {
        FromClient::Resize { cols, rows } => {
            if !SIZES.contains(&cols.into()) || !SIZES.contains(&rows.into()) {
                return Err("Columns and rows must be from 1 to 10000.".to_owned());
            }
            terminal.resize(size(cols, rows)).map_err(failed)
        }
        FromClient::Signal { signal } => {
            let unknown = || format!("{signal:?} is no signal; name one, like SIGINT.");
            terminal.signal(signal_by_name(&signal).ok_or_else(unknown)?).map_err(failed)
        }
    }
}

struct Attachment {
    terminal: Arc<Terminal>,
    terminals: Arc<Terminals>,
    number: u64,
    changes: watch::Receiver<()>,
    refused: mpsc::Receiver<FromServer>,
    offset: u64,
    greeted: bool,
    done: bool,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        lock(&self.terminal.readers).remove(self.number);
        self.terminal.progress.notify_one();
    }
}

impl Attachment {
    /// What can be sent now.
    fn batch(&mut self) -> Vec<u8> {
        if !self.greeted {
            self.greeted = true;
            return text(&FromServer::Ready { id: self.terminal.id.clone(), pid: self.terminal.pid });
        }
        // The exit is read before the screen: a reader that sees the exit then sees all output.
        let exit = *lock(&self.terminal.exit);
        let (bytes, end) = {
            let screen = lock(&self.terminal.screen);
            (screen.read(&mut self.offset, CHUNK), screen.end())
        };
        lock(&self.terminal.readers).moved(self.number, self.offset, end);
        self.terminal.progress.notify_one();
        if !bytes.is_empty() {
            return [&header(false, bytes.len()), bytes.as_slice()].concat();
        }
        let Some(exit) = exit else { return Vec::new() };
        self.done = true;
        self.terminals.remove(&self.terminal.id);
        text(&FromServer::Exit { code: exit.code, signal: exit.signal.map(signal_name) })
    }
}

fn text(say: &FromServer) -> Vec<u8> {
    encode(&Frame::Text(serde_json::to_string(say).unwrap_or_default()))
}

impl Feed for Attachment {
    const KEEP_ALIVE: Option<Duration> = None;

    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        while !self.done {
            self.changes.mark_unchanged();
            let batch = self.batch();
            if !batch.is_empty() {
                return Some(Ok(batch.into()));
            }
            tokio::select! {
                changed = self.changes.changed() => changed.ok()?,
                Some(refusal) = self.refused.recv() => return Some(Ok(text(&refusal).into())),
            }
        }
        None
    }
}
