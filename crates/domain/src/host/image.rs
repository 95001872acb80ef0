//! Images of VMs, as a host has them and takes them in.

use serde::{Deserialize, Serialize};

use uuid::Uuid;

use crate::Timestamp;
use crate::ids::{DiskSnapshotId, ImageId};
use crate::names::Slug;
use crate::vm::image::Import;

/// Most files that an image has: its description, a disk, a kernel and an initrd, and room for more.
pub const MAX_FILES: usize = 8;

/// An image as the engine has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageInfo {
    /// Its id.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// Operating system.
    pub os: String,
    /// Content hash of what it was made from.
    pub version: String,
    /// The user that SSH keys are installed for.
    pub login_user: String,
    /// Size its disk has for a guest, in bytes.
    pub virtual_size: i64,
    /// Least memory it boots with, in MiB.
    pub min_memory_mb: i64,
}

/// A foreign image to take in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImageImport {
    /// The id it gets.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// The user that SSH keys are installed for.
    pub login_user: String,
    /// What its content has to hash to, in hexadecimal.
    pub sha256: Option<String>,
    /// Whether it boots by UEFI rather than BIOS.
    pub uefi: bool,
    /// The slot of its conversion, from 0.
    pub conversion: u32,
}

/// A project's image to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageOfSnapshot {
    /// Its id: what it is called on the host.
    pub id: ImageId,
    /// Name for people.
    pub name: String,
    /// The snapshot of a root disk that it is made of.
    pub snapshot: DiskSnapshotId,
}

/// One making of an image of the platform: an image that is built or imported anew is another edition of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edition {
    /// The image's id.
    pub id: String,
    /// Content hash of what it was made from.
    pub version: String,
    /// When it was made, by the clock of the host that made it; it keeps that on others.
    pub made_at: Timestamp,
}

/// A file that goes from host to host: of an image, of what sandboxes boot, or a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageFile {
    /// What it is called in the image's folder.
    pub name: String,
    /// How long it is, in bytes.
    pub bytes: u64,
    /// What it hashes to (SHA-256), in hexadecimal.
    pub sha256: String,
}

/// An edition that comes to a host from another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrival {
    /// Tells this try from others for the same image.
    pub travel: Uuid,
    /// What comes.
    pub edition: Edition,
    /// All that it consists of.
    pub files: Vec<ImageFile>,
}

impl Edition {
    /// Whether it takes the place of another one of the same image: it was made later. Of two that were made at one time the
    /// versions decide, so that all hosts end up with the same.
    pub fn replaces(&self, other: &Self) -> bool {
        self.version != other.version && (self.made_at, &self.version) > (other.made_at, &other.version)
    }
}

impl ImageFile {
    /// Whether its name is one of a file in a folder, and can be a hash what it is to hash to.
    pub fn is_plain(&self) -> bool {
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        (1..=100).contains(&self.name.len())
            && !self.name.starts_with('.')
            && self.name.bytes().all(is_of_name)
            && self.sha256.len() == 64
            && self.sha256.bytes().all(|byte| byte.is_ascii_hexdigit())
    }
}

impl Arrival {
    /// Whether it is an image of the platform, of few files with names of their own.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        Slug::parse(&self.edition.id).map_err(|why| format!("the id of an image {why}"))?;
        let is_twice = |(at, file): (usize, &ImageFile)| self.files[..at].iter().any(|other| other.name == file.name);
        if self.files.is_empty() || self.files.len() > MAX_FILES {
            return Err(format!("an image has 1 to {MAX_FILES} files"));
        }
        if !self.files.iter().all(ImageFile::is_plain) || self.files.iter().enumerate().any(is_twice) {
            return Err("each file of an image has a plain name of its own and a SHA-256".into());
        }
        Ok(())
    }

    /// How many bytes come in all.
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }
}

impl ImageImport {
    /// What is asked for, converted in this slot.
    pub fn of(import: &Import, conversion: u32) -> Self {
        Self {
            id: import.id.clone(),
            name: import.name.clone(),
            login_user: import.login_user.clone(),
            sha256: import.sha256.clone(),
            uefi: import.uefi,
            conversion,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edition(version: &str, made_at: i64) -> Edition {
        Edition { id: "micro".into(), version: version.into(), made_at: Timestamp(made_at) }
    }

    fn arrival(id: &str, names: &[&str]) -> Arrival {
        let file = |name: &&str| ImageFile { name: (*name).into(), bytes: u64::MAX, sha256: "0a".repeat(32) };
        let edition = Edition { id: id.into(), ..edition("1", 1) };
        Arrival { travel: Uuid::nil(), edition, files: names.iter().map(file).collect() }
    }

    #[test]
    fn what_was_made_last_takes_the_place_of_others() {
        for (one, other, is_so) in [
            (edition("2", 2), edition("1", 1), true),
            (edition("1", 1), edition("2", 2), false),
            (edition("1", 2), edition("2", 1), true),
            (edition("2", 1), edition("1", 1), true),
            (edition("1", 1), edition("2", 1), false),
            // The same that was made twice is the same.
            (edition("1", 2), edition("1", 1), false),
        ] {
            assert_eq!(one.replaces(&other), is_so, "{one:?} {other:?}");
        }
    }

    #[test]
    fn what_comes_is_an_image_of_the_platform_of_few_plain_files() {
        assert_eq!(arrival("micro", &["image.json", "disk.qcow2"]).check(), Ok(()));
        assert_eq!(arrival("micro", &["a"]).bytes(), u64::MAX);
        assert_eq!(arrival("micro", &["a", "b"]).bytes(), u64::MAX);
        let all = ["1", "2", "3", "4", "5", "6", "7", "8", "9"];
        assert_eq!(arrival("micro", &all[..8]).check(), Ok(()));
        let long = "x".repeat(101);
        assert_eq!(arrival("micro", &[&long[1..]]).check(), Ok(()));
        for (id, names, why) in [
            ("micro", &all[..], "1 to 8 files"),
            ("micro", &[], "1 to 8 files"),
            ("../micro", &["disk"], "id of an image"),
            ("", &["disk"], "id of an image"),
            ("01939f2e-7c00-7abc-8def-0123456789ab", &["disk"], "id of an image"),
            ("micro", &["a", "a"], "of its own"),
            ("micro", &[".."], "plain"),
            ("micro", &["a/b"], "plain"),
            ("micro", &[""], "plain"),
            ("micro", &[&long], "plain"),
        ] {
            let refused = arrival(id, names).check().unwrap_err();
            assert!(refused.contains(why), "{id} {names:?}: {refused}");
        }
        let mut hashless = arrival("micro", &["disk"]);
        for sha256 in ["", "0a", &"0g".repeat(32), &"0a".repeat(33)] {
            hashless.files[0].sha256 = sha256.into();
            assert!(hashless.check().is_err(), "{sha256}");
        }
    }
}
