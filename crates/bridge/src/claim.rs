//! Whose a bridge is: its device bears the folder of the service that made it (`ip link show berth0` shows it as `alias`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::folder::Folder;
use crate::link::Device;
use crate::settings::Settings;

/// What the mark begins with, and most bytes of it (Linux, `IFALIASZ`, with its end).
const PREFIX: &str = "berth ";
const LONGEST: usize = 255;

/// Whose a bridge is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Nobody's: there is no such device.
    Absent,
    /// This folder's.
    Own,
    /// A bridge that says of nobody whose it is.
    Unmarked,
    /// Somebody else's, as it says itself.
    Others(String),
}

/// What the device of a bridge says of a folder. One that is no bridge is refused.
pub(crate) fn of(devices: &BTreeMap<String, Device>, settings: &Settings, mark: &str) -> Result<Claim> {
    let name = &settings.name;
    let Some(device) = devices.get(name) else { return Ok(Claim::Absent) };
    if device.kind != "bridge" {
        return Err(Error::Missing(format!("{name} is a {} of this host; give the bridge another name", device.kind)));
    }
    Ok(match &device.alias {
        None => Claim::Unmarked,
        Some(alias) if alias == mark => Claim::Own,
        Some(alias) => Claim::Others(alias.strip_prefix(PREFIX).unwrap_or(alias).to_owned()),
    })
}

impl Claim {
    /// Whether the bridge may be changed. What bears no mark may be where the folder says that it made it, since the mark
    /// follows once the device is there.
    pub(crate) fn allow(self, settings: &Settings, has_noted: bool) -> Result<()> {
        let name = &settings.name;
        let whose = match self {
            Self::Absent | Self::Own => return Ok(()),
            Self::Unmarked if has_noted => return Ok(()),
            Self::Unmarked => "somebody else made".to_owned(),
            Self::Others(folder) => format!("the service of {folder} made"),
        };
        Err(Error::Missing(format!(
            "{name} is a bridge of this host that {whose}; set network.bridge and network.subnet (and network.subnet6), or, \
             where nobody needs it any more, type: sudo ip link delete {name}"
        )))
    }
}

/// The mark of a folder. Of a long path the end is what tells it from others.
pub(crate) fn mark(folder: &Folder) -> String {
    of_path(&whole(folder.path()))
}

fn whole(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

fn of_path(path: &Path) -> String {
    let path = path.to_string_lossy();
    let from = path.len().saturating_sub(LONGEST - PREFIX.len());
    let from = (from..=path.len()).find(|at| path.is_char_boundary(*at)).unwrap_or_default();
    format!("{PREFIX}{}", &path[from..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_fits_the_kernel_and_ends_as_the_path_does() {
        assert_eq!(of_path(Path::new("/var/lib/berth/bridge")), "berth /var/lib/berth/bridge");
        for (length, expected) in [(248, 6 + 249), (249, 255), (250, 255), (4000, 255)] {
            let path = format!("/{}", "a".repeat(length));
            assert_eq!(of_path(Path::new(&path)).len(), expected, "{length}");
        }
        let wide = of_path(Path::new(&"ü".repeat(200)));
        assert!((254..=255).contains(&wide.len()) && wide.ends_with('ü'), "{wide}");
    }
}
