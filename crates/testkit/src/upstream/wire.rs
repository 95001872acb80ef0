//! HTTP/1.1 by hand: reads requests, and writes answers as a script says.

use std::io;
use std::sync::atomic::Ordering;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};

use super::script::{Script, Step};
use super::{Received, UnderWay};

/// Room for a read.
const PIECE: usize = 64 * 1024;

/// How an answer ended.
pub enum End {
    /// Properly: the connection takes another request.
    Whole,
    /// The connection is to be closed.
    Closed,
    /// The connection is to be reset.
    Reset,
    /// The client left.
    Left,
}

/// Reads more; `None` at the connection's end.
async fn fill(reader: &mut ReadHalf<'_>, buffer: &mut Vec<u8>) -> Option<()> {
    buffer.reserve(PIECE);
    match reader.read_buf(buffer).await {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(()),
    }
}

/// Returns when the client leaves. Bytes that it sends meanwhile are kept.
pub async fn left(reader: &mut ReadHalf<'_>, buffer: &mut Vec<u8>) {
    while fill(reader, buffer).await.is_some() {}
}

/// The first bytes of the buffer.
async fn take(reader: &mut ReadHalf<'_>, buffer: &mut Vec<u8>, count: usize) -> Option<Vec<u8>> {
    while buffer.len() < count {
        fill(reader, buffer).await?;
    }
    let rest = buffer.split_off(count);
    Some(std::mem::replace(buffer, rest))
}

/// The text before a mark; drops the mark.
async fn take_until(reader: &mut ReadHalf<'_>, buffer: &mut Vec<u8>, mark: &[u8]) -> Option<String> {
    loop {
        if let Some(at) = buffer.windows(mark.len()).position(|window| window == mark) {
            let mut taken = take(reader, buffer, at + mark.len()).await?;
            taken.truncate(at);
            return String::from_utf8(taken).ok();
        }
        fill(reader, buffer).await?;
    }
}

/// Reads a request; `None` if the connection ended or the bytes are not a request.
pub async fn read(reader: &mut ReadHalf<'_>, buffer: &mut Vec<u8>) -> Option<Received> {
    let head = take_until(reader, buffer, b"\r\n\r\n").await?;
    let mut lines = head.split("\r\n");
    let mut words = lines.next()?.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    };
    let headers = lines.map(header).collect::<Option<Vec<_>>>()?;
    let mut request = Received { method, path, headers, body: Vec::new() };
    request.body = match request.header("content-length") {
        Some(length) => take(reader, buffer, length.parse().ok()?).await?,
        None if request.header("transfer-encoding").is_some() => chunks(reader, buffer).await?,
        None => Vec::new(),
    };
    Some(request)
}

async fn chunks(reader: &mut ReadHalf<'_>, buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = take_until(reader, buffer, b"\r\n").await?;
        let size = usize::from_str_radix(line.split(';').next()?.trim(), 16).ok()?;
        let piece = take(reader, buffer, size + 2).await?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(&piece[..size]);
    }
}

/// The part of an answer that was sent.
#[derive(PartialEq)]
enum Sent {
    Nothing,
    Chunks,
    Everything,
}

struct Reply<'a, 'b> {
    writer: &'a mut WriteHalf<'b>,
    sent: Sent,
    status: u16,
    headers: String,
    asks_usage: bool,
    under_way: &'a UnderWay<'a>,
    is_last: bool,
}

/// Answers a request.
pub async fn play(writer: &mut WriteHalf<'_>, script: Script, asks_usage: bool, under_way: &UnderWay<'_>) -> End {
    let Script(steps) = script;
    let (sent, headers) = (Sent::Nothing, String::new());
    let mut reply = Reply { writer, sent, status: 200, headers, asks_usage, under_way, is_last: false };
    let mut left = steps.len();
    for step in steps {
        left -= 1;
        reply.is_last = left == 0;
        match reply.step(step).await {
            Ok(None) => {}
            Ok(Some(end)) => return end,
            Err(_) => return End::Left,
        }
    }
    if reply.end().await.is_ok() { End::Whole } else { End::Left }
}

impl Reply<'_, '_> {
    /// Takes a step; returns the answer's end if the step is one.
    async fn step(&mut self, step: Step) -> io::Result<Option<End>> {
        match step {
            Step::Status(status) => self.status = status,
            Step::Header(name, value) => self.headers.push_str(&format!("{name}: {value}\r\n")),
            Step::Head => self.head().await?,
            Step::Body(bytes) => self.body(&bytes).await?,
            Step::Chunk(bytes) => self.chunk(&bytes).await?,
            Step::Usage(bytes) if self.asks_usage => self.chunk(&bytes).await?,
            Step::Usage(_) => {}
            Step::Half(bytes) => {
                self.head().await?;
                let half = [format!("{:x}\r\n", bytes.len() * 2).as_bytes(), &bytes].concat();
                self.write(&half).await?;
            }
            Step::Flood(bytes, times) => {
                for _ in 0..times {
                    self.chunk(&bytes).await?;
                }
            }
            Step::Drip(bytes, pause) => loop {
                self.chunk(&bytes).await?;
                tokio::time::sleep(pause).await;
            },
            Step::Raw(bytes) => {
                self.sent = Sent::Everything;
                self.write(&bytes).await?;
            }
            Step::Hold(gate) => gate.passed().await,
            Step::Hang => std::future::pending().await,
            Step::Cut => return Ok(Some(End::Reset)),
            Step::Close => return Ok(Some(End::Closed)),
            Step::End => {
                self.end().await?;
                return Ok(Some(End::Whole));
            }
        }
        Ok(None)
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(bytes).await?;
        self.under_way.shared.sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Writes status and headers, once.
    async fn head(&mut self) -> io::Result<()> {
        if self.sent == Sent::Nothing {
            self.sent = Sent::Chunks;
            let head = format!("HTTP/1.1 {} X\r\n{}transfer-encoding: chunked\r\n\r\n", self.status, self.headers);
            self.write(head.as_bytes()).await?;
        }
        Ok(())
    }

    async fn body(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sent = Sent::Everything;
        if self.is_last {
            self.under_way.ends();
        }
        let told = self.headers.to_ascii_lowercase().contains("content-length:");
        let length = if told { String::new() } else { format!("content-length: {}\r\n", bytes.len()) };
        let head = format!("HTTP/1.1 {} X\r\n{}{length}\r\n", self.status, self.headers);
        self.write(&[head.as_bytes(), bytes].concat()).await
    }

    async fn chunk(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.head().await?;
        let size = format!("{:x}\r\n", bytes.len());
        self.write(&[size.as_bytes(), bytes, b"\r\n"].concat()).await
    }

    async fn end(&mut self) -> io::Result<()> {
        match self.sent {
            Sent::Nothing => self.body(b"").await,
            Sent::Chunks => {
                self.under_way.ends();
                self.write(b"0\r\n\r\n").await
            }
            Sent::Everything => Ok(()),
        }
    }
}
