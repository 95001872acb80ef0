//! The front door: the link to a guest's network card, made of a configuration.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use berth_domain::sandbox::network_policy::NetworkPolicy;
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::watch;

use crate::config::Config;
use crate::counters::Counters;
use crate::flows::Flows;
use crate::forward::{Forward, Forwards};
use crate::frame::Deframer;
use crate::host::Host;
use crate::link::Link;
use crate::ndp;

/// How long nothing comes before memory is given back that larger packets took.
const REST: Duration = Duration::from_secs(1);

/// Makes the link of a machine, again if its service gives it another card. Cloning it shares what is known of the
/// host.
#[derive(Clone)]
pub struct Egress {
    config: Arc<Config>,
    host: Arc<Host>,
}

impl Egress {
    /// An egress with a configuration.
    pub fn new(config: Config) -> Self {
        let host = Arc::new(Host::new(config.host.clone()));
        Self { config: Arc::new(config), host }
    }

    /// Is the other end of a guest's network card until the stream ends; dropping the future ends all its
    /// connections, too. New connections are judged by the newest rules, and open ones that a change no longer allows
    /// are reset at once. What comes in is what the newest forwards and the machine's firewall rules say: one that stays is not disturbed, one that
    /// is gone ends with its connections. As long as nobody is attached nobody accepts on them.
    ///
    /// # Errors
    /// Reading or writing the stream failed, or the stream is not one of frames. An orderly end is none.
    pub fn attach(
        &self,
        stream: UnixStream,
        rules: watch::Receiver<Arc<NetworkPolicy>>,
        forwards: watch::Receiver<Arc<Vec<Arc<Forward>>>>,
        counters: Arc<Counters>,
    ) -> impl Future<Output = io::Result<()>> + Send + use<> {
        let link = Arc::new(Link::new(&self.config, &self.host, rules, &counters));
        self.config.networks.attach(&link.wire);
        let (read, write) = stream.into_split();
        serve(link, read, write, forwards, counters)
    }
}

async fn serve(
    link: Arc<Link>,
    mut read: OwnedReadHalf,
    write: impl AsyncWrite + Unpin,
    mut newest: watch::Receiver<Arc<Vec<Arc<Forward>>>>,
    counters: Arc<Counters>,
) -> io::Result<()> {
    let (mut policy, mut rules) = (link.policy.clone(), link.rules.clone());
    let (mut governed, mut narrowed, mut forwarded) = (true, true, true);
    let mut forwards = Forwards::new(link.config.limits.forward_half_open);
    let mut frames = Deframer::new();
    let mut flows = Flows::new(Arc::clone(&link));
    let mut writing = std::pin::pin!(link.wire.pump(write));
    forwards.set(&newest.borrow_and_update().clone());
    let mut rest = std::pin::pin!(tokio::time::sleep(REST));
    let mut router = std::pin::pin!(tokio::time::sleep(ndp::AGAIN));
    let mut quiet = false;
    if link.config.networks.have_ipv6() {
        // One that goes on with its memory has to ask for an address that it did not need where it was.
        flows.advertise();
    }
    loop {
        tokio::select! {
            () = flows.ended() => {}
            changed = policy.changed(), if governed => {
                governed = changed.is_ok();
                flows.judge_again();
            }
            changed = rules.changed(), if narrowed => {
                narrowed = changed.is_ok();
                flows.judge_again();
            }
            changed = newest.changed(), if forwarded => {
                forwarded = changed.is_ok();
                let newest = Arc::clone(&newest.borrow_and_update());
                forwards.set(&newest).iter().for_each(|gone| flows.close(gone));
            }
            (caller, arrival) = forwards.arrival() => flows.arrive(caller, arrival),
            read = read.read(frames.space()) => {
                let count = read?;
                quiet = false;
                if count == 0 {
                    return Ok(());
                }
                frames.filled(count);
                while let Some(frame) = frames.next()? {
                    counters.sent(frame.len());
                    flows.frame(frame);
                }
            }
            // A timer only as long as there is something to give back.
            () = &mut rest, if frames.is_large() || flows.waits() => {
                if quiet {
                    frames.rest();
                }
                flows.expire();
                quiet = true;
                rest.as_mut().reset(tokio::time::Instant::now() + REST);
            }
            () = &mut router => {
                flows.advertise();
                router.as_mut().reset(tokio::time::Instant::now() + ndp::AGAIN);
            }
            written = &mut writing => return written,
        }
    }
}
