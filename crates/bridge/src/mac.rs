//! Link addresses.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The link address of a card, written `52:54:00:62:00:07`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Whether it is one card's: neither a group's nor nobody's.
    pub(crate) const fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0 && !matches!(self.0, [0, 0, 0, 0, 0, 0])
    }

    /// The address on the link that follows from it (RFC 4291, appendix A).
    pub(crate) fn link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }

    /// What an address on the link follows from; none where it does not.
    pub(crate) fn of_link_local(address: Ipv6Addr) -> Option<Self> {
        let [.., a, b, c, _, _, d, e, f] = address.octets();
        let mac = Self([a ^ 2, b, c, d, e, f]);
        (mac.link_local() == address).then_some(mac)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is no link address such as 52:54:00:62:00:07");
        let byte =
            |part: &str| Some(part).filter(|part| part.len() == 2).and_then(|part| u8::from_str_radix(part, 16).ok());
        let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
        bytes.and_then(|bytes| bytes.try_into().ok()).map(Self).ok_or_else(wrong)
    }
}

impl TryFrom<String> for Mac {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Mac> for String {
    fn from(mac: Mac) -> Self {
        mac.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written() {
        let mac = Mac([0x52, 0x54, 0, 0x62, 0, 7]);
        assert_eq!(mac.to_string().parse(), Ok(mac));
        for wrong in
            ["", "52:54:00:62:00", "52:54:00:62:00:07:08", "52:54:0:62:00:07", "52:54:00:62:00:0g", "52-54-00-62-00-07"]
        {
            assert!(wrong.parse::<Mac>().is_err(), "{wrong}");
        }
        assert_eq!(mac.link_local(), "fe80::5054:ff:fe62:7".parse::<Ipv6Addr>().unwrap());
        assert_eq!(Mac::of_link_local(mac.link_local()), Some(mac));
        for other in ["fe80::5054:ff:ff62:7", "fd80::5054:ff:fe62:7", "fe80:1::5054:ff:fe62:7", "fe80::1"] {
            assert_eq!(Mac::of_link_local(other.parse().unwrap()), None, "{other}");
        }
        assert!(mac.is_unicast() && !Mac([0; 6]).is_unicast() && !Mac([1, 0, 0, 0, 0, 1]).is_unicast());
    }
}
