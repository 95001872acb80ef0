use proptest::prelude::*;

use super::*;
use crate::network::Member;

const WEB: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 2);
const DB: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 3);
const WEB_TOO: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 4);

fn member(address: Ipv4Addr, names: &[&str]) -> Member {
    Member { machine: address.to_string(), address, names: names.iter().map(|name| (*name).to_owned()).collect() }
}

fn of(members: &[Member]) -> Names {
    Names::new(&Roster {
        name: "Front".into(),
        cidr: "10.128.0.0/24".parse().unwrap(),
        cidr6: None,
        members: members.to_vec(),
    })
}

fn names() -> Names {
    let members = [
        member(WEB_TOO, &["web"]),
        member(WEB, &["Web", "01939f2e-7c00-7abc-8def-0123456789ab"]),
        member(DB, &["db", "front"]),
        member(Ipv4Addr::new(10, 128, 0, 5), &[]),
    ];
    of(&members)
}

fn ask_class(names: &Names, name: &str, kind: RecordType, class: DNSClass) -> Message {
    let mut message = Message::query();
    let mut query = Query::query(Name::from_ascii(name).unwrap(), kind);
    query.set_query_class(class);
    message.add_query(query.clone());
    let answer = Message::from_vec(&names.answer(&message.to_vec().unwrap()).unwrap()).unwrap();
    assert_eq!((answer.metadata.id, answer.queries.as_slice()), (message.metadata.id, &[query][..]));
    assert_eq!(answer.metadata.message_type, MessageType::Response);
    answer
}

fn ask(names: &Names, name: &str, kind: RecordType) -> (ResponseCode, Vec<String>) {
    let answer = ask_class(names, name, kind, DNSClass::IN);
    (answer.metadata.response_code, answer.answers.iter().map(|record| record.data.to_string()).collect())
}

fn addresses(of: &[Ipv4Addr]) -> (ResponseCode, Vec<String>) {
    (ResponseCode::NoError, of.iter().map(ToString::to_string).collect())
}

#[test]
fn members_are_found_by_their_names() {
    let names = names();
    let id = "01939F2E-7c00-7abc-8def-0123456789ab";
    for name in ["web.", "WEB.", "web.internal.", "web.front.internal.", "Web.Front.INTERNAL."] {
        assert_eq!(ask(&names, name, RecordType::A), addresses(&[WEB, WEB_TOO]), "{name}");
    }
    for name in [format!("{id}."), format!("{id}.internal."), format!("{id}.front.internal.")] {
        assert_eq!(ask(&names, &name, RecordType::A), addresses(&[WEB]), "{name}");
    }
    // One who is called as the network is.
    for name in ["front.", "front.internal.", "front.front.internal."] {
        assert_eq!(ask(&names, name, RecordType::A), addresses(&[DB]), "{name}");
    }
    for name in [
        ".",
        "we.",
        "webb.",
        "web.back.internal.",
        "web.front.",
        "internal.",
        "web.internal.org.",
        "x.web.internal.",
        "webinternal.",
        "web.frontinternal.",
    ] {
        assert_eq!(ask(&names, name, RecordType::A), (ResponseCode::NXDomain, vec![]), "{name}");
    }
}

#[test]
fn a_known_name_has_nothing_but_addresses_of_ipv4() {
    let names = names();
    for kind in [RecordType::AAAA, RecordType::MX, RecordType::TXT, RecordType::HTTPS, RecordType::SRV, RecordType::PTR]
    {
        assert_eq!(ask(&names, "web.", kind), (ResponseCode::NoError, vec![]), "{kind}");
        assert_eq!(ask(&names, "nobody.", kind), (ResponseCode::NXDomain, vec![]), "{kind}");
    }
    assert_eq!(ask(&names, "db.", RecordType::ANY), addresses(&[DB]));
    let chaos = ask_class(&names, "db.", RecordType::A, DNSClass::CH);
    assert_eq!((chaos.metadata.response_code, chaos.answers.len()), (ResponseCode::NXDomain, 0));
}

#[test]
fn members_addresses_have_names() {
    let names = names();
    for (name, told) in [
        ("3.0.128.10.in-addr.arpa.", Some("db.front.internal.")),
        ("2.0.128.10.IN-ADDR.ARPA.", Some("web.front.internal.")),
        ("5.0.128.10.in-addr.arpa.", None),
        ("1.0.128.10.in-addr.arpa.", None),
        ("3.1.128.10.in-addr.arpa.", None),
        ("0.128.10.in-addr.arpa.", None),
        ("3.0.0.128.10.in-addr.arpa.", None),
        ("x.0.128.10.in-addr.arpa.", None),
    ] {
        let code = if told.is_some() { ResponseCode::NoError } else { ResponseCode::NXDomain };
        let told: Vec<_> = told.into_iter().map(str::to_owned).collect();
        assert_eq!(ask(&names, name, RecordType::PTR), (code, told), "{name}");
    }
}

#[test]
fn an_answer_is_as_long_as_everybody_takes_it() {
    let many: Vec<_> = (2..=254).map(|host| member(Ipv4Addr::new(10, 128, 0, host), &["web"])).collect();
    let names = of(&many);
    let mut question = Message::query();
    question.add_query(Query::query(Name::from_ascii("web.front.internal.").unwrap(), RecordType::A));
    let answer = names.answer(&question.to_vec().unwrap()).unwrap();
    assert!(answer.len() <= SMALLEST, "{}", answer.len());
    let told = Message::from_vec(&answer).unwrap().answers.len();
    assert!((20..253).contains(&told), "{told}");
}

#[test]
fn of_a_network_with_ipv6_addresses_names_have_them_and_they_have_names() {
    let members = [member(WEB, &["web"]), member(WEB_TOO, &["web"]), member(DB, &["db"])];
    let cidr6 = Some("fd00:20::/64".parse().unwrap());
    let roster =
        Roster { name: "front".into(), cidr: "10.128.0.0/24".parse().unwrap(), cidr6, members: members.to_vec() };
    let names = Names::new(&roster);
    let told =
        |texts: &[&str]| (ResponseCode::NoError, texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
    for name in ["web.", "web.internal.", "WEB.front.internal."] {
        assert_eq!(ask(&names, name, RecordType::AAAA), told(&["fd00:20::2", "fd00:20::4"]), "{name}");
        assert_eq!(ask(&names, name, RecordType::A), told(&["10.128.0.2", "10.128.0.4"]), "{name}");
    }
    assert_eq!(ask(&names, "db.", RecordType::ANY), told(&["10.128.0.3", "fd00:20::3"]));
    assert_eq!(ask(&names, "nobody.", RecordType::AAAA), (ResponseCode::NXDomain, vec![]));
    let reverse = |address: &str| {
        let bits = address.parse::<Ipv6Addr>().unwrap().to_bits();
        let digits: Vec<_> = (0..32).map(|at| format!("{:x}", bits >> (4 * at) & 15)).collect();
        format!("{}.ip6.arpa.", digits.join("."))
    };
    for (address, name) in [("fd00:20::3", Some("db.front.internal.")), ("fd00:20::9", None), ("fd00:21::3", None)] {
        let expected = name.map_or((ResponseCode::NXDomain, vec![]), |name| told(&[name]));
        assert_eq!(ask(&names, &reverse(address), RecordType::PTR), expected, "{address}");
    }
    for name in [reverse("fd00:20::3")[2..].to_owned(), format!("0.{}", reverse("fd00:20::3")), "33.ip6.arpa.".into()] {
        assert_eq!(ask(&names, &name, RecordType::PTR), (ResponseCode::NXDomain, vec![]), "{name}");
    }
}

#[test]
fn what_is_no_question_is_not_answered() {
    let names = names();
    let mut answer = Message::query();
    answer.metadata.message_type = MessageType::Response;
    answer.add_query(Query::query(Name::from_ascii("web.").unwrap(), RecordType::A));
    assert_eq!(names.answer(&answer.to_vec().unwrap()), None);
    let none = Message::query().to_vec().unwrap();
    let told = Message::from_vec(&names.answer(&none).unwrap()).unwrap();
    assert_eq!(told.metadata.response_code, ResponseCode::FormErr);
    for name in ["web", "web.internal", "a.b.internal"] {
        assert!(may_be(name), "{name}");
    }
    for name in ["", "example.org", "internal.org", "xinternal.org", "web.xinternal"] {
        assert!(!may_be(name), "{name}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_answered_or_not(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        if let Some(answer) = names().answer(&bytes) {
            prop_assert!(answer.len() <= SMALLEST);
        }
    }
}
