//! The virtio-serial port that leads to the host.
//!
//! While no host is connected, a read returns nothing at once, and a poll reports the port as ready for ever. So the
//! agent adds the port to an edge-triggered epoll, which reports only changes, and lets tokio wait for that: it sleeps
//! until the host comes.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::event::epoll;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// An open port.
pub struct Port {
    device: OwnedFd,
    edges: AsyncFd<OwnedFd>,
}

impl Port {
    /// Opens a port. When it is closed, the kernel discards what was on its way.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let device = rustix::fs::open(path, flags, Mode::empty())?;
        let edges = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let what = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::HUP | epoll::EventFlags::ET;
        epoll::add(&edges, &device, epoll::EventData::new_u64(0), what)?;
        #[expect(deprecated, reason = "an owned descriptor stays the same and open, which is all its successor asks")]
        let edges = AsyncFd::with_interest(edges, Interest::READABLE)?;
        Ok(Self { device, edges })
    }

    /// Reads; 0 while no host is connected.
    pub fn poll_read(&self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll(context, || rustix::io::read(&self.device, &mut *buffer))
    }

    /// Writes.
    pub fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll(context, || rustix::io::write(&self.device, bytes))
    }

    /// Waits until something changes.
    pub async fn changed(&self) -> io::Result<()> {
        let mut guard = self.edges.readable().await?;
        self.drain()?;
        guard.clear_ready();
        Ok(())
    }

    /// Clears the edge before the attempt, so that a change after the attempt wakes the task again.
    fn poll(
        &self,
        context: &mut Context<'_>,
        mut attempt: impl FnMut() -> rustix::io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            match attempt() {
                Err(Errno::AGAIN) => {}
                Err(Errno::INTR) => continue,
                other => return Poll::Ready(other.map_err(Into::into)),
            }
            let mut guard = ready!(self.edges.poll_read_ready(context))?;
            self.drain()?;
            guard.clear_ready();
        }
    }

    fn drain(&self) -> io::Result<()> {
        let mut events = Vec::with_capacity(4);
        let zero = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(&self.edges, rustix::buffer::spare_capacity(&mut events), Some(&zero))?;
        Ok(())
    }
}

/// The device of the port with a name; waits until it exists.
pub async fn find(name: &str, patience: Duration) -> io::Result<PathBuf> {
    let search = async {
        loop {
            if let Some(device) = look(name) {
                return device;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(patience, search).await.map_err(|_| io::Error::other(format!("there is no port {name}")))
}

fn look(name: &str) -> Option<PathBuf> {
    let ports = std::fs::read_dir("/sys/class/virtio-ports").ok()?;
    let port = ports
        .flatten()
        .find(|port| std::fs::read_to_string(port.path().join("name")).is_ok_and(|found| found.trim() == name))?;
    let device = Path::new("/dev").join(port.file_name());
    device.exists().then_some(device)
}
