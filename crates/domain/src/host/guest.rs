//! What sandboxes boot, the guest, as it goes from one host to others.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::image::{ImageFile, MAX_FILES};

/// The file that tells what a guest is.
pub const MANIFEST: &str = "guest.json";

/// A guest that comes to a host from another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestArrival {
    /// Tells this try from others.
    pub travel: Uuid,
    /// What comes: the SHA-256 of its manifest, which has those of its other files, in hexadecimal.
    pub version: String,
    /// All that it consists of.
    pub files: Vec<ImageFile>,
}

impl GuestArrival {
    /// Whether it is a guest of few files with names of their own, of which the manifest says what comes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        let is_twice = |(at, file): (usize, &ImageFile)| self.files[..at].iter().any(|other| other.name == file.name);
        if self.files.len() > MAX_FILES {
            return Err(format!("what sandboxes boot has at most {MAX_FILES} files"));
        }
        if !self.files.iter().all(ImageFile::is_plain) || self.files.iter().enumerate().any(is_twice) {
            return Err("each file of what sandboxes boot has a plain name of its own and a SHA-256".into());
        }
        let manifest = self.files.iter().find(|file| file.name == MANIFEST);
        if manifest.is_some_and(|file| file.sha256 == self.version) {
            Ok(())
        } else {
            Err(format!("what sandboxes boot is named by the SHA-256 of its {MANIFEST}"))
        }
    }

    /// How many bytes come in all.
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(names: &[&str]) -> GuestArrival {
        let file = |name: &&str| ImageFile { name: (*name).into(), bytes: u64::MAX, sha256: "0a".repeat(32) };
        GuestArrival { travel: Uuid::nil(), version: "0a".repeat(32), files: names.iter().map(file).collect() }
    }

    #[test]
    fn what_comes_has_few_plain_files_and_is_named_by_its_manifest() {
        let most = [MANIFEST, "2", "3", "4", "5", "6", "7", "8", "9"];
        assert_eq!(arrival(&most[..8]).check(), Ok(()));
        assert_eq!(arrival(&most[..1]).check(), Ok(()));
        assert_eq!(arrival(&most[..2]).bytes(), u64::MAX);
        for (names, why) in [
            (&most[..], "at most 8 files"),
            (&[], "named by"),
            (&["vmlinux"], "named by"),
            (&[MANIFEST, "a", "a"], "of its own"),
            (&[MANIFEST, "../a"], "plain"),
            (&[MANIFEST, ".a"], "plain"),
        ] {
            let refused = arrival(names).check().unwrap_err();
            assert!(refused.contains(why), "{names:?}: {refused}");
        }
        let another = GuestArrival { version: "0b".repeat(32), ..arrival(&[MANIFEST]) };
        assert!(another.check().is_err_and(|why| why.contains("named by")));
    }
}
