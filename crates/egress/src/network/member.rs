//! The networks of one machine, on the side of its own program.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use berth_domain::firewall::Rules;
use berth_domain::ids::NetworkId;
use berth_domain::network::overlap;
use ipnet::Ipv4Net;
use smoltcp::wire::{IpProtocol, UdpPacket};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use super::filter::Filter;
use super::header::{Header, IPV4};
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

/// A network that a machine belongs to.
pub(crate) struct Joined {
    network: NetworkId,
    place: Place,
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
    pub fn join(
        self: &Arc<Self>,
        network: NetworkId,
        cidr: Ipv4Net,
        own: Ipv4Addr,
        link: Option<OwnedFd>,
    ) -> Result<(), String> {
        let place = Place { cidr, own };
        if !is_member(cidr, own) || own == place.resolver() {
            return Err(format!("{own} is nobody's in {cidr}"));
        }
        let guests = Ipv4Net::new(GUEST, PREFIX).map_err(|error| error.to_string())?;
        let is_anothers = |other: &Arc<Joined>| other.network != network && overlap(cidr, other.place.cidr);
        if overlap(cidr, guests) || lock(&self.joined).iter().any(is_anothers) {
            return Err(format!("{cidr} overlaps other addresses of the guest"));
        }
        let is_same = |other: &Arc<Joined>| other.network == network && other.place == place;
        if link.is_none() && lock(&self.joined).iter().any(is_same) {
            return Ok(());
        }
        let before = lock(&self.joined).iter().find(|other| is_same(other)).map(|other| Arc::clone(&other.filter));
        let filter = before.unwrap_or_else(|| Arc::new(Mutex::new(Filter::of(own))));
        let joined = Arc::new(Joined::new(network, place, self.rules.subscribe(), filter));
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

    /// The networks, each with the machine's address in it and whether there is a link to its switch.
    pub fn list(&self) -> Vec<(NetworkId, Ipv4Addr, bool)> {
        let joined = lock(&self.joined);
        joined.iter().map(|joined| (joined.network, joined.place.own, joined.link().is_some())).collect()
    }

    /// The guest's card from now on.
    pub(crate) fn attach(&self, guest: &Arc<Wire>) {
        *lock(&self.guest) = Arc::downgrade(guest);
    }

    /// The network that an address is of.
    pub(crate) fn find(&self, address: Ipv4Addr) -> Option<Arc<Joined>> {
        lock(&self.joined).iter().find(|joined| joined.place.cidr.contains(&address)).map(Arc::clone)
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
    fn new(network: NetworkId, place: Place, rules: watch::Receiver<Arc<Rules>>, filter: Arc<Mutex<Filter>>) -> Self {
        let (link, questions, task) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { network, place, rules, filter, link, questions, task }
    }

    /// Whether the machine's rules let a packet of the network pass. Names are asked for whatever they say.
    fn passes(&self, packet: &[u8]) -> bool {
        let resolver = self.place.resolver();
        let is_about_names = Header::read(packet).is_some_and(|header| [header.from, header.to].contains(&resolver));
        let rules = Arc::clone(&self.rules.borrow());
        is_about_names || lock(&self.filter).passes(&rules, packet, Instant::now())
    }

    fn link(&self) -> Option<Arc<Messages>> {
        lock(&self.link).clone()
    }

    /// Sends a packet of the guest. One that the switch does not take is lost.
    pub(crate) fn send(&self, packet: &[u8], wire: &Wire) {
        let mut packet = packet.to_vec();
        match self.place.outward(&mut packet) {
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
        let header = self.place.inward(packet)?;
        if header.protocol != IpProtocol::Udp || !header.is_first {
            return Some(packet);
        }
        let udp = UdpPacket::new_unchecked(packet.get(IPV4..)?);
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
