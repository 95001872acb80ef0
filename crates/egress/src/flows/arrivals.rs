//! Who comes from outside.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use berth_domain::firewall::RuleProtocol;

use super::{Entry, Flows, Protocol, arriving, make_room};
use crate::forward::{Arrival, Caller, Forward, refuse};
use crate::packet::{Key, Outbound};
use crate::{GATEWAY, GUEST, tcp, udp};

/// The lowest port that who comes from outside seems to come from: those below are for who may be trusted.
const LOWEST: u16 = 1024;

impl Flows {
    /// Takes what has come by a forward.
    pub(crate) fn arrive(&mut self, caller: Caller, arrival: Arrival) {
        match arrival {
            Arrival::Connection(stream, permit) => self.admit(caller, stream, permit),
            Arrival::Datagram(bytes) => self.deliver(caller, &bytes),
        }
    }

    /// Ends what came in by a forward.
    pub(crate) fn close(&mut self, forward: &Arc<Forward>) {
        let through = |by: &Option<Caller>| by.as_ref().is_some_and(|by| Arc::ptr_eq(&by.forward, forward));
        self.tcp.values().filter(|entry| through(&entry.caller)).for_each(|entry| entry.flow.revoke());
        self.udp.values().filter(|entry| through(&entry.caller)).for_each(|entry| entry.task.abort());
        self.udp.retain(|_, entry| !through(&entry.caller));
    }

    /// Lets in who has come, if the rules do. Where there is no room for it, it is reset.
    fn admit(&mut self, caller: Caller, stream: TcpStream, permit: OwnedSemaphorePermit) {
        if !self.rules.allow(&arriving(RuleProtocol::Tcp, &caller)) {
            return refuse(stream, "a firewall rule denies it");
        }
        if self.tcp.len() >= self.link.config.limits.tcp_flows {
            return refuse(stream, "the guest has as many connections as it may have");
        }
        let Some(socket) = self.link.socket() else { return refuse(stream, "the guest has its share of sockets") };
        let Some(room) = tcp::Room::take(&self.link.buffers) else {
            return refuse(stream, "the guest's connections take all the memory they may");
        };
        let Some(key) = self.seeming(caller.forward.guest_port) else {
            return refuse(stream, "no port is left to seem to come from");
        };
        let flow = Arc::new(tcp::Flow::arriving(key, room));
        let link = Arc::clone(&self.link);
        let arriving = tcp::Arriving { flow: Arc::clone(&flow), link, stream, permit, socket };
        let task = self.tasks.spawn(arriving.carry());
        self.owners.insert(task.id(), (Protocol::Tcp, key));
        self.tcp.insert(key, Entry { flow, destination: None, caller: Some(caller), task });
    }

    /// Hands the guest a datagram. Each caller has a flow, as long as one of both says something.
    fn deliver(&mut self, caller: Caller, bytes: &[u8]) {
        let is_theirs = |entry: &Entry<udp::Flow>| entry.caller.as_ref() == Some(&caller) && !entry.task.is_finished();
        let known = self.udp.iter().find(|(_, entry)| is_theirs(entry)).map(|(key, _)| *key);
        let Some(key) = known.or_else(|| self.follow(caller)) else { return };
        if let Some(entry) = self.udp.get(&key) {
            entry.flow.touch();
        }
        self.link.wire.ask_for_guest();
        self.link.wire.send(&Outbound::datagram(key, bytes));
    }

    /// Begins a flow, if the rules let it in.
    fn follow(&mut self, caller: Caller) -> Option<Key> {
        if !self.rules.allow(&arriving(RuleProtocol::Udp, &caller)) {
            return None;
        }
        make_room(&mut self.udp, self.link.config.limits.udp_flows, true);
        let key = self.seeming(caller.forward.guest_port)?;
        let (flow, datagrams) = udp::Flow::new();
        let flow = Arc::new(flow);
        let answering = udp::answer(Arc::clone(&flow), datagrams, Arc::clone(&self.link), caller.clone());
        let task = self.tasks.spawn(answering);
        self.owners.insert(task.id(), (Protocol::Udp, key));
        self.udp.insert(key, Entry { flow, destination: None, caller: Some(caller), task });
        Some(key)
    }

    /// A flow to a port of the guest, from a port that has none there.
    fn seeming(&mut self, port: u16) -> Option<Key> {
        for _ in LOWEST..=u16::MAX {
            self.caller = self.caller.checked_add(1).unwrap_or(LOWEST).max(LOWEST);
            let guest = SocketAddr::new(GUEST.into(), port);
            let key = Key { guest, to: SocketAddr::new(GATEWAY.into(), self.caller) };
            if !self.tcp.contains_key(&key) && !self.udp.contains_key(&key) {
                return Some(key);
            }
        }
        None
    }
}
