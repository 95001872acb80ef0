//! The names of a network. Pure.
//!
//! A member is found by each of its names, alone (`web`), below `internal` (`web.internal`), and below the network's
//! own name there (`web.front.internal`), in capitals or not. `internal` is kept free for such use (ICANN, resolution
//! 2024.07.29.06). Several members may have one name: their addresses are told together, as many as fit into the
//! smallest message (RFC 1035, 2.3.4), so that nobody has to ask again by a connection.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use berth_domain::network::address6;
use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, PTR};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use ipnet::{Ipv4Net, Ipv6Net};

use super::roster::Roster;

/// The name below which those of all networks are.
pub(crate) const BELOW: &str = "internal";
/// The names below which addresses are turned into names (RFC 1035, 3.5; RFC 3596, 2.5).
const REVERSE: &str = ".in-addr.arpa";
const REVERSE6: &str = ".ip6.arpa";
/// How long an answer may be believed, in seconds: a machine that was made anew has another address.
const TTL: u32 = 5;
/// Bytes of the smallest message that everybody takes.
const SMALLEST: usize = 512;

/// The names.
#[derive(Debug)]
pub(crate) struct Names {
    /// The network's own, in lower case.
    network: String,
    cidr: Ipv4Net,
    cidr6: Option<Ipv6Net>,
    addresses: BTreeMap<String, Vec<Ipv4Addr>>,
    /// What an address is called first.
    of: BTreeMap<IpAddr, String>,
}

/// What is known of what was asked for.
#[derive(Debug, PartialEq, Eq)]
enum Known {
    Addresses(Vec<Ipv4Addr>),
    Name(String),
    Nothing,
}

impl Names {
    pub(crate) fn new(roster: &Roster) -> Self {
        let mut addresses: BTreeMap<String, Vec<Ipv4Addr>> = BTreeMap::new();
        let mut of = BTreeMap::new();
        let Roster { cidr, cidr6, .. } = *roster;
        for member in &roster.members {
            let six = cidr6.map(|cidr6| address6(cidr, member.address, cidr6));
            for name in member.names.iter().map(|name| name.to_ascii_lowercase()) {
                of.entry(member.address.into()).or_insert_with(|| name.clone());
                if let Some(six) = six {
                    of.entry(six.into()).or_insert_with(|| name.clone());
                }
                let known = addresses.entry(name).or_default();
                if !known.contains(&member.address) {
                    known.push(member.address);
                }
            }
        }
        for known in addresses.values_mut() {
            known.sort_unstable();
        }
        Self { network: roster.name.to_ascii_lowercase(), cidr, cidr6, addresses, of }
    }

    /// Answers a question; `None` where what came is none.
    pub(crate) fn answer(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let asked = Message::from_vec(bytes).ok()?;
        if asked.metadata.message_type != MessageType::Query {
            return None;
        }
        let (id, op_code) = (asked.metadata.id, asked.metadata.op_code);
        let [query] = asked.queries.as_slice() else {
            return Message::error_msg(id, op_code, ResponseCode::FormErr).to_vec().ok();
        };
        if op_code != OpCode::Query {
            return Message::error_msg(id, op_code, ResponseCode::NotImp).to_vec().ok();
        }
        let known = self.known(query);
        let code = if known == Known::Nothing { ResponseCode::NXDomain } else { ResponseCode::NoError };
        let mut answer = Message::error_msg(id, op_code, code);
        answer.metadata.authoritative = true;
        answer.metadata.recursion_desired = asked.metadata.recursion_desired;
        answer.metadata.recursion_available = true;
        answer.add_query(query.clone());
        let mut bytes = answer.to_vec().ok()?;
        for record in self.records(query, known) {
            answer.add_answer(record);
            let longer = answer.to_vec().ok()?;
            if longer.len() > SMALLEST {
                break;
            }
            bytes = longer;
        }
        Some(bytes)
    }

    fn known(&self, query: &Query) -> Known {
        if query.query_class != DNSClass::IN {
            return Known::Nothing;
        }
        let text = query.name.to_ascii().to_ascii_lowercase();
        let text = text.strip_suffix('.').unwrap_or(&text);
        if is_reverse(text) {
            let name = reverse(text).and_then(|of| self.of.get(&of));
            return name.map_or(Known::Nothing, |name| Known::Name(format!("{name}.{}.{BELOW}", self.network)));
        }
        let found = self.forms(text).into_iter().flatten().find_map(|name| self.addresses.get(name));
        found.map_or(Known::Nothing, |addresses| Known::Addresses(addresses.clone()))
    }

    /// The records that answer a question. Of a name that is known there may be none of the kind that was asked for.
    fn records(&self, query: &Query, known: Known) -> Vec<Record> {
        let record = |data: RData| Record::from_rdata(query.name.clone(), TTL, data);
        let wants = |kind: RecordType| [kind, RecordType::ANY].contains(&query.query_type);
        match known {
            Known::Addresses(addresses) => {
                let four = addresses.iter().map(|address| RData::A(A(*address))).filter(|_| wants(RecordType::A));
                let of = |cidr6: Ipv6Net| addresses.iter().map(move |address| address6(self.cidr, *address, cidr6));
                let six = self.cidr6.into_iter().filter(|_| wants(RecordType::AAAA)).flat_map(of);
                four.chain(six.map(|address| RData::AAAA(AAAA(address)))).map(record).collect()
            }
            Known::Name(name) if wants(RecordType::PTR) => {
                let name = Name::from_ascii(format!("{name}."));
                name.into_iter().map(|name| record(RData::PTR(PTR(name)))).collect()
            }
            Known::Name(_) | Known::Nothing => Vec::new(),
        }
    }

    /// What of a text may be a member's name.
    fn forms<'a>(&self, text: &'a str) -> [Option<&'a str>; 2] {
        let Some(below) = text.strip_suffix(BELOW).and_then(|rest| rest.strip_suffix('.')) else {
            return [Some(text), None];
        };
        let of_network = below.strip_suffix(self.network.as_str()).and_then(|rest| rest.strip_suffix('.'));
        [of_network, Some(below)]
    }
}

/// Whether a name is one of an address.
fn is_reverse(text: &str) -> bool {
    [REVERSE, REVERSE6].iter().any(|below| text.ends_with(below))
}

/// The address that is asked for by a name, which has its bytes, or in IPv6 its digits, the other way round.
pub(crate) fn reverse(text: &str) -> Option<IpAddr> {
    if let Some(digits) = text.strip_suffix(REVERSE6) {
        let digit = |label: &str| if label.len() == 1 { u128::from_str_radix(label, 16).ok() } else { None };
        let digits: Vec<u128> = digits.split('.').rev().map(digit).collect::<Option<_>>()?;
        let bits = digits.iter().fold(0, |bits, digit| bits << 4 | digit);
        return (digits.len() == 32).then(|| Ipv6Addr::from_bits(bits).into());
    }
    let bytes: Vec<u8> = text.strip_suffix(REVERSE)?.split('.').rev().map(str::parse).collect::<Result<_, _>>().ok()?;
    <[u8; 4]>::try_from(bytes).ok().map(|bytes| Ipv4Addr::from(bytes).into())
}

/// Whether a name may be a network's: one label, or one below `internal`.
pub(crate) fn may_be(text: &str) -> bool {
    !text.is_empty() && (!text.contains('.') || text.strip_suffix(BELOW).is_some_and(|rest| rest.ends_with('.')))
}

#[cfg(test)]
#[path = "names_tests.rs"]
mod tests;
