//! DHCP for IPv6 (RFC 8415): gives the guest the one address that it has in networks of projects. Pure.
//!
//! A guest makes itself addresses, and they are good for the outside. In networks one address has to stand for another, so
//! the guest has to have one that is known. As with IPv4 there is one lease for good, and nothing is remembered. It is asked
//! for where the router says so.

use std::net::Ipv6Addr;

use crate::packet::hardware;
use crate::{GATEWAY, GUEST6, PREFIX6, RESOLVER6};

/// What a guest is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its address.
    pub guest: Ipv6Addr,
    /// Bits of the network part of that.
    pub prefix: u8,
    /// Its resolver.
    pub resolver: Ipv6Addr,
    /// The link address of who answers.
    pub server: [u8; 6],
}

impl Lease {
    /// That of a guest which is alone behind its card.
    pub(crate) fn alone() -> Self {
        Self { guest: GUEST6, prefix: PREFIX6, resolver: RESOLVER6, server: hardware(GATEWAY).0 }
    }

    /// Who answers, by the link address (RFC 8415, 11.4).
    fn identifier(&self) -> [u8; 10] {
        let [a, b, c, d, e, f] = self.server;
        [0, 3, 0, 1, a, b, c, d, e, f]
    }
}

/// The port of who answers.
pub const SERVER: u16 = 547;
/// The port of who asks.
pub const CLIENT: u16 = 546;
/// Where those are asked who answer.
pub const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
/// How long the guest may keep its address, in seconds, and when it asks again, and asks anybody: as with IPv4.
const LEASE: u32 = 30 * 24 * 60 * 60;
const RENEW: u32 = LEASE / 2;
const REBIND: u32 = LEASE / 5 * 4;
/// Bytes of a message before its options, and of an option before its data.
const HEADER: usize = 4;
const OPTION: usize = 4;
/// Identities of one question that are answered, and bytes of the longest identifier of a client (RFC 8415, 11.1).
const IDENTITIES: usize = 4;
const LONGEST_IDENTIFIER: usize = 130;

/// Messages (RFC 8415, 7.3).
const SOLICIT: u8 = 1;
const ADVERTISE: u8 = 2;
const REQUEST: u8 = 3;
const CONFIRM: u8 = 4;
const RENEWAL: u8 = 5;
const REBINDING: u8 = 6;
const REPLY: u8 = 7;
const RELEASE: u8 = 8;
const DECLINE: u8 = 9;
const INFORMATION: u8 = 11;
/// Options (RFC 8415, 21; RFC 3646, 3).
const CLIENT_IDENTIFIER: u16 = 1;
const SERVER_IDENTIFIER: u16 = 2;
const IDENTITY: u16 = 3;
const ADDRESS: u16 = 5;
const STATUS: u16 = 13;
const RAPIDLY: u16 = 14;
const RESOLVERS: u16 = 23;
/// What an answer says of success, of an address too many, and of one that is of another network.
const SUCCESS: u16 = 0;
const NO_ADDRESS: u16 = 2;
const NOT_ON_LINK: u16 = 4;

/// What is read of a message.
#[derive(Default)]
struct Question<'a> {
    client: Option<&'a [u8]>,
    server: Option<&'a [u8]>,
    /// Identities that want an address, by their numbers.
    identities: Vec<[u8; 4]>,
    /// Addresses that they say they have.
    addresses: Vec<Ipv6Addr>,
    is_rapid: bool,
}

/// Answers a message of a guest; `None` where nothing answers it.
pub fn answer(message: &[u8], lease: &Lease) -> Option<Vec<u8>> {
    let (head, options) = message.split_at_checked(HEADER)?;
    let kind = *head.first()?;
    let question = Question::read(options)?;
    if !question.is_valid(kind, lease) {
        return None;
    }
    let is_rapid = kind == SOLICIT && question.is_rapid;
    let reply = if kind == SOLICIT && !is_rapid { ADVERTISE } else { REPLY };
    let mut answer = vec![reply];
    answer.extend(head.get(1..)?);
    put(&mut answer, SERVER_IDENTIFIER, &lease.identifier());
    question.client.iter().for_each(|client| put(&mut answer, CLIENT_IDENTIFIER, client));
    match kind {
        SOLICIT | REQUEST | RENEWAL | REBINDING => question.lend(&mut answer, lease),
        CONFIRM => put(&mut answer, STATUS, &question.confirm(lease).to_be_bytes()),
        RELEASE | DECLINE => put(&mut answer, STATUS, &SUCCESS.to_be_bytes()),
        _ => {}
    }
    if is_rapid {
        put(&mut answer, RAPIDLY, &[]);
    }
    put(&mut answer, RESOLVERS, &lease.resolver.octets());
    Some(answer)
}

impl<'a> Question<'a> {
    fn read(options: &'a [u8]) -> Option<Self> {
        let mut question = Self::default();
        for option in Options(options) {
            let (kind, data) = option?;
            match kind {
                CLIENT_IDENTIFIER if (1..=LONGEST_IDENTIFIER).contains(&data.len()) => question.client = Some(data),
                SERVER_IDENTIFIER => question.server = Some(data),
                IDENTITY => question.identity(data)?,
                RAPIDLY => question.is_rapid = true,
                _ => {}
            }
        }
        Some(question)
    }

    /// Reads an identity, which says of times and of addresses that it had.
    fn identity(&mut self, data: &[u8]) -> Option<()> {
        const TIMES: usize = 8;
        let (number, rest) = data.split_first_chunk::<4>()?;
        if self.identities.len() < IDENTITIES {
            self.identities.push(*number);
        }
        for option in Options(rest.get(TIMES..)?) {
            let (kind, data) = option?;
            if kind == ADDRESS && self.addresses.len() < IDENTITIES {
                self.addresses.push(Ipv6Addr::from(*data.first_chunk::<16>()?));
            }
        }
        Some(())
    }

    /// Whether a message of this kind says what it has to, and nothing that it may not (RFC 8415, 16).
    fn is_valid(&self, kind: u8, lease: &Lease) -> bool {
        let own = lease.identifier();
        let is_ours = self.server.is_some_and(|server| server == own);
        let is_anybodys = self.server.is_none();
        match kind {
            SOLICIT | CONFIRM | REBINDING => self.client.is_some() && is_anybodys,
            REQUEST | RENEWAL | RELEASE | DECLINE => self.client.is_some() && is_ours,
            INFORMATION => (is_ours || is_anybodys) && self.identities.is_empty(),
            _ => false,
        }
    }

    /// Gives the first identity the address, and others none: there is no second one.
    fn lend(&self, answer: &mut Vec<u8>, lease: &Lease) {
        for (index, number) in self.identities.iter().enumerate() {
            let mut identity = [&number[..], &RENEW.to_be_bytes(), &REBIND.to_be_bytes()].concat();
            if index == 0 {
                let times = [LEASE.to_be_bytes(), LEASE.to_be_bytes()].concat();
                put(&mut identity, ADDRESS, &[&lease.guest.octets()[..], &times].concat());
            } else {
                put(&mut identity, STATUS, &NO_ADDRESS.to_be_bytes());
            }
            put(answer, IDENTITY, &identity);
        }
    }

    /// Whether the addresses that it has are of this network.
    fn confirm(&self, lease: &Lease) -> u16 {
        let bits = |address: &Ipv6Addr| address.to_bits().checked_shr(u128::BITS - u32::from(lease.prefix));
        let is_here = self.addresses.iter().all(|address| bits(address) == bits(&lease.guest));
        if is_here { SUCCESS } else { NOT_ON_LINK }
    }
}

/// Options, one after the other; `None` for one that is cut off, which is the last.
struct Options<'a>(&'a [u8]);

impl<'a> Iterator for Options<'a> {
    type Item = Option<(u16, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = std::mem::take(&mut self.0);
        if bytes.is_empty() {
            return None;
        }
        let read = || {
            let ([a, b, c, d], rest) = bytes.split_first_chunk::<OPTION>()?;
            let (data, rest) = rest.split_at_checked(u16::from_be_bytes([*c, *d]).into())?;
            Some(((u16::from_be_bytes([*a, *b]), data), rest))
        };
        Some(read().map(|(option, rest)| {
            self.0 = rest;
            option
        }))
    }
}

/// Appends an option.
fn put(message: &mut Vec<u8>, kind: u16, data: &[u8]) {
    // What is written here is far shorter than an option may be.
    let length = u16::try_from(data.len()).unwrap_or(u16::MAX);
    message.extend(kind.to_be_bytes());
    message.extend(length.to_be_bytes());
    message.extend(data);
}

#[cfg(test)]
#[path = "dhcp6_tests.rs"]
mod tests;
