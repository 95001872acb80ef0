//! Protocols by their numbers (IANA, Protocol Numbers): a host without `/etc/protocols` knows no names, and its `nft` none either.

pub(super) const ICMP: &str = "1";
pub(super) const TCP: &str = "6";
pub(super) const UDP: &str = "17";
pub(super) const ICMPV6: &str = "58";
