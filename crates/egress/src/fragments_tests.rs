use proptest::prelude::*;
use smoltcp::wire::Ipv4Address;

use super::*;

fn id(ident: u32) -> Id {
    let address = |last| IpAddress::Ipv4(Ipv4Address::new(10, 0, 2, last));
    Id { from: address(15), to: address(2), protocol: IpProtocol::Udp, ident }
}

/// A piece of the payload in which each byte tells where it is.
fn piece(ident: u32, range: Range<usize>, last: bool) -> (Range<usize>, Piece<'static>) {
    static BYTES: [u8; 65_536] = {
        let mut bytes = [0; 65_536];
        let mut at = 0;
        while at < bytes.len() {
            bytes[at] = at.to_le_bytes()[0] ^ at.to_le_bytes()[1];
            at += 1;
        }
        bytes
    };
    (range.clone(), Piece { id: id(ident), offset: range.start, last, data: &BYTES[range] })
}

/// What becomes of pieces, one after the other.
fn assemble(pieces: &[(Range<usize>, bool)]) -> Option<Vec<u8>> {
    let (mut fragments, now) = (Fragments::default(), Instant::now());
    let mut whole = pieces.iter().filter_map(|(range, last)| fragments.add(&piece(1, range.clone(), *last).1, now));
    whole.next()
}

#[test]
fn pieces_in_any_order_are_a_packet() {
    let (a, b, c) = ((0..16, false), (16..24, false), (24..29, true));
    for order in [[&a, &b, &c], [&c, &b, &a], [&b, &c, &a], [&c, &a, &b]] {
        let packet = assemble(&order.map(Clone::clone)).unwrap();
        let ip = Ipv4Packet::new_checked(&packet[..]).unwrap();
        assert!(ip.verify_checksum() && !ip.more_frags() && ip.frag_offset() == 0);
        assert_eq!((ip.next_header(), ip.payload()), (IpProtocol::Udp, piece(1, 0..29, true).1.data));
    }
    assert_eq!(assemble(&[a, c]), None, "one is missing");
}

#[test]
fn pieces_that_contradict_each_other_are_dropped() {
    for bad in [
        vec![(0..16, false), (8..24, false), (24..25, true), (16..24, false)],
        vec![(0..16, false), (0..16, false), (16..20, true)],
        vec![(0..16, false), (0..8, true), (8..16, true)],
        vec![(16..24, true), (24..32, false), (0..16, false)],
        vec![(0..15, false), (15..20, true)],
        vec![(0..8, false), (8..8, false), (8..16, true)],
        vec![(16..24, true), (16..24, true), (0..16, false)],
    ] {
        assert_eq!(assemble(&bad), None, "{bad:?}");
    }
    let end = LARGEST - IPV4;
    assert_eq!(assemble(&[(8..end, true), (0..8, false)]).unwrap().len(), LARGEST);
    assert_eq!(assemble(&[(8..end + 1, true), (0..8, false)]), None, "larger than a packet can be");
}

#[test]
fn what_waits_is_bounded() {
    let now = Instant::now();
    let mut fragments = Fragments::default();
    let first = |fragments: &mut Fragments, ident, len, now| fragments.add(&piece(ident, 0..len, false).1, now);
    let ends =
        |fragments: &mut Fragments, ident, at, now| fragments.add(&piece(ident, at..at + 1, true).1, now).is_some();
    let packets = u32::try_from(PACKETS).unwrap();
    for ident in 0..=packets {
        first(&mut fragments, ident, 8, now);
    }
    assert!(
        !ends(&mut fragments, 0, 8, now) && ends(&mut fragments, 2, 8, now) && ends(&mut fragments, packets, 8, now)
    );

    let mut fragments = Fragments::default();
    for ident in 0..5 {
        first(&mut fragments, ident, 64_000, now);
    }
    assert!(fragments.bytes() <= BYTES);
    assert!(!ends(&mut fragments, 0, 64_000, now) && ends(&mut fragments, 4, 64_000, now));

    let mut fragments = Fragments::default();
    first(&mut fragments, 1, 8, now);
    let soon = (now + AGE).checked_sub(Duration::from_secs(1)).unwrap();
    first(&mut fragments, 2, 8, soon);
    assert!(!ends(&mut fragments, 1, 8, now + AGE) && ends(&mut fragments, 2, 8, now + AGE));
    fragments.expire(now + 2 * AGE);
    assert!(fragments.is_empty());

    let mut fragments = Fragments::default();
    let pieces =
        |count: usize| (0..count).map(|index| (index * 8..index * 8 + 8, index + 1 == count)).collect::<Vec<_>>();
    assert!(assemble(&pieces(PIECES)).is_some() && assemble(&pieces(PIECES + 1)).is_none());
    first(&mut fragments, 1, 8, now);
    assert!(!fragments.is_empty());
}

proptest! {
    #[test]
    fn what_is_cut_is_put_together_again(len in 1_usize..LARGEST - IPV4, most in 576_usize..1501, from in any::<prop::sample::Index>()) {
        let payload = piece(0, 0..len, true).1.data;
        let mut packet = vec![0; IPV4 + len];
        let Id { from: source, to, protocol, .. } = id(0);
        IpRepr::new(source, to, protocol, len, HOPS).emit(&mut packet[..], &ChecksumCapabilities::default());
        packet[IPV4..].copy_from_slice(payload);
        let mut pieces = cut(&packet, 7, most);
        prop_assume!(pieces.len() <= PIECES);
        prop_assert!(pieces.iter().all(|piece| piece.len() <= most));
        let middle = from.index(pieces.len());
        pieces.rotate_left(middle);
        let (mut fragments, now, mut whole) = (Fragments::default(), Instant::now(), None);
        for piece in &pieces {
            let ip = Ipv4Packet::new_checked(&piece[..]).unwrap();
            prop_assert!(whole.is_none() && ip.verify_checksum() && ip.ident() == 7);
            let (offset, last) = (usize::from(ip.frag_offset()), !ip.more_frags());
            whole = fragments.add(&Piece { id: id(7), offset, last, data: ip.payload() }, now);
        }
        prop_assert_eq!(&whole.unwrap()[IPV4..], payload);
    }

    #[test]
    fn what_is_cut_of_ipv6_is_put_together_again(len in 1_usize..60_000, most in 1280_usize..1501) {
        let payload = piece(0, 0..len, true).1.data;
        let address = |last| IpAddress::v6(0xfd62, 0x6572, 0x7468, 0, 0, 0, 0, last);
        let id = Id { from: address(15), to: address(2), ..id(70_000) };
        let mut packet = vec![0; IPV6 + len];
        IpRepr::new(id.from, id.to, id.protocol, len, HOPS).emit(&mut packet[..], &ChecksumCapabilities::default());
        packet[IPV6..].copy_from_slice(payload);
        let (mut fragments, now, mut whole) = (Fragments::default(), Instant::now(), None);
        for piece in cut(&packet, id.ident, most) {
            let ip = Ipv6Packet::new_checked(&piece[..]).unwrap();
            prop_assert!(whole.is_none() && piece.len() <= most && ip.next_header() == IpProtocol::Ipv6Frag);
            let (head, data) = ip.payload().split_at(FRAGMENT);
            let fragment = Ipv6FragmentHeader::new_checked(&head[2..]).unwrap();
            prop_assert!(fragment.ident() == id.ident && IpProtocol::from(head[0]) == id.protocol);
            let (offset, last) = (usize::from(fragment.frag_offset()) * 8, !fragment.more_frags());
            whole = fragments.add(&Piece { id, offset, last, data }, now);
        }
        prop_assert_eq!(whole.unwrap(), packet);
    }

    #[test]
    fn any_pieces_are_taken_within_bounds(
        pieces in prop::collection::vec((0_u32..30, 0_usize..8192, 0_usize..3000, any::<bool>()), 0..200),
    ) {
        let (mut fragments, now) = (Fragments::default(), Instant::now());
        for (ident, offset, len, last) in pieces {
            let (offset, data) = (offset * 8, piece(0, 0..len, last).1.data);
            fragments.add(&Piece { id: id(ident), offset, last, data }, now);
            prop_assert!(fragments.waiting.len() <= PACKETS && fragments.bytes() <= BYTES);
        }
    }
}

#[test]
fn pieces_are_cut_into_pieces_of_the_same_packet() {
    let header = IpRepr::new(id(0).from, id(0).to, IpProtocol::Udp, 4000, HOPS);
    let mut whole = vec![0; IPV4 + 4000];
    header.emit(&mut whole[..], &ChecksumCapabilities::default());
    for (index, byte) in whole[IPV4..].iter_mut().enumerate() {
        *byte = index.to_le_bytes()[0] ^ index.to_le_bytes()[1];
    }
    let pieces: Vec<_> = cut(&whole, 9, 2000).iter().flat_map(|piece| cut(piece, 10, 700)).collect();
    let read = |piece: &Vec<u8>| {
        let ip = Ipv4Packet::new_checked(&piece[..]).unwrap();
        assert!(ip.verify_checksum() && piece.len() <= 700);
        (ip.ident(), usize::from(ip.frag_offset()), ip.more_frags())
    };
    let mut payload = Vec::new();
    for (number, piece) in pieces.iter().enumerate() {
        assert_eq!(read(piece), (9, payload.len(), number + 1 < pieces.len()));
        payload.extend_from_slice(&piece[IPV4..]);
    }
    assert!(payload == whole[IPV4..]);
}

/// A piece of IPv6 that is not the last, from there on.
fn piece6(offset: u16, data: &[u8]) -> Vec<u8> {
    let address = |last| IpAddress::v6(0xfd62, 0x6572, 0x7468, 0, 0, 0, 0, last);
    let mut packet = vec![0; IPV6];
    let header = IpRepr::new(address(15), address(2), IpProtocol::Ipv6Frag, FRAGMENT + data.len(), HOPS);
    header.emit(&mut packet[..], &ChecksumCapabilities::default());
    let [high, low] = (offset | 1).to_be_bytes();
    packet.extend([&[17, 0, high, low, 0, 0, 0, 9], data].concat());
    packet
}

#[test]
fn nothing_is_cut_beyond_the_largest_packet() {
    const STEP: u16 = 1232;
    let data: Vec<u8> = (0..u8::MAX).cycle().take(1400).collect();
    let last = 65_528 - STEP;
    // A second part of 7 bytes ends where the largest packet does; of one more, it would begin at 0 once again.
    for (from, len, kept) in
        [(last, 1239, 1239), (last, 1240, 1232), (last + 8, 1231, 1231), (last + 8, 1240, 0), (0, 1400, 1400)]
    {
        let mut carried = Vec::<u8>::new();
        for piece in cut(&piece6(from, &data[..len]), 7, IPV6 + FRAGMENT + usize::from(STEP)) {
            let (head, data) = piece[IPV6..].split_at(FRAGMENT);
            let head = Ipv6FragmentHeader::new_checked(&head[2..]).unwrap();
            let at = usize::from(head.frag_offset()) * 8;
            assert_eq!((at, head.ident(), head.more_frags()), (usize::from(from) + carried.len(), 9, true));
            carried.extend(data);
        }
        assert_eq!(carried, data[..kept], "{len} from {from}");
    }
}
