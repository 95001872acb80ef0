//! How many connections the service accepts, and from which networks.
//!
//! A connection costs a descriptor, and the work behind it may cost another, so the service keeps half of its
//! descriptors for the latter. One network (an IPv4 address, an IPv6 /64) may have only a share of the connections. A
//! newcomer over its network's share takes the place of a connection of that network; one that finds all seats taken
//! takes the place of a connection of the network with the most, or else of any network. The service only cuts a
//! connection that waits for its own client, the oldest such one; it never cuts one that it works for. So a client that
//! holds a thousand half-sent requests blocks nobody, not even itself. Operators' addresses have seats of their own:
//! filling all others keeps nobody from reading metrics, or from suspending the culprit.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use ipnet::IpNet;
use tokio::sync::Notify;

use super::client_address::ClientNetwork;

/// Most connections where the process has no limit of descriptors.
const MOST: usize = 1 << 19;
/// Connections of a network that are examined, the oldest first, to find one to cut.
const LOOKED_AT: usize = 512;
/// Connections of all networks that are examined where the network with the most has none to cut.
const LOOKED_AT_OF_ALL: usize = 4096;
/// Fewest and most seats of operators' addresses.
const OPERATORS: (usize, usize) = (16, 1024);

/// The connections that there may be.
pub struct Seats {
    most: usize,
    most_of_one: usize,
    /// Networks of proxies, which bring the connections of many clients.
    proxies: Vec<IpNet>,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    taken: usize,
    next: u64,
    networks: HashMap<ClientNetwork, BTreeMap<u64, Arc<Seat>>>,
}

#[derive(Default)]
struct Seat {
    /// Requests that the service works on; at most one with HTTP/1.1.
    at_work: AtomicU32,
    /// Requests whose head has come and whose answer is not over; at most one with HTTP/1.1.
    under_way: AtomicU32,
    /// Requests that came.
    requests: AtomicU32,
    /// Whether a body stayed partly unread.
    left_unread: AtomicBool,
    cut: Notify,
}

/// A connection's seat. Dropping it frees the seat.
pub struct Ticket {
    seats: Arc<Seats>,
    network: ClientNetwork,
    number: u64,
    seat: Arc<Seat>,
}

/// A request that the service works on. Dropping it means that the connection waits for its client again.
struct Work(Arc<Seat>);

/// A request whose head has come. Dropping it means that its answer is over.
struct UnderWay(Arc<Seat>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.0.at_work.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Seats {
    /// So many seats, of which one network may have a share; proxies may have any number.
    pub fn new(most: usize, most_of_one: usize, proxies: Vec<IpNet>) -> Arc<Self> {
        Arc::new(Self { most, most_of_one, proxies, table: Mutex::default() })
    }

    /// As many seats as descriptors and the configuration allow.
    pub fn configured(http: &crate::config::Http) -> Arc<Self> {
        let most = http.max_connections.unwrap_or_else(by_descriptors);
        let most_of_one = http.max_connections_per_client.unwrap_or((most / 2).max(1));
        Self::new(most, most_of_one, http.trusted_proxies.clone())
    }

    /// Seats of operators' addresses, an eighth of the number for others; one network may have all of them.
    pub fn of_operators(beside: usize) -> Arc<Self> {
        let most = (beside / 8).clamp(OPERATORS.0, OPERATORS.1);
        Self::new(most, most, Vec::new())
    }

    /// Seats of standbys beside so many for clients: a standby has given its own to the clients and operators for whom it
    /// comes.
    pub fn of_replicas(beside: usize) -> Arc<Self> {
        let most = beside + Self::of_operators(beside).most;
        Self::new(most, most, Vec::new())
    }

    /// Connections that there may be.
    pub const fn most(&self) -> usize {
        self.most
    }

    /// Connections that there are.
    pub fn taken(&self) -> usize {
        self.table().taken
    }

    /// Takes a seat for a connection; `None` where there is none.
    pub fn enter(self: &Arc<Self>, from: IpAddr) -> Option<Ticket> {
        let network = ClientNetwork::of(from);
        let is_proxy = self.proxies.iter().any(|proxies| proxies.contains(&from.to_canonical()));
        let mut table = self.table();
        let own = table.networks.get(&network).map_or(0, BTreeMap::len);
        if !is_proxy && own >= self.most_of_one && !table.cut_one_of(network) {
            return None;
        }
        if table.taken >= self.most {
            let fullest = *table.networks.iter().max_by_key(|(_, seats)| seats.len())?.0;
            if !table.cut_one_of(fullest) && !table.cut_one() {
                return None;
            }
        }
        let seat = Arc::new(Seat::default());
        let number = table.next;
        table.next += 1;
        table.taken += 1;
        table.networks.entry(network).or_default().insert(number, seat.clone());
        drop(table);
        Some(Ticket { seats: self.clone(), network, number, seat })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Cuts the oldest connection of a network that waits for its client; false where there is none.
    fn cut_one_of(&mut self, network: ClientNetwork) -> bool {
        let Some(seats) = self.networks.get(&network) else { return false };
        let waits = |(_, seat): &(&u64, &Arc<Seat>)| seat.waits();
        let Some((number, seat)) = seats.iter().take(LOOKED_AT).find(waits) else { return false };
        seat.cut.notify_one();
        let number = *number;
        self.leave(network, number);
        true
    }

    /// Cuts a waiting connection of any network; among the examined ones, of the network with the most connections.
    fn cut_one(&mut self) -> bool {
        let all =
            self.networks.iter().flat_map(|(network, seats)| seats.iter().map(move |seat| (network, seats, seat)));
        let waiting = all.take(LOOKED_AT_OF_ALL).filter(|(_, _, (_, seat))| seat.waits());
        let found = waiting.max_by_key(|(_, seats, (number, _))| (seats.len(), std::cmp::Reverse(**number)));
        let Some((network, _, (number, seat))) = found else { return false };
        seat.cut.notify_one();
        let (network, number) = (*network, *number);
        self.leave(network, number);
        true
    }

    fn leave(&mut self, network: ClientNetwork, number: u64) {
        let Some(seats) = self.networks.get_mut(&network) else { return };
        if seats.remove(&number).is_some() {
            self.taken -= 1;
        }
        if seats.is_empty() {
            self.networks.remove(&network);
        }
    }
}

impl Seat {
    /// Whether the connection waits for its own client.
    fn waits(&self) -> bool {
        self.at_work.load(Ordering::Relaxed) == 0
    }
}

impl Ticket {
    /// Returns when the connection has lost its seat.
    pub async fn cut(&self) {
        self.seat.cut.notified().await;
    }

    /// Whether any request came.
    pub fn was_asked(&self) -> bool {
        self.requests() > 0
    }

    /// How many requests came; wraps around.
    pub fn requests(&self) -> u32 {
        self.seat.requests.load(Ordering::Relaxed)
    }

    /// Whether there is a request whose answer is not over.
    pub fn is_under_way(&self) -> bool {
        self.seat.under_way.load(Ordering::Relaxed) > 0
    }

    /// Whether no part of a request is missing: further input belongs to the next one.
    pub fn has_said_all(&self) -> bool {
        !self.is_under_way() || !self.seat.waits()
    }

    /// Whether the client may still be sending a body that the service does not read.
    pub fn left_unread(&self) -> bool {
        self.seat.left_unread.load(Ordering::Relaxed)
    }

    /// Notes a request whose head has come.
    pub fn asked(&self) -> Asked {
        self.seat.requests.fetch_add(1, Ordering::Relaxed);
        self.seat.under_way.fetch_add(1, Ordering::Relaxed);
        Asked { seat: self.seat.clone(), work: Arc::default(), under_way: UnderWay(self.seat.clone()) }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.seats.table().leave(self.network, self.number);
    }
}

/// A request of a connection: the service works on it from the end of its body to the end of its answer.
pub struct Asked {
    seat: Arc<Seat>,
    work: Arc<Mutex<Option<Work>>>,
    under_way: UnderWay,
}

impl Asked {
    /// The request's body; its end begins the work.
    pub fn body<B>(&self, body: B) -> Body
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let begin = self.begin();
        if body.is_end_stream() {
            begin.now();
            return Body::empty();
        }
        Body::new(Awaited { body, begin, ended: false })
    }

    /// The answer's body; its end ends the work. An answer given before the request was read counts as work, too.
    pub fn answer(self, body: Body) -> Body {
        self.begin().now();
        Body::new(Answering { body, _work: self.work, _under_way: self.under_way })
    }

    /// Notes that the connection leaves HTTP: the service works for it until it closes.
    pub fn hands_on(self) {
        self.seat.at_work.fetch_add(1, Ordering::Relaxed);
        self.seat.under_way.fetch_add(1, Ordering::Relaxed);
    }

    fn begin(&self) -> Begin {
        Begin { seat: self.seat.clone(), work: self.work.clone() }
    }
}

struct Begin {
    seat: Arc<Seat>,
    work: Arc<Mutex<Option<Work>>>,
}

impl Begin {
    fn now(&self) {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        if work.is_none() {
            self.seat.at_work.fetch_add(1, Ordering::Relaxed);
            *work = Some(Work(self.seat.clone()));
        }
    }
}

struct Awaited<B: HttpBody> {
    body: B,
    begin: Begin,
    /// Whether its end was read: a chunked body does not know that it has ended.
    ended: bool,
}

impl<B: HttpBody> Drop for Awaited<B> {
    fn drop(&mut self) {
        if !self.ended && !self.body.is_end_stream() {
            self.begin.seat.left_unread.store(true, Ordering::Relaxed);
        }
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for Awaited<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        self.ended |= matches!(frame, Poll::Ready(None));
        if self.ended || self.body.is_end_stream() {
            self.begin.now();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

struct Answering {
    body: Body,
    _work: Arc<Mutex<Option<Work>>>,
    _under_way: UnderWay,
}

impl HttpBody for Answering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Half of the descriptors that the process may have.
fn by_descriptors() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.and_then(|limit| usize::try_from(limit).ok()).map_or(MOST, |limit| (limit / 2).clamp(1, MOST))
}

/// Raises the limit of descriptors as far as the process may, up to a million: programs that it starts may count them
/// all.
pub fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(u64::MAX).min(1 << 20);
    if limit.current.is_some_and(|now| now < wanted)
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit })
    {
        tracing::warn!(%error, wanted, "the limit of open files stays as it is");
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::stream;
    use http_body_util::{BodyExt, Full};

    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn is_cut(ticket: &Ticket) -> bool {
        futures::FutureExt::now_or_never(ticket.cut()).is_some()
    }

    #[tokio::test]
    async fn a_network_has_its_share_and_gives_the_place_that_waits_longest() {
        let seats = Seats::new(10, 2, Vec::new());
        let first = seats.enter(address(1)).unwrap();
        let second = seats.enter(address(1)).unwrap();
        assert!(!is_cut(&first));
        let third = seats.enter(address(1)).unwrap();
        assert_eq!((is_cut(&first), is_cut(&second), is_cut(&third), seats.taken()), (true, false, false, 2));
        drop(first);
        assert_eq!(seats.taken(), 2, "its place was given away before");
        drop((second, third));
        assert_eq!(seats.taken(), 0);
    }

    #[tokio::test]
    async fn what_we_work_for_is_not_cut() {
        let seats = Seats::new(10, 2, Vec::new());
        let first = seats.enter(address(1)).unwrap();
        let second = seats.enter(address(1)).unwrap();
        let (one, other) = (first.asked(), second.asked());
        // The first request is complete, the second one's body is missing.
        let _whole = one.body(Full::<Bytes>::default());
        let mut half = other.body(Full::new(Bytes::from("x")));
        let third = seats.enter(address(1)).unwrap();
        assert_eq!((is_cut(&first), is_cut(&second)), (false, true));
        drop(third.asked().body(Full::<Bytes>::default()));
        half.frame().await.unwrap().unwrap();
        let work = third.asked();
        let answer = work.answer(Body::from("done"));
        assert!(seats.enter(address(1)).is_none(), "both are worked for");
        drop(answer);
        let fourth = seats.enter(address(1)).unwrap();
        assert!(is_cut(&third) && !is_cut(&fourth));
    }

    #[tokio::test]
    async fn a_body_in_chunks_is_read_once_its_end_is() {
        let chunks =
            || http_body_util::StreamBody::new(stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from("x")))]));
        let seats = Seats::new(1, 1, Vec::new());
        let ticket = seats.enter(address(1)).unwrap();
        ticket.asked().body(chunks()).collect().await.unwrap();
        assert!(!ticket.left_unread());
        ticket.asked().body(chunks()).frame().await.unwrap().unwrap();
        assert!(ticket.left_unread(), "its end was not read");
    }

    #[tokio::test]
    async fn when_all_are_taken_the_network_with_most_gives_one() {
        let seats = Seats::new(3, 3, Vec::new());
        let crowd: Vec<_> = (0..2).map(|_| seats.enter(address(1)).unwrap()).collect();
        let other = seats.enter(address(2)).unwrap();
        let third = seats.enter(address(3)).unwrap();
        assert_eq!((is_cut(&crowd[0]), is_cut(&crowd[1]), is_cut(&other), is_cut(&third)), (true, false, false, false));
        assert_eq!(seats.taken(), 3);
    }

    #[tokio::test]
    async fn where_the_network_with_most_has_none_to_give_another_gives_one() {
        let seats = Seats::new(4, 4, Vec::new());
        let busy: Vec<_> = (0..2).map(|_| seats.enter(address(1)).unwrap()).collect();
        let work: Vec<_> = busy.iter().map(|ticket| ticket.asked().answer(Body::empty())).collect();
        let (older, younger) = (seats.enter(address(2)).unwrap(), seats.enter(address(3)).unwrap());
        let newcomer = seats.enter(address(4)).unwrap();
        assert_eq!((is_cut(&older), is_cut(&younger), is_cut(&newcomer)), (true, false, false));
        assert!(busy.iter().all(|ticket| !is_cut(ticket)));
        // The service works for all of them, so no newcomer gets in.
        let more: Vec<_> = [&younger, &newcomer].map(|ticket| ticket.asked().answer(Body::empty())).into();
        assert!(seats.enter(address(5)).is_none());
        drop((work, more));
        assert!(seats.enter(address(5)).is_some());
    }

    #[tokio::test]
    async fn a_connection_that_is_handed_on_keeps_its_seat_to_its_end() {
        let seats = Seats::new(1, 1, Vec::new());
        let ticket = seats.enter(address(1)).unwrap();
        ticket.asked().hands_on();
        assert!(seats.enter(address(2)).is_none() && ticket.is_under_way());
        drop(ticket);
        assert!(seats.enter(address(2)).is_some());
    }

    #[test]
    fn operators_have_an_eighth_as_many_and_some_at_least() {
        for (beside, most) in [(1, 16), (128, 16), (800, 100), (8_192, 1_024), (MOST, 1_024)] {
            assert_eq!(Seats::of_operators(beside).most(), most, "{beside}");
        }
    }

    #[test]
    fn a_proxy_brings_the_connections_of_many() {
        let seats = Seats::new(10, 1, vec!["192.0.2.7/32".parse().unwrap()]);
        let held: Vec<_> = (0..10).map(|_| seats.enter(address(7)).unwrap()).collect();
        assert!(held.iter().all(|ticket| !is_cut(ticket)));
        assert!(seats.enter(address(7)).is_some() && is_cut(&held[0]), "but not more than there are");
    }
}
