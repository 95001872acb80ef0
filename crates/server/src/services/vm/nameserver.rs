//! Answers for the names of VMs, at an address that the operator gave it: [`zone`](super::zone) says what.
//!
//! It is asked by anybody, so what it costs has a bound: rows are read at most every few seconds, however many ask, and
//! beside those who ask, who are answered by what is known; a datagram is answered by one of 512 bytes, whoever it says that it is from; connections are few and short.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::zone::{Labels, Named, Zone};
use super::{Vms, store};
use crate::config::Answered;
use crate::db::DbError;

/// Bytes of a datagram that is read, and of one that answers: the smallest that everybody takes (RFC 1035, 2.3.4), so
/// that nobody makes large ones of small ones for others.
const DATAGRAM: usize = 512;
/// How old names may be before they are read anew, and before who asks waits for that: as long as an answer may be
/// believed.
const AGES: Ages = Ages { fresh: Duration::from_secs(2), old: Duration::from_secs(30) };
/// Datagrams that are being answered. Of more than these some are lost, and asked again by whoever sent them.
const DATAGRAMS: usize = 256;
/// Connections at once, and how long one may take.
const CONNECTIONS: usize = 32;
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two tries to be where it is to be.
const AGAIN: Duration = Duration::from_secs(5);

/// Who knows all names.
#[async_trait]
trait Source: Send + Sync {
    async fn zone(&self) -> Result<Zone, DbError>;
}

struct Rows {
    vms: Vms,
    place: Answered,
}

#[async_trait]
impl Source for Rows {
    async fn zone(&self) -> Result<Zone, DbError> {
        let (vms, projects) = (store::name::named(self.vms.db()).await?, store::name::projects(self.vms.db()).await?);
        let places: HashMap<_, _> = projects.iter().map(|project| project.id.as_str()).zip(0..).collect();
        let vm = |vm: store::name::NamedRow| {
            let project = *places.get(vm.project.as_str())?;
            Some(Named { name: vm.name, project, address: vm.address, is_own: vm.is_own })
        };
        let labels: Vec<_> = projects.iter().map(|row| Labels { id: row.id.clone(), slug: row.slug.clone() }).collect();
        let vms: Vec<_> = vms.into_iter().filter_map(vm).collect();
        let serial = u32::try_from(self.vms.clock().now().seconds()).unwrap_or(u32::MAX);
        let zone = Zone::new(&self.place.domain, self.place.listen.ip(), serial, &labels, &vms);
        zone.ok_or_else(|| DbError::Other("the domain is none".into()))
    }
}

/// The names as they were lately. They are read beside those who ask, by one at a time; a reading that failed is not done
/// again at once.
struct Fresh {
    source: Box<dyn Source>,
    ages: Ages,
    known: watch::Sender<Known>,
}

/// How old names may be before they are read anew, and before nobody is answered by them who could wait.
#[derive(Clone, Copy)]
struct Ages {
    fresh: Duration,
    old: Duration,
}

#[derive(Default)]
struct Known {
    /// The names, and when they were read.
    zone: Option<(Instant, Arc<Zone>)>,
    /// When they were to be read last, whatever came of it.
    tried: Option<Instant>,
    is_reading: bool,
}

impl Known {
    fn is_to_be_read(&self, ages: Ages) -> bool {
        !self.is_reading && self.tried.is_none_or(|at| at.elapsed() >= ages.fresh)
    }

    /// Whether there is nothing to wait for: what is known is not old, or there will be no better for now.
    fn is_settled(&self, ages: Ages) -> bool {
        !self.is_reading || self.zone.as_ref().is_some_and(|(at, _)| at.elapsed() < ages.old)
    }
}

/// A reading that is going on. It ends however it ends.
struct Reading(Arc<Fresh>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.known.send_modify(|known| (known.is_reading, known.tried) = (false, Some(Instant::now())));
    }
}

impl Fresh {
    fn of(source: impl Source + 'static, ages: Ages) -> Arc<Self> {
        Arc::new(Self { source: Box::new(source), ages, known: watch::Sender::default() })
    }

    /// The names; those from before where rows cannot be read, or not at once.
    async fn zone(self: &Arc<Self>) -> Option<Arc<Zone>> {
        let mut known = self.known.subscribe();
        self.read_beside();
        let settled = known.wait_for(|known| known.is_settled(self.ages)).await.ok()?;
        settled.zone.as_ref().map(|(_, zone)| Arc::clone(zone))
    }

    fn read_beside(self: &Arc<Self>) {
        let begins = self.known.send_if_modified(|known| {
            let begins = known.is_to_be_read(self.ages);
            known.is_reading |= begins;
            begins
        });
        if begins {
            tokio::spawn(Self::read(Reading(Arc::clone(self))));
        }
    }

    async fn read(reading: Reading) {
        let this = &reading.0;
        match timeout(PATIENCE, this.source.zone()).await {
            Ok(Ok(zone)) => this.known.send_modify(|known| known.zone = Some((Instant::now(), Arc::new(zone)))),
            Ok(Err(error)) => tracing::warn!(%error, "the names of VMs cannot be read"),
            Err(_) => tracing::warn!("the names of VMs cannot be read: the database does not answer"),
        }
    }

    async fn answer(self: &Arc<Self>, question: &[u8], most: usize) -> Option<Vec<u8>> {
        self.zone().await?.answer(question, most)
    }
}

/// Answers for the names of VMs until told to stop. Where it cannot listen it says so, and tries again.
pub async fn serve(vms: Vms, place: Answered, stop: CancellationToken) {
    let fresh = Fresh::of(Rows { vms, place: place.clone() }, AGES);
    let serving = async {
        let mut is_said = false;
        loop {
            match bind(place.listen).await {
                Ok((datagrams, connections)) => {
                    tracing::info!(at = %place.listen, domain = place.domain.as_str(), "names of VMs are answered for");
                    return answer(&fresh, &Arc::new(datagrams), &connections).await;
                }
                Err(error) if !is_said => {
                    let at = place.listen;
                    tracing::error!(%error, "nobody answers for the names of VMs: cannot listen on {at}, [network] dns_listen");
                    is_said = true;
                }
                Err(_) => {}
            }
            tokio::time::sleep(AGAIN).await;
        }
    };
    stop.run_until_cancelled(serving).await;
}

async fn bind(at: SocketAddr) -> io::Result<(UdpSocket, TcpListener)> {
    let datagrams = UdpSocket::bind(at).await?;
    let connections = TcpListener::bind(datagrams.local_addr()?).await?;
    Ok((datagrams, connections))
}

async fn answer(fresh: &Arc<Fresh>, datagrams: &Arc<UdpSocket>, connections: &TcpListener) {
    tokio::join!(answer_datagrams(fresh, datagrams), answer_connections(fresh, connections));
}

/// Each is answered by itself: what becomes of one, whatever it is, becomes of no other.
async fn answer_datagrams(fresh: &Arc<Fresh>, socket: &Arc<UdpSocket>) {
    let seats = Arc::new(Semaphore::new(DATAGRAMS));
    let mut buffer = [0; DATAGRAM];
    loop {
        // What is said of who sent before, as that nobody listens there, is nobody else's concern.
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
            tokio::task::yield_now().await;
            continue;
        };
        let Ok(seat) = Arc::clone(&seats).try_acquire_owned() else { continue };
        let question = buffer.get(..length).unwrap_or_default().to_vec();
        let (fresh, socket) = (Arc::clone(fresh), Arc::clone(socket));
        tokio::spawn(async move {
            let _seat = seat;
            if let Some(answer) = fresh.answer(&question, DATAGRAM).await {
                let _ = socket.send_to(&answer, from).await;
            }
        });
    }
}

async fn answer_connections(fresh: &Arc<Fresh>, listener: &TcpListener) {
    let seats = Arc::new(Semaphore::new(CONNECTIONS));
    while let Ok(seat) = Arc::clone(&seats).acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        let fresh = Arc::clone(fresh);
        tokio::spawn(async move {
            let _seat = seat;
            let _ = timeout(PATIENCE, converse(&fresh, stream)).await;
        });
    }
}

/// Answers the questions of a connection, each with its length before it (RFC 1035, 4.2.2).
async fn converse(fresh: &Arc<Fresh>, mut stream: TcpStream) -> io::Result<()> {
    loop {
        let mut question = vec![0; stream.read_u16().await?.into()];
        stream.read_exact(&mut question).await?;
        let Some(answer) = fresh.answer(&question, usize::from(u16::MAX)).await else { return Ok(()) };
        let Ok(length) = u16::try_from(answer.len()) else { return Ok(()) };
        stream.write_all(&[&length.to_be_bytes()[..], &answer].concat()).await?;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use berth_domain::names::Domain;
    use hickory_proto::op::{Message, Query};
    use hickory_proto::rr::{Name, RecordType};

    use super::*;

    /// A source of 40 VMs of one name, which counts how often it is asked and fails after the first time.
    struct Forty(Arc<AtomicUsize>);

    #[async_trait]
    impl Source for Forty {
        async fn zone(&self) -> Result<Zone, DbError> {
            if self.0.fetch_add(1, Ordering::Relaxed) > 0 {
                return Err(DbError::Other("gone".into()));
            }
            let vm = |number: u8| Named {
                name: "web".into(),
                project: 0,
                address: [198, 51, 100, number].into(),
                is_own: true,
            };
            let (projects, vms) =
                ([Labels { id: "id".into(), slug: "demo".into() }], (0..40).map(vm).collect::<Vec<_>>());
            Ok(Zone::new(&Domain::parse("example.org").unwrap(), [203, 0, 113, 53].into(), 1, &projects, &vms).unwrap())
        }
    }

    fn question(id: u16) -> Vec<u8> {
        let mut message = Message::query();
        message.metadata.id = id;
        message.add_query(Query::query(Name::from_ascii("web.demo.example.org.").unwrap(), RecordType::A));
        message.to_vec().unwrap()
    }

    /// Sockets of both kinds on a port: one that is free for datagrams may be taken for connections.
    async fn bound() -> (UdpSocket, TcpListener) {
        for _ in 0..100 {
            if let Ok(both) = bind(([127, 0, 0, 1], 0).into()).await {
                return both;
            }
        }
        panic!("no port is free for both");
    }

    #[tokio::test]
    async fn it_answers_by_datagrams_and_whole_by_connections_and_asks_seldom() {
        let asked = Arc::new(AtomicUsize::new(0));
        let fresh = Fresh::of(Forty(Arc::clone(&asked)), AGES);
        let (datagrams, connections) = bound().await;
        let at = datagrams.local_addr().unwrap();
        let datagrams = Arc::new(datagrams);
        let serving = async { answer(&fresh, &datagrams, &connections).await };
        let asking = async {
            let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            socket.connect(at).await.unwrap();
            let mut buffer = [0; 1024];
            for id in 0..50 {
                socket.send(b"no question").await.unwrap();
                socket.send(&question(id)).await.unwrap();
                let length = socket.recv(&mut buffer).await.unwrap();
                let answer = Message::from_vec(&buffer[..length]).unwrap();
                assert_eq!((answer.metadata.id, answer.metadata.truncation, answer.answers.len()), (id, true, 0));
            }
            // More connections than there are seats, one after the other; each asks twice.
            for id in 0..40 {
                let mut stream = TcpStream::connect(at).await.unwrap();
                for id in [id, id + 1] {
                    let question = question(id);
                    stream.write_u16(question.len().try_into().unwrap()).await.unwrap();
                    stream.write_all(&question).await.unwrap();
                    let mut answer = vec![0; stream.read_u16().await.unwrap().into()];
                    stream.read_exact(&mut answer).await.unwrap();
                    let answer = Message::from_vec(&answer).unwrap();
                    assert_eq!((answer.metadata.id, answer.answers.len()), (id, 40));
                }
            }
        };
        tokio::select! {
            () = serving => panic!("it ended"),
            () = asking => {}
        }
        // 130 questions; how often it was asked depends on time alone.
        assert!(asked.load(Ordering::Relaxed) < 130);
    }

    /// A source of no VM that does something else each time.
    struct Odd(Arc<AtomicUsize>, fn(usize) -> Odds);

    enum Odds {
        Reads,
        Fails,
        Hangs,
        Panics,
    }

    #[async_trait]
    impl Source for Odd {
        async fn zone(&self) -> Result<Zone, DbError> {
            match self.1(self.0.fetch_add(1, Ordering::Relaxed)) {
                Odds::Reads => {}
                Odds::Fails => return Err(DbError::Other("gone".into())),
                Odds::Hangs => std::future::pending().await,
                Odds::Panics => panic!("a panic of a test"),
            }
            let domain = Domain::parse("example.org").unwrap();
            Ok(Zone::new(&domain, [203, 0, 113, 53].into(), 1, &[], &[]).unwrap())
        }
    }

    const ALWAYS_ANEW: Ages = Ages { fresh: Duration::ZERO, old: Duration::MAX };

    #[tokio::test]
    async fn nobody_waits_for_a_database_that_does_not_answer() {
        let asked = Arc::new(AtomicUsize::new(0));
        let odds = |time| if time == 0 { Odds::Reads } else { Odds::Hangs };
        let fresh = Fresh::of(Odd(Arc::clone(&asked), odds), ALWAYS_ANEW);
        for _ in 0..10 {
            assert!(fresh.answer(&question(1), DATAGRAM).await.is_some());
            tokio::task::yield_now().await;
        }
        assert_eq!(asked.load(Ordering::Relaxed), 2, "one reads at a time");
    }

    #[tokio::test]
    async fn a_database_that_fails_is_not_asked_with_each_question() {
        let asked = Arc::new(AtomicUsize::new(0));
        let ages = Ages { fresh: Duration::MAX, ..ALWAYS_ANEW };
        let fresh = Fresh::of(Odd(Arc::clone(&asked), |_| Odds::Fails), ages);
        for _ in 0..10 {
            assert!(fresh.answer(&question(1), DATAGRAM).await.is_none());
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_panic_ends_no_more_than_an_answer() {
        let asked = Arc::new(AtomicUsize::new(0));
        let odds = |time| if time == 0 { Odds::Panics } else { Odds::Reads };
        let fresh = Fresh::of(Odd(Arc::clone(&asked), odds), ALWAYS_ANEW);
        let datagrams = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let at = datagrams.local_addr().unwrap();
        let asking = async {
            let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            socket.connect(at).await.unwrap();
            socket.send(&question(1)).await.unwrap();
            while asked.load(Ordering::Relaxed) == 0 {
                tokio::task::yield_now().await;
            }
            socket.send(&question(2)).await.unwrap();
            let mut buffer = [0; 512];
            let length = socket.recv(&mut buffer).await.unwrap();
            assert_eq!(Message::from_vec(&buffer[..length]).unwrap().metadata.id, 2);
        };
        tokio::select! {
            () = answer_datagrams(&fresh, &datagrams) => panic!("it ended"),
            () = asking => {}
        }
    }
}
