//! Addresses that VMs have one of each, as an operator names them: ranges, networks and single ones, in their order.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Most ranges that a host may have.
pub const MAX_RANGES: usize = 1024;

/// Ranges of addresses, which VMs are given in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Pool(Vec<Range>);

/// From an address to another one of the same family, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    first: IpAddr,
    last: IpAddr,
}

impl Pool {
    /// Reads ranges as they are written.
    ///
    /// # Errors
    /// One is none, or two have an address in common, or there are none at all, or more than [`MAX_RANGES`]; for the
    /// operator.
    pub fn read<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let ranges = texts.into_iter().take(MAX_RANGES + 1).map(str::parse).collect::<Result<Vec<Range>, _>>()?;
        if ranges.len() > MAX_RANGES {
            return Err(format!("there are more than {MAX_RANGES} ranges; write larger ones"));
        }
        let overlap = |(index, range): (usize, &Range)| {
            ranges
                .iter()
                .skip(index + 1)
                .find(|other| range.overlaps(other))
                .map(|other| format!("{range} and {other}"))
        };
        if let Some(both) = ranges.iter().enumerate().find_map(overlap) {
            return Err(format!("{both} have addresses in common"));
        }
        if ranges.is_empty() { Err("there are none".into()) } else { Ok(Self(ranges)) }
    }

    /// The ranges.
    pub fn ranges(&self) -> &[Range] {
        &self.0
    }

    /// Whether an address is one of them.
    pub fn has(&self, address: IpAddr) -> bool {
        self.0.iter().any(|range| range.has(address))
    }

    /// Every address, in order.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.0.iter().flat_map(|range| range.addresses())
    }
}

impl TryFrom<Vec<String>> for Pool {
    type Error = String;

    fn try_from(texts: Vec<String>) -> Result<Self, String> {
        Self::read(texts.iter().map(String::as_str))
    }
}

impl From<Pool> for Vec<String> {
    fn from(pool: Pool) -> Self {
        pool.0.iter().map(ToString::to_string).collect()
    }
}

impl Range {
    /// The first address.
    pub const fn first(&self) -> IpAddr {
        self.first
    }

    /// The last address, of the same family.
    pub const fn last(&self) -> IpAddr {
        self.last
    }

    fn has(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.first.is_ipv4() && (self.first..=self.last).contains(&address)
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.has(other.first) || other.has(self.first)
    }

    fn addresses(self) -> Box<dyn Iterator<Item = IpAddr>> {
        match (self.first, self.last) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                Box::new((first.to_bits()..=last.to_bits()).map(|bits| Ipv4Addr::from_bits(bits).into()))
            }
            (IpAddr::V6(first), IpAddr::V6(last)) => {
                Box::new((first.to_bits()..=last.to_bits()).map(|bits| Ipv6Addr::from_bits(bits).into()))
            }
            _ => Box::new(std::iter::empty()),
        }
    }
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("'{text}' is no address, no network like 192.0.2.0/28 and no range like 192.0.2.1-192.0.2.9");
        let range = if let Ok(network) = text.parse::<IpNet>() {
            if network != network.trunc() {
                return Err(format!("{network} has bits set behind its prefix: write {}", network.trunc()));
            }
            Self { first: network.network(), last: network.broadcast() }
        } else {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let address = |text: &str| text.trim().parse().map_err(|_| wrong());
            Self { first: address(first)?, last: address(last)? }
        };
        if range.first.is_ipv4() != range.last.is_ipv4() {
            return Err(wrong());
        }
        if range.first > range.last {
            return Err(format!("'{text}' ends before it begins"));
        }
        let is_nobodys = |address: IpAddr| address.is_unspecified() || address.is_multicast();
        if is_nobodys(range.first) || is_nobodys(range.last) {
            return Err(format!("'{text}' has addresses that are no machine's"));
        }
        Ok(range)
    }
}

impl core::fmt::Display for Range {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.first == self.last { self.first.fmt(f) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(texts: &[&str]) -> Result<Pool, String> {
        Pool::read(texts.iter().copied())
    }

    #[test]
    fn addresses_come_in_the_order_in_which_they_are_named() {
        let pool = pool(&["192.0.2.9", "198.51.100.0/30", "192.0.2.1-192.0.2.2", "2001:db8::/126"]).unwrap();
        let all: Vec<String> = pool.addresses().map(|address| address.to_string()).collect();
        let v4 =
            ["192.0.2.9", "198.51.100.0", "198.51.100.1", "198.51.100.2", "198.51.100.3", "192.0.2.1", "192.0.2.2"];
        assert_eq!(all, [&v4[..], &["2001:db8::", "2001:db8::1", "2001:db8::2", "2001:db8::3"]].concat());
        assert!(pool.addresses().all(|address| pool.has(address)));
        for other in ["192.0.2.3", "192.0.2.8", "198.51.100.4", "2001:db8::4", "::"] {
            assert!(!pool.has(other.parse().unwrap()), "{other}");
        }
        // As many as there are, nobody counts.
        let wide = Pool::read(["2001:db8::/32"]).unwrap();
        assert_eq!(wide.addresses().nth(1).map(|address| address.to_string()), Some("2001:db8::1".into()));
    }

    #[test]
    fn a_host_has_so_many_ranges_and_no_more() {
        let single = |number: usize| format!("2001:db8::{number:x}");
        let all: Vec<String> = (0..=MAX_RANGES).map(single).collect();
        assert_eq!(Pool::try_from(all[..MAX_RANGES].to_vec()).unwrap().ranges().len(), MAX_RANGES);
        assert!(Pool::try_from(all).unwrap_err().contains("more than 1024 ranges"));
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for (texts, why) in [
            (&[][..], "there are none"),
            (&["192.0.2.1/24"], "write 192.0.2.0/24"),
            (&["example.org"], "no address"),
            (&["192.0.2.9-192.0.2.1"], "ends before"),
            (&["192.0.2.9-2001:db8::1"], "no address"),
            (&["0.0.0.0"], "no machine's"),
            (&["224.0.0.0/24"], "no machine's"),
            (&["192.0.2.0/24", "192.0.2.255"], "in common"),
            (&["192.0.2.7", "192.0.2.7"], "in common"),
        ] {
            let refused = pool(texts).unwrap_err();
            assert!(refused.contains(why), "{texts:?}: {refused}");
        }
    }
}
