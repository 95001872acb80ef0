//! Fetches a file, and tells how far it is.

use std::path::Path;
use std::time::{Duration, Instant};

use futures::StreamExt;
use tokio::io::AsyncWriteExt;

/// How long a server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(20);
/// How long a server may send nothing.
const SILENCE: Duration = Duration::from_mins(1);
/// Between two words about the progress.
const PROGRESS: Duration = Duration::from_secs(2);

/// Fetches a URL into a file, whole or not at all, of at most so many bytes. The reason of a failure is for people.
pub(super) async fn fetch<F: Future<Output = ()>>(
    url: &str,
    file: &Path,
    most: u64,
    told: impl Fn(String) -> F,
) -> Result<(), String> {
    let outcome = stream(url, file, most, told).await;
    if outcome.is_err() {
        // There may be nothing yet.
        let _ = tokio::fs::remove_file(file).await;
    }
    outcome
}

async fn stream<F: Future<Output = ()>>(
    url: &str,
    file: &Path,
    most: u64,
    told: impl Fn(String) -> F,
) -> Result<(), String> {
    let client = reqwest::Client::builder().connect_timeout(CONNECT).read_timeout(SILENCE).build();
    let response = client.map_err(reason)?.get(url).send().await.map_err(reason)?;
    let response = response.error_for_status().map_err(reason)?;
    let total = response.content_length();
    let mut out = tokio::fs::File::create(file).await.map_err(reason)?;
    let (mut body, mut received, mut last) = (response.bytes_stream(), 0_u64, Instant::now());
    told(progress(0, total)).await;
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(reason)?;
        received += chunk.len() as u64;
        if received > most {
            return Err(format!("it has more than the {most} bytes that are taken in"));
        }
        out.write_all(&chunk).await.map_err(reason)?;
        if last.elapsed() >= PROGRESS {
            last = Instant::now();
            told(progress(received, total)).await;
        }
    }
    out.sync_all().await.map_err(reason)
}

fn progress(received: u64, total: Option<u64>) -> String {
    let mib = |bytes: u64| bytes >> 20;
    match total {
        Some(total) => format!("downloading: {} of {} MiB", mib(received), mib(total)),
        None => format!("downloading: {} MiB", mib(received)),
    }
}

/// An error with its causes, because the outermost says only that it failed.
fn reason(error: impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
