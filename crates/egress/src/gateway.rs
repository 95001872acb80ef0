//! The front door: gateways share what is known of the host, and each attachment is one link.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_domain::sandbox::network::Network;
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::{Semaphore, watch};

use crate::config::Config;
use crate::counters::Counters;
use crate::frame::Deframer;
use crate::host::Host;
use crate::names::Names;
use crate::pool::{Claim, Pool};
use crate::switch::Switch;
use crate::wire::Wire;

/// Makes links. One serves all sandboxes of a service; cloning it shares it.
#[derive(Clone)]
pub struct Gateway {
    config: Arc<Config>,
    host: Arc<Host>,
    sockets: Arc<Pool>,
}

/// What the tasks of one link share.
pub(crate) struct Link {
    pub(crate) config: Arc<Config>,
    pub(crate) host: Arc<Host>,
    pub(crate) policy: watch::Receiver<Arc<Network>>,
    pub(crate) wire: Wire,
    pub(crate) half_open: Arc<Semaphore>,
    pub(crate) queries: Arc<Semaphore>,
    pub(crate) buffers: Arc<Pool>,
    /// Those of all links.
    sockets: Arc<Pool>,
    /// Those of this one.
    own: Arc<Pool>,
    names: Mutex<Names>,
}

/// A socket of the service's, until it is dropped.
pub(crate) struct SocketClaim {
    _own: Claim,
    _all: Claim,
}

impl Link {
    /// A socket more, if the sandbox leaves as many to the others as it has.
    pub(crate) fn socket(&self) -> Option<SocketClaim> {
        let own = self.own.claim(1, 0)?;
        let all = self.sockets.claim(1, self.own.used().saturating_sub(1))?;
        Some(SocketClaim { _own: own, _all: all })
    }

    pub(crate) fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gateway {
    /// A gateway with a configuration.
    pub fn new(config: Config) -> Self {
        let host = Arc::new(Host::new(config.host.clone()));
        let sockets = Pool::new(config.sockets);
        Self { config: Arc::new(config), host, sockets }
    }

    /// Is the other end of a guest's network card until the stream ends; dropping the future ends all its
    /// connections, too. New connections are judged by the policy's newest value, and open ones that a change no
    /// longer allows are reset at once.
    ///
    /// # Errors
    /// Reading or writing the stream failed, or the stream is not one of frames. An orderly end is none.
    pub fn attach(
        &self,
        stream: UnixStream,
        policy: watch::Receiver<Arc<Network>>,
        counters: Arc<Counters>,
    ) -> impl Future<Output = io::Result<()>> + Send + use<> {
        let limits = &self.config.limits;
        let link = Link {
            config: Arc::clone(&self.config),
            host: Arc::clone(&self.host),
            policy,
            wire: Wire::new(Arc::clone(&counters)),
            half_open: Arc::new(Semaphore::new(limits.half_open)),
            queries: Arc::new(Semaphore::new(limits.queries)),
            buffers: Pool::new(limits.buffers),
            sockets: Arc::clone(&self.sockets),
            own: Pool::new(self.config.sockets),
            names: Mutex::new(Names::new(limits.names)),
        };
        let (read, write) = stream.into_split();
        serve(Arc::new(link), read, write, counters)
    }
}

async fn serve(
    link: Arc<Link>,
    mut read: OwnedReadHalf,
    write: impl AsyncWrite + Unpin,
    counters: Arc<Counters>,
) -> io::Result<()> {
    let mut policy = link.policy.clone();
    let mut governed = true;
    let mut frames = Deframer::new();
    let mut switch = Switch::new(Arc::clone(&link));
    let mut writing = std::pin::pin!(link.wire.pump(write));
    loop {
        tokio::select! {
            () = switch.ended() => {}
            changed = policy.changed(), if governed => {
                governed = changed.is_ok();
                switch.judge_again();
            }
            read = read.read(frames.space()) => {
                let count = read?;
                if count == 0 {
                    return Ok(());
                }
                frames.filled(count);
                while let Some(frame) = frames.next()? {
                    counters.sent(frame.len());
                    switch.frame(frame);
                }
            }
            written = &mut writing => return written,
        }
    }
}
