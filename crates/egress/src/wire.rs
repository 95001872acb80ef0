//! The way to the guest: packets of all flows, in the form QEMU reads.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

use crate::counters::Counters;
use crate::packet::{ETHERNET, Outbound, hardware};
use crate::presence::Presence;
use crate::queue::{Queue, Taken};
use crate::{fragments, ndp};

/// Bytes that may wait for the guest before flows are held back and datagrams are dropped.
const CAPACITY: usize = 256 * 1024;
/// The link address of everybody.
const EVERYBODY: u64 = 0xffff_ffff_ffff;
/// Between two questions for the guest's link address.
const ASK_AGAIN: Duration = Duration::from_millis(250);
/// The same where a connection waits for nothing else: a guest that has just come to its address says so to nobody.
const ASK_SOON: Duration = Duration::from_millis(50);
/// Largest packet that every guest takes.
const SMALL: usize = 1500;
/// Bytes of an ARP packet.
const ARP: usize = 28;

/// The sending side of a link.
pub(crate) struct Wire {
    queue: Queue,
    guest: AtomicU64,
    /// Whether the guest has its IPv4 address, as far as it has said.
    has_address: AtomicBool,
    /// Told when either becomes known.
    found: Notify,
    /// Whether the guest has its IPv6 address.
    presence: Mutex<Presence>,
    /// The number of the next packet that is cut.
    ident: AtomicU32,
    counters: Arc<Counters>,
}

impl Wire {
    pub(crate) fn new(counters: Arc<Counters>) -> Self {
        let (queue, guest) = (Queue::new(CAPACITY), AtomicU64::new(EVERYBODY));
        let presence = Mutex::default();
        let has_address = AtomicBool::new(false);
        Self { queue, guest, has_address, found: Notify::new(), presence, ident: AtomicU32::new(0), counters }
    }

    /// Learns the guest's link address, and whether it has its IPv4 address, where that is told.
    pub(crate) fn learn(&self, guest: EthernetAddress, has_address: Option<bool>) {
        let EthernetAddress([a, b, c, d, e, f]) = guest;
        let before = self.guest.swap(u64::from_be_bytes([0, 0, a, b, c, d, e, f]), Ordering::Relaxed);
        let had = has_address.is_none_or(|has| self.has_address.swap(has, Ordering::Relaxed));
        if before == EVERYBODY || (!had && has_address == Some(true)) {
            self.found.notify_waiters();
        }
    }

    /// Asks for the guest's link address, if it is not known.
    pub(crate) fn ask_for_guest(&self) -> bool {
        let unknown = self.guest.load(Ordering::Relaxed) == EVERYBODY;
        if unknown {
            self.ask();
        }
        unknown
    }

    fn ask(&self) {
        self.send_arp(ArpOperation::Request, crate::GATEWAY, (EthernetAddress([0; 6]), crate::GUEST));
    }

    /// Waits for the guest's link address, and asks for it as long as it is not known.
    pub(crate) async fn find_guest(&self) {
        let mut found = std::pin::pin!(self.found.notified());
        found.as_mut().enable();
        while self.ask_for_guest() {
            if tokio::time::timeout(ASK_AGAIN, found.as_mut()).await.is_ok() {
                return;
            }
        }
    }

    /// Waits until the guest has its IPv4 address, and asks for it until then: what is sent before is lost, and a connection
    /// tries again after a second at the earliest.
    pub(crate) async fn find_address(&self) {
        loop {
            let mut found = std::pin::pin!(self.found.notified());
            found.as_mut().enable();
            if self.has_address.load(Ordering::Relaxed) {
                return;
            }
            self.ask();
            let _ = tokio::time::timeout(ASK_SOON, found).await;
        }
    }

    /// The guest has spoken from its IPv6 address.
    pub(crate) fn heard(&self) {
        self.presence.lock().unwrap_or_else(PoisonError::into_inner).heard(Instant::now());
    }

    /// Whether a packet for the guest's IPv6 address goes there; asks the guest where it is not known.
    pub(crate) fn is_present(&self) -> bool {
        let verdict = self.presence.lock().unwrap_or_else(PoisonError::into_inner).packet(Instant::now());
        if verdict.asks {
            let question = ndp::question();
            self.send(&Outbound::neighbours(question.from, question.to, &question.bytes));
        }
        verdict.passes
    }

    /// Sends a packet, or drops it where the guest does not keep up. Every guest takes packets of 1,500 bytes; larger
    /// ones are cut, because nobody knows what this one takes.
    pub(crate) fn send(&self, packet: &Outbound<'_>) {
        let Some(len) = packet.len() else { return };
        if len <= SMALL {
            return self.send_whole(len, |buffer| packet.emit(buffer));
        }
        let mut whole = vec![0; len];
        packet.emit(&mut whole);
        for piece in self.cut(&whole) {
            self.send_whole(piece.len(), |buffer| buffer.copy_from_slice(&piece));
        }
    }

    /// Passes a packet of another machine on, for who has asked for room. Of a connection are segments as large as the
    /// guest said that it takes them; all else is cut.
    pub(crate) fn pass(&self, packet: &[u8], is_segment: bool) {
        if packet.len() <= SMALL || is_segment {
            return self.send_over(packet.len(), |buffer| buffer.copy_from_slice(packet));
        }
        for piece in self.cut(packet) {
            self.send_over(piece.len(), |buffer| buffer.copy_from_slice(&piece));
        }
    }

    fn cut(&self, packet: &[u8]) -> Vec<Vec<u8>> {
        fragments::cut(packet, self.ident.fetch_add(1, Ordering::Relaxed), SMALL)
    }

    fn send_whole(&self, len: usize, emit: impl FnOnce(&mut [u8])) {
        if self.queue.push(ETHERNET + len, |frame| self.fill(frame, emit)) {
            self.counters.received(ETHERNET + len);
        }
    }

    /// Sends a packet of a flow that has asked for room, or that says its last word.
    pub(crate) fn send_over<R>(&self, len: usize, emit: impl FnOnce(&mut [u8]) -> R) -> R {
        self.counters.received(ETHERNET + len);
        self.queue.push_over(ETHERNET + len, |frame| self.fill(frame, emit))
    }

    /// Says who has an address of the gateway, and asks who has another.
    pub(crate) fn send_arp(&self, operation: ArpOperation, own: Ipv4Addr, to: (EthernetAddress, Ipv4Addr)) {
        let answer = ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: hardware(own),
            source_protocol_addr: own,
            target_hardware_addr: to.0,
            target_protocol_addr: to.1,
        };
        let fill = |frame: &mut [u8]| {
            self.fill(frame, |buffer| answer.emit(&mut ArpPacket::new_unchecked(buffer)));
            EthernetFrame::new_unchecked(frame).set_ethertype(EthernetProtocol::Arp);
        };
        if self.queue.push(ETHERNET + ARP, fill) {
            self.counters.received(ETHERNET + ARP);
        }
    }

    /// Whether there is room now.
    pub(crate) fn room(&self) -> bool {
        self.queue.room()
    }

    /// Whether there is room; if not, the task is woken when there is.
    pub(crate) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.queue.poll_room(cx)
    }

    /// Writes what is sent to the stream until the stream fails.
    pub(crate) async fn pump(&self, mut stream: impl AsyncWrite + Unpin) -> std::io::Result<()> {
        let mut frames = Vec::new();
        while std::future::poll_fn(|cx| self.queue.poll_take(cx, &mut frames)).await == Taken::Packets {
            stream.write_all(&frames).await?;
            frames.clear();
        }
        Ok(())
    }

    /// Writes a frame around a packet, whose first bits tell its kind.
    fn fill<R>(&self, frame: &mut [u8], emit: impl FnOnce(&mut [u8]) -> R) -> R {
        let [_, _, guest @ ..] = self.guest.load(Ordering::Relaxed).to_be_bytes();
        let mut frame = EthernetFrame::new_unchecked(frame);
        frame.set_dst_addr(EthernetAddress(guest));
        frame.set_src_addr(hardware(crate::GATEWAY));
        let result = emit(frame.payload_mut());
        let is_ipv6 = frame.payload_mut().first().is_some_and(|first| first >> 4 == 6);
        frame.set_ethertype(if is_ipv6 { EthernetProtocol::Ipv6 } else { EthernetProtocol::Ipv4 });
        result
    }
}
