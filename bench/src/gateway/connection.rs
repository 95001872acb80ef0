//! A connection of the load: it only checks that an answer is one, and reads no more into it.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use super::http;
use super::upstream::Shape;

/// The status of a good answer.
const OK: &str = "200";
/// Bytes that a slow reader reads at a time.
const SIP: usize = 64;
/// Number of such reads; every answer is longer.
const SIPS: usize = 8;
/// Pause before each read.
const PAUSE: Duration = Duration::from_millis(20);

/// A connection. Dropping it closes it.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    /// Connects.
    pub async fn open(address: &str) -> Result<Self> {
        Self::of(TcpStream::connect(address).await?)
    }

    /// Connects from an address of this machine.
    pub async fn open_from(from: Ipv4Addr, address: &str) -> Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((from, 0)))?;
        Self::of(socket.connect(address.parse()?).await?)
    }

    fn of(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: vec![0; 16 * 1024] })
    }

    async fn send(&mut self, request: &str) -> Result<()> {
        Ok(self.stream.write_all(request.as_bytes()).await?)
    }

    /// Reads more behind the filled part; returns the new size of that part.
    async fn more(&mut self, filled: usize) -> Result<usize> {
        let read = self.stream.read(&mut self.buffer[filled..]).await?;
        ensure!(read > 0, "an answer was cut, or is longer than {} bytes", self.buffer.len());
        Ok(filled + read)
    }

    /// Reads until an answer is complete.
    async fn rest(&mut self, end: usize, mut filled: usize) -> Result<()> {
        while filled < end {
            filled = self.more(filled).await?;
        }
        Ok(())
    }

    /// Fails if the bytes are not the beginning of an answer with this status.
    fn must_be(&self, status: &str, filled: usize) -> Result<()> {
        if !self.buffer[9..].starts_with(status.as_bytes()) {
            bail!("answered {}", String::from_utf8_lossy(&self.buffer[..filled.min(1000)]));
        }
        Ok(())
    }

    /// Sends a request and reads the head of its answer, which must have this status. Returns the size of the head, and
    /// of everything read.
    async fn answered(&mut self, request: &str, status: &str) -> Result<(usize, usize)> {
        self.send(request).await?;
        let mut filled = 0;
        loop {
            filled = self.more(filled).await?;
            let Some(head) = http::head(&self.buffer[..filled]) else { continue };
            self.must_be(status, filled)?;
            return Ok((head, filled));
        }
    }

    /// Sends a request and reads the head of its answer, which must be a good one. Returns the size of the head, and of
    /// everything read.
    pub async fn begin(&mut self, request: &str) -> Result<(usize, usize)> {
        self.answered(request, OK).await
    }

    /// Sends a request and reads the whole answer.
    pub async fn ask(&mut self, request: &str, shape: Shape) -> Result<()> {
        let (head, filled) = self.begin(request).await?;
        if let Some(length) = http::length(&self.buffer[..head]) {
            ensure!(shape == Shape::Plain, "a stream came in one piece");
            return self.rest(head + length, filled).await;
        }
        let mut seen = Seen::default();
        seen.take(&self.buffer[head..filled]);
        while !seen.ended() {
            let filled = self.more(0).await?;
            seen.take(&self.buffer[..filled]);
        }
        let whole = shape == Shape::Plain || seen.is_whole_stream(shape.pieces());
        ensure!(whole, "a stream ended with {} events", seen.events);
        Ok(())
    }

    /// Sends a request that the server must refuse with this status, and reads the whole answer.
    pub async fn refused(&mut self, request: &str, status: &str) -> Result<()> {
        let (head, filled) = self.answered(request, status).await?;
        let length = http::length(&self.buffer[..head]).context("a refusal tells no length")?;
        self.rest(head + length, filled).await
    }

    /// Sends a request, and waits for a time in which no answer may come.
    pub async fn unanswered(&mut self, request: &str, time: Duration) -> Result<()> {
        self.send(request).await?;
        match timeout(time, self.more(0)).await {
            Err(_) => Ok(()),
            Ok(filled) => bail!("answered {} bytes, and too early", filled?),
        }
    }

    /// Sends a request, and reads its answer until it has some of the body.
    pub async fn taste(&mut self, request: &str) -> Result<()> {
        let (head, filled) = self.begin(request).await?;
        self.rest(head + 1, filled).await
    }

    /// Sends a request, and reads the beginning of its answer slowly.
    pub async fn sip(&mut self, request: &str) -> Result<()> {
        self.send(request).await?;
        for sip in 0..SIPS {
            sleep(PAUSE).await;
            let place = &mut self.buffer[sip * SIP..][..SIP];
            self.stream.read_exact(place).await.context("an answer was cut")?;
            self.must_be(OK, (sip + 1) * SIP)?;
        }
        Ok(())
    }

    /// Reads until the other side closes.
    pub async fn drain(&mut self) -> Result<()> {
        loop {
            self.more(0).await?;
        }
    }
}

/// What was seen of a chunked body.
#[derive(Default)]
struct Seen {
    events: u32,
    last: u8,
    tail: Vec<u8>,
}

impl Seen {
    /// Bytes kept from the end.
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

    fn is_whole_stream(&self, pieces: u32) -> bool {
        self.events >= pieces && http::find(&self.tail, b"[DONE]").is_some()
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::gateway::upstream::CHUNKS;

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
            assert_eq!(seen.is_whole_stream(CHUNKS), good);
        }
        let mut seen = Seen::default();
        seen.take((event.repeat(201) + "0\r\n\r\n").as_bytes());
        assert!(seen.ended() && !seen.is_whole_stream(CHUNKS));
    }

    /// A connection to a server that sends this, reads the request, and closes.
    async fn told(answer: String) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let connection = Connection::open_from(Ipv4Addr::new(127, 0, 1, 1), &address).await.unwrap();
        let (mut stream, from) = listener.accept().await.unwrap();
        assert_eq!(from.ip(), Ipv4Addr::new(127, 0, 1, 1));
        stream.write_all(answer.as_bytes()).await.unwrap();
        tokio::spawn(async move { drop(stream.read(&mut [0_u8]).await) });
        connection
    }

    #[tokio::test]
    async fn clients_leave_good_answers_only() {
        let head = |status: &str, header: &str| format!("HTTP/1.1 {status}\r\n{header}\r\n\r\n");
        let refusal = head("401 Unauthorized", "content-length: 2") + "{}";
        let stream = head("200 OK", "transfer-encoding: chunked") + &"a".repeat(SIP * SIPS);
        assert!(told(refusal.clone()).await.refused("?", "401").await.is_ok());
        assert!(told(refusal.clone()).await.refused("?", "404").await.is_err());
        assert!(told(refusal.clone()).await.taste("?").await.is_err());
        assert!(told(stream.clone()).await.taste("?").await.is_ok());
        assert!(told(stream.clone()).await.sip("?").await.is_ok());
        assert!(told(refusal.clone() + &"a".repeat(SIP * SIPS)).await.sip("?").await.is_err());
        assert!(told(stream).await.unanswered("?", Duration::from_secs(10)).await.is_err());
    }

    #[tokio::test]
    async fn who_is_not_answered_leaves() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut connection = Connection::open(&listener.local_addr().unwrap().to_string()).await.unwrap();
        assert!(connection.unanswered("?", Duration::ZERO).await.is_ok());
        drop(listener);
        assert!(connection.unanswered("?", Duration::from_secs(10)).await.is_err());
    }
}
