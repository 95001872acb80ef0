//! Where a request comes from: the address that limits count, sessions keep and records name.
//!
//! The address is the connection's peer. If the peer is a proxy that the operator trusts (`[http] trusted_proxies`),
//! the service reads the headers in which proxies write the address of their own peer: `X-Forwarded-For`, and
//! `Forwarded` (RFC 7239). It reads both from the right end, where the nearest proxy wrote, past every trusted proxy.
//! The first other address is the client; the client may have made up what is further left, so nothing reads that.
//!
//! A client could add the header that the proxy does not write, in order to choose its address. So where both headers
//! name different clients, or a proxy wrote something unreadable, the address is unknown. It does not become the
//! proxy's: the proxy's network may have rights that its clients lack.
//!
//! A proxy that is not configured is a peer like others, and all its clients count as one. So the log mentions the
//! first such header of an untrusted peer.

use std::convert::Infallible;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use axum::extract::{ConnectInfo, FromRequestParts, Request};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use ipnet::IpNet;

/// The client's address, in the extensions of every request that came over a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAddress {
    /// This one.
    At(IpAddr),
    /// Unknown: the request came over no connection, or its headers contradict each other.
    #[default]
    Unknown,
}

impl<S: Send + Sync> FromRequestParts<S> for ClientAddress {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().copied().unwrap_or_default())
    }
}

impl ClientAddress {
    /// The address, if it is known.
    pub const fn known(self) -> Option<IpAddr> {
        match self {
            Self::At(address) => Some(address),
            Self::Unknown => None,
        }
    }

    /// The network that limits count.
    pub fn network(self) -> ClientNetwork {
        self.known().into()
    }
}

/// What limits count as one: an IPv4 address; an IPv6 /64, which one customer has whole; and all unknown addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientNetwork(Option<IpAddr>);

impl ClientNetwork {
    /// The network of an address. An IPv4 address in IPv6 form counts as IPv4.
    pub fn of(address: IpAddr) -> Self {
        Self(Some(match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64))),
            address @ IpAddr::V4(_) => address,
        }))
    }
}

/// The network of a request whose address may be known.
impl From<Option<IpAddr>> for ClientNetwork {
    fn from(address: Option<IpAddr>) -> Self {
        address.map_or(Self(None), Self::of)
    }
}

impl fmt::Display for ClientNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(IpAddr::V4(address)) => write!(f, "{address}"),
            Some(IpAddr::V6(address)) => write!(f, "{address}/64"),
            None => f.write_str("unknown"),
        }
    }
}

/// The header with a list of addresses; each proxy adds that of its peer.
const LISTED: &str = "x-forwarded-for";
const FORWARDED: &str = "forwarded";
/// Number of peers whose ignored headers the log mentions: strangers may be among them.
const PEERS: usize = 16;

/// The proxies whose headers count.
#[derive(Debug, Default)]
pub struct TrustedProxies {
    networks: Vec<IpNet>,
    /// Untrusted peers whose headers the log has mentioned.
    warned: Mutex<Vec<IpAddr>>,
    /// Whether the log mentions no more of them.
    silent: AtomicBool,
}

/// A hop of a header: an address, or something unreadable.
type Hop = Option<IpAddr>;

impl TrustedProxies {
    /// Proxies in these networks.
    pub const fn new(networks: Vec<IpNet>) -> Self {
        Self { networks, warned: Mutex::new(Vec::new()), silent: AtomicBool::new(false) }
    }

    /// The client of a request; unknown where it came over no connection.
    pub fn sender(&self, request: &Request) -> ClientAddress {
        let peer = request.extensions().get().map(|ConnectInfo(peer): &ConnectInfo<SocketAddr>| peer.ip());
        peer.map(|peer| self.client(peer, request.headers())).unwrap_or_default()
    }

    /// The client of a request that came from a peer with these headers.
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> ClientAddress {
        let peer = peer.to_canonical();
        if !self.holds(peer) {
            self.warn(peer, headers);
            return ClientAddress::At(peer);
        }
        let listed = joined(headers, LISTED).map(|text| listed(&text));
        let forwarded = joined(headers, FORWARDED).map(|text| forwarded(&text));
        // A list without a hop says nothing.
        let walk = |hops: Option<Vec<Hop>>| hops.filter(|hops| !hops.is_empty()).map(|hops| self.walk(peer, &hops));
        match (walk(listed), walk(forwarded)) {
            (Some(one), Some(other)) if one != other => ClientAddress::Unknown,
            (Some(one), _) | (None, Some(one)) => one.map_or(ClientAddress::Unknown, ClientAddress::At),
            (None, None) => ClientAddress::At(peer),
        }
    }

    /// Logs that an untrusted peer names others, once for each of the first [`PEERS`] peers.
    fn warn(&self, peer: IpAddr, headers: &HeaderMap) {
        if self.silent.load(Ordering::Relaxed) {
            return;
        }
        let Some(header) = [LISTED, FORWARDED].into_iter().find(|name| headers.contains_key(*name)) else { return };
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.len() >= PEERS || warned.contains(&peer) {
            return;
        }
        warned.push(peer);
        self.silent.store(warned.len() >= PEERS, Ordering::Relaxed);
        drop(warned);
        tracing::warn!(
            %peer,
            header,
            "a request names its sender in a header that is not believed, because its peer is not in [http] \
             trusted_proxies; if the peer is your proxy, add its address there: until then all behind it count as one. \
             This is told once of each of the first {PEERS} peers"
        );
    }

    fn holds(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(&address))
    }

    /// Walks from the right, past trusted proxies; `None` where one of them wrote something unreadable.
    fn walk(&self, peer: IpAddr, hops: &[Hop]) -> Hop {
        let mut client = peer;
        for hop in hops.iter().rev() {
            if !self.holds(client) {
                break;
            }
            client = (*hop)?;
        }
        Some(client)
    }
}

fn unreadable() -> Vec<Hop> {
    vec![None]
}

/// All lines of a header as one list (RFC 9110, 5.3), if there are any. Invalid text becomes an unreadable hop.
fn joined(headers: &HeaderMap, name: &str) -> Option<String> {
    let lines = headers.get_all(name).iter();
    let texts: Vec<_> = lines.map(|line| String::from_utf8_lossy(line.as_bytes())).collect();
    (!texts.is_empty()).then(|| texts.join(","))
}

/// The hops of `X-Forwarded-For`.
fn listed(text: &str) -> Vec<Hop> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(node).collect()
}

/// An address as proxies write it: plain or in brackets, with a port or without.
fn node(text: &str) -> Hop {
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    let with_port = || text.parse::<SocketAddr>().ok().map(|socket| socket.ip());
    text.parse().ok().or_else(bracketed).or_else(with_port).map(|address: IpAddr| address.to_canonical())
}

/// The hops of `Forwarded`; one unreadable hop where the header breaks RFC 7239's grammar.
fn forwarded(text: &str) -> Vec<Hop> {
    let mut scan = Scan(text);
    let mut hops = Vec::new();
    loop {
        match scan.element() {
            Some(Element::Hop(hop)) => hops.push(hop),
            Some(Element::Empty) => {}
            None => return unreadable(),
        }
        if scan.0.is_empty() {
            return hops;
        }
        if !scan.takes(',') {
            return unreadable();
        }
    }
}

/// An element of `Forwarded`.
enum Element {
    /// An element with parameters; the hop is its `for`.
    Hop(Hop),
    /// An empty element, which lists may have (RFC 9110, 5.6.1).
    Empty,
}

/// The rest of a header.
struct Scan<'a>(&'a str);

impl<'a> Scan<'a> {
    fn takes(&mut self, character: char) -> bool {
        let rest = self.0.strip_prefix(character);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn skip_space(&mut self) {
        self.0 = self.0.trim_start_matches([' ', '\t']);
    }

    fn token(&mut self) -> Option<&'a str> {
        let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        let (found, rest) = self.0.split_at(self.0.find(|c| !token(c)).unwrap_or(self.0.len()));
        self.0 = rest;
        (!found.is_empty()).then_some(found)
    }

    /// A string behind its opening quote.
    fn quoted(&mut self) -> Option<String> {
        let mut text = String::new();
        let mut characters = self.0.chars();
        loop {
            match characters.next()? {
                '"' => break,
                '\\' => text.push(characters.next()?),
                c => text.push(c),
            }
        }
        self.0 = characters.as_str();
        Some(text)
    }

    /// The parameters up to a comma or the end; `None` where they break the grammar.
    fn element(&mut self) -> Option<Element> {
        let (mut hop, mut named, mut pairs) = (None, false, 0);
        loop {
            self.skip_space();
            if self.takes(';') {
                continue;
            }
            if self.0.is_empty() || self.0.starts_with(',') {
                return Some(if pairs == 0 { Element::Empty } else { Element::Hop(hop) });
            }
            let name = self.token()?;
            if !self.takes('=') {
                return None;
            }
            let value = if self.takes('"') { self.quoted()? } else { self.token()?.to_owned() };
            pairs += 1;
            if name.eq_ignore_ascii_case("for") {
                if std::mem::replace(&mut named, true) {
                    return None;
                }
                hop = node(&value);
            }
            self.skip_space();
            if !(self.0.is_empty() || self.0.starts_with([',', ';'])) {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::{Arc, Mutex};

    use axum::http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;

    const PROXY: &str = "10.0.0.1";
    const UNKNOWN: &str = "unknown";

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).unwrap())
        };
        lines.iter().map(line).collect()
    }

    fn trusted() -> TrustedProxies {
        TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap(), "2001:db8:ff::/48".parse().unwrap()])
    }

    fn client(peer: &str, lines: &[(&'static str, &str)]) -> String {
        trusted().client(address(peer), &headers(lines)).known().map_or(UNKNOWN.to_owned(), |found| found.to_string())
    }

    #[test]
    fn who_is_not_trusted_says_nothing() {
        let told = [("x-forwarded-for", "192.0.2.7"), ("forwarded", "for=192.0.2.7")];
        for peer in ["127.0.0.1", "11.0.0.1", "::1"] {
            assert_eq!(client(peer, &told), peer);
            assert_eq!(TrustedProxies::default().client(address(peer), &headers(&told)).known(), Some(address(peer)));
        }
        assert_eq!(client("::ffff:11.0.0.1", &told), "11.0.0.1");
        assert_eq!(client("::ffff:10.0.0.1", &told), "192.0.2.7");
    }

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn proxies_that_are_not_trusted_are_told_of_once() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_env_filter("warn").with_writer(move || writer.clone()).finish();
        // With a single subscriber, the first caller here would decide for good whether it is asked.
        let _another = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
        let _subscribed = tracing::subscriber::set_default(subscriber);
        let proxies = trusted();
        let lines = || {
            let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
            text.lines().filter(|line| line.contains("trusted_proxies")).map(str::to_owned).collect::<Vec<_>>()
        };
        let told = [("x-forwarded-for", "192.0.2.7")];
        proxies.client(address(PROXY), &headers(&told));
        proxies.client(address("127.0.0.1"), &headers(&[("host", "x")]));
        assert!(lines().is_empty(), "nobody is named whom one does not believe");
        proxies.client(address("127.0.0.1"), &headers(&[("forwarded", "for=192.0.2.7")]));
        proxies.client(address("127.0.0.1"), &headers(&told));
        let first = lines();
        assert!(first.len() == 1 && first[0].contains("WARN") && first[0].contains("127.0.0.1"), "{first:?}");
        for last in 2..=PEERS + 1 {
            proxies.client(address(&format!("127.0.0.{last}")), &headers(&told));
        }
        assert_eq!(lines().len(), PEERS, "and then no more");
    }

    #[test]
    fn the_walk_begins_on_the_right_and_ends_at_the_first_who_is_not_trusted() {
        for (list, found) in [
            ("192.0.2.7", "192.0.2.7"),
            ("6.6.6.6, 192.0.2.7", "192.0.2.7"),
            ("6.6.6.6, 192.0.2.7, 10.1.1.1,2001:db8:ff::1", "192.0.2.7"),
            ("10.3.3.3, 10.2.2.2", "10.3.3.3"),
            ("192.0.2.7:4711", "192.0.2.7"),
            ("[2001:db8::7]:4711", "2001:db8::7"),
            ("[2001:db8::7]", "2001:db8::7"),
            ("2001:db8::7", "2001:db8::7"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("garbage, 192.0.2.7, 10.2.2.2", "192.0.2.7"),
            ("192.0.2.7, garbage, 10.2.2.2", UNKNOWN),
            ("192.0.2.7, unknown", UNKNOWN),
            ("192.0.2.07", UNKNOWN),
            ("", PROXY),
            (" , ", PROXY),
        ] {
            assert_eq!(client(PROXY, &[("x-forwarded-for", list)]), found, "{list}");
        }
        let lines = [("x-forwarded-for", "6.6.6.6"), ("x-forwarded-for", "192.0.2.7")];
        assert_eq!(client(PROXY, &lines), "192.0.2.7", "several lines are one list");
        assert_eq!(client(PROXY, &[("x-forwarded-for", "192.0.2.7, \u{e4}")]), UNKNOWN, "no text");
    }

    #[test]
    fn rfc_7239_is_read_as_it_is_written_there() {
        for (text, found) in [
            ("for=192.0.2.60;proto=http;by=203.0.113.43", "192.0.2.60"),
            ("For=\"[2001:db8:cafe::17]:4711\"", "2001:db8:cafe::17"),
            ("for=6.6.6.6, for=192.0.2.43;by=10.0.0.9 , for=10.9.9.9", "192.0.2.43"),
            ("proto=https;FOR=\"192.0.2.43:80\"", "192.0.2.43"),
            (r#"for=192.0.2.43;host="a,for=6.6.6.6;\"b""#, "192.0.2.43"),
            (",for=192.0.2.43;;, ,", "192.0.2.43"),
            ("for=unknown, for=192.0.2.43", "192.0.2.43"),
            ("for=unknown", UNKNOWN),
            ("for=_hidden, for=10.4.4.4", UNKNOWN),
            ("by=10.0.0.9", UNKNOWN),
            ("for=192.0.2.43;for=6.6.6.6", UNKNOWN),
            ("for=192.0.2.43;x", UNKNOWN),
            ("for=[2001:db8::1]", UNKNOWN),
            ("for=\"192.0.2.43", UNKNOWN),
            ("for=192.0.2.43 for=6.6.6.6", UNKNOWN),
            ("for = 192.0.2.43", UNKNOWN),
            ("", PROXY),
            (" , ", PROXY),
        ] {
            assert_eq!(client(PROXY, &[("forwarded", text)]), found, "{text}");
        }
    }

    #[test]
    fn of_two_headers_that_differ_neither_counts() {
        let both = |list, forwarded| client(PROXY, &[("x-forwarded-for", list), ("forwarded", forwarded)]);
        assert_eq!(both("192.0.2.7", "for=192.0.2.7"), "192.0.2.7");
        assert_eq!(both("192.0.2.7", ""), "192.0.2.7", "one that says nothing does not differ");
        assert_eq!(both("192.0.2.7", "for=6.6.6.6"), UNKNOWN);
        assert_eq!(both("6.6.6.6", "for=\"broken"), UNKNOWN);
        assert_eq!(both("6.6.6.6", "for=unknown"), UNKNOWN);
    }

    #[test]
    fn limits_count_an_address_of_ipv4_and_64_bits_of_ipv6() {
        let same = |one: &str, other: &str| ClientNetwork::of(address(one)) == ClientNetwork::of(address(other));
        assert!(same("192.0.2.1", "::ffff:192.0.2.1") && !same("192.0.2.1", "192.0.2.2"));
        assert!(same("2001:db8:0:1::", "2001:db8:0:1:ffff:ffff:ffff:ffff"));
        assert!(!same("2001:db8:0:1::", "2001:db8:0:2::"));
        assert_eq!(ClientNetwork::of(address("2001:db8:0:1::5")).to_string(), "2001:db8:0:1::/64");
        assert_eq!(ClientNetwork::of(address("192.0.2.1")).to_string(), "192.0.2.1");
        assert_eq!(ClientAddress::Unknown.network(), ClientAddress::default().network());
        assert_ne!(ClientAddress::Unknown.network(), ClientAddress::At(Ipv4Addr::UNSPECIFIED.into()).network());
    }

    proptest! {
        #[test]
        fn nothing_that_a_client_writes_moves_its_own_address(own in "[ -~]{0,60}", chain in 0_usize..4) {
            // Every proxy adds its peer at the right end.
            let mut hops = vec!["192.0.2.7".to_owned()];
            hops.extend((0..chain).map(|n| format!("10.0.1.{n}")));
            let list = format!("{own}, {}", hops.join(", "));
            let found = trusted().client(address(PROXY), &headers(&[("x-forwarded-for", &list)])).known();
            prop_assert_eq!(found, Some(address("192.0.2.7")));
            // Here the client's text may break the whole header: then its address is unknown, never one that it chose.
            let elements: Vec<String> = hops.iter().map(|hop| format!("for={hop}")).collect();
            let text = format!("{own}, {}", elements.join(", "));
            let found = trusted().client(address(PROXY), &headers(&[("forwarded", &text)])).known();
            let breaks = forwarded(&own).contains(&None);
            prop_assert!(found == Some(address("192.0.2.7")) || breaks && found.is_none(), "{:?}", found);
        }

        #[test]
        fn every_address_is_read_in_each_of_its_forms(bits in any::<u128>(), port in any::<u16>()) {
            let v6 = Ipv6Addr::from_bits(bits);
            #[expect(clippy::cast_possible_truncation, reason = "any 32 bits will do")]
            let v4 = Ipv4Addr::from_bits(bits as u32);
            for (text, expected) in [
                (v4.to_string(), IpAddr::V4(v4)),
                (format!("{v4}:{port}"), IpAddr::V4(v4)),
                (v6.to_string(), IpAddr::V6(v6)),
                (format!("[{v6}]"), IpAddr::V6(v6)),
                (format!("[{v6}]:{port}"), IpAddr::V6(v6)),
            ] {
                prop_assert_eq!(node(&text), Some(expected.to_canonical()));
                prop_assert_eq!(forwarded(&format!("for=\"{text}\"")), vec![Some(expected.to_canonical())]);
            }
        }
    }
}
