//! Which packets pass between machines by firewall rules. Pure, but for what it remembers.
//!
//! Rules speak of who begins. What was begun is remembered by both its ends, so that its answers pass whatever rules say
//! of their own way, and rules are asked again with each packet: what a change does not allow any more ends at once, and
//! stays ended until somebody begins anew. A connection of TCP begins with a SYN; one that was there before anything was
//! remembered begins with its next packet, as if its sender had begun it. Whatever can only be an answer begins nothing.
//!
//! Every memory is bounded. One who begins has one of their own, so that nobody makes another's connections forgotten.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::mem;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use berth_domain::firewall::{Beginning, Direction, RuleProtocol, Rules};
use smoltcp::wire::IpProtocol;

use super::header::{Header, Quote, word};

/// How long a silent connection is remembered at least (RFC 5382, REQ-5), and a flow of datagrams or pings (RFC 4787,
/// REQ-5).
const CONNECTION: Duration = Duration::from_mins(124);
const FLOW: Duration = Duration::from_mins(2);
/// How long the pieces of a packet may take (RFC 1122, 3.3.2, for the whole of it).
const PIECES: Duration = Duration::from_mins(1);
/// What a memory takes before it forgets what was silent longest.
const MOST: usize = 1024;
/// Where a segment has its flags, and which of them say that it begins a connection, or does not.
const FLAGS: usize = 13;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
/// Messages of ICMP (RFC 792) and of ICMPv6 (RFC 4443), and where a ping has its identifier and an error its quote.
const PING: u8 = 8;
const PONG: u8 = 0;
const PING6: u8 = 128;
const PONG6: u8 = 129;
const IDENTIFIER: usize = 4;
const QUOTE: usize = 8;

/// Judges the packets of one network, for all its members or for one.
#[derive(Debug, Default)]
pub(crate) struct Filter {
    /// The addresses of the member that it judges for; none for all.
    own: Option<Vec<IpAddr>>,
    begun: HashMap<IpAddr, Begun>,
}

/// What somebody has begun.
#[derive(Debug, Default)]
struct Begun {
    connections: Memory<Flow>,
    flows: Memory<Flow>,
    /// What a change of rules ended, apart from the rest, so that nobody makes that forgotten by beginning much else.
    ended: Memory<Flow>,
    pieces: Memory<Piece>,
}

/// A connection, a flow of datagrams, or the pings of an identifier, from who began it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Flow {
    protocol: IpProtocol,
    from: (IpAddr, u16),
    to: (IpAddr, u16),
}

/// What the pieces of one packet have in common (RFC 791, 3.2; RFC 8200, 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Piece {
    from: IpAddr,
    to: IpAddr,
    protocol: IpProtocol,
    ident: u32,
}

/// What a packet is in its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// It begins one, whatever was there before.
    First,
    /// It belongs to one, and begins it where there is none.
    Any,
    /// It answers one.
    Answer,
}

impl Filter {
    /// A filter for a member alone, by its addresses.
    pub(crate) fn of(own: Vec<IpAddr>) -> Self {
        Self { own: Some(own), ..Self::default() }
    }

    /// Whether a packet passes.
    pub(crate) fn passes(&mut self, rules: &Rules, packet: &[u8], now: Instant) -> bool {
        let Some(header) = Header::read(packet) else { return false };
        self.judged(rules, packet, &header, now) || rules.is_empty()
    }

    /// Forgets what was begun by others than these.
    pub(crate) fn retain(&mut self, is_there: impl Fn(IpAddr) -> bool) {
        self.begun.retain(|address, _| is_there(*address));
    }

    fn judged(&mut self, rules: &Rules, packet: &[u8], header: &Header, now: Instant) -> bool {
        let Header { from, to, protocol, ident, .. } = *header;
        let piece = Piece { from, to, protocol, ident };
        if !header.is_first {
            return self.begun_by(header.from).pieces.has(&piece, PIECES, now);
        }
        let passes = read(packet, header).is_some_and(|(flow, part)| self.flows(rules, flow, part, now));
        if passes && !header.is_whole {
            self.begun_by(header.from).pieces.keep(piece, PIECES, now);
        }
        passes
    }

    fn flows(&mut self, rules: &Rules, flow: Flow, part: Part, now: Instant) -> bool {
        if part != Part::First {
            for known in [flow, flow.reversed()] {
                if self.memory(known).has(&known, known.lasts(), now) {
                    let allowed = self.allow(rules, known);
                    if allowed {
                        self.memory(known).keep(known, known.lasts(), now);
                    } else {
                        self.begun_by(known.from.0).ended.keep(known, CONNECTION, now);
                    }
                    return allowed;
                }
            }
            let ended = [flow, flow.reversed()];
            if ended.iter().any(|known| self.begun_by(known.from.0).ended.has(known, CONNECTION, now)) {
                return false;
            }
        }
        if part == Part::Answer || !self.allow(rules, flow) {
            return false;
        }
        for known in [flow, flow.reversed()] {
            self.begun_by(known.from.0).ended.forget(&known);
        }
        self.memory(flow.reversed()).forget(&flow.reversed());
        self.memory(flow).keep(flow, flow.lasts(), now);
        true
    }

    /// What somebody has begun, as far as they are told apart.
    fn begun_by(&mut self, from: IpAddr) -> &mut Begun {
        let is_own = self.own.as_ref().is_none_or(|own| own.contains(&from));
        self.begun.entry(if is_own { from } else { Ipv4Addr::UNSPECIFIED.into() }).or_default()
    }

    /// Where a flow is remembered, with whoever began it.
    fn memory(&mut self, flow: Flow) -> &mut Memory<Flow> {
        let begun = self.begun_by(flow.from.0);
        if flow.protocol == IpProtocol::Tcp { &mut begun.connections } else { &mut begun.flows }
    }

    /// Whether a flow may begin: what a member sends is what another one gets.
    fn allow(&self, rules: &Rules, flow: Flow) -> bool {
        let allow = |direction, other: IpAddr| {
            let (protocol, port) = match flow.protocol {
                IpProtocol::Tcp => (RuleProtocol::Tcp, Some(flow.to.1)),
                IpProtocol::Udp => (RuleProtocol::Udp, Some(flow.to.1)),
                _ => (RuleProtocol::Icmp, None),
            };
            rules.allow(&Beginning { direction, protocol, port, other, within: true })
        };
        let (from, to) = (flow.from.0, flow.to.0);
        let is_anothers = |address: IpAddr| self.own.as_ref().is_some_and(|own| !own.contains(&address));
        let leaves = is_anothers(from) || allow(Direction::Out, to);
        leaves && (is_anothers(to) || allow(Direction::In, from))
    }
}

impl Flow {
    const fn reversed(self) -> Self {
        Self { from: self.to, to: self.from, ..self }
    }

    fn lasts(&self) -> Duration {
        if self.protocol == IpProtocol::Tcp { CONNECTION } else { FLOW }
    }

    /// The flow that what begins here is part of: a segment, a datagram, or a ping.
    fn read(protocol: IpProtocol, ends: (IpAddr, IpAddr), data: &[u8]) -> Option<Self> {
        let (from, to) = match (protocol, *data.first()?) {
            (IpProtocol::Tcp | IpProtocol::Udp, _) => (word(data, 0)?, word(data, 2)?),
            (IpProtocol::Icmp, PING) | (IpProtocol::Icmpv6, PING6) => (word(data, IDENTIFIER)?, 0),
            (IpProtocol::Icmp, PONG) | (IpProtocol::Icmpv6, PONG6) => (0, word(data, IDENTIFIER)?),
            _ => return None,
        };
        Some(Self { protocol, from: (ends.0, from), to: (ends.1, to) })
    }
}

/// The flow that a packet is part of.
fn read(packet: &[u8], header: &Header) -> Option<(Flow, Part)> {
    let (data, ends) = (packet.get(header.body..)?, (header.from, header.to));
    let is_icmp = matches!(header.protocol, IpProtocol::Icmp | IpProtocol::Icmpv6);
    match Flow::read(header.protocol, ends, data) {
        Some(flow) if header.protocol == IpProtocol::Tcp => {
            let begins = data.get(FLAGS)? & (SYN | ACK) == SYN;
            Some((flow, if begins { Part::First } else { Part::Any }))
        }
        Some(flow) if is_icmp && [PONG, PONG6].contains(data.first()?) => Some((flow, Part::Answer)),
        Some(flow) => Some((flow, Part::Any)),
        None if is_icmp => Some((quoted(data, header)?, Part::Answer)),
        None => None,
    }
}

/// The flow that an error is about, as an answer to it: only who got a packet has something to say of it.
fn quoted(error: &[u8], header: &Header) -> Option<Flow> {
    let bytes = error.get(QUOTE..)?;
    let quote = Quote::read(bytes)?;
    let (is_theirs, ends) = ((quote.from, quote.to) == (header.to, header.from), (quote.from, quote.to));
    let flow = Flow::read(quote.protocol, ends, bytes.get(quote.body..)?)?;
    (is_theirs && quote.is_first).then(|| flow.reversed())
}

/// A set that forgets: what was not kept for a while, and, where it is full, what was not kept for longest.
#[derive(Debug)]
struct Memory<T> {
    young: HashSet<T>,
    old: HashSet<T>,
    /// When the young ones began to be kept.
    since: Option<Instant>,
}

impl<T> Default for Memory<T> {
    fn default() -> Self {
        Self { young: HashSet::new(), old: HashSet::new(), since: None }
    }
}

impl<T: Eq + Hash> Memory<T> {
    fn has(&mut self, value: &T, lasts: Duration, now: Instant) -> bool {
        self.age(lasts, now);
        self.young.contains(value) || self.old.contains(value)
    }

    fn keep(&mut self, value: T, lasts: Duration, now: Instant) {
        self.age(lasts, now);
        if self.young.len() >= MOST && !self.young.contains(&value) {
            self.turn(now);
        }
        self.young.insert(value);
        self.since.get_or_insert(now);
    }

    fn forget(&mut self, value: &T) {
        self.young.remove(value);
        self.old.remove(value);
    }

    fn age(&mut self, lasts: Duration, now: Instant) {
        let Some(since) = self.since else { return };
        let age = now.saturating_duration_since(since);
        if age >= lasts {
            self.turn(now);
        }
        if age >= lasts * 2 {
            self.turn(now);
        }
    }

    fn turn(&mut self, now: Instant) {
        self.old = mem::take(&mut self.young);
        self.since = (!self.old.is_empty()).then_some(now);
    }
}

#[cfg(test)]
#[path = "filter_tests.rs"]
mod tests;
