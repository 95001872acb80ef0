use proptest::prelude::*;

use super::*;

/// As of a guest that is alone behind its card.
fn answer(bytes: &[u8]) -> Option<Answer> {
    super::answer(bytes, &Lease::ALONE)
}

const CARD: [u8; 6] = [0x52, 0x54, 0, 1, 2, 3];

/// A message of a client: its kind, the address it has, its flags, and further options.
fn message(kind: u8, has: Ipv4Addr, flags: u16, options: &[(u8, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    bytes[..8].copy_from_slice(&[1, 1, 6, 0, 0xde, 0xad, 0xbe, 0xef]);
    bytes[10..12].copy_from_slice(&flags.to_be_bytes());
    bytes[12..16].copy_from_slice(&has.octets());
    bytes[28..34].copy_from_slice(&CARD);
    bytes[236..240].copy_from_slice(&[99, 130, 83, 99]);
    for (option, data) in [&[(MESSAGE_TYPE, &[kind][..])], options].concat() {
        bytes.extend([option, u8::try_from(data.len()).unwrap()]);
        bytes.extend(data);
    }
    bytes.push(255);
    bytes
}

const DISCOVER: u8 = 1;
const REQUEST: u8 = 3;
const DECLINE: u8 = 4;
const RELEASE: u8 = 7;
const INFORM: u8 = 8;
const NONE: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
const OTHER: [u8; 4] = [192, 168, 1, 7];

/// The kind of an answer, its address, its lease, and to whom it goes.
fn told(bytes: &[u8]) -> Option<(DhcpMessageType, Ipv4Addr, Option<u32>, Ipv4Addr)> {
    let answer = answer(bytes)?;
    let packet = DhcpPacket::new_checked(&answer.bytes[..]).unwrap();
    let read = DhcpRepr::parse(&packet).unwrap();
    assert_eq!((read.transaction_id, read.client_hardware_address.0), (0xdead_beef, CARD));
    assert_eq!(read.server_identifier, Some(GATEWAY));
    Some((read.message_type, read.your_ip, read.lease_duration, answer.to))
}

#[test]
fn each_message_has_its_answer() {
    let (own, server) = (GUEST.octets(), GATEWAY.octets());
    let (offer, ack, nak) = (DhcpMessageType::Offer, DhcpMessageType::Ack, DhcpMessageType::Nak);
    let lent = |kind| Some((kind, GUEST, Some(LEASE), GUEST));
    assert_eq!(told(&message(DISCOVER, NONE, 0, &[])), lent(offer));
    assert_eq!(told(&message(DISCOVER, NONE, 0, &[(REQUESTED, &OTHER)])), lent(offer), "a wish is not followed");
    let broadcast = Some((offer, GUEST, Some(LEASE), Ipv4Addr::BROADCAST));
    assert_eq!(told(&message(DISCOVER, NONE, 0x8000, &[])), broadcast);
    // It takes the offer, begins again with what it remembers, and renews.
    assert_eq!(told(&message(REQUEST, NONE, 0, &[(REQUESTED, &own), (SERVER_IDENTIFIER, &server)])), lent(ack));
    assert_eq!(told(&message(REQUEST, NONE, 0, &[(REQUESTED, &own)])), lent(ack));
    assert_eq!(told(&message(REQUEST, GUEST, 0, &[])), lent(ack));
    let refused = Some((nak, NONE, None, Ipv4Addr::BROADCAST));
    assert_eq!(told(&message(REQUEST, NONE, 0, &[(REQUESTED, &OTHER)])), refused);
    assert_eq!(told(&message(REQUEST, OTHER.into(), 0, &[])), refused);
    assert_eq!(told(&message(REQUEST, NONE, 0, &[])), refused);
    assert_eq!(told(&message(REQUEST, NONE, 0, &[(REQUESTED, &own), (SERVER_IDENTIFIER, &OTHER)])), None);
    assert_eq!(told(&message(INFORM, GUEST, 0, &[])), Some((ack, NONE, None, GUEST)));
    for quiet in [0, DECLINE, RELEASE, 2, 5, 6, 9, 200] {
        assert_eq!(told(&message(quiet, GUEST, 0, &[])), None, "{quiet}");
    }
}

#[test]
fn an_answer_tells_the_network() {
    for asked in [message(DISCOVER, NONE, 0, &[]), message(INFORM, GUEST, 0, &[])] {
        let bytes = answer(&asked).unwrap().bytes;
        assert!(bytes.len() >= SMALLEST);
        let packet = DhcpPacket::new_checked(&bytes[..]).unwrap();
        let read = DhcpRepr::parse(&packet).unwrap();
        assert_eq!((read.router, read.subnet_mask), (Some(GATEWAY), Some(Ipv4Addr::new(255, 255, 255, 0))));
        assert_eq!(read.dns_servers.unwrap().as_slice(), [RESOLVER]);
        let mtu = packet.options().find(|option| option.kind == INTERFACE_MTU).unwrap().data;
        assert_eq!(usize::from(u16::from_be_bytes(mtu.try_into().unwrap())), MTU);
    }
}

#[test]
fn who_says_how_it_is_identified_is_told_so_too() {
    for len in [0, 1, 7, 19, MOST_IDENTIFIER] {
        let own = vec![0xff; len];
        let bytes = answer(&message(REQUEST, NONE, 0, &[(CLIENT_IDENTIFIER, &own)])).unwrap().bytes;
        let packet = DhcpPacket::new_checked(&bytes[..]).unwrap();
        assert_eq!(packet.options().find(|option| option.kind == CLIENT_IDENTIFIER).unwrap().data, own);
    }
}

#[test]
fn what_is_not_asked_of_this_link_is_not_answered() {
    let good = message(DISCOVER, NONE, 0, &[]);
    // A reply, another kind of card, an address of another length, a relay, no DHCP.
    for (at, byte) in [(0, 2), (1, 6), (2, 8), (24, 10), (236, 0)] {
        let mut bad = good.clone();
        bad[at] = byte;
        assert_eq!(answer(&bad), None, "{at}");
    }
    assert!((0..good.len() - 1).all(|len| answer(&good[..len]).is_none() || len > HEADER + 2));
    assert_eq!(answer(&[]), None);
}

proptest! {
    #[test]
    fn any_bytes_are_answered_within_bounds_or_not(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        like in any::<bool>(),
        kind in 0_u8..9,
    ) {
        let mut bytes = bytes;
        if like {
            let head = message(kind, NONE, 0, &[]);
            bytes.splice(..bytes.len().min(HEADER), head[..head.len() - 1].iter().copied());
        }
        if let Some(answer) = answer(&bytes) {
            prop_assert!((SMALLEST..=HEADER + 2 * (MOST_IDENTIFIER + 2)).contains(&answer.bytes.len()));
            prop_assert!(answer.to == GUEST || answer.to == Ipv4Addr::BROADCAST);
        }
    }
}

#[test]
fn a_lease_is_told_as_it_is_and_its_client_is_known() {
    let lease = Lease {
        guest: Ipv4Addr::new(10, 127, 0, 9),
        prefix: 16,
        gateway: Ipv4Addr::new(10, 127, 0, 1),
        resolver: Ipv4Addr::new(10, 127, 0, 1),
        mtu: 1450,
    };
    let asked = message(DISCOVER, NONE, 0, &[]);
    assert_eq!(client(&asked), Some(CARD));
    assert_eq!(client(&asked[..HEADER]), None);
    let bytes = super::answer(&asked, &lease).unwrap().bytes;
    let packet = DhcpPacket::new_checked(&bytes[..]).unwrap();
    let read = DhcpRepr::parse(&packet).unwrap();
    assert_eq!(
        (read.your_ip, read.router, read.server_identifier),
        (lease.guest, Some(lease.gateway), Some(lease.gateway))
    );
    assert_eq!(read.subnet_mask, Some(Ipv4Addr::new(255, 255, 0, 0)));
    let mtu = packet.options().find(|option| option.kind == INTERFACE_MTU).unwrap().data.to_vec();
    assert_eq!(mtu, 1450_u16.to_be_bytes());
}
