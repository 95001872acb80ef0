use std::net::Ipv4Addr;

use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    Icmpv4DstUnreachable, Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, IpAddress, IpRepr, Ipv4Packet, Ipv4Repr, TcpControl,
    TcpPacket, TcpRepr, TcpSeqNumber, UdpPacket, UdpRepr,
};

use super::super::header::{IPV4, IPV6};
use super::*;

const A: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 2);
const B: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 255);
const SOURCE: Side = Side::Source;
const DESTINATION: Side = Side::Destination;

fn place(own: impl Into<IpAddr>) -> Place {
    let own = own.into();
    let cidr = if own.is_ipv4() { "10.128.0.0/16" } else { "fd00:20::/64" };
    Place { cidr: cidr.parse().unwrap(), own }
}

/// The guest's own address of this kind.
fn guest(is_ipv6: bool) -> IpAddr {
    if is_ipv6 { GUEST6.into() } else { GUEST.into() }
}

/// A packet, with all its checksums.
pub fn packet(from: impl Into<IpAddr>, to: impl Into<IpAddr>, protocol: IpProtocol, payload: &[u8]) -> Vec<u8> {
    let (from, to) = (IpAddress::from(from.into()), IpAddress::from(to.into()));
    let header = IpRepr::new(from, to, protocol, payload.len(), 64);
    let mut packet = vec![0; header.header_len() + payload.len()];
    header.emit(&mut packet, &ChecksumCapabilities::default());
    packet[header.header_len()..].copy_from_slice(payload);
    fill(&mut packet);
    packet
}

/// Makes the checksum of what a packet carries anew.
fn fill(packet: &mut [u8]) {
    let header = Header::read(packet).unwrap();
    let (from, to) = (IpAddress::from(header.from), IpAddress::from(header.to));
    let body = &mut packet[header.body..];
    match header.protocol {
        IpProtocol::Tcp => TcpPacket::new_unchecked(body).fill_checksum(&from, &to),
        IpProtocol::Udp => UdpPacket::new_unchecked(body).fill_checksum(&from, &to),
        IpProtocol::Icmp => Icmpv4Packet::new_unchecked(body).fill_checksum(),
        _ => {
            let (IpAddr::V6(from), IpAddr::V6(to)) = (header.from, header.to) else { panic!("another kind") };
            Icmpv6Packet::new_unchecked(body).fill_checksum(&from, &to);
        }
    }
}

/// Whether all checksums of a whole packet are right.
fn is_right(packet: &[u8]) -> bool {
    let Some(header) = Header::read(packet) else { return false };
    let (from, to) = (IpAddress::from(header.from), IpAddress::from(header.to));
    let body = &packet[header.body..];
    match header.protocol {
        IpProtocol::Tcp => TcpPacket::new_unchecked(body).verify_checksum(&from, &to),
        IpProtocol::Udp => UdpPacket::new_unchecked(body).verify_checksum(&from, &to),
        IpProtocol::Icmp => Icmpv4Packet::new_unchecked(body).verify_checksum(),
        _ => {
            let (IpAddr::V6(from), IpAddr::V6(to)) = (header.from, header.to) else { panic!("another kind") };
            Icmpv6Packet::new_unchecked(body).verify_checksum(&from, &to)
        }
    }
}

fn tcp(from_port: u16, to_port: u16, data: &[u8]) -> Vec<u8> {
    let segment = TcpRepr {
        src_port: from_port,
        dst_port: to_port,
        control: TcpControl::Psh,
        seq_number: TcpSeqNumber(7),
        ack_number: Some(TcpSeqNumber(9)),
        window_len: 1000,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: data,
    };
    let mut bytes = vec![0; segment.buffer_len()];
    let any = IpAddress::Ipv4(A);
    segment.emit(&mut TcpPacket::new_unchecked(&mut bytes), &any, &any, &ChecksumCapabilities::default());
    bytes
}

fn udp(from_port: u16, to_port: u16, data: &[u8]) -> Vec<u8> {
    let datagram = UdpRepr { src_port: from_port, dst_port: to_port };
    let mut bytes = vec![0; UDP + data.len()];
    let (any, fill) = (IpAddress::Ipv4(A), |buffer: &mut [u8]| buffer.copy_from_slice(data));
    let checks = ChecksumCapabilities::default();
    datagram.emit(&mut UdpPacket::new_unchecked(&mut bytes), &any, &any, data.len(), fill, &checks);
    bytes
}

fn icmp(message: &Icmpv4Repr<'_>) -> Vec<u8> {
    let mut bytes = vec![0; message.buffer_len()];
    message.emit(&mut Icmpv4Packet::new_unchecked(&mut bytes), &ChecksumCapabilities::default());
    bytes
}

fn ping(data: &[u8]) -> Vec<u8> {
    icmp(&Icmpv4Repr::EchoRequest { ident: 3, seq_no: 4, data })
}

/// A ping of IPv6, without its checksum.
fn ping6(data: &[u8]) -> Vec<u8> {
    [&[128, 0, 0, 0, 0, 3, 0, 4][..], data].concat()
}

/// The error that a guest sends about a packet that it got.
fn unreachable(got: &[u8], bytes: usize) -> Vec<u8> {
    if is_ipv6(got) {
        // Administratively prohibited (RFC 4443, 3.1).
        return [&[1, 1, 0, 0, 0, 0, 0, 0][..], &got[..got.len().min(IPV6 + bytes)]].concat();
    }
    let ip = Ipv4Packet::new_checked(got).unwrap();
    let header = Ipv4Repr {
        src_addr: ip.src_addr(),
        dst_addr: ip.dst_addr(),
        next_header: ip.next_header(),
        payload_len: usize::from(ip.total_len()) - IPV4,
        hop_limit: ip.hop_limit(),
    };
    let data = &got[IPV4..got.len().min(IPV4 + bytes)];
    icmp(&Icmpv4Repr::DstUnreachable { reason: Icmpv4DstUnreachable::PortUnreachable, header, data })
}

/// What the guest of one machine gets of what the guest of another one sent.
fn across(from: Place, to: Place, mut packet: Vec<u8>) -> Option<Vec<u8>> {
    if from.outward(&mut packet)? != Way::Network {
        return None;
    }
    assert_eq!(address(&packet, SOURCE), Some(from.own));
    to.inward(&mut packet)?;
    Some(packet)
}

fn any_payload() -> impl Strategy<Value = (bool, IpProtocol, Vec<u8>)> {
    let data = prop::collection::vec(any::<u8>(), 0..300);
    (1_u16.., 1_u16.., data, 0..3, any::<bool>()).prop_map(|(from, to, data, kind, six)| match kind {
        0 => (six, IpProtocol::Tcp, tcp(from, to, &data)),
        1 => (six, IpProtocol::Udp, udp(from, to, &data)),
        _ if six => (six, IpProtocol::Icmpv6, ping6(&data)),
        _ => (six, IpProtocol::Icmp, ping(&data)),
    })
}

/// The address of a member, of either kind.
fn member(host: u32, is_ipv6: bool) -> IpAddr {
    let (four, six) = (Ipv4Addr::from_bits(0x0a80_0000 | host), 0xfd00_0020_u128 << 96 | u128::from(host));
    if is_ipv6 { std::net::Ipv6Addr::from_bits(six).into() } else { four.into() }
}

proptest! {
    /// What one guest sends is what the other gets, but for who sent it; every checksum is right on the way and there.
    #[test]
    fn what_is_sent_arrives((six, protocol, payload) in any_payload(), a in 1_u32..0xffff, b in 1_u32..0xffff) {
        prop_assume!(a != b);
        let (a, b, guest) = (member(a, six), member(b, six), guest(six));
        let sent = packet(guest, b, protocol, &payload);
        let mut between = sent.clone();
        prop_assert_eq!(place(a).outward(&mut between), Some(Way::Network));
        prop_assert!(is_right(&between));
        let got = across(place(a), place(b), sent).unwrap();
        prop_assert!(is_right(&got));
        prop_assert_eq!(&got, &packet(a, guest, protocol, &payload));
        // And its answer.
        let answer = across(place(b), place(a), packet(guest, a, protocol, &payload)).unwrap();
        prop_assert_eq!(answer, packet(b, guest, protocol, &payload));
    }

    /// Pieces are what the whole is when they are put together: the first one has the checksum of all.
    #[test]
    fn pieces_arrive_as_the_whole(
        six: bool, data in prop::collection::vec(any::<u8>(), 100..4000), most in 80_usize..1500
    ) {
        let (a, b, guest) = (member(2, six), member(255, six), guest(six));
        let pings = if six { (IpProtocol::Icmpv6, ping6(&data)) } else { (IpProtocol::Icmp, ping(&data)) };
        for (protocol, payload) in [(IpProtocol::Udp, udp(5, 6, &data)), (IpProtocol::Tcp, tcp(5, 6, &data)), pings] {
            let sent = packet(guest, b, protocol, &payload);
            // What the sender cut is cut again for a smaller link.
            let cut = crate::fragments::cut(&sent, 77, 1500).into_iter();
            let cut = cut.flat_map(|piece| crate::fragments::cut(&piece, 78, most)).collect::<Vec<_>>();
            let once = sent.len() <= 1500;
            let got: Vec<_> = cut.into_iter().map(|piece| across(place(a), place(b), piece).unwrap()).collect();
            let whole = got.iter().flat_map(|piece| {
                piece[Header::read(piece).unwrap().body..].iter().copied()
            }).collect::<Vec<_>>();
            let arrived = packet(a, guest, protocol, &payload);
            prop_assert_eq!(&whole[..], &arrived[Header::read(&arrived).unwrap().body..]);
            let ident = |piece: &Vec<u8>| Header::read(piece).unwrap().ident;
            prop_assert!(got.iter().all(|piece| ident(piece) == 77 || once));
        }
    }

    /// An error comes back to who sent what it is about, as that guest knows it.
    #[test]
    fn errors_speak_of_what_was_sent((six, protocol, payload) in any_payload(), quoted in 8_usize..400) {
        let (a, b, guest) = (member(2, six), member(255, six), guest(six));
        let (header, icmp) = if six { (IPV6, IpProtocol::Icmpv6) } else { (IPV4, IpProtocol::Icmp) };
        let sent = packet(guest, b, protocol, &payload);
        let got = across(place(a), place(b), sent.clone()).unwrap();
        let error = packet(guest, a, icmp, &unreachable(&got, quoted));
        let told = across(place(b), place(a), error).unwrap();
        prop_assert!(is_right(&told));
        let quote = &told[header + ERROR..];
        prop_assert_eq!((address(quote, SOURCE), address(quote, DESTINATION)), (Some(guest), Some(b)));
        prop_assert!(six || Ipv4Packet::new_unchecked(quote).verify_checksum());
        // What is quoted of its payload is what was sent, checksum and all. Half of a checksum is none.
        let half_a_checksum = protocol == IpProtocol::Tcp && quoted == OF_TCP + 1;
        let bytes = if half_a_checksum { OF_TCP } else { quoted.min(payload.len()) };
        prop_assert_eq!(&quote[header..header + bytes], &sent[header..header + bytes]);
    }

    /// Whatever comes, nothing falls over, and what passes is from and to whom it may be.
    #[test]
    fn any_bytes_are_translated_or_dropped(mut bytes in prop::collection::vec(any::<u8>(), 0..120), plain: bool) {
        if plain && bytes.len() > IPV4 {
            let length = u16::try_from(bytes.len()).unwrap();
            bytes[0] = 0x45;
            bytes[2..4].copy_from_slice(&length.to_be_bytes());
            bytes[6..8].copy_from_slice(&[0, 0]);
            bytes[9] = [1, 6, 17][usize::from(bytes[9] % 3)];
            bytes[12..IPV4].copy_from_slice(&[GUEST.octets(), B.octets()].concat());
            Ipv4Packet::new_unchecked(&mut bytes[..]).fill_checksum();
        }
        let mut outward = bytes.clone();
        if place(A).outward(&mut outward).is_some() {
            prop_assert_eq!(address(&outward, SOURCE), Some(A.into()));
            prop_assert!(Header::read(&outward).is_some());
        }
        if place(B).inward(&mut bytes).is_some() {
            prop_assert_eq!(address(&bytes, DESTINATION), Some(GUEST.into()));
        }
    }

    /// The same of IPv6, in pieces or not.
    #[test]
    fn any_bytes_of_ipv6_are_translated_or_dropped(
        next in prop::sample::select(vec![6_u8, 17, 44, 58, 0]), mut bytes in prop::collection::vec(any::<u8>(), 0..160)
    ) {
        if let Some(kind) = bytes.first_mut() {
            *kind = [6, 17, 58, 1][usize::from(*kind % 4)];
        }
        let (a, b) = (member(2, true), member(255, true));
        let mut sent = packet(GUEST6, b, IpProtocol::Udp, &udp(5, 6, b""));
        sent.truncate(IPV6);
        sent[4..7].copy_from_slice(&[0, u8::try_from(bytes.len()).unwrap(), next]);
        sent.extend(&bytes);
        let mut outward = sent.clone();
        if place(a).outward(&mut outward).is_some() {
            prop_assert_eq!(address(&outward, SOURCE), Some(a));
            let _ = place(b).inward(&mut outward);
        }
        prop_assert!(place(b).inward(&mut sent).is_none());
    }
}

#[test]
fn who_is_not_who_it_says_is_dropped() {
    let payload = udp(5, 6, b"x");
    let outward = |from: Ipv4Addr, to: Ipv4Addr| place(A).outward(&mut packet(from, to, IpProtocol::Udp, &payload));
    assert_eq!(outward(GUEST, B), Some(Way::Network));
    for from in [A, B, Ipv4Addr::new(10, 0, 2, 2), Ipv4Addr::new(10, 0, 2, 16), Ipv4Addr::UNSPECIFIED] {
        assert_eq!(outward(from, B), None, "{from}");
    }
    // The ends of the network, and what lies beyond them.
    for (to, goes) in [
        ([10, 127, 255, 255], None),
        ([10, 128, 0, 0], None),
        ([10, 128, 0, 1], Some(Way::Network)),
        ([10, 128, 255, 254], Some(Way::Network)),
        ([10, 128, 255, 255], None),
        ([10, 129, 0, 0], None),
        ([255, 255, 255, 255], None),
        ([224, 0, 0, 1], None),
    ] {
        assert_eq!(outward(GUEST, to.into()), goes, "{to:?}");
    }
}

#[test]
fn what_the_network_sends_is_for_this_machine_and_from_the_network() {
    let payload = udp(5, 6, b"x");
    let inward =
        |from: [u8; 4], to: Ipv4Addr| place(A).inward(&mut packet(from, to, IpProtocol::Udp, &payload)).is_some();
    assert!(inward([10, 128, 0, 1], A) && inward([10, 128, 255, 254], A));
    for from in [[10, 128, 0, 0], [10, 128, 255, 255], [10, 127, 255, 255], [10, 129, 0, 0], [127, 0, 0, 1], A.octets()]
    {
        assert!(!inward(from, A), "{from:?}");
    }
    for to in [B, GUEST, Ipv4Addr::BROADCAST, Ipv4Addr::new(10, 128, 255, 255), Ipv4Addr::new(10, 128, 0, 1)] {
        assert!(!inward(B.octets(), to), "{to}");
    }
}

#[test]
fn a_machine_speaks_to_itself() {
    let mut asked = packet(GUEST, A, IpProtocol::Tcp, &tcp(5, 6, b"x"));
    assert_eq!(place(A).outward(&mut asked), Some(Way::Guest));
    assert_eq!(asked, packet(A, GUEST, IpProtocol::Tcp, &tcp(5, 6, b"x")));
    let mut error = packet(GUEST, A, IpProtocol::Icmp, &unreachable(&asked, 8));
    assert_eq!(place(A).outward(&mut error), Some(Way::Guest));
    let quote = &error[IPV4 + ERROR..];
    assert!(
        is_right(&error)
            && address(quote, SOURCE) == Some(GUEST.into())
            && address(quote, DESTINATION) == Some(A.into())
    );
}

#[test]
fn what_is_cut_too_short_or_means_harm_is_dropped() {
    let goes = |packet: &[u8]| place(A).outward(&mut packet.to_vec()).is_some();
    let first = |payload: &[u8], protocol: IpProtocol, bytes: usize| {
        let mut piece = packet(GUEST, B, protocol, payload);
        piece.truncate(IPV4 + bytes);
        let mut ip = Ipv4Packet::new_unchecked(&mut piece[..]);
        ip.set_total_len(u16::try_from(IPV4 + bytes).unwrap());
        ip.set_more_frags(true);
        ip.fill_checksum();
        piece
    };
    // A first piece has the checksum of the whole.
    for (payload, protocol, least) in [
        (tcp(5, 6, b"xxxx"), IpProtocol::Tcp, 18),
        (udp(5, 6, b"xx"), IpProtocol::Udp, 8),
        (ping(b"xx"), IpProtocol::Icmp, 8),
    ] {
        assert!(goes(&first(&payload, protocol, least)) && !goes(&first(&payload, protocol, least - 1)));
    }
    assert!(!goes(&packet(GUEST, B, IpProtocol::Udp, &udp(0, 6, b"x"))), "port 0 is no program's");
    for kind in 0..=255_u8 {
        let mut message = ping(b"");
        message[0] = kind;
        let mut error = unreachable(&packet(B, GUEST, IpProtocol::Udp, &udp(5, 6, b"x")), 8);
        error[0] = kind;
        let passes = [0, 8].contains(&kind);
        assert_eq!(goes(&packet(GUEST, B, IpProtocol::Icmp, &message)), passes, "{kind}");
        assert_eq!(goes(&packet(GUEST, B, IpProtocol::Icmp, &error)), passes || [3, 11, 12].contains(&kind), "{kind}");
    }
    // An error about what was never sent to this guest is none that it may send.
    let of_others = unreachable(&packet(B, Ipv4Addr::new(10, 0, 2, 16), IpProtocol::Udp, &udp(5, 6, b"x")), 8);
    assert!(!goes(&packet(GUEST, B, IpProtocol::Icmp, &of_others)));
}

#[test]
fn a_datagram_without_a_checksum_stays_without_one() {
    let mut sent = packet(GUEST, B, IpProtocol::Udp, &udp(5, 6, b"x"));
    sent[IPV4 + OF_UDP..IPV4 + UDP].copy_from_slice(&[0, 0]);
    let got = across(place(A), place(B), sent).unwrap();
    assert_eq!(word(&got, IPV4 + OF_UDP), Some(NO_CHECKSUM));
    // One that comes to be 0 is told as what counts as much.
    let mut zeros = 0;
    for data in 0..=u16::MAX {
        let got =
            across(place(A), place(B), packet(GUEST, B, IpProtocol::Udp, &udp(5, 6, &data.to_be_bytes()))).unwrap();
        assert_ne!(word(&got, IPV4 + OF_UDP), Some(NO_CHECKSUM));
        zeros += u32::from(word(&got, IPV4 + OF_UDP) == Some(ZERO));
    }
    assert!(zeros > 0, "one of all checksums is this one");
}

#[test]
fn a_checksum_that_was_wrong_stays_wrong() {
    let mut sent = packet(GUEST, B, IpProtocol::Tcp, &tcp(5, 6, b"x"));
    sent[IPV4 + 20] ^= 1;
    assert!(!is_right(&across(place(A), place(B), sent).unwrap()));
}

#[test]
fn of_ipv6_the_guest_has_one_address_and_members_all_but_the_first() {
    let (a, payload) = (member(2, true), udp(5, 6, b"x"));
    let six = |text: &str| text.parse::<IpAddr>().unwrap();
    let outward = |from: IpAddr, to: IpAddr| place(a).outward(&mut packet(from, to, IpProtocol::Udp, &payload));
    for (to, goes) in [
        ("fd00:20::", None),
        ("fd00:20::1", Some(Way::Network)),
        ("fd00:20::2", Some(Way::Guest)),
        ("fd00:20:0:0:ffff:ffff:ffff:ffff", Some(Way::Network)),
        ("fd00:20:0:1::1", None),
        ("ff02::1", None),
        ("fe80::1", None),
    ] {
        assert_eq!(outward(GUEST6.into(), six(to)), goes, "{to}");
    }
    for from in ["fd62:6572:7468::16", "fe80::15", "fd00:20::2", "::"] {
        assert_eq!(outward(six(from), six("fd00:20::3")), None, "{from}");
    }
    let inward =
        |from: &str, to: &str| place(a).inward(&mut packet(six(from), six(to), IpProtocol::Udp, &payload)).is_some();
    assert!(inward("fd00:20::1", "fd00:20::2") && inward("fd00:20::3", "fd00:20::2"));
    for (from, to) in [
        ("fd00:20::2", "fd00:20::2"),
        ("fd00:20::", "fd00:20::2"),
        ("fd00:21::3", "fd00:20::2"),
        ("fd00:20::3", "fd00:20::3"),
        ("fd00:20::3", "fd62:6572:7468::15"),
        ("fd00:20::3", "ff02::1"),
    ] {
        assert!(!inward(from, to), "{from} {to}");
    }
    // One kind is no other's.
    assert_eq!(place(A).outward(&mut packet(GUEST6, six("fd00:20::3"), IpProtocol::Udp, &payload)), None);
    assert_eq!(place(a).outward(&mut packet(GUEST, B, IpProtocol::Udp, &payload)), None);
}

#[test]
fn of_icmpv6_pings_and_errors_go_between_machines_and_neighbours_and_routers_do_not() {
    let (a, b) = (member(2, true), member(255, true));
    for kind in 0..=255_u8 {
        let mut message = ping6(&[0; 64]);
        message[0] = kind;
        let mut error = unreachable(&packet(b, GUEST6, IpProtocol::Udp, &udp(5, 6, b"x")), 8);
        error[0] = kind;
        let goes = |body: &[u8]| place(a).outward(&mut packet(GUEST6, b, IpProtocol::Icmpv6, body)).is_some();
        let passes = [128, 129].contains(&kind);
        assert_eq!(goes(&message), passes, "{kind}");
        assert_eq!(goes(&error), passes || (1..=4).contains(&kind), "{kind}");
    }
    let of_others = unreachable(&packet(b, member(9, true), IpProtocol::Udp, &udp(5, 6, b"x")), 8);
    assert_eq!(place(a).outward(&mut packet(GUEST6, b, IpProtocol::Icmpv6, &of_others)), None);
}
