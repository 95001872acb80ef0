//! The load: connections that send the same bytes and only check that an answer is one, in a process of its own.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::connection::Connection;
use super::hour::Hour;
use super::upstream::Shape;
use crate::process::median;

/// Its name among the arguments of this program.
pub const ARGUMENT: &str = "gateway-load";
/// Held streams that are opened at the same time.
const OPENING: u32 = 64;
/// Longest time to open all of them.
const OPEN_WITHIN: Duration = Duration::from_mins(2);
/// Longest wait for one answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// What the load has to do.
#[derive(Serialize, Deserialize)]
pub enum Order {
    /// The same request, repeated or held open.
    Work(Work),
    /// An hour of the simulated day.
    Hour(Hour),
}

/// The requests to send.
#[derive(Clone, Serialize, Deserialize)]
pub struct Work {
    /// The address, as `127.0.0.1:1234`.
    pub address: String,
    /// The bytes of each request.
    pub request: String,
    /// What it wants.
    pub shape: Shape,
    /// Connections at a time.
    pub connections: u32,
    /// Requests in all.
    pub requests: u32,
    /// Seconds after which no request begins.
    pub seconds: u64,
}

/// The result of some work.
#[derive(Serialize, Deserialize)]
pub struct Outcome {
    /// Whole answers.
    pub answers: u32,
    /// Seconds for all of them.
    pub seconds: f64,
    /// The median of their times, in microseconds.
    pub median: f64,
}

impl Outcome {
    /// Answers a second.
    pub fn rate(&self) -> f64 {
        f64::from(self.answers) / self.seconds
    }
}

/// Streams that stay open until this is dropped.
pub struct Held {
    _process: Child,
}

impl Order {
    fn command(&self) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(ARGUMENT).arg(serde_json::to_string(self)?).kill_on_drop(true);
        command.stdin(Stdio::null());
        Ok(command)
    }

    /// Runs the load process to its end; returns its output.
    pub async fn run(&self) -> Result<Vec<u8>> {
        let output = self.command()?.output().await?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(output.stdout)
    }
}

impl Work {
    /// Runs the work to its end.
    pub async fn run(&self) -> Result<Outcome> {
        Ok(serde_json::from_slice(&Order::Work(self.clone()).run().await?)?)
    }

    /// Opens all of its streams.
    pub async fn hold(&self) -> Result<Held> {
        let mut child = Order::Work(self.clone()).command()?.stdout(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("its output")?).lines();
        let line = timeout(OPEN_WITHIN, lines.next_line()).await.context("the streams are not open in time")??;
        line.context("the streams did not stay open")?;
        Ok(Held { _process: child })
    }

    /// Sends one request, from this process.
    pub async fn once(&self) -> Result<()> {
        timeout(ANSWER_WITHIN, async { Connection::open(&self.address).await?.ask(&self.request, self.shape).await })
            .await?
    }
}

/// Does what an argument says, on one thread, and prints the result.
pub fn serve(order: &str) -> Result<()> {
    let order: Order = serde_json::from_str(order)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match order {
            Order::Work(work) if work.shape == Shape::Hold => hold(Arc::new(work)).await,
            Order::Work(work) => ask(Arc::new(work)).await,
            Order::Hour(hour) => hour.live().await,
        }
    })
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

/// One connection; returns the microseconds of its answers.
async fn lane(work: Arc<Work>, left: Arc<AtomicU32>, number: u32) -> Result<Vec<f64>> {
    if work.shape == Shape::Stream {
        // Shifts streams against each other, so that they do not run in step.
        tokio::time::sleep(Duration::from_millis(u64::from(number % 5))).await;
    }
    let mut connection = Connection::open(&work.address).await?;
    let (began, mut times) = (Instant::now(), Vec::new());
    let one = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
    while began.elapsed() < Duration::from_secs(work.seconds) && one() {
        let asked = Instant::now();
        connection.ask(&work.request, work.shape).await?;
        times.push(asked.elapsed().as_secs_f64() * 1e6);
    }
    Ok(times)
}

/// Opens all streams, reports that, and keeps them until the process is killed.
async fn hold(work: Arc<Work>) -> Result<()> {
    let room = Arc::new(Semaphore::new(usize::try_from(OPENING)?));
    let mut streams = JoinSet::new();
    for _ in 0..work.connections {
        let (work, permit) = (work.clone(), room.clone().acquire_owned().await?);
        streams.spawn(async move {
            let mut connection = Connection::open(&work.address).await?;
            connection.begin(&work.request).await?;
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
