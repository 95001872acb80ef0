//! The switch itself: one thread, a link for each member that runs here, and conversations with the service.

use std::collections::HashMap;
use std::future::ready;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use berth_domain::firewall::Rules;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};

use super::super::confine::confine_switch;
use super::super::conversation::{Answer, CONVERSATIONS, converse, next};
use super::super::given::Given;
use super::protocol::{Ask, Linked, OfSwitch, Status, VERSION};
use crate::MTU;
use crate::message::{Messages, Received};
use crate::network::{Decision, Filter, Roster, Table};

/// Packets of a member before others have their turn.
const TURNS: usize = 16;

/// Becomes the switch of a network, until nobody needs it.
pub(in super::super) fn run(given: Given) -> io::Result<()> {
    // What it waits by is made before it can make nothing any more.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    confine_switch(given.user)?;
    runtime.block_on(serve(given))
}

async fn serve(given: Given) -> io::Result<()> {
    let switch = Arc::new(Switch::default());
    let listener = UnixListener::from_std(given.listener)?;
    let mut conversations = JoinSet::new();
    conversations.spawn(speak(UnixStream::from_std(given.first)?, Arc::clone(&switch)));
    while !conversations.is_empty() || switch.has_links() {
        tokio::select! {
            () = switch.ended.notified() => {}
            Some(_) = conversations.join_next() => {}
            stream = next(&listener, given.owner), if conversations.len() < CONVERSATIONS => {
                if let Some(stream) = stream {
                    conversations.spawn(speak(stream, Arc::clone(&switch)));
                }
            }
        }
    }
    Ok(())
}

/// Answers the service over a connection, until it ends.
async fn speak(stream: UnixStream, switch: Arc<Switch>) {
    converse::<OfSwitch, _>(stream, |ask, beside| ready(answer(&switch, ask, beside))).await;
}

fn answer(switch: &Arc<Switch>, ask: Ask, beside: Vec<OwnedFd>) -> Result<Answer<Status>, String> {
    match ask {
        Ask::Status => return Ok(Answer::Status(switch.state().status())),
        Ask::Set(network) => switch.state().set(&network)?,
        Ask::SetFirewall { rules } => switch.state().rules = rules,
        Ask::Link { address } => {
            let link = beside.into_iter().next().ok_or("there is no link beside it")?;
            switch.link(address, link)?;
        }
    }
    Ok(Answer::Done)
}

/// What the switch has.
#[derive(Default)]
struct Switch {
    state: Mutex<State>,
    /// A link ended.
    ended: Notify,
}

#[derive(Default)]
struct State {
    table: Option<Table>,
    links: HashMap<Ipv4Addr, Link>,
    rules: Rules,
    filter: Filter,
    /// What packets are read into, one after the other.
    buffer: Vec<u8>,
}

struct Link {
    machine: String,
    messages: Arc<Messages>,
    task: AbortHandle,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Switch {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_links(&self) -> bool {
        !self.state().links.is_empty()
    }

    fn link(self: &Arc<Self>, address: Ipv4Addr, link: OwnedFd) -> Result<(), String> {
        let mut state = self.state();
        let machine = state.table.as_ref().and_then(|table| table.machine(address));
        let machine = machine.ok_or_else(|| format!("{address} is no member's"))?.to_owned();
        let messages = Arc::new(Messages::new(link).map_err(|error| error.to_string())?);
        let task = tokio::spawn(carry(Arc::clone(self), address, Arc::clone(&messages))).abort_handle();
        state.links.insert(address, Link { machine, messages, task });
        Ok(())
    }
}

impl State {
    fn status(&self) -> Status {
        let linked = |(address, link): (&Ipv4Addr, &Link)| Linked { address: *address, machine: link.machine.clone() };
        let cidr6 = self.table.as_ref().and_then(Table::cidr6);
        Status { version: VERSION, links: self.links.iter().map(linked).collect(), cidr6 }
    }

    fn set(&mut self, network: &Roster) -> Result<(), String> {
        let table = Table::new(network)?;
        self.links.retain(|address, link| table.machine(*address) == Some(link.machine.as_str()));
        self.filter.retain(|address| table.member(address).is_some_and(|member| self.links.contains_key(&member)));
        self.table = Some(table);
        Ok(())
    }

    /// Takes one packet of a member, if there is one, and does with it what is to be done.
    fn pass(&mut self, from: Ipv4Addr, messages: &Messages) -> Received {
        let received = messages.receive(&mut self.buffer, MTU);
        let Received::Message(length) = received else { return received };
        let (Some(table), Some(packet)) = (&self.table, self.buffer.get(..length)) else { return received };
        match table.decide(from, packet) {
            Decision::Pass(to) => {
                if let Some(link) = self.links.get(&to)
                    && self.filter.passes(&self.rules, packet, Instant::now())
                {
                    link.messages.send(packet);
                }
            }
            Decision::Answer(answer) => messages.send(&answer),
            Decision::Drop => {}
        }
        received
    }
}

/// Takes what a member sends, until its link ends.
async fn carry(switch: Arc<Switch>, address: Ipv4Addr, messages: Arc<Messages>) {
    while messages.readable().await.is_ok() {
        for _ in 0..TURNS {
            // The state is left before anything else is done.
            let received = switch.state().pass(address, &messages);
            match received {
                Received::Message(_) | Received::TooLong => {}
                Received::Nothing => break,
                Received::End => return end(&switch, address, &messages),
            }
        }
        tokio::task::yield_now().await;
    }
    end(&switch, address, &messages);
}

/// Forgets a link, unless another one has taken its place.
fn end(switch: &Switch, address: Ipv4Addr, messages: &Arc<Messages>) {
    let mut state = switch.state();
    if state.links.get(&address).is_some_and(|link| Arc::ptr_eq(&link.messages, messages)) {
        state.links.remove(&address);
    }
    drop(state);
    switch.ended.notify_one();
}
