//! What a switch does with a packet. Pure.
//!
//! A packet is from the member whose link it came by and to another member, or a question about names. All else is
//! dropped: what is from somebody else, what is to everybody or to several, what is to an address that nobody has.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use berth_domain::network::{address6, resolver, resolver6};
use ipnet::Ipv6Net;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpProtocol, IpRepr, UdpPacket, UdpRepr};

use super::header::{Header, UDP};
use super::names::Names;
use super::roster::Roster;
use super::{DNS, is_member};

/// Hop limit of an answer.
const HOPS: u8 = 64;

/// Who is in a network.
#[derive(Debug)]
pub(crate) struct Table {
    cidr6: Option<Ipv6Net>,
    /// The machines by their addresses.
    machines: BTreeMap<Ipv4Addr, String>,
    /// Whose an address is, of either kind, by the member's of IPv4.
    members: BTreeMap<IpAddr, Ipv4Addr>,
    /// Where names are asked for.
    resolvers: Vec<IpAddr>,
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
        let Roster { cidr, cidr6, .. } = *roster;
        let (mut machines, mut members) = (BTreeMap::new(), BTreeMap::new());
        for member in &roster.members {
            let address = member.address;
            if !is_member(cidr.into(), address.into()) || address == resolver(cidr) {
                return Err(format!("{address} is nobody's in {cidr}"));
            }
            if machines.insert(address, member.machine.clone()).is_some() {
                return Err(format!("{address} is two members'"));
            }
            members.insert(IpAddr::V4(address), address);
            members.extend(cidr6.map(|cidr6| (IpAddr::V6(address6(cidr, address, cidr6)), address)));
        }
        let resolvers = [Some(resolver(cidr).into()), cidr6.map(|cidr6| resolver6(cidr6).into())];
        let resolvers = resolvers.into_iter().flatten().collect();
        Ok(Self { cidr6, machines, members, resolvers, names: Names::new(roster) })
    }

    /// The network's IPv6 addresses.
    pub(crate) const fn cidr6(&self) -> Option<Ipv6Net> {
        self.cidr6
    }

    /// The member that has an address of either kind, by its address of IPv4.
    pub(crate) fn member(&self, address: IpAddr) -> Option<Ipv4Addr> {
        self.members.get(&address).copied()
    }

    /// The machine that has an address.
    pub(crate) fn machine(&self, address: Ipv4Addr) -> Option<&str> {
        self.machines.get(&address).map(String::as_str)
    }

    /// What is done with a packet of the member at an address.
    pub(crate) fn decide(&self, member: Ipv4Addr, packet: &[u8]) -> Decision {
        let Some(header) = Header::read(packet) else { return Decision::Drop };
        if self.member(header.from) != Some(member) || header.to == header.from {
            return Decision::Drop;
        }
        if self.resolvers.contains(&header.to) {
            return self.answer(&header, packet).map_or(Decision::Drop, Decision::Answer);
        }
        match self.member(header.to) {
            Some(to) if to != member => Decision::Pass(to),
            _ => Decision::Drop,
        }
    }

    /// Answers a question about names.
    fn answer(&self, header: &Header, packet: &[u8]) -> Option<Vec<u8>> {
        if header.protocol != IpProtocol::Udp || !header.is_whole {
            return None;
        }
        let asked = UdpPacket::new_checked(packet.get(header.body..)?).ok()?;
        let (from, to) = (header.from.into(), header.to.into());
        if asked.dst_port() != DNS || !asked.verify_checksum(&from, &to) {
            return None;
        }
        let answer = self.names.answer(asked.payload())?;
        Some(datagram((header.to, DNS), (header.from, asked.src_port()), &answer))
    }
}

/// A datagram in a packet.
pub(crate) fn datagram(from: (IpAddr, u16), to: (IpAddr, u16), data: &[u8]) -> Vec<u8> {
    let checks = ChecksumCapabilities::default();
    let header = IpRepr::new(from.0.into(), to.0.into(), IpProtocol::Udp, UDP + data.len(), HOPS);
    let mut packet = vec![0; header.header_len() + UDP + data.len()];
    header.emit(&mut packet[..], &checks);
    if let Some(body) = packet.get_mut(header.header_len()..) {
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

    fn cidr() -> ipnet::Ipv4Net {
        "10.128.0.0/24".parse().unwrap()
    }

    fn member(address: Ipv4Addr, names: &[&str]) -> Member {
        Member { machine: address.to_string(), address, names: names.iter().map(|name| (*name).to_owned()).collect() }
    }

    fn of(members: &[Member]) -> Result<Table, String> {
        Table::new(&Roster { name: "front".into(), cidr: cidr(), cidr6: None, members: members.to_vec() })
    }

    fn table() -> Table {
        of(&[member(A, &["web"]), member(B, &["db"])]).unwrap()
    }

    fn sent(from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
        datagram((from.into(), 5), (to.into(), 6), b"x")
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
        let ask = |to: (Ipv4Addr, u16), from: u16| {
            table.decide(A, &datagram((A.into(), from), (to.0.into(), to.1), &question))
        };
        for port in [0, 5, 65_535] {
            let Decision::Answer(packet) = ask((RESOLVER, DNS), port) else { panic!("no answer") };
            let header = Header::read(&packet).unwrap();
            assert_eq!((header.from, header.to), (RESOLVER.into(), A.into()));
            let udp = UdpPacket::new_checked(&packet[header.body..]).unwrap();
            assert_eq!((udp.src_port(), udp.dst_port()), (DNS, port));
            assert!(udp.verify_checksum(&RESOLVER.into(), &A.into()));
            assert_eq!(Message::from_vec(udp.payload()).unwrap().metadata.response_code, ResponseCode::NoError);
        }
        assert_eq!(ask((RESOLVER, 54), 5), Decision::Drop);
        assert_eq!(ask((B, DNS), 5), Decision::Pass(B));
        let mut wrong = datagram((A.into(), 5), (RESOLVER.into(), DNS), &question);
        let last = wrong.len() - 1;
        wrong[last] ^= 1;
        assert_eq!(table.decide(A, &wrong), Decision::Drop);
    }

    #[test]
    fn members_reach_each_other_by_ipv6_and_speak_for_themselves_alone() {
        let members = [member(A, &["web"]), member(B, &["db"])];
        let cidr6 = Some("fd00:20::/64".parse().unwrap());
        let roster = Roster { name: "front".into(), cidr: cidr(), cidr6, members: members.to_vec() };
        let table = Table::new(&roster).unwrap();
        let six = |text: &str| text.parse::<IpAddr>().unwrap();
        let sent = |from: &str, to: &str| datagram((six(from), 5), (six(to), 6), b"x");
        assert_eq!(table.decide(A, &sent("fd00:20::2", "fd00:20::fe")), Decision::Pass(B));
        assert_eq!(table.decide(B, &sent("fd00:20::fe", "fd00:20::2")), Decision::Pass(A));
        for from in ["fd00:20::fe", "fd00:20::1", "fd00:20::3", "::", "fe80::2", "fd62:6572:7468::15"] {
            assert_eq!(table.decide(A, &sent(from, "fd00:20::fe")), Decision::Drop, "{from}");
        }
        for to in ["fd00:20::2", "fd00:20::", "fd00:20::3", "fd00:20:0:1::fe", "ff02::1", "::1", "fd00:20::1"] {
            assert_eq!(table.decide(A, &sent("fd00:20::2", to)), Decision::Drop, "{to}");
        }
        let mixed = datagram((A.into(), 5), (B.into(), 6), b"x");
        assert_eq!(table.decide(A, &mixed), Decision::Pass(B));
        // Without such addresses nobody has one.
        assert_eq!(self::table().decide(A, &sent("fd00:20::2", "fd00:20::fe")), Decision::Drop);
    }
}
