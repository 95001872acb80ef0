//! Whose turn it is to start a machine.
//!
//! Many machines started at once are all ready late, so a few are started at a time. What nobody waits for yet is
//! started while a core is left for it.

use tokio::sync::{AcquireError, Semaphore, SemaphorePermit, watch};

/// The turns there are.
pub(super) struct StartSlots {
    free: Semaphore,
    cores: usize,
    /// Starts that somebody waits for, under way or not.
    wanted: watch::Sender<usize>,
}

/// A turn, until it is dropped.
pub(super) struct StartSlot<'a> {
    _permit: SemaphorePermit<'a>,
    _wish: Option<Wish<'a>>,
}

/// Somebody who waits.
struct Wish<'a>(&'a StartSlots);

impl Drop for Wish<'_> {
    fn drop(&mut self) {
        self.0.wanted.send_modify(|wanted| *wanted -= 1);
    }
}

impl StartSlots {
    /// Those of a host with so many cores, so many for each.
    pub(super) fn new(cores: usize, each: usize) -> Self {
        Self { free: Semaphore::new(cores * each), cores, wanted: watch::Sender::new(0) }
    }

    /// A turn for what somebody waits for.
    pub(super) async fn take(&self) -> Result<StartSlot<'_>, AcquireError> {
        self.wanted.send_modify(|wanted| *wanted += 1);
        let wish = Wish(self);
        Ok(StartSlot { _permit: self.free.acquire().await?, _wish: Some(wish) })
    }

    /// A turn for what nobody waits for yet.
    pub(super) async fn take_idle(&self) -> Result<StartSlot<'_>, AcquireError> {
        let mut wanted = self.wanted.subscribe();
        // The sender lives as long as this.
        let _ = wanted.wait_for(|wanted| *wanted < self.cores).await;
        Ok(StartSlot { _permit: self.free.acquire().await?, _wish: None })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn what_nobody_waits_for_comes_last() {
        let turns = StartSlots::new(2, 1);
        let first = turns.take().await.unwrap();
        let idle = turns.take_idle().now_or_never().expect("a core is left").unwrap();
        assert!(turns.take().now_or_never().is_none(), "there are two");
        drop(idle);
        let second = turns.take().now_or_never().unwrap().unwrap();
        drop(first);
        assert!(turns.take_idle().now_or_never().is_some(), "who left does not wait");
        drop(second);
        let busy = StartSlots::new(2, 2);
        let both = (busy.take().await.unwrap(), busy.take().await.unwrap());
        assert!(busy.take_idle().now_or_never().is_none(), "no core is left");
        drop(both);
        assert!(StartSlots::new(1, 2).take_idle().now_or_never().is_some(), "the only core is idle");
    }
}
