//! One hour of the simulated day, as the load runs it: so many streams open at the same time, each on a connection of
//! its own, and the next one as soon as one has ended.

use std::net::Ipv4Addr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use berth_domain::identity::api_key;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::connection::Connection;
use super::ending::Ending;
use super::http;
use super::upstream::Shape;

/// Longest time of one stream.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// An hour.
#[derive(Serialize, Deserialize)]
pub struct Hour {
    /// The gateway's address, as `127.0.0.1:1234`.
    pub address: String,
    /// Headers of known clients, each with its line end.
    pub headers: String,
    /// The address of its connections: an address has some 28,000 ports, and each stays taken for a minute after its
    /// connection was closed.
    pub from: Ipv4Addr,
    /// Its streams, by their numbers in the day.
    pub streams: Range<u32>,
    /// Streams that are open at the same time.
    pub open: u32,
}

impl Hour {
    /// Runs it.
    pub async fn live(self) -> Result<()> {
        let (next, hour) = (Arc::new(AtomicU32::new(self.streams.start)), Arc::new(self));
        let mut lanes = JoinSet::new();
        for _ in 0..hour.open {
            lanes.spawn(lane(hour.clone(), next.clone()));
        }
        while let Some(lane) = lanes.join_next().await {
            lane??;
        }
        Ok(())
    }

    /// Opens a stream and ends it.
    async fn client(&self, stream: u32, ending: Ending) -> Result<()> {
        let mut connection = Connection::open_from(self.from, &self.address).await?;
        let request = self.request(stream, ending);
        match ending {
            Ending::Whole | Ending::Plain => connection.ask(&request, ending.shape()).await,
            Ending::Early(time) => connection.unanswered(&request, time).await,
            Ending::Middle => connection.taste(&request).await,
            Ending::Slow { .. } => connection.sip(&request).await,
            Ending::UnknownKey => connection.refused(&request, "401").await,
            Ending::UnknownModel => connection.refused(&request, "404").await,
        }
    }

    /// The bytes of a request. Every stranger has another key, and every unknown model another name.
    fn request(&self, stream: u32, ending: Ending) -> String {
        match ending {
            Ending::UnknownKey => http::request(&stranger(stream), &Shape::Plain.body()),
            Ending::UnknownModel => http::request(&self.headers, &Shape::Plain.body_to(&format!("unknown-{stream}"))),
            known => http::request(&self.headers, &known.shape().body()),
        }
    }
}

/// One stream after another.
async fn lane(hour: Arc<Hour>, next: Arc<AtomicU32>) -> Result<()> {
    loop {
        let stream = next.fetch_add(1, Ordering::Relaxed);
        if stream >= hour.streams.end {
            return Ok(());
        }
        let ending = Ending::of(stream);
        let ended = timeout(ENDS_WITHIN, hour.client(stream, ending)).await;
        let ended = ended.context("it did not come to its end in time").flatten();
        ended.with_context(|| format!("stream {stream} of the day ({ending:?})"))?;
    }
}

/// The header of a well-formed key that does not exist.
fn stranger(stream: u32) -> String {
    let key = api_key::compose(&format!("{stream:0width$}", width = api_key::PUBLIC), &"0".repeat(api_key::SECRET));
    format!("authorization: Bearer {key}\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_s_key_has_a_good_form() {
        for stream in [0, 86_399] {
            let header = stranger(stream);
            let key = header.trim_end().strip_prefix("authorization: Bearer ").unwrap();
            assert!(api_key::public_part(key).is_some_and(|public| public.parse::<u32>() == Ok(stream)));
        }
    }
}
