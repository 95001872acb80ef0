use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    Icmpv4DstUnreachable, Icmpv4Packet, Icmpv4Repr, IpAddress, IpRepr, Ipv4Packet, Ipv4Repr, TcpControl, TcpPacket,
    TcpRepr, TcpSeqNumber, UdpPacket, UdpRepr,
};

use super::*;

const A: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 2);
const B: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 255);

fn place(own: Ipv4Addr) -> Place {
    Place { cidr: "10.128.0.0/16".parse().unwrap(), own }
}

/// A packet, with all its checksums.
pub fn packet(from: Ipv4Addr, to: Ipv4Addr, protocol: IpProtocol, payload: &[u8]) -> Vec<u8> {
    let header = IpRepr::new(IpAddress::Ipv4(from), IpAddress::Ipv4(to), protocol, payload.len(), 64);
    let mut packet = vec![0; IPV4 + payload.len()];
    header.emit(&mut packet, &ChecksumCapabilities::default());
    packet[IPV4..].copy_from_slice(payload);
    fill(&mut packet);
    packet
}

/// Makes the checksum of what a packet carries anew.
fn fill(packet: &mut [u8]) {
    let header = Header::read(packet).unwrap();
    let (from, to) = (IpAddress::Ipv4(header.from), IpAddress::Ipv4(header.to));
    let body = &mut packet[IPV4..];
    match header.protocol {
        IpProtocol::Tcp => TcpPacket::new_unchecked(body).fill_checksum(&from, &to),
        IpProtocol::Udp => UdpPacket::new_unchecked(body).fill_checksum(&from, &to),
        _ => Icmpv4Packet::new_unchecked(body).fill_checksum(),
    }
}

/// Whether all checksums of a whole packet are right.
fn is_right(packet: &[u8]) -> bool {
    let Some(header) = Header::read(packet) else { return false };
    let (from, to) = (IpAddress::Ipv4(header.from), IpAddress::Ipv4(header.to));
    let body = &packet[IPV4..];
    match header.protocol {
        IpProtocol::Tcp => TcpPacket::new_unchecked(body).verify_checksum(&from, &to),
        IpProtocol::Udp => UdpPacket::new_unchecked(body).verify_checksum(&from, &to),
        _ => Icmpv4Packet::new_unchecked(body).verify_checksum(),
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

/// The error that a guest sends about a packet that it got.
fn unreachable(got: &[u8], bytes: usize) -> Vec<u8> {
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

fn any_payload() -> impl Strategy<Value = (IpProtocol, Vec<u8>)> {
    let data = prop::collection::vec(any::<u8>(), 0..300);
    (1_u16.., 1_u16.., data, 0..3).prop_map(|(from, to, data, kind)| match kind {
        0 => (IpProtocol::Tcp, tcp(from, to, &data)),
        1 => (IpProtocol::Udp, udp(from, to, &data)),
        _ => (IpProtocol::Icmp, ping(&data)),
    })
}

fn any_host() -> impl Strategy<Value = Ipv4Addr> {
    (1_u32..0xffff).prop_map(|host| Ipv4Addr::from_bits(0x0a80_0000 | host))
}

proptest! {
    /// What one guest sends is what the other gets, but for who sent it; every checksum is right on the way and there.
    #[test]
    fn what_is_sent_arrives((protocol, payload) in any_payload(), a in any_host(), b in any_host()) {
        prop_assume!(a != b);
        let sent = packet(GUEST, b, protocol, &payload);
        let mut between = sent.clone();
        prop_assert_eq!(place(a).outward(&mut between), Some(Way::Network));
        prop_assert!(is_right(&between));
        let got = across(place(a), place(b), sent).unwrap();
        prop_assert!(is_right(&got));
        prop_assert_eq!(&got, &packet(a, GUEST, protocol, &payload));
        // And its answer.
        let answer = across(place(b), place(a), packet(GUEST, a, protocol, &payload)).unwrap();
        prop_assert_eq!(answer, packet(b, GUEST, protocol, &payload));
    }

    /// Pieces are what the whole is when they are put together: the first one has the checksum of all.
    #[test]
    fn pieces_arrive_as_the_whole(data in prop::collection::vec(any::<u8>(), 100..4000), most in 60_usize..1500) {
        for (protocol, payload) in [(IpProtocol::Udp, udp(5, 6, &data)), (IpProtocol::Tcp, tcp(5, 6, &data)),
            (IpProtocol::Icmp, ping(&data))] {
            let sent = packet(GUEST, B, protocol, &payload);
            let got = crate::fragments::cut(&sent, 77, most).into_iter();
            let got: Vec<_> = got.map(|piece| across(place(A), place(B), piece).unwrap()).collect();
            let whole = got.iter().flat_map(|piece| piece[IPV4..].iter().copied()).collect::<Vec<_>>();
            prop_assert_eq!(&whole, &packet(A, GUEST, protocol, &payload)[IPV4..].to_vec());
            prop_assert!(got.iter().all(|piece| Ipv4Packet::new_unchecked(&piece[..]).ident() == 77));
        }
    }

    /// An error comes back to who sent what it is about, as that guest knows it.
    #[test]
    fn errors_speak_of_what_was_sent((protocol, payload) in any_payload(), quoted in 8_usize..400) {
        let sent = packet(GUEST, B, protocol, &payload);
        let got = across(place(A), place(B), sent.clone()).unwrap();
        let error = packet(GUEST, A, IpProtocol::Icmp, &unreachable(&got, quoted));
        let told = across(place(B), place(A), error).unwrap();
        prop_assert!(is_right(&told));
        let quote = &told[IPV4 + ERROR..];
        prop_assert_eq!((address(quote, SOURCE), address(quote, DESTINATION)), (Some(GUEST), Some(B)));
        prop_assert!(Ipv4Packet::new_unchecked(quote).verify_checksum());
        // What is quoted of its payload is what was sent, checksum and all. Half of a checksum is none.
        let half_a_checksum = protocol == IpProtocol::Tcp && quoted == OF_TCP + 1;
        let bytes = if half_a_checksum { OF_TCP } else { quoted.min(payload.len()) };
        prop_assert_eq!(&quote[IPV4..IPV4 + bytes], &sent[IPV4..IPV4 + bytes]);
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
            bytes[SOURCE..IPV4].copy_from_slice(&[GUEST.octets(), B.octets()].concat());
            Ipv4Packet::new_unchecked(&mut bytes[..]).fill_checksum();
        }
        let mut outward = bytes.clone();
        if place(A).outward(&mut outward).is_some() {
            prop_assert_eq!(address(&outward, SOURCE), Some(A));
            prop_assert!(Header::read(&outward).is_some());
        }
        if place(B).inward(&mut bytes).is_some() {
            prop_assert_eq!(address(&bytes, DESTINATION), Some(GUEST));
        }
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
    let inward = |from: [u8; 4], to: Ipv4Addr| {
        place(A).inward(&mut packet(from.into(), to, IpProtocol::Udp, &payload)).is_some()
    };
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
    assert!(is_right(&error) && address(quote, SOURCE) == Some(GUEST) && address(quote, DESTINATION) == Some(A));
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
