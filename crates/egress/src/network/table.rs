//! What a switch does with a packet. Pure.
//!
//! A packet is from the member whose link it came by and to another member, or a question about names. All else is
//! dropped: what is from somebody else, what is to everybody or to several, what is to an address that nobody has.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use berth_domain::network::resolver;
use ipnet::Ipv4Net;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpProtocol, IpRepr, UdpPacket, UdpRepr};

use super::header::{Header, IPV4, UDP};
use super::names::Names;
use super::roster::Roster;
use super::{DNS, is_member};

/// Hop limit of an answer.
const HOPS: u8 = 64;

/// Who is in a network.
#[derive(Debug)]
pub(crate) struct Table {
    cidr: Ipv4Net,
    /// The machines by their addresses.
    machines: BTreeMap<Ipv4Addr, String>,
    names: Names,
}

/// What is done with a packet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It goes to this member.
    Pass(Ipv4Addr),
    /// This goes back.
    Answer(Vec<u8>),
    /// Nothing.
    Drop,
}

impl Table {
    /// The table of a network.
    ///
    /// # Errors
    /// A member's address is none of a member's, or two members', for a log.
    pub(crate) fn new(roster: &Roster) -> Result<Self, String> {
        let Roster { cidr, members, .. } = roster;
        let cidr = *cidr;
        let mut machines = BTreeMap::new();
        for member in members {
            let address = member.address;
            if !is_member(cidr, address) || address == resolver(cidr) {
                return Err(format!("{address} is nobody's in {cidr}"));
            }
            if machines.insert(address, member.machine.clone()).is_some() {
                return Err(format!("{address} is two members'"));
            }
        }
        Ok(Self { cidr, machines, names: Names::new(roster) })
    }

    /// The machine that has an address.
    pub(crate) fn machine(&self, address: Ipv4Addr) -> Option<&str> {
        self.machines.get(&address).map(String::as_str)
    }

    /// What is done with a packet of the member at an address.
    pub(crate) fn decide(&self, member: Ipv4Addr, packet: &[u8]) -> Decision {
        let Some(header) = Header::read(packet) else { return Decision::Drop };
        if header.from != member || header.to == member {
            return Decision::Drop;
        }
        if header.to == resolver(self.cidr) {
            return self.answer(&header, packet).map_or(Decision::Drop, Decision::Answer);
        }
        if self.machines.contains_key(&header.to) { Decision::Pass(header.to) } else { Decision::Drop }
    }

    /// Answers a question about names.
    fn answer(&self, header: &Header, packet: &[u8]) -> Option<Vec<u8>> {
        if header.protocol != IpProtocol::Udp || !header.is_whole {
            return None;
        }
        let asked = UdpPacket::new_checked(packet.get(IPV4..)?).ok()?;
        let (from, to) = (header.from.into(), header.to.into());
        if asked.dst_port() != DNS || !asked.verify_checksum(&from, &to) {
            return None;
        }
        let answer = self.names.answer(asked.payload())?;
        Some(datagram((header.to, DNS), (header.from, asked.src_port()), &answer))
    }
}

/// A datagram in a packet.
pub(crate) fn datagram(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), data: &[u8]) -> Vec<u8> {
    let checks = ChecksumCapabilities::default();
    let header = IpRepr::new(from.0.into(), to.0.into(), IpProtocol::Udp, UDP + data.len(), HOPS);
    let mut packet = vec![0; IPV4 + UDP + data.len()];
    header.emit(&mut packet[..], &checks);
    if let Some(body) = packet.get_mut(IPV4..) {
        let udp = UdpRepr { src_port: from.1, dst_port: to.1 };
        let fill = |buffer: &mut [u8]| buffer.copy_from_slice(data);
        udp.emit(&mut UdpPacket::new_unchecked(body), &from.0.into(), &to.0.into(), data.len(), fill, &checks);
    }
    packet
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Member;

    const A: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 2);
    const B: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 254);
    const RESOLVER: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 1);

    fn cidr() -> Ipv4Net {
        "10.128.0.0/24".parse().unwrap()
    }

    fn member(address: Ipv4Addr, names: &[&str]) -> Member {
        Member { machine: address.to_string(), address, names: names.iter().map(|name| (*name).to_owned()).collect() }
    }

    fn of(members: &[Member]) -> Result<Table, String> {
        Table::new(&Roster { name: "front".into(), cidr: cidr(), members: members.to_vec() })
    }

    fn table() -> Table {
        of(&[member(A, &["web"]), member(B, &["db"])]).unwrap()
    }

    fn sent(from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
        datagram((from, 5), (to, 6), b"x")
    }

    #[test]
    fn members_reach_each_other_and_nobody_else() {
        let table = table();
        assert_eq!(table.decide(A, &sent(A, B)), Decision::Pass(B));
        assert_eq!(table.decide(B, &sent(B, A)), Decision::Pass(A));
        for to in [
            A,
            Ipv4Addr::new(10, 128, 0, 3),
            Ipv4Addr::new(10, 128, 0, 0),
            Ipv4Addr::new(10, 128, 0, 255),
            Ipv4Addr::new(10, 128, 1, 2),
            Ipv4Addr::BROADCAST,
            Ipv4Addr::new(224, 0, 0, 251),
            Ipv4Addr::LOCALHOST,
            RESOLVER,
        ] {
            assert_eq!(table.decide(A, &sent(A, to)), Decision::Drop, "{to}");
        }
    }

    #[test]
    fn a_link_speaks_for_its_member_alone() {
        let table = table();
        for from in [B, RESOLVER, Ipv4Addr::new(10, 128, 0, 3), Ipv4Addr::UNSPECIFIED, Ipv4Addr::new(10, 0, 2, 15)] {
            assert_eq!(table.decide(A, &sent(from, B)), Decision::Drop, "{from}");
        }
        for packet in [&[][..], b"x", &sent(A, B)[..20], &[sent(A, B), vec![0]].concat()] {
            assert_eq!(table.decide(A, packet), Decision::Drop);
        }
    }

    #[test]
    fn addresses_are_those_of_members() {
        let refused = |members: &[Member]| of(members).unwrap_err();
        for address in [[10, 128, 0, 0], [10, 128, 0, 1], [10, 128, 0, 255], [10, 128, 1, 0], [10, 127, 255, 255]] {
            assert!(refused(&[member(address.into(), &[])]).contains("nobody's"), "{address:?}");
        }
        for address in [[10, 128, 0, 2], [10, 128, 0, 254]] {
            assert!(of(&[member(address.into(), &[])]).is_ok(), "{address:?}");
        }
        assert!(refused(&[member(A, &[]), member(A, &[])]).contains("two"));
    }

    #[test]
    fn names_are_asked_at_one_address_and_port() {
        use hickory_proto::op::{Message, Query, ResponseCode};
        use hickory_proto::rr::{Name, RecordType};
        let mut question = Message::query();
        question.add_query(Query::query(Name::from_ascii("db.").unwrap(), RecordType::A));
        let question = question.to_vec().unwrap();
        let table = table();
        let ask = |to: (Ipv4Addr, u16), from: u16| table.decide(A, &datagram((A, from), to, &question));
        for port in [0, 5, 65_535] {
            let Decision::Answer(packet) = ask((RESOLVER, DNS), port) else { panic!("no answer") };
            let header = Header::read(&packet).unwrap();
            assert_eq!((header.from, header.to), (RESOLVER, A));
            let udp = UdpPacket::new_checked(&packet[IPV4..]).unwrap();
            assert_eq!((udp.src_port(), udp.dst_port()), (DNS, port));
            assert!(udp.verify_checksum(&RESOLVER.into(), &A.into()));
            assert_eq!(Message::from_vec(udp.payload()).unwrap().metadata.response_code, ResponseCode::NoError);
        }
        assert_eq!(ask((RESOLVER, 54), 5), Decision::Drop);
        assert_eq!(ask((B, DNS), 5), Decision::Pass(B));
        let mut wrong = datagram((A, 5), (RESOLVER, DNS), &question);
        let last = wrong.len() - 1;
        wrong[last] ^= 1;
        assert_eq!(table.decide(A, &wrong), Decision::Drop);
    }
}
