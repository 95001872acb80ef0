//! Threads that serve connections: an event loop for each core.
//!
//! On a runtime with many threads, a thread that finds work first wakes another thread to watch meanwhile. With one
//! request under way, every event then cost a wake-up and a change of threads, and any free thread read from the
//! connections to upstreams. Here a connection stays with one loop while it lasts, together with all that the service
//! asks of upstreams for it; nothing wakes other threads, nothing moves.
//!
//! Work on a loop delays its other connections, so a loop only waits, and computes little. Everything else runs on the
//! runtime on which the service started.

use std::io;
use std::num::NonZero;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Bytes of work, such as parsing a body, that a loop does itself: 0.1 to 0.3 ms for text, at worst 3 ms for nothing
/// but keys.
const LIGHT: usize = 256 << 10;

/// The event loops of a service. Dropping them ends them, with everything that runs on them.
pub struct EventLoops {
    loops: Vec<EventLoop>,
    stop: DropGuard,
}

struct EventLoop {
    handle: Handle,
    /// Each of its connections holds a clone, so that they can be counted.
    connection: Arc<()>,
    thread: JoinHandle<()>,
}

impl EventLoop {
    fn start(stop: CancellationToken) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let run = move || {
            runtime.block_on(stop.cancelled());
            // Drops its tasks at once. Does not wait for a slow name look-up.
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("event-loop".into()).spawn(run)?;
        Ok(Self { handle, connection: Arc::default(), thread })
    }
}

impl EventLoops {
    /// Starts one for each core.
    pub fn start() -> io::Result<Self> {
        let stop = CancellationToken::new();
        let number = thread::available_parallelism().map_or(1, NonZero::get);
        let loops = (0..number).map(|_| EventLoop::start(stop.clone())).collect::<io::Result<_>>()?;
        Ok(Self { loops, stop: stop.drop_guard() })
    }

    /// Runs a connection on the loop that has the fewest.
    pub fn spawn(&self, connection: impl Future<Output = ()> + Send + 'static) {
        let fewest = self.loops.iter().min_by_key(|one| Arc::strong_count(&one.connection));
        if let Some(EventLoop { handle, connection: counted, .. }) = fewest {
            let counted = counted.clone();
            handle.spawn(async move {
                connection.await;
                drop(counted);
            });
        }
    }

    /// Cuts everything that still runs, and waits until nothing does.
    pub async fn end(self) {
        drop(self.stop);
        let ended = tokio::task::spawn_blocking(|| self.loops.into_iter().try_for_each(|one| one.thread.join()));
        if !matches!(ended.await, Ok(Ok(()))) {
            tracing::error!("an event loop ended in a panic");
        }
    }
}

/// Runs work that takes time for each byte: here where the bytes are few, else on a thread beside the loop.
pub async fn compute<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    if bytes <= LIGHT {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The loop ends, and this future with it.
            Err(_) => std::future::pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn connections_spread_and_end_with_their_loops() {
        let loops = EventLoops::start().unwrap();
        let number = loops.loops.len();
        let (tell, mut told) = mpsc::unbounded_channel();
        for _ in 0..3 * number {
            let tell = tell.clone();
            loops.spawn(async move {
                tell.send(thread::current().id()).unwrap();
                std::future::pending::<()>().await;
                drop(tell);
            });
        }
        drop(tell);
        let mut found: HashMap<_, usize> = HashMap::new();
        for _ in 0..3 * number {
            *found.entry(told.recv().await.unwrap()).or_default() += 1;
        }
        assert_eq!((found.len(), found.values().all(|connections| *connections == 3)), (number, true));
        loops.end().await;
        assert!(told.is_closed() && told.recv().await.is_none(), "nothing of a connection is left");
    }

    #[tokio::test]
    async fn a_loop_leaves_to_others_what_takes_long() {
        let here = thread::current().id();
        for (bytes, stays) in [(LIGHT, true), (LIGHT + 1, false)] {
            assert_eq!(compute(bytes, || thread::current().id()).await == here, stays);
        }
    }
}
