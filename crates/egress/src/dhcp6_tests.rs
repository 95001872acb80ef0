use proptest::prelude::*;

use super::*;

/// As of a guest that is alone behind its card.
fn answer(message: &[u8]) -> Option<Vec<u8>> {
    super::answer(message, &Lease::alone())
}

fn identifier() -> [u8; 10] {
    Lease::alone().identifier()
}

const DUID: [u8; 4] = [0, 4, 7, 7];

fn option(kind: u16, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes, kind, data);
    bytes
}

fn client() -> Vec<u8> {
    option(CLIENT_IDENTIFIER, &DUID)
}

fn server() -> Vec<u8> {
    option(SERVER_IDENTIFIER, &identifier())
}

/// An identity with addresses that it says it has.
fn identity(number: u8, addresses: &[Ipv6Addr]) -> Vec<u8> {
    let mut data = vec![0, 0, 0, number, 0, 0, 0, 0, 0, 0, 0, 0];
    for address in addresses {
        put(&mut data, ADDRESS, &[&address.octets()[..], &[0; 8]].concat());
    }
    option(IDENTITY, &data)
}

fn message(kind: u8, options: &[Vec<u8>]) -> Vec<u8> {
    [&[kind, 1, 2, 3][..], &options.concat()].concat()
}

/// The options of an answer.
fn read(answer: &[u8]) -> Vec<(u16, Vec<u8>)> {
    assert_eq!(answer[1..4], [1, 2, 3], "the number of the question");
    Options(&answer[4..]).map(|option| option.unwrap()).map(|(kind, data)| (kind, data.to_vec())).collect()
}

fn one(options: &[(u16, Vec<u8>)], kind: u16) -> Option<Vec<u8>> {
    options.iter().find(|(found, _)| *found == kind).map(|(_, data)| data.clone())
}

#[test]
fn a_guest_gets_the_one_address() {
    for (kind, reply, options) in [
        (SOLICIT, ADVERTISE, vec![client(), identity(7, &[])]),
        (SOLICIT, REPLY, vec![client(), identity(7, &[]), option(RAPIDLY, &[])]),
        (REQUEST, REPLY, vec![client(), server(), identity(7, &[GUEST6])]),
        (RENEWAL, REPLY, vec![client(), server(), identity(7, &[GUEST6])]),
        (REBINDING, REPLY, vec![client(), identity(7, &[GUEST6])]),
    ] {
        let answer = answer(&message(kind, &options)).unwrap();
        assert_eq!(answer[0], reply, "{kind}");
        let options = read(&answer);
        assert_eq!(one(&options, CLIENT_IDENTIFIER).unwrap(), DUID);
        assert_eq!(one(&options, SERVER_IDENTIFIER).unwrap(), identifier());
        assert_eq!(one(&options, RESOLVERS).unwrap(), RESOLVER6.octets());
        assert_eq!(one(&options, RAPIDLY).is_some(), (kind, reply) == (SOLICIT, REPLY));
        let identity = one(&options, IDENTITY).unwrap();
        assert_eq!(identity[..4], [0, 0, 0, 7]);
        let (kind, address) = Options(&identity[12..]).next().unwrap().unwrap();
        assert_eq!((kind, &address[..16]), (ADDRESS, &GUEST6.octets()[..]));
    }
}

#[test]
fn there_is_no_second_address() {
    let all: Vec<_> = (0..9).map(|number| identity(number, &[])).collect();
    let answer = answer(&message(SOLICIT, &[&[client()], &all[..]].concat())).unwrap();
    let given: Vec<_> = read(&answer).into_iter().filter(|(kind, _)| *kind == IDENTITY).collect();
    assert_eq!(given.len(), IDENTITIES);
    for (index, (_, identity)) in given.iter().enumerate() {
        let (kind, _) = Options(&identity[12..]).next().unwrap().unwrap();
        assert_eq!(kind, if index == 0 { ADDRESS } else { STATUS });
    }
}

#[test]
fn who_has_an_address_is_told_whether_it_is_of_this_network() {
    for (address, status) in [(GUEST6, SUCCESS), ("2001:db8::15".parse().unwrap(), NOT_ON_LINK)] {
        let answer = answer(&message(CONFIRM, &[client(), identity(7, &[address])])).unwrap();
        assert_eq!(one(&read(&answer), STATUS).unwrap(), status.to_be_bytes(), "{address}");
    }
    for kind in [RELEASE, DECLINE] {
        let answer = answer(&message(kind, &[client(), server(), identity(7, &[GUEST6])])).unwrap();
        assert_eq!(one(&read(&answer), STATUS).unwrap(), SUCCESS.to_be_bytes());
    }
    let told = read(&answer(&message(INFORMATION, &[])).unwrap());
    assert!(one(&told, IDENTITY).is_none() && one(&told, RESOLVERS).is_some());
}

#[test]
fn what_is_not_for_this_server_is_not_answered() {
    let other = option(SERVER_IDENTIFIER, b"other");
    for (kind, options) in [
        (SOLICIT, vec![identity(7, &[])]),
        (SOLICIT, vec![client(), server(), identity(7, &[])]),
        (REQUEST, vec![client(), identity(7, &[])]),
        (REQUEST, vec![client(), other.clone(), identity(7, &[])]),
        (RENEWAL, vec![server(), identity(7, &[])]),
        (REBINDING, vec![client(), server(), identity(7, &[])]),
        (INFORMATION, vec![client(), other]),
        (ADVERTISE, vec![client(), server()]),
        (REPLY, vec![client(), server()]),
        (12, vec![client()]),
        (SOLICIT, vec![option(CLIENT_IDENTIFIER, &[7; LONGEST_IDENTIFIER + 1])]),
    ] {
        assert_eq!(answer(&message(kind, &options)), None, "{kind}");
    }
    let longest = option(CLIENT_IDENTIFIER, &[7; LONGEST_IDENTIFIER]);
    assert!(answer(&message(SOLICIT, &[longest])).is_some());
    let whole = message(SOLICIT, &[client(), identity(7, &[])]);
    for cut in [0, 3, 5, 8, whole.len() - 1] {
        assert_eq!(answer(&whole[..cut]), None, "{cut}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_answered_or_not(kind in 0..14_u8, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let bytes = [&[kind, 1, 2, 3][..], &client(), &bytes].concat();
        if let Some(answer) = answer(&bytes) {
            prop_assert!(answer.len() < 600);
        }
    }
}
