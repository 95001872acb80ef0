//! What a caller hears while a call goes on, where it asked for that.

use std::time::Duration;

use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext, RoleServer};
use tokio::time::{Instant, timeout};

/// Shortest time between two notes of output: a program that prints a million lines is not told line by line.
const PACE: Duration = Duration::from_millis(250);
/// How long a note waits for a caller who does not read.
const PATIENCE: Duration = Duration::from_secs(1);
/// Most characters of a note.
const NOTE: usize = 200;

/// Notes of a call under way.
pub struct Progress {
    to: Option<(Peer<RoleServer>, ProgressToken)>,
    count: f64,
    told_at: Option<Instant>,
}

impl Progress {
    /// Of a call.
    pub fn of(context: &RequestContext<RoleServer>) -> Self {
        let token = context.meta.get_progress_token();
        Self { to: token.map(|token| (context.peer.clone(), token)), count: 0.0, told_at: None }
    }

    /// Tells what happens now.
    pub async fn tell(&mut self, message: &str) {
        let Some((peer, token)) = &self.to else { return };
        self.count += 1.0;
        self.told_at = Some(Instant::now());
        let note: String = message.chars().take(NOTE).collect();
        let note = ProgressNotificationParam::new(token.clone(), self.count).with_message(note);
        // Who is gone needs no note, and who does not read has none now.
        let _ = timeout(PATIENCE, peer.notify_progress(note)).await;
    }

    /// Tells the last line of some output, unless something was told a moment ago.
    pub async fn tell_output(&mut self, bytes: &[u8]) {
        if self.to.is_none() || self.told_at.is_some_and(|at| at.elapsed() < PACE) {
            return;
        }
        let text = String::from_utf8_lossy(bytes);
        if let Some(line) = text.lines().rev().find(|line| !line.trim().is_empty()) {
            self.tell(line).await;
        }
    }
}
