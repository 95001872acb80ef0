use super::*;

fn vm(name: &str, project: usize, address: &str) -> Named {
    let address: IpAddr = address.parse().unwrap();
    Named { name: name.into(), project, address, is_own: address != IpAddr::from([192, 0, 2, 1]) }
}

fn zone() -> Zone {
    let project = |id: &str, slug: &str| Labels { id: id.into(), slug: slug.into() };
    let projects = [project("id-a", "demo"), project("id-b", "demo"), project("id-c", "other")];
    let vms = [
        vm("web", 0, "198.51.100.17"),
        vm("web", 0, "2001:db8::17"),
        vm("web", 1, "198.51.100.18"),
        vm("db", 2, "192.0.2.1"),
        vm("ns", 2, "198.51.100.19"),
    ];
    Zone::new(&Domain::parse("vms.example.org").unwrap(), [203, 0, 113, 53].into(), 7, &projects, &vms).unwrap()
}

fn whole(zone: &Zone, name: &str, kind: RecordType, most: usize) -> Message {
    let mut message = Message::query();
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    let answer = Message::from_vec(&zone.answer(&message.to_vec().unwrap(), most).unwrap()).unwrap();
    assert_eq!((answer.metadata.id, &answer.queries), (message.metadata.id, &message.queries));
    answer
}

fn ask(name: &str, kind: RecordType) -> (ResponseCode, Vec<String>) {
    let answer = whole(&zone(), name, kind, 512);
    assert_eq!(answer.metadata.authoritative, answer.metadata.response_code != ResponseCode::Refused);
    (answer.metadata.response_code, answer.answers.iter().map(|record| record.data.to_string()).collect())
}

fn found(data: &[&str]) -> (ResponseCode, Vec<String>) {
    (ResponseCode::NoError, data.iter().map(|data| (*data).to_owned()).collect())
}

#[test]
fn a_vm_is_found_by_its_project_s_slug_and_id_and_by_its_address() {
    for name in ["web.demo.vms.example.org.", "WEB.Demo.vms.EXAMPLE.org.", "web.id-a.vms.example.org."] {
        assert_eq!(ask(name, RecordType::A), found(&["198.51.100.17"]), "{name}");
        assert_eq!(ask(name, RecordType::AAAA), found(&["2001:db8::17"]), "{name}");
        assert_eq!(ask(name, RecordType::ANY), found(&["198.51.100.17", "2001:db8::17"]), "{name}");
        assert_eq!(ask(name, RecordType::MX), found(&[]), "{name}");
    }
    // The slug is who had it first; the other one is found by its id.
    assert_eq!(ask("web.id-b.vms.example.org.", RecordType::A), found(&["198.51.100.18"]));
    let reverse = |name: &str| ask(name, RecordType::PTR);
    assert_eq!(reverse("17.100.51.198.in-addr.arpa."), found(&["web.demo.vms.example.org."]));
    assert_eq!(reverse("18.100.51.198.in-addr.arpa."), found(&["web.id-b.vms.example.org."]));
    let six = format!("7.1.{}8.b.d.0.1.0.0.2.ip6.arpa.", "0.".repeat(22));
    assert_eq!(reverse(&six), found(&["web.demo.vms.example.org."]));
    // What several share has no name of its own.
    assert_eq!(ask("db.other.vms.example.org.", RecordType::A), found(&["192.0.2.1"]));
    for name in ["1.2.0.192.in-addr.arpa.", "100.51.198.in-addr.arpa.", "20.100.51.198.in-addr.arpa."] {
        assert_eq!(reverse(name), (ResponseCode::NXDomain, vec![]), "{name}");
    }
}

#[test]
fn what_there_is_not_is_told_and_what_is_others_is_refused() {
    for name in
        ["db.demo.vms.example.org.", "demo2.vms.example.org.", "a.web.demo.vms.example.org.", "web.vms.example.org."]
    {
        assert_eq!(ask(name, RecordType::A), (ResponseCode::NXDomain, vec![]), "{name}");
        let answer = whole(&zone(), name, RecordType::A, 512);
        assert_eq!((answer.authorities.len(), answer.authorities[0].record_type()), (1, RecordType::SOA));
    }
    // There is something below a project's name.
    assert_eq!(ask("demo.vms.example.org.", RecordType::A), found(&[]));
    for name in ["example.org.", "org.", ".", "vms.example.com.", "xvms.example.org.", "localhost."] {
        assert_eq!(ask(name, RecordType::A), (ResponseCode::Refused, vec![]), "{name}");
    }
    assert_eq!(ask("vms.example.org.", RecordType::NS), found(&["ns.vms.example.org."]));
    assert_eq!(ask("ns.vms.example.org.", RecordType::A), found(&["203.0.113.53"]));
    assert_eq!(ask("ns.other.vms.example.org.", RecordType::A), found(&["198.51.100.19"]));
    assert!(
        ask("vms.example.org.", RecordType::SOA).1[0].starts_with("ns.vms.example.org. hostmaster.vms.example.org. 7 ")
    );
}

#[test]
fn an_answer_that_is_too_long_says_so() {
    let projects = [Labels { id: "a".into(), slug: "demo".into() }];
    let vms: Vec<_> = (0..40).map(|number| vm("web", 0, &format!("198.51.100.{number}"))).collect();
    let zone = Zone::new(&Domain::parse("example.org").unwrap(), [0, 0, 0, 0].into(), 1, &projects, &vms).unwrap();
    let asked = |most| whole(&zone, "web.demo.example.org.", RecordType::A, most);
    assert_eq!((asked(512).answers.len(), asked(512).metadata.truncation), (0, true));
    assert_eq!((asked(65_535).answers.len(), asked(65_535).metadata.truncation), (40, false));
    assert!(whole(&zone, "ns.example.org.", RecordType::A, 512).answers.is_empty(), "it is at no address of its own");
}

#[test]
fn what_is_no_question_is_not_answered() {
    let zone = zone();
    let mut message = Message::query();
    let code = |message: &Message| {
        let answer = zone.answer(&message.to_vec().unwrap(), 512)?;
        Some(Message::from_vec(&answer).unwrap().metadata.response_code)
    };
    assert_eq!(code(&message), Some(ResponseCode::FormErr));
    message.add_query(Query::query(Name::from_ascii("web.demo.vms.example.org.").unwrap(), RecordType::A));
    message.metadata.op_code = OpCode::Update;
    assert_eq!(code(&message), Some(ResponseCode::NotImp));
    message.metadata.op_code = OpCode::Query;
    message.queries[0].set_query_class(DNSClass::CH);
    assert_eq!(code(&message), Some(ResponseCode::Refused));
    message.metadata.message_type = MessageType::Response;
    assert_eq!(code(&message), None);
    for bytes in [&b""[..], b"x", &[0xff; 11], &[0; 513]] {
        assert!(zone.answer(bytes, 512).is_none_or(|answer| answer.len() <= 512), "{bytes:?}");
    }
}
