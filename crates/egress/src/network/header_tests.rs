use super::*;

const SOURCE: usize = 12;

fn packet() -> Vec<u8> {
    let mut packet = vec![0; IPV4 + 8];
    packet[0] = 0x45;
    packet[3] = 28;
    packet[8..10].copy_from_slice(&[64, 17]);
    packet[SOURCE..IPV4].copy_from_slice(&[10, 0, 2, 15, 10, 128, 0, 3]);
    Ipv4Packet::new_unchecked(&mut packet[..]).fill_checksum();
    packet
}

/// A packet of IPv6 that carries so many bytes.
fn packet6(next: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; IPV6];
    packet[0] = 0x60;
    packet[4..8].copy_from_slice(&[0, u8::try_from(body.len()).unwrap(), next, 64]);
    packet[8] = 0xfd;
    packet[24] = 0xfe;
    packet.extend(body);
    packet
}

#[test]
fn only_plain_packets_are_read() {
    let read = Header::read(&packet()).unwrap();
    let ends: (IpAddr, IpAddr) = ([10, 0, 2, 15].into(), [10, 128, 0, 3].into());
    assert_eq!((read.from, read.to), ends);
    assert!(read.is_first && read.is_whole && read.protocol == IpProtocol::Udp && read.body == IPV4);
    // Each with a checksum that is right: another version, options, another length, another protocol.
    for (at, byte) in [(0, 0x55), (0, 0x46), (3, 27), (3, 29), (9, 47), (9, 2), (9, 132), (9, 58)] {
        let mut other = packet();
        other[at] = byte;
        Ipv4Packet::new_unchecked(&mut other[..]).fill_checksum();
        assert_eq!(Header::read(&other), None, "{at}: {byte}");
    }
    let mut wrong = packet();
    wrong[CHECKSUM] ^= 1;
    assert_eq!(Header::read(&wrong), None);
    assert_eq!(Header::read(&packet()[..27]), None);
    assert_eq!(Header::read(&[]), None);
}

#[test]
fn pieces_are_told_from_wholes() {
    for (high, low, is_first, is_whole) in
        [(0x40, 0, true, true), (0x20, 0, true, false), (0x20, 1, false, false), (0, 1, false, false)]
    {
        let mut piece = packet();
        piece[6..8].copy_from_slice(&[high, low]);
        Ipv4Packet::new_unchecked(&mut piece[..]).fill_checksum();
        let read = Header::read(&piece).unwrap();
        assert_eq!((read.is_first, read.is_whole), (is_first, is_whole));
    }
}

#[test]
fn of_ipv6_there_are_no_further_headers_but_of_pieces() {
    let read = Header::read(&packet6(17, &[0; 8])).unwrap();
    assert!(read.is_whole && read.protocol == IpProtocol::Udp && read.body == IPV6);
    assert_eq!(read.from, "fd00::".parse::<IpAddr>().unwrap());
    for next in [6, 17, 58] {
        assert!(Header::read(&packet6(next, &[0; 8])).is_some(), "{next}");
    }
    // Of its own link, of ways, for the destination, of none, of IPv4, of another packet, sealed.
    for next in [0, 43, 60, 59, 1, 41, 50, 51, 132] {
        assert_eq!(Header::read(&packet6(next, &[0; 8])), None, "{next}");
        assert_eq!(Header::read(&packet6(44, &[next, 0, 0, 0, 0, 0, 0, 9])), None, "{next} in pieces");
    }
    let whole = packet6(17, &[0; 8]);
    for wrong in [&whole[..47], &[&whole[..], &[0]].concat(), &whole[..40], &whole[..39]] {
        assert_eq!(Header::read(wrong), None);
    }
    assert_eq!(Header::read(&packet6(44, &[17, 0, 0, 0, 0, 0, 0])), None, "half of a header");
    assert_eq!(Header::read(&packet6(44, &[44, 0, 0, 0, 0, 0, 0, 9])), None, "a piece of a piece");
}

#[test]
fn pieces_of_ipv6_are_told_from_wholes() {
    for (high, low, is_first, is_whole) in
        [(0, 0, true, true), (0, 1, true, false), (0, 8, false, false), (0xff, 0xf9, false, false)]
    {
        let read = Header::read(&packet6(44, &[17, 0, high, low, 1, 2, 3, 4])).unwrap();
        assert_eq!((read.is_first, read.is_whole, read.ident, read.body), (is_first, is_whole, 0x0102_0304, 48));
    }
}

#[test]
fn no_piece_lies_beyond_the_largest_packet() {
    // The last place that a piece may begin at, and what fits there: of IPv4 the header counts, of IPv6 it does not.
    let word = |offset: u16| (offset / 8).to_be_bytes();
    for (offset, length, fits) in [(65_504, 11, true), (65_504, 12, false), (65_512, 3, true), (65_512, 4, false)] {
        let mut piece = packet();
        piece.resize(IPV4 + length, 7);
        piece[2..4].copy_from_slice(&u16::try_from(IPV4 + length).unwrap().to_be_bytes());
        piece[6..8].copy_from_slice(&word(offset));
        Ipv4Packet::new_unchecked(&mut piece[..]).fill_checksum();
        let read = Header::read(&piece);
        assert_eq!(read.is_some_and(|read| !read.is_first && piece.len() - read.body == length), fits, "{length}");
    }
    for (offset, length, fits) in [(65_520, 15, true), (65_520, 16, false), (65_528, 7, true), (65_528, 8, false)] {
        let [high, low] = u16::to_be_bytes(offset);
        let piece = packet6(44, &[&[17, 0, high, low, 0, 0, 0, 9], &[7; 16][..length]].concat());
        let read = Header::read(&piece);
        assert_eq!(read.is_some_and(|read| !read.is_first && piece.len() - read.body == length), fits, "{length}");
    }
}
