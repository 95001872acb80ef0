//! Whose turn it is to start a machine.
//!
//! Many machines started at once are all ready late, so a few are started at a time. What nobody waits for yet is
//! started when nothing that somebody waits for is.

use tokio::sync::{AcquireError, Semaphore, SemaphorePermit, watch};

/// The turns there are.
pub(super) struct Turns {
    free: Semaphore,
    /// Starts that somebody waits for, under way or not.
    wanted: watch::Sender<usize>,
}

/// A turn, until it is dropped.
pub(super) struct Turn<'a> {
    _permit: SemaphorePermit<'a>,
    _wish: Option<Wish<'a>>,
}

/// Somebody who waits.
struct Wish<'a>(&'a Turns);

impl Drop for Wish<'_> {
    fn drop(&mut self) {
        self.0.wanted.send_modify(|wanted| *wanted -= 1);
    }
}

impl Turns {
    /// So many at a time.
    pub(super) fn new(most: usize) -> Self {
        Self { free: Semaphore::new(most), wanted: watch::Sender::new(0) }
    }

    /// A turn for what somebody waits for.
    pub(super) async fn take(&self) -> Result<Turn<'_>, AcquireError> {
        self.wanted.send_modify(|wanted| *wanted += 1);
        let wish = Wish(self);
        Ok(Turn { _permit: self.free.acquire().await?, _wish: Some(wish) })
    }

    /// A turn for what nobody waits for yet.
    pub(super) async fn take_idle(&self) -> Result<Turn<'_>, AcquireError> {
        let mut wanted = self.wanted.subscribe();
        // The sender lives as long as this.
        let _ = wanted.wait_for(|wanted| *wanted == 0).await;
        Ok(Turn { _permit: self.free.acquire().await?, _wish: None })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn what_nobody_waits_for_comes_last() {
        let turns = Turns::new(2);
        let first = turns.take().await.unwrap();
        assert!(turns.take_idle().now_or_never().is_none());
        drop(first);
        let idle = turns.take_idle().now_or_never().unwrap().unwrap();
        let second = turns.take().now_or_never().unwrap().unwrap();
        assert!(turns.take().now_or_never().is_none(), "there are two");
        drop(idle);
        assert!(turns.take().now_or_never().is_some());
        drop(second);
        assert!(turns.take_idle().now_or_never().is_some(), "who left does not wait");
    }
}
