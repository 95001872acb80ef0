//! The names of VMs outside their networks, and what is answered to who asks for them. Pure.
//!
//! ```text
//!   web.demo.vms.example.org.   A 198.51.100.17      the VM `web` of the project `demo`
//!   web.<project's id>.vms.example.org.               the same, whatever other organizations call theirs
//!   17.100.51.198.in-addr.arpa. PTR web.demo.vms.example.org.
//! ```
//!
//! Two organizations may have a project of one slug: it is the one's that has had it for longer, and either is found by its id.
//! VMs of one name in a project are told together. An address that VMs share has no name of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use berth_domain::names::Domain;
use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, NS, PTR, SOA};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

/// How long an answer may be believed, in seconds: a VM that was made anew has another address.
const TTL: u32 = 30;
/// What who copies zones is told of times, in seconds (RFC 1912, 2.2); nobody copies this one.
const REFRESH: (i32, i32, i32) = (3600, 600, 604_800);
/// What this server is called in its own zone, and whom one writes to about it.
const SERVER: &str = "ns";
const PERSON: &str = "hostmaster";

/// A VM that has an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// Its project, by its place in the list of those.
    pub project: usize,
    /// Its address.
    pub address: IpAddr,
    /// Whether nobody else has that.
    pub is_own: bool,
}

/// A project, by id and slug.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels {
    /// Its id.
    pub id: String,
    /// Its slug.
    pub slug: String,
}

/// All names at some time.
#[derive(Debug)]
pub struct Zone {
    domain: Name,
    server: Option<IpAddr>,
    /// Grows with time.
    serial: u32,
    /// Addresses by what stands before the domain, in lower case.
    addresses: BTreeMap<String, BTreeSet<IpAddr>>,
    /// The names below which there are others.
    projects: BTreeSet<String>,
    /// What an address is called.
    names: BTreeMap<IpAddr, String>,
}

/// What is known of a name.
enum Known {
    Records(Vec<RData>),
    Nothing,
}

impl Zone {
    /// The names of VMs, for a server at an address, if it is at one; `None` where the domain is none.
    /// Projects come in the order in which they took their slugs.
    pub fn new(domain: &Domain, server: IpAddr, serial: u32, projects: &[Labels], vms: &[Named]) -> Option<Self> {
        let mut first = BTreeMap::new();
        for (place, project) in projects.iter().enumerate() {
            first.entry(project.slug.as_str()).or_insert(place);
        }
        let mut zone = Self {
            domain: Name::from_ascii(format!("{}.", domain.as_str())).ok()?,
            server: Some(server).filter(|address| !address.is_unspecified()),
            serial,
            addresses: BTreeMap::new(),
            projects: BTreeSet::new(),
            names: BTreeMap::new(),
        };
        for vm in vms {
            let Some(project) = projects.get(vm.project) else { continue };
            let slug = Some(project.slug.as_str()).filter(|slug| first.get(slug) == Some(&vm.project));
            for label in slug.into_iter().chain([project.id.as_str()]) {
                let label = label.to_ascii_lowercase();
                let name = format!("{}.{label}", vm.name.to_ascii_lowercase());
                zone.projects.insert(label);
                zone.addresses.entry(name.clone()).or_default().insert(vm.address);
                if vm.is_own {
                    zone.names.entry(vm.address).or_insert(name);
                }
            }
        }
        Some(zone)
    }

    /// Answers a question by a message of at most so many bytes, which says where it left something out; `None` where what
    /// came is no question.
    pub fn answer(&self, bytes: &[u8], most: usize) -> Option<Vec<u8>> {
        let asked = Message::from_vec(bytes).ok()?;
        if asked.metadata.message_type != MessageType::Query {
            return None;
        }
        let (id, op_code) = (asked.metadata.id, asked.metadata.op_code);
        let [query] = asked.queries.as_slice() else {
            return Message::error_msg(id, op_code, ResponseCode::FormErr).to_vec().ok();
        };
        let refuse = |code| {
            let mut refusal = Message::error_msg(id, op_code, code);
            refusal.add_query(query.clone());
            refusal.to_vec().ok()
        };
        if op_code != OpCode::Query {
            return refuse(ResponseCode::NotImp);
        }
        let Some(known) = self.known(query) else { return refuse(ResponseCode::Refused) };
        let is_nothing = matches!(known, Known::Nothing);
        let mut answer =
            Message::error_msg(id, op_code, if is_nothing { ResponseCode::NXDomain } else { ResponseCode::NoError });
        answer.metadata.authoritative = true;
        answer.metadata.recursion_desired = asked.metadata.recursion_desired;
        answer.add_query(query.clone());
        if let Known::Records(records) = known {
            let wants = |data: &RData| [data.record_type(), RecordType::ANY].contains(&query.query_type);
            for data in records.into_iter().filter(wants) {
                answer.add_answer(Record::from_rdata(query.name.clone(), TTL, data));
            }
        }
        if answer.answers.is_empty() && self.domain.zone_of(&query.name) {
            // So that who asks may remember that there is nothing (RFC 2308, 3).
            answer.add_authority(Record::from_rdata(self.domain.clone(), TTL, self.authority()?));
        }
        let whole = answer.to_vec().ok()?;
        if whole.len() <= most {
            return Some(whole);
        }
        (answer.answers, answer.authorities, answer.metadata.truncation) = (Vec::new(), Vec::new(), true);
        answer.to_vec().ok()
    }

    /// What there is of a name; `None` where it is none of ours.
    fn known(&self, query: &Query) -> Option<Known> {
        if query.query_class != DNSClass::IN {
            return None;
        }
        if !self.domain.zone_of(&query.name) {
            return self.reverse(&query.name);
        }
        let below = query.name.iter().count().saturating_sub(self.domain.iter().count());
        let labels: Vec<_> = query.name.iter().take(below).map(String::from_utf8_lossy).collect();
        let text = labels.join(".").to_ascii_lowercase();
        let found = match text.as_str() {
            "" => vec![self.authority()?, RData::NS(NS(self.named(SERVER)?))],
            SERVER => self.server.into_iter().map(data).collect(),
            project if self.projects.contains(project) => Vec::new(),
            name => match self.addresses.get(name) {
                Some(addresses) => addresses.iter().copied().map(data).collect(),
                None => return Some(Known::Nothing),
            },
        };
        Some(Known::Records(found))
    }

    /// The name of an address.
    fn reverse(&self, name: &Name) -> Option<Known> {
        let net = name.parse_arpa_name().ok()?;
        let is_whole = net.prefix_len() == net.max_prefix_len();
        let name = self.names.get(&net.addr()).filter(|_| is_whole);
        Some(
            name.and_then(|name| self.named(name))
                .map_or(Known::Nothing, |name| Known::Records(vec![RData::PTR(PTR(name))])),
        )
    }

    fn named(&self, below: &str) -> Option<Name> {
        Name::from_ascii(below).ok()?.append_domain(&self.domain).ok()
    }

    fn authority(&self) -> Option<RData> {
        let (refresh, retry, expire) = REFRESH;
        let (server, person) = (self.named(SERVER)?, self.named(PERSON)?);
        Some(RData::SOA(SOA::new(server, person, self.serial, refresh, retry, expire, TTL)))
    }
}

fn data(address: IpAddr) -> RData {
    match address {
        IpAddr::V4(address) => RData::A(A(address)),
        IpAddr::V6(address) => RData::AAAA(AAAA(address)),
    }
}

#[cfg(test)]
#[path = "zone_tests.rs"]
mod tests;
