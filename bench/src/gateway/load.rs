//! The load: connections that send the same bytes and look at no more of an answer than whether it is one, in a
//! process of its own.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::http;
use super::upstream::{CHUNKS, Shape};
use crate::process::median;

/// Its name among the arguments of this program.
pub const ARGUMENT: &str = "gateway-load";
/// Streams that are opened at the same time, of those that are held.
const OPENING: u32 = 64;
/// Longest time in which they are open.
const OPEN_WITHIN: Duration = Duration::from_mins(2);
/// Longest time of one answer where one is awaited.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// What is asked.
#[derive(Serialize, Deserialize)]
pub struct Work {
    /// Where, as `127.0.0.1:1234`.
    pub address: String,
    /// The bytes of each request.
    pub request: String,
    /// What it wants.
    pub shape: Shape,
    /// Connections at a time.
    pub connections: u32,
    /// Requests, all in all.
    pub requests: u32,
    /// Seconds after which none is begun.
    pub seconds: u64,
}

/// What came of it.
#[derive(Serialize, Deserialize)]
pub struct Outcome {
    /// Whole answers.
    pub answers: u32,
    /// Seconds that they took together.
    pub seconds: f64,
    /// The middle of their times, in microseconds.
    pub median: f64,
}

impl Outcome {
    /// Answers a second.
    pub fn rate(&self) -> f64 {
        f64::from(self.answers) / self.seconds
    }
}

/// Streams that are open until this goes.
pub struct Held {
    _process: Child,
}

impl Work {
    fn command(&self) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(ARGUMENT).arg(serde_json::to_string(self)?).kill_on_drop(true);
        command.stdin(Stdio::null());
        Ok(command)
    }

    /// Does it, and waits for its end.
    pub async fn run(&self) -> Result<Outcome> {
        let output = self.command()?.output().await?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Opens its streams, all of them.
    pub async fn hold(&self) -> Result<Held> {
        let mut child = self.command()?.stdout(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("its output")?).lines();
        let line = timeout(OPEN_WITHIN, lines.next_line()).await.context("the streams are not open in time")??;
        line.context("the streams did not stay open")?;
        Ok(Held { _process: child })
    }

    /// Asks once, from this process.
    pub async fn once(&self) -> Result<()> {
        timeout(ANSWER_WITHIN, async { Connection::open(&self.address).await?.ask(self).await }).await?
    }
}

/// Does what an argument says, on one thread; says what came of it.
pub fn serve(work: &str) -> Result<()> {
    let work: Arc<Work> = Arc::new(serde_json::from_str(work)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { if work.shape == Shape::Hold { hold(work).await } else { ask(work).await } })
}

async fn ask(work: Arc<Work>) -> Result<()> {
    let began = Instant::now();
    let left = Arc::new(AtomicU32::new(work.requests));
    let mut lanes = JoinSet::new();
    for number in 0..work.connections {
        lanes.spawn(lane(work.clone(), left.clone(), number));
    }
    let mut times = Vec::new();
    while let Some(lane) = lanes.join_next().await {
        times.extend(lane??);
    }
    let (answers, seconds) = (u32::try_from(times.len())?, began.elapsed().as_secs_f64());
    println!("{}", serde_json::to_string(&Outcome { answers, seconds, median: median(times) })?);
    Ok(())
}

/// One connection; the microseconds of its answers.
async fn lane(work: Arc<Work>, left: Arc<AtomicU32>, number: u32) -> Result<Vec<f64>> {
    if work.shape == Shape::Stream {
        // Streams beside each other do not beat in time.
        tokio::time::sleep(Duration::from_millis(u64::from(number % 5))).await;
    }
    let mut connection = Connection::open(&work.address).await?;
    let (began, mut times) = (Instant::now(), Vec::new());
    let one = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
    while began.elapsed() < Duration::from_secs(work.seconds) && one() {
        let asked = Instant::now();
        connection.ask(&work).await?;
        times.push(asked.elapsed().as_secs_f64() * 1e6);
    }
    Ok(times)
}

/// Opens all streams, says so, and keeps them until it is killed.
async fn hold(work: Arc<Work>) -> Result<()> {
    let room = Arc::new(Semaphore::new(usize::try_from(OPENING)?));
    let mut streams = JoinSet::new();
    for _ in 0..work.connections {
        let (work, permit) = (work.clone(), room.clone().acquire_owned().await?);
        streams.spawn(async move {
            let mut connection = Connection::open(&work.address).await?;
            connection.begin(&work).await?;
            drop(permit);
            connection.drain().await
        });
    }
    let _all = room.acquire_many(OPENING).await?;
    if let Some(ended) = streams.try_join_next() {
        ended??;
    }
    println!("open");
    while let Some(ended) = streams.join_next().await {
        ended??;
    }
    Ok(())
}

struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    async fn open(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: vec![0; 16 * 1024] })
    }

    /// Reads behind what is there; how much is there then.
    async fn more(&mut self, filled: usize) -> Result<usize> {
        let read = self.stream.read(&mut self.buffer[filled..]).await?;
        ensure!(read > 0, "an answer was cut, or is longer than {} bytes", self.buffer.len());
        Ok(filled + read)
    }

    /// Sends a request and reads the head of its answer, which must be a good one; bytes of the head, and of all that
    /// is there.
    async fn begin(&mut self, work: &Work) -> Result<(usize, usize)> {
        self.stream.write_all(work.request.as_bytes()).await?;
        let mut filled = 0;
        loop {
            filled = self.more(filled).await?;
            let Some(head) = http::head(&self.buffer[..filled]) else { continue };
            if !self.buffer[9..].starts_with(b"200") {
                bail!("answered {}", String::from_utf8_lossy(&self.buffer[..filled.min(1000)]));
            }
            return Ok((head, filled));
        }
    }

    /// Sends a request and reads the whole answer.
    async fn ask(&mut self, work: &Work) -> Result<()> {
        let (head, mut filled) = self.begin(work).await?;
        if let Some(length) = http::length(&self.buffer[..head]) {
            ensure!(work.shape == Shape::Plain, "a stream came in one piece");
            while filled < head + length {
                filled = self.more(filled).await?;
            }
            return Ok(());
        }
        let mut seen = Seen::default();
        seen.take(&self.buffer[head..filled]);
        while !seen.ended() {
            let filled = self.more(0).await?;
            seen.take(&self.buffer[..filled]);
        }
        ensure!(work.shape == Shape::Plain || seen.is_whole_stream(), "a stream ended with {} events", seen.events);
        Ok(())
    }

    /// Reads as long as something comes.
    async fn drain(&mut self) -> Result<()> {
        loop {
            self.more(0).await?;
        }
    }
}

/// What was seen of a body in chunks.
#[derive(Default)]
struct Seen {
    events: u32,
    last: u8,
    tail: Vec<u8>,
}

impl Seen {
    /// Bytes of the end that are kept.
    const TAIL: usize = 64;

    fn take(&mut self, piece: &[u8]) {
        for &byte in piece {
            self.events += u32::from(byte == b'\n' && self.last == b'\n');
            self.last = byte;
        }
        self.tail.extend_from_slice(&piece[piece.len().saturating_sub(Self::TAIL)..]);
        self.tail.drain(..self.tail.len().saturating_sub(Self::TAIL));
    }

    fn ended(&self) -> bool {
        self.tail.ends_with(http::LAST_CHUNK)
    }

    fn is_whole_stream(&self) -> bool {
        self.events >= CHUNKS && http::find(&self.tail, b"[DONE]").is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_stream_is_not_whole() {
        let event = "10\r\ndata: {\"a\": 1}\n\n\r\n";
        let whole = event.repeat(200) + "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
        for (text, good) in [(whole.as_str(), true), (&whole[event.len() * 2..], false)] {
            let mut seen = Seen::default();
            for piece in text.as_bytes().chunks(7) {
                assert!(!seen.ended());
                seen.take(piece);
            }
            assert!(seen.ended());
            assert_eq!(seen.is_whole_stream(), good);
        }
        let mut seen = Seen::default();
        seen.take((event.repeat(201) + "0\r\n\r\n").as_bytes());
        assert!(seen.ended() && !seen.is_whole_stream());
    }
}
