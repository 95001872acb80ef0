//! Packets in pieces: those of the guest are put together, and what a small link does not carry is cut. Pure.
//!
//! Pieces that overlap are of a sender who means harm: such a packet is dropped as a whole, as IPv6 demands (RFC 5722).
//! What waits for its missing pieces is bounded in packets, pieces, bytes and age; the oldest gives way.

use std::ops::Range;
use std::time::{Duration, Instant};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpAddress, IpProtocol, IpRepr, Ipv4Packet, Ipv6FragmentHeader, Ipv6Packet};

/// Packets that wait for pieces.
const PACKETS: usize = 16;
/// Pieces of a packet: twice as many as the largest one has on an Ethernet.
const PIECES: usize = 96;
/// Bytes that wait for pieces.
const BYTES: usize = 256 * 1024;
/// How long pieces wait for the others, as Linux has it.
const AGE: Duration = Duration::from_secs(30);
/// Largest packet there is.
const LARGEST: usize = 65_535;
/// Bytes of an IPv4 header without options.
const IPV4: usize = 20;
/// Bytes of an IPv6 header, and of that of a piece.
const IPV6: usize = 40;
const FRAGMENT: usize = 8;
/// Hop limit of a packet that was put together.
const HOPS: u8 = 64;

/// Which packet a piece is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id {
    pub(crate) from: IpAddress,
    pub(crate) to: IpAddress,
    pub(crate) protocol: IpProtocol,
    pub(crate) ident: u32,
}

/// A piece of a packet: so many bytes of its payload, from here on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) id: Id,
    pub(crate) offset: usize,
    pub(crate) last: bool,
    pub(crate) data: &'a [u8],
}

/// The packets that wait for pieces, the oldest first.
#[derive(Default)]
pub(crate) struct Fragments {
    waiting: Vec<Waiting>,
}

struct Waiting {
    id: Id,
    born: Instant,
    /// Room for a header, and the payload as far as it is known.
    bytes: Vec<u8>,
    pieces: Vec<Range<usize>>,
    /// Where the payload ends, once that is known.
    end: Option<usize>,
}

impl Fragments {
    /// Takes a piece; the packet, if it was the last one missing.
    pub(crate) fn add(&mut self, piece: &Piece<'_>, now: Instant) -> Option<Vec<u8>> {
        self.expire(now);
        let mut packet = match self.waiting.iter().position(|waiting| waiting.id == piece.id) {
            Some(index) => self.waiting.remove(index),
            None => Waiting::new(piece.id, now),
        };
        // A packet of which a piece is wrong is gone with it.
        if !packet.add(piece) {
            return None;
        }
        if packet.is_whole() {
            return Some(packet.finish());
        }
        let at = self.waiting.partition_point(|waiting| waiting.born <= packet.born);
        self.waiting.insert(at, packet);
        while self.waiting.len() > PACKETS || self.bytes() > BYTES {
            self.waiting.remove(0);
        }
        None
    }

    /// Forgets what has waited for too long.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.waiting.retain(|waiting| now.duration_since(waiting.born) < AGE);
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn bytes(&self) -> usize {
        self.waiting.iter().map(|waiting| waiting.bytes.capacity()).sum()
    }
}

impl Waiting {
    const fn new(id: Id, born: Instant) -> Self {
        Self { id, born, bytes: Vec::new(), pieces: Vec::new(), end: None }
    }

    /// Takes a piece, unless it contradicts the others.
    fn add(&mut self, piece: &Piece<'_>) -> bool {
        let header = self.header();
        let range = piece.offset..piece.offset + piece.data.len();
        let complete = piece.last || (range.len().is_multiple_of(8) && !range.is_empty());
        let overlaps = self.pieces.iter().any(|other| range.start < other.end && other.start < range.end);
        let beyond = self.end.is_some_and(|end| piece.last || range.end > end)
            || (piece.last && self.pieces.iter().any(|other| other.end > range.end));
        if !complete || overlaps || beyond || header + range.end > LARGEST || self.pieces.len() >= PIECES {
            return false;
        }
        if piece.last {
            self.end = Some(range.end);
        }
        if self.bytes.len() < header + range.end {
            self.bytes.resize(header + range.end, 0);
        }
        self.bytes[header + range.start..header + range.end].copy_from_slice(piece.data);
        self.pieces.push(range);
        true
    }

    /// Whether all pieces are there: they do not overlap, so that their sum tells.
    fn is_whole(&self) -> bool {
        self.end == Some(self.pieces.iter().map(ExactSizeIterator::len).sum())
    }

    /// The packet, as if it had come in one piece.
    fn finish(mut self) -> Vec<u8> {
        let header = self.repr(self.bytes.len() - self.header());
        header.emit(&mut self.bytes[..], &ChecksumCapabilities::default());
        self.bytes
    }

    fn header(&self) -> usize {
        self.repr(0).header_len()
    }

    fn repr(&self, len: usize) -> IpRepr {
        IpRepr::new(self.id.from, self.id.to, self.id.protocol, len, HOPS)
    }
}

/// Cuts a packet without options into packets of at most `most` bytes, which bear a number of its own. One that is a
/// piece itself is cut into pieces of the same packet, up to where the largest packet ends: no header tells of what lies
/// beyond, and a number that wraps would make it the beginning.
pub(crate) fn cut(packet: &[u8], ident: u32, most: usize) -> Vec<Vec<u8>> {
    let is_ipv6 = packet.first().is_some_and(|first| first >> 4 == 6);
    let (length, further) = if is_ipv6 { (IPV6, FRAGMENT) } else { (IPV4, 0) };
    let (header, mut payload) = packet.split_at(length.min(packet.len()));
    let mut header = header.to_vec();
    let cut_before = if is_ipv6 { cut_before6(&mut header, &mut payload) } else { cut_before4(packet) };
    let (from, followed, ident) = cut_before.unwrap_or((0, false, ident));
    let header = header.as_slice();
    let step = (most - header.len() - further) / 8 * 8;
    let most_carried = if is_ipv6 { LARGEST } else { LARGEST - IPV4 };
    let fits = |(index, data): &(usize, &[u8])| from + index * step + data.len() <= most_carried;
    let piece = |(index, data): (usize, &[u8])| {
        let (offset, more) = (from + index * step, followed || (index + 1) * step < payload.len());
        if is_ipv6 { piece_v6(header, data, offset, more, ident) } else { piece_v4(header, data, offset, more, ident) }
    };
    payload.chunks(step).enumerate().take_while(fits).map(piece).collect()
}

/// From where in its packet a piece is, whether more follow, and their number; `None` where it is a whole.
fn cut_before4(packet: &[u8]) -> Option<(usize, bool, u32)> {
    let ip = Ipv4Packet::new_checked(packet).ok()?;
    let (from, followed) = (usize::from(ip.frag_offset()), ip.more_frags());
    (from > 0 || followed).then(|| (from, followed, ip.ident().into()))
}

/// The same of IPv6, without the header that says so.
fn cut_before6(header: &mut [u8], payload: &mut &[u8]) -> Option<(usize, bool, u32)> {
    let mut ip = Ipv6Packet::new_unchecked(header);
    let (head, rest) =
        (ip.next_header() == IpProtocol::Ipv6Frag).then(|| payload.split_at_checked(FRAGMENT)).flatten()?;
    let piece = Ipv6FragmentHeader::new_checked(head.get(2..)?).ok()?;
    ip.set_next_header(IpProtocol::from(*head.first()?));
    *payload = rest;
    Some((usize::from(piece.frag_offset()) * 8, piece.more_frags(), piece.ident()))
}

fn piece_v4(header: &[u8], data: &[u8], offset: usize, more: bool, ident: u32) -> Vec<u8> {
    let mut piece = [header, data].concat();
    let [_, _, high, low] = ident.to_be_bytes();
    let mut ip = Ipv4Packet::new_unchecked(&mut piece[..]);
    ip.set_total_len(u16::try_from(IPV4 + data.len()).unwrap_or(u16::MAX));
    ip.set_ident(u16::from_be_bytes([high, low]));
    ip.set_dont_frag(false);
    ip.set_more_frags(more);
    ip.set_frag_offset(u16::try_from(offset).unwrap_or(u16::MAX));
    ip.fill_checksum();
    piece
}

fn piece_v6(header: &[u8], data: &[u8], offset: usize, more: bool, ident: u32) -> Vec<u8> {
    let mut fragment = [0; FRAGMENT];
    let mut piece = [header, &fragment, data].concat();
    let mut ip = Ipv6Packet::new_unchecked(&mut piece[..]);
    fragment[0] = ip.next_header().into();
    ip.set_next_header(IpProtocol::Ipv6Frag);
    ip.set_payload_len(u16::try_from(FRAGMENT + data.len()).unwrap_or(u16::MAX));
    let mut head = Ipv6FragmentHeader::new_unchecked(&mut fragment[2..]);
    // The offset counts in eights.
    head.set_frag_offset(u16::try_from(offset / 8).unwrap_or(u16::MAX));
    head.set_more_frags(more);
    head.set_ident(ident);
    piece[IPV6..IPV6 + FRAGMENT].copy_from_slice(&fragment);
    piece
}

#[cfg(test)]
#[path = "fragments_tests.rs"]
mod tests;
