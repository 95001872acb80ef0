//! Where a function of a device is on a host's PCI buses.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

/// The address of a PCI function, as sysfs names it: `0000:01:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl PciAddress {
    /// Whether another function is one of the same device, as the sound of a graphics card is.
    pub const fn is_beside(self, other: Self) -> bool {
        self.domain == other.domain && self.bus == other.bus && self.device == other.device
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl FromStr for PciAddress {
    type Err = String;

    /// Domains have four digits or more; a bus has 32 devices of 8 functions.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is no address of a PCI function like 0000:01:00.0");
        let mut parts = text.split(':');
        let (Some(domain), Some(bus), Some(rest), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(wrong());
        };
        let (device, function) = rest.split_once('.').ok_or_else(wrong)?;
        let hex = |digits: &str, length: core::ops::RangeInclusive<usize>, most: u32| {
            let is_hex = digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            let number = u32::from_str_radix(digits, 16).ok().filter(|number| *number <= most);
            number.filter(|_| is_hex && length.contains(&digits.len())).ok_or_else(wrong)
        };
        let small = |number: u32| u8::try_from(number).map_err(|_| wrong());
        Ok(Self {
            domain: hex(domain, 4..=8, u32::MAX)?,
            bus: small(hex(bus, 2..=2, 0xff)?)?,
            device: small(hex(device, 2..=2, 0x1f)?)?,
            function: small(hex(function, 1..=1, 7)?)?,
        })
    }
}

impl From<PciAddress> for String {
    fn from(address: PciAddress) -> Self {
        address.to_string()
    }
}

impl TryFrom<String> for PciAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}
