//! Load: connections that do nothing but send the same bytes and count answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Connections at a time.
const CONNECTIONS: usize = 16;
/// Pause between two timed requests.
const PAUSE: Duration = Duration::from_millis(2);

/// Requests per second over `time`, all of them answered with `status`.
pub async fn rate(address: &str, request: String, status: u16, time: Duration) -> Result<f64> {
    let request: Arc<[u8]> = request.into_bytes().into();
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (address, request) = (address.to_owned(), request.clone());
        tasks.spawn(async move {
            let mut connection = Connection::open(&address).await?;
            let mut count = 0_u32;
            while began.elapsed() < time {
                let answered = connection.ask(&request).await?;
                ensure!(answered == status, "answered {answered} instead of {status}");
                count += 1;
            }
            Ok::<u32, anyhow::Error>(count)
        });
    }
    let mut total = 0.0;
    while let Some(count) = tasks.join_next().await {
        total += f64::from(count??);
    }
    Ok(total / began.elapsed().as_secs_f64())
}

/// Milliseconds of one request after another over `time`, with a pause in between that leaves room for other load.
pub async fn latencies(address: &str, request: &str, status: u16, time: Duration) -> Result<Vec<f64>> {
    let mut connection = Connection::open(address).await?;
    let (began, mut all) = (Instant::now(), Vec::new());
    while began.elapsed() < time {
        let asked = Instant::now();
        let answered = connection.ask(request.as_bytes()).await?;
        ensure!(answered == status, "answered {answered} instead of {status}");
        all.push(asked.elapsed().as_secs_f64() * 1e3);
        tokio::time::sleep(PAUSE).await;
    }
    Ok(all)
}

/// Sends `number` requests, each made for its number; returns how many a second.
pub async fn each(address: &str, number: usize, request: impl Fn(usize) -> String, status: u16) -> Result<f64> {
    let requests: Arc<Vec<String>> = Arc::new((0..number).map(request).collect());
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for lane in 0..CONNECTIONS {
        let (address, requests) = (address.to_owned(), requests.clone());
        tasks.spawn(async move {
            let mut connection = Connection::open(&address).await?;
            for request in requests.iter().skip(lane).step_by(CONNECTIONS) {
                let answered = connection.ask(request.as_bytes()).await?;
                ensure!(answered == status, "answered {answered} instead of {status}");
            }
            Ok::<(), anyhow::Error>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let number = f64::from(u32::try_from(number)?);
    Ok(number / began.elapsed().as_secs_f64())
}

struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    async fn open(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: vec![0; 256 * 1024] })
    }

    /// Sends a request and reads the whole answer; returns its status.
    async fn ask(&mut self, request: &[u8]) -> Result<u16> {
        self.stream.write_all(request).await?;
        let mut filled = 0;
        loop {
            if filled == self.buffer.len() {
                // Metrics of a thousand hosts are more than most answers.
                self.buffer.resize(2 * filled, 0);
            }
            let read = self.stream.read(&mut self.buffer[filled..]).await?;
            ensure!(read > 0, "the connection ended");
            filled += read;
            let text = &self.buffer[..filled];
            let Some(head) = text.windows(4).position(|w| w == b"\r\n\r\n") else { continue };
            let header = std::str::from_utf8(&text[..head])?;
            if filled >= head + 4 + length(header) {
                return header.get(9..12).and_then(|s| s.parse().ok()).context("no status");
            }
        }
    }
}

fn length(header: &str) -> usize {
    let line = header.lines().find_map(|l| l.strip_prefix("content-length: "));
    line.and_then(|n| n.parse().ok()).unwrap_or_default()
}

/// The bytes of a request.
pub fn request(method: &str, path: &str, token: &str, body: &str) -> String {
    let body_headers = if body.is_empty() {
        String::new()
    } else {
        format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len())
    };
    format!("{method} {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {token}\r\n{body_headers}\r\n{body}")
}
