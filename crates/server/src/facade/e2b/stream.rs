//! Streams of events out of a sandbox, as streams of the Connect protocol.
//!
//! A stream ends with a message that says how: with the end that the program had, or with a failure. Of what a guest sends
//! that makes no sense nothing is passed on, and the stream ends.

use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use async_stream::stream;
use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use berth_domain::agent::output::{Frame, Frames};
use berth_domain::agent::runtime::OutputEvent;
use berth_domain::e2b::connect::{self, Refused, STREAM};
use berth_domain::e2b::entry::nonsense;
use berth_domain::e2b::process::{self, Output};
use bytes::Bytes;
use futures::StreamExt;
use tokio::time::{Instant, sleep_until, timeout};

use super::room::Room;

/// How long a program may take to be ended whose time is over.
const LAST_WORD: Duration = Duration::from_secs(5);

/// How the output of a program is read.
pub struct Reading {
    /// Where its output comes from.
    pub output: Output,
    /// Its number, where that is known before anything came.
    pub pid: Option<i32>,
    /// Milliseconds that the stream may last.
    pub limit: Option<u64>,
    /// Whether the program ends with that time.
    pub ends_program: bool,
}

/// A stream that failed before it began.
pub fn failed(refused: &Refused) -> Response {
    ([(header::CONTENT_TYPE, STREAM)], connect::end(Some(refused))).into_response()
}

/// A body of messages as a stream's answer.
pub fn streamed(body: Body) -> Response {
    ([(header::CONTENT_TYPE, STREAM)], body).into_response()
}

/// When a stream has to end; never where nobody says.
pub fn deadline(limit: Option<u64>) -> impl Future<Output = ()> {
    let at = limit.and_then(|limit| Instant::now().checked_add(Duration::from_millis(limit)));
    async move {
        match at {
            Some(at) => sleep_until(at).await,
            None => pending().await,
        }
    }
}

/// The output of a program until its end.
pub fn followed(room: &Room, answer: Response, reading: Reading) -> Response {
    let room = room.clone();
    let body = stream! {
        let mut pieces = answer.into_body().into_data_stream();
        let mut over = pin!(deadline(reading.limit));
        let mut told = Told { frames: Frames::default(), output: reading.output, pid: reading.pid, ended: None };
        if let Some(pid) = reading.pid {
            yield Ok::<_, std::convert::Infallible>(Bytes::from(connect::message(&process::started(pid))));
        }
        let failure = loop {
            let piece = tokio::select! {
                piece = pieces.next() => piece,
                () = &mut over => {
                    if let Some(pid) = told.pid.filter(|_| reading.ends_program) {
                        // The agent has the same limit.
                        let _ = timeout(LAST_WORD, room.kill(pid)).await;
                    }
                    break Some(process::timed_out());
                }
            };
            let Some(Ok(piece)) = piece else { break Some(process::broken_off()) };
            let out = told.feed(&piece);
            if !out.is_empty() {
                yield Ok(out.into());
            }
            if let Some(ended) = told.ended.take() {
                break ended.err();
            }
        };
        yield Ok(connect::end(failure.as_ref()).into());
    };
    streamed(Body::from_stream(body))
}

/// What of a program's output was told.
struct Told {
    frames: Frames,
    output: Output,
    pid: Option<i32>,
    /// How the stream ends.
    ended: Option<Result<(), Refused>>,
}

impl Told {
    /// The messages of what came.
    fn feed(&mut self, piece: &[u8]) -> Vec<u8> {
        let (mut frames, mut out) = (std::mem::take(&mut self.frames), Vec::new());
        frames.feed(piece);
        while self.ended.is_none() {
            match frames.pop() {
                Ok(None) => break,
                Ok(Some(frame)) => self.tell(&mut out, &frame),
                Err(_) => self.ended = Some(Err(nonsense())),
            }
        }
        self.frames = frames;
        out
    }

    fn tell(&mut self, out: &mut Vec<u8>, frame: &Frame<'_>) {
        let message = match frame {
            Frame::Nothing => process::keep_alive(),
            Frame::Output { stderr, bytes } => {
                let output = if *stderr { Output::Stderr } else { self.output };
                process::data(output, bytes)
            }
            Frame::Event(OutputEvent::Start { pid }) => {
                self.pid = Some(*pid);
                process::started(*pid)
            }
            Frame::Event(OutputEvent::Exit(exit)) => match process::ended(exit) {
                Ok(end) => {
                    self.ended = Some(Ok(()));
                    end
                }
                Err(refused) => {
                    self.ended = Some(Err(refused));
                    return;
                }
            },
            Frame::Event(OutputEvent::Error { code, message }) => {
                let refused = match code.as_str() {
                    "sandbox_interrupted" => process::broken_off(),
                    "unauthorized" => Refused::new(connect::Code::Unauthenticated, message),
                    _ => Refused::new(connect::Code::Internal, message),
                };
                self.ended = Some(Err(refused));
                return;
            }
            Frame::Event(OutputEvent::Truncated { .. }) => {
                self.ended = Some(Err(process::lost()));
                return;
            }
            // Output comes in frames of its own.
            Frame::Event(OutputEvent::Output { .. }) => return,
        };
        out.extend(connect::message(&message));
    }
}
