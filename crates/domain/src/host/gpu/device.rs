//! What of a GPU a machine has: a whole function, or a part that the GPU's driver makes.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::PciAddress;

/// The longest name of a kind of parts: a driver's and the kind's (Linux, `Documentation/driver-api/vfio-mediated-device.rst`,
/// `[<type-id>]`).
const LONGEST: usize = 64;

/// What a machine has for itself of a host's GPUs.
///
/// As text it is the address of a function, `0000:01:00.0`; of a part also its kind and, where it has one, its UUID:
/// `0000:41:00.0/nvidia-474/0190…`, `0000:41:00.4/1414`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Device {
    /// A function, whole.
    Function(PciAddress),
    /// A part of a GPU.
    Part(Part),
}

/// A part of a GPU, which its driver makes when it is asked to and takes away again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Part {
    /// The function that is asked for it.
    pub at: PciAddress,
    /// Which kind, as the driver calls it.
    pub kind: KindId,
    /// What it is called, if it is a mediated device. Of others a function has one at most.
    pub uuid: Option<Uuid>,
}

/// What a driver calls a kind of parts: `nvidia-474`, `i915-GVTg_V5_4`, `1414`. Letters, digits, hyphens and underscores,
/// 64 at most, so that it is a name in a folder.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct KindId(String);

impl KindId {
    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Device {
    /// What no two machines have at a time: the function, or the UUID of a mediated device.
    pub fn key(&self) -> String {
        match self {
            Self::Part(Part { uuid: Some(uuid), .. }) => uuid.to_string(),
            Self::Function(at) | Self::Part(Part { at, .. }) => at.to_string(),
        }
    }

    /// The function, if it is a whole one.
    pub const fn function(&self) -> Option<PciAddress> {
        if let Self::Function(at) = self { Some(*at) } else { None }
    }

    /// The part, if it is one.
    pub const fn part(&self) -> Option<&Part> {
        if let Self::Part(part) = self { Some(part) } else { None }
    }
}

impl From<PciAddress> for Device {
    fn from(at: PciAddress) -> Self {
        Self::Function(at)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Function(at) => at.fmt(f),
            Self::Part(part) => part.fmt(f),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.at, self.kind)?;
        self.uuid.map_or(Ok(()), |uuid| write!(f, "/{uuid}"))
    }
}

impl fmt::Display for KindId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for KindId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_good = text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
        if is_good && (1..=LONGEST).contains(&text.len()) {
            return Ok(Self(text.to_owned()));
        }
        Err(format!("'{text}' is no kind of parts of a GPU like nvidia-474"))
    }
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split('/');
        let at = words.next().unwrap_or_default().parse()?;
        let Some(kind) = words.next() else { return Ok(Self::Function(at)) };
        let uuid = |text: &str| {
            let wrong = || format!("'{text}' is no UUID of a part of a GPU");
            Some(text).filter(|text| text.len() == 36).and_then(|text| text.parse().ok()).ok_or_else(wrong)
        };
        let part = Part { at, kind: kind.parse()?, uuid: words.next().map(uuid).transpose()? };
        if words.next().is_some() {
            return Err(format!("'{text}' is no part of a GPU like 0000:41:00.4/1414"));
        }
        Ok(Self::Part(part))
    }
}

macro_rules! as_text {
    ($($name:ident),*) => {$(
        impl From<$name> for String {
            fn from(of: $name) -> Self {
                of.to_string()
            }
        }

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }
    )*};
}

as_text! { Device, KindId }

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "0190a1b2-c3d4-7000-8000-000000000001";

    #[test]
    fn a_device_is_written_as_it_is_read() {
        let mediated = format!("0000:41:00.0/nvidia-474/{UUID}");
        for (text, key) in
            [("0000:01:00.0", "0000:01:00.0"), ("0000:41:00.4/1414", "0000:41:00.4"), (mediated.as_str(), UUID)]
        {
            let device: Device = text.parse().unwrap();
            assert_eq!((device.to_string().as_str(), device.key().as_str()), (text, key));
            let json = serde_json::to_string(&device).unwrap();
            assert_eq!(
                (json.as_str(), serde_json::from_str(&json).ok()),
                (format!("\"{text}\"").as_str(), Some(device))
            );
        }
        for bad in [
            "",
            "0000:41:00.0/",
            "0000:41:00.0/..",
            "0000:41:00.0/a.b",
            "/nvidia-474",
            "0000:41:00.0/nvidia-474/",
            "0000:41:00.0/nvidia-474/0190a1b2c3d470008000000000000001",
            &format!("{mediated}/more"),
        ] {
            assert!(bad.parse::<Device>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_name_of_a_kind_is_not_too_long() {
        assert!("k".repeat(LONGEST).parse::<KindId>().is_ok());
        assert!("k".repeat(LONGEST + 1).parse::<KindId>().is_err());
    }
}
