//! The guest's resolver: judges a question by its name, asks the platform's resolvers, and remembers which
//! addresses the answer names.
//!
//! A question is made anew (one question, an id and a port of our own) and an answer must fit it, so that
//! neither side reaches the other with anything but that. The answer's records are passed on as they are;
//! addresses in them unlock nothing that the rules do not.

mod message;
mod resolvers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use berth_domain::firewall::{Beginning, Direction, RuleProtocol, Rules};

use crate::RESOLVER;
use crate::config::Resolvers;
use crate::link::Link;
use crate::network::{DNS, Joined};
use message::{Answer, Failure, Question};
pub use resolvers::Transport;

/// The answer to a question of the guest; `None` where there is nothing to answer.
pub(crate) async fn answer(link: &Link, query: &[u8], transport: Transport) -> Option<Vec<u8>> {
    let question = match Question::parse(query) {
        Ok(question) => question,
        Err(failure) => return failure,
    };
    match of_networks(link, &question).await {
        Ok(Some(answer)) => return Some(answer.into_bytes(&question)),
        Ok(None) => {}
        Err(Silent) => return question.fail(Failure::Unavailable),
    }
    let allowed = |link: &Link| question.name().is_some_and(|name| link.policy.borrow().resolves(name));
    if !allowed(link) || !may_ask(&link.rules.borrow(), transport) {
        return question.fail(Failure::Refused);
    }
    let Some(answer) = resolvers::ask(&link.config.resolvers, link.config.limits.resolver, &question, transport).await
    else {
        return question.fail(Failure::Unavailable);
    };
    remember(link, &answer);
    Some(answer.into_bytes(&question))
}

/// The answer to a question of somebody whose names nobody judges: what these resolvers say, each of which may take so long;
/// `None` where there is nothing to answer.
pub async fn forward(resolvers: &Resolvers, patience: Duration, query: &[u8], transport: Transport) -> Option<Vec<u8>> {
    let question = match Question::parse(query) {
        Ok(question) => question,
        Err(failure) => return failure,
    };
    match resolvers::ask(resolvers, patience, &question, transport).await {
        Some(answer) => Some(answer.into_bytes(&question)),
        None => question.fail(Failure::Unavailable),
    }
}

/// Whether the machine's firewall rules let it ask for names outside: a question carries whatever its asker likes.
fn may_ask(rules: &Rules, transport: Transport) -> bool {
    let protocol = if transport == Transport::Tcp { RuleProtocol::Tcp } else { RuleProtocol::Udp };
    let direction = Direction::Out;
    rules.allow(&Beginning { direction, protocol, port: Some(DNS), other: RESOLVER.into(), within: false })
}

/// A network that may know a name does not answer: the name may be a member's, and is not asked for outside.
struct Silent;

/// What the guest's networks answer, the first of those that know the name. Neither is that judged by rules nor does it
/// unlock anything that they speak of.
async fn of_networks(link: &Link, question: &Question) -> Result<Option<Answer>, Silent> {
    let (Some(query), Some(name)) = (question.to_bytes(), question.name()) else { return Ok(None) };
    let ask = |joined: Arc<Joined>| {
        let query = query.clone();
        tokio::spawn(async move { joined.ask(&query).await })
    };
    // All at once: one that is silent costs its time only once.
    let asked: Vec<_> = link.config.networks.that_may_know(name).into_iter().map(ask).collect();
    let mut outcome = Ok(None);
    for answer in asked {
        match answer.await.ok().flatten().and_then(|bytes| Answer::parse(bytes, question)) {
            Some(answer) if answer.is_known() => return Ok(Some(answer)),
            Some(_) => {}
            None => outcome = Err(Silent),
        }
    }
    outcome
}

fn remember(link: &Link, answer: &Answer) {
    let names: Vec<Arc<str>> = answer.names.iter().map(|name| name.as_str().into()).collect();
    let now = Instant::now();
    let mut known = link.names();
    for (address, ttl) in &answer.addresses {
        for name in &names {
            known.remember(*address, name, *ttl, now);
        }
    }
}

/// Answers the questions of one connection, one after the other, until it ends.
pub(crate) async fn serve(link: &Link, mut stream: DuplexStream) {
    loop {
        let Ok(len) = stream.read_u16().await else { return };
        let mut query = vec![0; len.into()];
        if stream.read_exact(&mut query).await.is_err() {
            return;
        }
        let Some(answer) = answer(link, &query, Transport::Tcp).await else { return };
        let Ok(len) = u16::try_from(answer.len()) else { return };
        if stream.write_u16(len).await.is_err() || stream.write_all(&answer).await.is_err() {
            return;
        }
    }
}
