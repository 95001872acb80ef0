//! Who looks at machines' screens, and pictures of them.
//!
//! QEMU counts viewers that share a screen, and lets in any number that want it for themselves. Each may cost it tens of
//! megabytes, so the service counts all that it lets in. A picture is made over the connection by which machines are
//! changed, and QEMU serves one at a time: whoever wants a picture while one is made gets that one.

use std::collections::HashMap;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use berth_domain::ids::MachineId;
use berth_qemu::machine::screen::{self, MOST_VIEWERS};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::error::{qemu_failed, transient};
use crate::{EngineError, Result};

/// How long a picture may take: less than whoever changes the machine waits for the connection.
const PATIENCE: Duration = Duration::from_millis(2500);

type Picture = OnceCell<Result<Arc<Vec<u8>>>>;

/// Who looks at each machine's screen, and the pictures that are being made.
#[derive(Default)]
pub(super) struct Screens {
    viewers: Mutex<HashMap<MachineId, Weak<Semaphore>>>,
    pictures: Mutex<HashMap<MachineId, Weak<Picture>>>,
}

impl Screens {
    /// A place before a machine's screen.
    fn enter(&self, id: MachineId) -> Result<OwnedSemaphorePermit> {
        let places = current(&self.viewers, id, || Semaphore::new(MOST_VIEWERS));
        let full = format!("{MOST_VIEWERS} look at the screen of the VM already; one of them has to leave first");
        places.try_acquire_owned().map_err(|_| EngineError::NoCapacity(full))
    }

    /// The picture that is being made of a machine's screen, or one that is made now.
    async fn picture(&self, id: MachineId, make: impl Future<Output = Result<Vec<u8>>>) -> Result<Vec<u8>> {
        let picture = current(&self.pictures, id, OnceCell::new);
        let outcome = picture.get_or_init(async || make.await.map(Arc::new)).await;
        outcome.clone().map(Arc::unwrap_or_clone)
    }

    /// A connection to the screen of the machine of a folder, which has a place before it.
    pub(super) async fn view(&self, id: MachineId, dir: &Path) -> Result<Viewer> {
        let place = self.enter(id)?;
        let screen = screen::connect(dir).await.map_err(qemu_failed)?;
        Ok(Viewer { screen, _place: place })
    }

    /// A picture of the screen of the machine of a folder.
    pub(super) async fn show(&self, id: MachineId, dir: &Path) -> Result<Vec<u8>> {
        let made = async {
            let made = timeout(PATIENCE, screen::picture(dir)).await;
            made.map_err(|_| transient("the picture of the screen was not made in time"))?.map_err(qemu_failed)
        };
        self.picture(id, made).await
    }
}

/// What somebody has of a machine, or a new one.
fn current<T>(all: &Mutex<HashMap<MachineId, Weak<T>>>, id: MachineId, new: impl FnOnce() -> T) -> Arc<T> {
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = all.get(&id).and_then(Weak::upgrade) {
        return known;
    }
    all.retain(|_, held| held.strong_count() > 0);
    let made = Arc::new(new());
    all.insert(id, Arc::downgrade(&made));
    made
}

/// A connection to a screen. It frees its place when it goes.
pub(super) struct Viewer {
    screen: UnixStream,
    _place: OwnedSemaphorePermit,
}

impl AsyncRead for Viewer {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.screen).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Viewer {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.screen).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.screen).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.screen).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ninth_viewer_waits_until_one_leaves() {
        let (screens, one, other) =
            (Screens::default(), MachineId(uuid::Uuid::now_v7()), MachineId(uuid::Uuid::now_v7()));
        let mut inside: Vec<_> = (0..MOST_VIEWERS).map(|_| screens.enter(one).expect("a place")).collect();
        assert!(matches!(screens.enter(one), Err(EngineError::NoCapacity(text)) if text.contains("8 look")));
        let beside = screens.enter(other).expect("a place of its own");
        inside.pop();
        inside.push(screens.enter(one).expect("the place of the one that left"));
        assert!(screens.enter(one).is_err());
        drop((inside, beside));
        drop(screens.enter(one).expect("a place"));
        assert_eq!(screens.viewers.lock().expect("what is counted").len(), 1, "nothing is kept of who left");
    }

    #[tokio::test]
    async fn who_comes_while_a_picture_is_made_gets_that_one() {
        let (screens, id) = (Screens::default(), MachineId(uuid::Uuid::now_v7()));
        let (ready, wait) = tokio::sync::oneshot::channel();
        let first = screens.picture(id, async {
            wait.await.expect("a word");
            Ok(vec![1])
        });
        let second = screens.picture(id, async { panic!("it makes none") });
        let third = async {
            ready.send(()).expect("a listener");
            // Another machine's has nothing to do with it.
            screens.picture(MachineId(uuid::Uuid::now_v7()), async { Ok(vec![3]) }).await
        };
        assert_eq!(tokio::join!(first, second, third), (Ok(vec![1]), Ok(vec![1]), Ok(vec![3])));
        assert_eq!(screens.picture(id, async { Ok(vec![4]) }).await, Ok(vec![4]), "a later one is another");
    }
}
