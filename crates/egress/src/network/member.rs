//! The networks of one machine, on the side of its own program.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use berth_domain::firewall::Rules;
use berth_domain::ids::NetworkId;
use berth_domain::network::{GUESTS6, address6, overlap, overlap6};
use ipnet::{Ipv4Net, Ipv6Net};
use smoltcp::wire::{IpProtocol, UdpPacket};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use super::filter::Filter;
use super::header::{Header, is_ipv6, unreachable};
use super::names::{may_be, reverse};
use super::table::datagram;
use super::translate::{Place, Way, is_member};
use super::{DNS, OWN};
use crate::message::{Messages, Received};
use crate::wire::Wire;
use crate::{GUEST, MTU, PREFIX};

/// How long a switch may take for an answer. Measured: below 1 ms. A guest asks others after five seconds.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a guest is looked for that has not said yet where it is.
const FINDING: Duration = Duration::from_secs(1);
/// Packets of a network before others have their turn.
const TURNS: usize = 16;
/// Questions to one switch under way; more are as if it did not know the name.
const QUESTIONS: usize = 64;

/// The networks that a machine belongs to, and the machine's firewall rules, which hold outside of them, too. They are
/// the same whatever card the machine has.
#[derive(Default)]
pub struct Memberships {
    joined: Mutex<Vec<Arc<Joined>>>,
    guest: Mutex<Weak<Wire>>,
    rules: watch::Sender<Arc<Rules>>,
}

/// Where a machine is in a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// The network's addresses.
    pub cidr: Ipv4Net,
    /// Its IPv6 addresses, if it has some: the machine's follows from its other one.
    pub cidr6: Option<Ipv6Net>,
    /// The machine's address.
    pub own: Ipv4Addr,
}

/// A network that a machine belongs to.
pub(crate) struct Joined {
    network: NetworkId,
    at: At,
    place: Place,
    /// The same in IPv6.
    place6: Option<Place>,
    rules: watch::Receiver<Arc<Rules>>,
    /// What is remembered of the network's traffic, whatever link it has.
    filter: Arc<Mutex<Filter>>,
    link: Mutex<Option<Arc<Messages>>>,
    questions: Mutex<HashMap<u16, oneshot::Sender<Vec<u8>>>>,
    task: Mutex<Option<AbortHandle>>,
}

impl Memberships {
    /// Belongs to a network from now on, with an address of its own there, by a link to its switch, if there is one yet.
    /// A new link ends the one before; without one, that stays.
    ///
    /// # Errors
    /// The address is none of a member's, or the network has addresses of the guest's own, or of another one that the
    /// machine belongs to; or the link cannot be used.
    pub fn join(self: &Arc<Self>, network: NetworkId, at: At, link: Option<OwnedFd>) -> Result<(), String> {
        self.check(network, &at)?;
        let is_same = |other: &Arc<Joined>| other.network == network && other.at == at;
        if link.is_none() && lock(&self.joined).iter().any(is_same) {
            return Ok(());
        }
        let before = lock(&self.joined).iter().find(|other| is_same(other)).map(|other| Arc::clone(&other.filter));
        let joined = Arc::new(Joined::new(network, at, self.rules.subscribe(), before));
        if let Some(link) = link {
            let messages = Arc::new(Messages::new(link).map_err(|error| error.to_string())?);
            *lock(&joined.link) = Some(Arc::clone(&messages));
            let task = tokio::spawn(receive(Arc::downgrade(self), Arc::downgrade(&joined), messages));
            *lock(&joined.task) = Some(task.abort_handle());
        }
        let mut all = lock(&self.joined);
        all.retain(|other| other.network != network);
        all.push(joined);
        Ok(())
    }

    /// Whether a place is one that a machine may have beside its others.
    fn check(&self, network: NetworkId, at: &At) -> Result<(), String> {
        let At { cidr, cidr6, own } = *at;
        if !is_member(cidr.into(), own.into()) || IpAddr::V4(own) == at.place().resolver() {
            return Err(format!("{own} is nobody's in {cidr}"));
        }
        let guests = Ipv4Net::new(GUEST, PREFIX).map_err(|error| error.to_string())?;
        let all = lock(&self.joined);
        let others = || all.iter().filter(|other| other.network != network).map(|other| other.at);
        if overlap(cidr, guests) || others().any(|other| overlap(cidr, other.cidr)) {
            return Err(format!("{cidr} overlaps other addresses of the guest"));
        }
        let Some(cidr6) = cidr6 else { return Ok(()) };
        // There has to be a place in one for each in the other.
        let is_narrow = u32::from(cidr6.max_prefix_len() - cidr6.prefix_len()) < u32::from(32 - cidr.prefix_len());
        let is_others = others().filter_map(|other| other.cidr6).any(|other| overlap6(cidr6, other));
        if is_narrow || is_others || overlap6(cidr6, GUESTS6) {
            return Err(format!("{cidr6} overlaps other addresses of the guest, or is too narrow"));
        }
        Ok(())
    }

    /// Whether it belongs to a network that has IPv6 addresses.
    pub(crate) fn have_ipv6(&self) -> bool {
        lock(&self.joined).iter().any(|joined| joined.place6.is_some())
    }

    /// Belongs to a network no more; fine where it does not.
    pub fn leave(&self, network: NetworkId) {
        lock(&self.joined).retain(|joined| joined.network != network);
    }

    /// The machine's firewall rules from now on. What they do not allow any more ends.
    pub fn set_rules(&self, rules: Rules) {
        self.rules.send_replace(Arc::new(rules));
    }

    /// The machine's firewall rules, whatever they become.
    pub(crate) fn rules(&self) -> watch::Receiver<Arc<Rules>> {
        self.rules.subscribe()
    }

    /// The networks, each with where the machine is in it and whether there is a link to its switch.
    pub fn list(&self) -> Vec<(NetworkId, At, bool)> {
        let joined = lock(&self.joined);
        joined.iter().map(|joined| (joined.network, joined.at, joined.link().is_some())).collect()
    }

    /// The guest's card from now on.
    pub(crate) fn attach(&self, guest: &Arc<Wire>) {
        *lock(&self.guest) = Arc::downgrade(guest);
    }

    /// The network that an address is of.
    pub(crate) fn find(&self, address: IpAddr) -> Option<Arc<Joined>> {
        let has = |joined: &&Arc<Joined>| joined.places().any(|place| place.cidr.contains(&address));
        lock(&self.joined).iter().find(has).map(Arc::clone)
    }

    /// The networks that may know a name.
    pub(crate) fn that_may_know(&self, name: &str) -> Vec<Arc<Joined>> {
        if let Some(address) = reverse(name) {
            return self.find(address).into_iter().collect();
        }
        if may_be(name) { lock(&self.joined).clone() } else { Vec::new() }
    }

    fn guest(&self) -> Option<Arc<Wire>> {
        lock(&self.guest).upgrade()
    }
}

impl Joined {
    fn new(network: NetworkId, at: At, rules: watch::Receiver<Arc<Rules>>, before: Option<Arc<Mutex<Filter>>>) -> Self {
        let (link, questions, task) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (place, place6) = (at.place(), at.place6());
        let own = [Some(place), place6].into_iter().flatten().map(|place| place.own).collect();
        let filter = before.unwrap_or_else(|| Arc::new(Mutex::new(Filter::of(own))));
        Self { network, at, place, place6, rules, filter, link, questions, task }
    }

    fn places(&self) -> impl Iterator<Item = &Place> {
        [Some(&self.place), self.place6.as_ref()].into_iter().flatten()
    }

    /// The place that a packet speaks of, by its kind.
    const fn place_of(&self, is_ipv6: bool) -> Option<&Place> {
        if is_ipv6 { self.place6.as_ref() } else { Some(&self.place) }
    }

    /// Whether the machine's rules let a packet of the network pass. Names are asked for whatever they say.
    fn passes(&self, packet: &[u8]) -> bool {
        let resolver = self.place_of(is_ipv6(packet)).map(Place::resolver);
        let is_resolver = |header: Header| [header.from, header.to].map(Some).contains(&resolver);
        let is_about_names = Header::read(packet).is_some_and(is_resolver);
        let rules = Arc::clone(&self.rules.borrow());
        is_about_names || lock(&self.filter).passes(&rules, packet, Instant::now())
    }

    fn link(&self) -> Option<Arc<Messages>> {
        lock(&self.link).clone()
    }

    /// Sends a packet of the guest. One that the switch does not take is lost.
    pub(crate) fn send(&self, packet: &[u8], wire: &Wire) {
        let mut packet = packet.to_vec();
        match self.place_of(is_ipv6(&packet)).and_then(|place| place.outward(&mut packet)) {
            Some(Way::Network) if self.passes(&packet) => self.put(&packet),
            Some(Way::Guest) if wire.room() => deliver(wire, &packet),
            Some(_) | None => {}
        }
    }

    fn put(&self, packet: &[u8]) {
        if let Some(link) = self.link() {
            link.send(packet);
        }
    }

    /// Asks the switch a question, by a message of DNS; `None` where it does not answer in time.
    pub(crate) async fn ask(&self, query: &[u8]) -> Option<Vec<u8>> {
        let id = u16::from_be_bytes(*query.first_chunk()?);
        let (answered, answer) = oneshot::channel();
        {
            let mut questions = lock(&self.questions);
            questions.retain(|_, waiting| !waiting.is_closed());
            // With a number of one that waits it would get that one's answer.
            if self.link().is_none() || questions.len() >= QUESTIONS || questions.contains_key(&id) {
                return None;
            }
            questions.insert(id, answered);
        }
        self.put(&datagram((self.place.own, OWN), (self.place.resolver(), DNS), query));
        tokio::time::timeout(PATIENCE, answer).await.ok()?.ok()
    }

    /// Takes a packet of the switch; what goes to the guest.
    fn take<'a>(&self, packet: &'a mut [u8]) -> Option<&'a [u8]> {
        if !self.passes(packet) {
            return None;
        }
        let header = self.place_of(is_ipv6(packet))?.inward(packet)?;
        if header.protocol != IpProtocol::Udp || !header.is_first {
            return Some(packet);
        }
        let udp = UdpPacket::new_unchecked(packet.get(header.body..)?);
        if udp.dst_port() != OWN {
            return Some(packet);
        }
        if header.is_whole && header.from == self.place.resolver() && udp.check_len().is_ok() {
            let answer = udp.payload();
            let waiting = lock(&self.questions).remove(&u16::from_be_bytes(*answer.first_chunk()?))?;
            // Who has asked may have had no more patience.
            let _ = waiting.send(answer.to_vec());
        }
        None
    }
}

impl At {
    fn place(&self) -> Place {
        Place { cidr: self.cidr.into(), own: self.own.into() }
    }

    fn place6(&self) -> Option<Place> {
        let cidr6 = self.cidr6?;
        Some(Place { cidr: cidr6.into(), own: address6(self.cidr, self.own, cidr6).into() })
    }
}

impl From<(Ipv4Net, Ipv4Addr)> for At {
    fn from((cidr, own): (Ipv4Net, Ipv4Addr)) -> Self {
        Self { cidr, cidr6: None, own }
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some(task) = lock(&self.task).take() {
            task.abort();
        }
    }
}

/// Takes what comes from a network, until its switch ends.
async fn receive(networks: Weak<Memberships>, weak: Weak<Joined>, messages: Arc<Messages>) {
    let mut buffer = Vec::new();
    while messages.readable().await.is_ok() {
        for _ in 0..TURNS {
            let length = match messages.receive(&mut buffer, MTU) {
                Received::Message(length) => length,
                Received::Nothing => break,
                Received::TooLong => continue,
                Received::End => return end(&weak),
            };
            let Some(joined) = weak.upgrade() else { return };
            let Some(packet) = buffer.get_mut(..length).and_then(|packet| joined.take(packet)) else { continue };
            let Some(guest) = networks.upgrade().and_then(|networks| networks.guest()) else { continue };
            // What the guest does not take waits at the switch, which drops it.
            std::future::poll_fn(|cx| guest.poll_room(cx)).await;
            if guest.ask_for_guest() {
                let _ = tokio::time::timeout(FINDING, guest.find_guest()).await;
            }
            if is_ipv6(packet) && !guest.is_present() {
                if let Some(error) = unreachable(packet) {
                    joined.send(&error, &guest);
                }
                continue;
            }
            deliver(&guest, packet);
        }
        tokio::task::yield_now().await;
    }
    end(&weak);
}

fn end(joined: &Weak<Joined>) {
    if let Some(joined) = joined.upgrade() {
        *lock(&joined.link) = None;
    }
}

/// Passes a packet on to the guest, for whom there is room.
fn deliver(wire: &Wire, packet: &[u8]) {
    let is_segment = Header::read(packet).is_some_and(|header| header.protocol == IpProtocol::Tcp);
    wire.pass(packet, is_segment);
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
