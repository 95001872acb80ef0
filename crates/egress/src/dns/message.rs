//! Messages of DNS: what a guest asks, what is asked in its place, and what an answer says. Pure but for the
//! random id of a question.

use std::net::IpAddr;
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData};

/// Largest answer by datagram that is asked for, which fits into a packet of the link.
pub(super) const MAX_UDP: u16 = 1232;
/// Most names of an answer's chain of aliases.
const CHAIN: usize = 16;
/// Most addresses of an answer that are remembered.
const ADDRESSES: usize = 64;

/// Why a question is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The rules do not let it out.
    Refused,
    /// No resolver has answered.
    Unavailable,
}

/// A guest's question, and the one asked in its place.
#[derive(Debug)]
pub(super) struct Question {
    id: u16,
    query: Query,
    asked: Message,
    name: Option<String>,
}

impl Question {
    /// Reads a message. Where it is no question, the error is what answers it, if anything does.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Option<Vec<u8>>> {
        let message = Message::from_vec(bytes).map_err(|_| None)?;
        let (id, op_code) = (message.metadata.id, message.metadata.op_code);
        if message.metadata.message_type != MessageType::Query {
            return Err(None);
        }
        if op_code != OpCode::Query {
            return Err(Message::error_msg(id, op_code, ResponseCode::NotImp).to_vec().ok());
        }
        let [query] = message.queries.as_slice() else {
            return Err(Message::error_msg(id, op_code, ResponseCode::FormErr).to_vec().ok());
        };
        let mut asked = Message::query();
        asked.metadata.recursion_desired = true;
        asked.metadata.checking_disabled = message.metadata.checking_disabled;
        asked.add_query(query.clone());
        if let Some(edns) = &message.edns {
            let mut own = Edns::new();
            own.set_max_payload(MAX_UDP.min(edns.max_payload())).set_dnssec_ok(edns.flags().dnssec_ok);
            asked.set_edns(own);
        }
        Ok(Self { id, name: text(&query.name), query: query.clone(), asked })
    }

    /// The name asked for, if it is one that rules can speak of.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// What to ask a resolver.
    pub(super) fn to_bytes(&self) -> Option<Vec<u8>> {
        self.asked.to_vec().ok()
    }

    /// Answers without an answer.
    pub(super) fn fail(&self, failure: Failure) -> Option<Vec<u8>> {
        let code = match failure {
            Failure::Refused => ResponseCode::Refused,
            Failure::Unavailable => ResponseCode::ServFail,
        };
        let mut message = Message::error_msg(self.id, OpCode::Query, code);
        message.metadata.recursion_desired = true;
        message.metadata.recursion_available = true;
        message.add_query(self.query.clone());
        message.to_vec().ok()
    }
}

/// A resolver's answer.
#[derive(Debug)]
pub(super) struct Answer {
    bytes: Vec<u8>,
    is_known: bool,
    /// The name asked for and those it is an alias of, in lower case.
    pub(super) names: Vec<String>,
    /// The addresses of these names, and how long they hold.
    pub(super) addresses: Vec<(IpAddr, Duration)>,
}

impl Answer {
    /// Reads a message; `None` unless it answers the question.
    pub(super) fn parse(bytes: Vec<u8>, question: &Question) -> Option<Self> {
        let message = Message::from_vec(&bytes).ok()?;
        let fits = message.metadata.message_type == MessageType::Response
            && message.metadata.id == question.asked.metadata.id
            && message.metadata.op_code == OpCode::Query
            && matches!(message.queries.as_slice(), [query] if *query == question.query);
        if !fits {
            return None;
        }
        let chain = chain(&message, &question.query.name);
        let records = message.answers.iter().filter(|r| r.dns_class == DNSClass::IN && chain.contains(&&r.name));
        let addresses = records.filter_map(|record| match record.data {
            RData::A(address) => Some((address.0.into(), Duration::from_secs(record.ttl.into()))),
            RData::AAAA(address) => Some((address.0.into(), Duration::from_secs(record.ttl.into()))),
            _ => None,
        });
        let addresses = addresses.take(ADDRESSES).collect();
        let is_known = message.metadata.response_code == ResponseCode::NoError;
        Some(Self { is_known, names: chain.into_iter().filter_map(text).collect(), addresses, bytes })
    }

    /// Whether there is such a name.
    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    /// The message as the guest expects it.
    pub(super) fn into_bytes(self, question: &Question) -> Vec<u8> {
        let mut bytes = self.bytes;
        if let Some(id) = bytes.first_chunk_mut() {
            *id = question.id.to_be_bytes();
        }
        bytes
    }
}

/// The name and its aliases, in the order they lead to each other.
fn chain<'a>(message: &'a Message, name: &'a Name) -> Vec<&'a Name> {
    let mut chain = vec![name];
    let mut at = name;
    while chain.len() < CHAIN {
        let next = message.answers.iter().find_map(|record| match &record.data {
            RData::CNAME(target) if record.name == *at && !chain.contains(&&target.0) => Some(&target.0),
            _ => None,
        });
        let Some(target) = next else { break };
        chain.push(target);
        at = target;
    }
    chain
}

/// A name as rules write it; `None` where a label has characters that would have to be escaped, because a dot
/// within a label must not pass for one between labels.
fn text(name: &Name) -> Option<String> {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    let labels: Vec<&[u8]> = name.iter().collect();
    if !labels.iter().all(|label| label.iter().all(plain)) {
        return None;
    }
    let labels: Vec<_> = labels.into_iter().map(|label| String::from_utf8_lossy(label).to_ascii_lowercase()).collect();
    Some(labels.join("."))
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
