use hickory_proto::rr::rdata::{A, AAAA, CNAME};
use hickory_proto::rr::{Record, RecordType};
use proptest::prelude::*;

use super::*;

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

fn query(text: &str) -> Message {
    let mut message = Message::query();
    message.add_query(Query::query(name(text), RecordType::A));
    message
}

fn question(text: &str) -> Question {
    Question::parse(&query(text).to_vec().unwrap()).unwrap()
}

fn reply(question: &Question, records: Vec<Record>) -> Message {
    let mut message = Message::response(question.asked.metadata.id, OpCode::Query);
    message.add_query(question.query.clone());
    message.add_answers(records);
    message
}

fn address(owner: &str, last: u8) -> Record {
    Record::from_rdata(name(owner), 60, RData::A(A::new(198, 51, 100, last)))
}

fn alias(owner: &str, target: &str) -> Record {
    Record::from_rdata(name(owner), 60, RData::CNAME(CNAME(name(target))))
}

#[test]
fn a_question_is_made_anew() {
    let mut original = query("Example.ORG.");
    original.add_answers([address("smuggled.test.", 1)]);
    original.set_edns({
        let mut edns = Edns::new();
        edns.set_max_payload(4096).set_dnssec_ok(true);
        edns
    });
    let question = Question::parse(&original.to_vec().unwrap()).unwrap();
    assert_eq!(question.name(), Some("example.org"));
    let asked = Message::from_vec(&question.to_bytes().unwrap()).unwrap();
    assert!(asked.answers.is_empty() && asked.metadata.recursion_desired);
    let edns = asked.edns.unwrap();
    assert!(edns.max_payload() == MAX_UDP && edns.flags().dnssec_ok);
}

#[test]
fn what_is_no_question_is_told_so() {
    let mut two = query("a.test.");
    two.add_query(Query::query(name("b.test."), RecordType::A));
    let code = |bytes: &[u8]| Message::from_vec(&Question::parse(bytes).unwrap_err().unwrap()).unwrap();
    assert_eq!(code(&two.to_vec().unwrap()).metadata.response_code, ResponseCode::FormErr);
    let mut notify = query("a.test.");
    notify.metadata.op_code = OpCode::Notify;
    assert_eq!(code(&notify.to_vec().unwrap()).metadata.response_code, ResponseCode::NotImp);
    let answer = Message::response(1, OpCode::Query).to_vec().unwrap();
    assert!(Question::parse(&answer).unwrap_err().is_none());
    assert!(Question::parse(b"?").unwrap_err().is_none());
}

#[test]
fn a_dot_within_a_label_is_none_between_labels() {
    let mut odd = Message::query();
    let labels: [&[u8]; 2] = [b"x.allowed", b"test"];
    odd.add_query(Query::query(Name::from_labels(labels).unwrap(), RecordType::A));
    assert_eq!(Question::parse(&odd.to_vec().unwrap()).unwrap().name(), None);
}

#[test]
fn an_answer_must_fit_and_names_the_chain() {
    let question = question("a.test.");
    let records = vec![
        address("other.test.", 9),
        alias("A.test.", "b.test."),
        alias("b.test.", "c.test."),
        alias("c.test.", "a.test."),
        address("c.test.", 1),
        address("C.test.", 2),
        Record::from_rdata(name("c.test."), 60, RData::AAAA(AAAA::new(0x2600, 0, 0, 0, 0, 0, 0, 3))),
    ];
    let message = reply(&question, records);
    let answer = Answer::parse(message.to_vec().unwrap(), &question).unwrap();
    assert_eq!(answer.names, ["a.test", "b.test", "c.test"]);
    let addresses: Vec<_> = answer.addresses.iter().map(|(address, _)| address.to_string()).collect();
    assert_eq!(addresses, ["198.51.100.1", "198.51.100.2", "2600::3"], "what belongs to another name is not believed");
    assert_eq!(answer.into_bytes(&question)[..2], question.id.to_be_bytes());

    let mut wrong = message.clone();
    wrong.metadata.id ^= 1;
    assert!(Answer::parse(wrong.to_vec().unwrap(), &question).is_none());
    let mut wrong = message.clone();
    wrong.queries[0].name = name("b.test.");
    assert!(Answer::parse(wrong.to_vec().unwrap(), &question).is_none());
    let mut wrong = message;
    wrong.metadata.message_type = MessageType::Query;
    assert!(Answer::parse(wrong.to_vec().unwrap(), &question).is_none());
}

#[test]
fn a_failure_repeats_the_question() {
    let question = question("a.test.");
    for (failure, code) in [(Failure::Refused, ResponseCode::Refused), (Failure::Unavailable, ResponseCode::ServFail)] {
        let message = Message::from_vec(&question.fail(failure).unwrap()).unwrap();
        assert_eq!((message.metadata.response_code, message.metadata.id), (code, question.id));
        assert_eq!(message.queries, std::slice::from_ref(&question.query));
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_question_or_none(mut bytes in prop::collection::vec(any::<u8>(), 0..300), flip in any::<bool>()) {
        if flip && bytes.len() > 12 {
            bytes[2..12].copy_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        }
        let _ = Question::parse(&bytes);
    }

    #[test]
    fn a_mutated_answer_is_read_or_refused(at in 2_usize..100, to in any::<u8>()) {
        let question = question("a.test.");
        let mut bytes = reply(&question, vec![alias("a.test.", "b.test."), address("b.test.", 1)]).to_vec().unwrap();
        if let Some(byte) = bytes.get_mut(at) {
            *byte = to;
        }
        if let Some(answer) = Answer::parse(bytes, &question) {
            prop_assert!(answer.names.len() <= CHAIN);
        }
    }
}
