//! Names: questions of guests go on to the host's resolvers. Whether a guest may ask is judged by the bridge's rules.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_egress::Resolvers;
use berth_egress::dns::{Transport, forward};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;

use super::told::Told;
use crate::machine::Machine;

/// How long one resolver may take.
const RESOLVER: Duration = Duration::from_secs(2);
/// How long a connection may say nothing, and take to take an answer; and how long it may last.
const IDLE: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_mins(1);
/// Questions by datagram under way, and connections, of all machines. Further ones are not heard; who asks by datagrams asks
/// again.
const DATAGRAMS: usize = 1024;
const CONNECTIONS: usize = 512;
/// Of what is free of them a machine may take one in so many. So those that take what they may, however many they are, leave
/// something for the next one: a sixteenth of all where it is one, and half where they are sixteen.
const SHARES: usize = 16;
/// Largest question by datagram, in bytes (RFC 6891, 6.2.5).
const LARGEST: usize = 4096;

/// What is under way, by the slots of machines: one asks by either of its addresses.
#[derive(Clone)]
pub(super) struct UnderWay {
    most: usize,
    of: Arc<Mutex<HashMap<u16, usize>>>,
}

/// Something under way.
struct Held(UnderWay, u16);

impl UnderWay {
    /// What is under way by datagrams.
    pub(super) fn datagrams() -> Self {
        Self::new(DATAGRAMS)
    }

    /// What is under way by connections, which last longer, and take nothing from datagrams.
    pub(super) fn connections() -> Self {
        Self::new(CONNECTIONS)
    }

    fn new(most: usize) -> Self {
        Self { most, of: Arc::default() }
    }

    fn hold(&self, who: u16) -> Option<Held> {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.most.saturating_sub(of.values().sum());
        if of.get(&who).copied().unwrap_or_default() >= free.div_ceil(SHARES) {
            return None;
        }
        *of.entry(who).or_default() += 1;
        Some(Held(self.clone(), who))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut of = self.0.of.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = of.get_mut(&self.1) {
            *own -= 1;
            if *own == 0 {
                of.remove(&self.1);
            }
        }
    }
}

/// The slot of the machine that has an address.
fn slot(told: &Told, ip: IpAddr) -> Option<u16> {
    let wanted = told.now();
    let has = |machine: &&Machine| ip == IpAddr::V4(machine.address) || machine.address6.is_some_and(|own| ip == own);
    wanted.machines.values().find(has).map(|machine| machine.slot)
}

/// Who is asked.
fn resolvers(told: &Told) -> Resolvers {
    let own = told.now().settings.resolvers.clone();
    if own.is_empty() { Resolvers::System } else { Resolvers::Fixed(own) }
}

/// Answers datagrams, until the socket fails.
pub(super) async fn datagrams(socket: UdpSocket, told: Arc<Told>, under_way: UnderWay) -> io::Result<()> {
    let (socket, mut buffer) = (Arc::new(socket), vec![0; LARGEST]);
    loop {
        let (len, from) = socket.recv_from(&mut buffer).await?;
        let held = slot(&told, from.ip()).and_then(|slot| under_way.hold(slot));
        let (Some(query), Some(held)) = (buffer.get(..len).map(<[u8]>::to_vec), held) else { continue };
        let (socket, resolvers) = (Arc::clone(&socket), resolvers(&told));
        tokio::spawn(async move {
            if let Some(answer) = forward(&resolvers, RESOLVER, &query, Transport::Udp).await {
                let _ = socket.send_to(&answer, from).await;
            }
            drop(held);
        });
    }
}

/// Answers connections, until the socket fails.
pub(super) async fn connections(listener: TcpListener, told: Arc<Told>, under_way: UnderWay) -> io::Result<()> {
    loop {
        let (stream, from): (TcpStream, SocketAddr) = listener.accept().await?;
        let Some(held) = slot(&told, from.ip()).and_then(|slot| under_way.hold(slot)) else { continue };
        let told = Arc::clone(&told);
        tokio::spawn(async move {
            let _ = timeout(LONGEST, converse(stream, &told)).await;
            drop(held);
        });
    }
}

async fn converse(mut stream: TcpStream, told: &Told) -> io::Result<()> {
    loop {
        let mut query = vec![0; timeout(IDLE, stream.read_u16()).await??.into()];
        timeout(IDLE, stream.read_exact(&mut query)).await??;
        let Some(answer) = forward(&resolvers(told), RESOLVER, &query, Transport::Tcp).await else { return Ok(()) };
        let len = u16::try_from(answer.len()).map_err(io::Error::other)?;
        timeout(IDLE, stream.write_all(&[&len.to_be_bytes(), &answer[..]].concat())).await??;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_machine_leaves_room_for_others() {
        for (under_way, most) in [(UnderWay::datagrams(), DATAGRAMS), (UnderWay::connections(), CONNECTIONS)] {
            // What it takes is not free, so it ends a little before a sixteenth of all.
            let own = most / (SHARES + 1) + 1;
            let mut held: Vec<_> = (0..own).map(|_| under_way.hold(1).unwrap()).collect();
            assert!(under_way.hold(1).is_none() && under_way.hold(2).is_some());
            held.pop();
            assert!(under_way.hold(1).is_some());
            held.clear();
            assert!(under_way.of.lock().unwrap().is_empty(), "nothing is kept of who is done");
        }
    }

    #[test]
    fn who_is_refused_leaves_nothing_either() {
        let under_way = UnderWay::new(1);
        let held = under_way.hold(1).unwrap();
        assert!(under_way.hold(2).is_none() && under_way.hold(1).is_none());
        drop(held);
        assert!(under_way.of.lock().unwrap().is_empty());
    }

    #[test]
    fn machines_that_take_what_they_may_leave_something_for_the_next_one() {
        for under_way in [UnderWay::datagrams(), UnderWay::connections()] {
            let mut held = Vec::new();
            for slot in 1..=64 {
                let before = held.len();
                held.extend(std::iter::from_fn(|| under_way.hold(slot)));
                assert!(held.len() > before, "the machine of slot {slot} is not heard");
                if slot == 16 {
                    assert!(held.len() <= under_way.most * 2 / 3, "{} of {}", held.len(), under_way.most);
                }
            }
        }
    }
}
