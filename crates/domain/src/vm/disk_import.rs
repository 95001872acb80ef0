//! Data disks that are made of a file that somebody sends.
//!
//! All that a request says of the disk stands in its address, as its body is the file. The file is received before there is a row
//! of it; from the row on it is a disk that is [brought](super::brought_disk), and nothing is believed of what it says of itself.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::disk::{DiskType, size};
use super::request::REFERENCE;
use crate::error::{Code, Error, Result};
use crate::fields::Parsed;
use crate::names::Name;
use crate::query::{Params, short};

/// The header that says what a body hashes to (RFC 9530).
pub const CONTENT_DIGEST: &str = "Content-Digest";
/// What a file may have more than the disk that is made of it: tables of its format, in bytes.
const TABLES: u64 = 1 << 30;

/// A request for a disk with what a file has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportDisk {
    /// Its name.
    pub name: Name,
    /// How it is handed to the guest.
    pub kind: DiskType,
    /// Its size in GiB.
    pub size_gb: i64,
    /// Where it is to lie.
    pub region_id: String,
    /// What the file has to hash to (SHA-256).
    pub digest: Option<[u8; 32]>,
}

impl ImportDisk {
    /// Reads the parameters of an address, and the header that says what the body hashes to.
    ///
    /// # Errors
    /// Every mistake of both.
    pub fn read(mut params: Params, content_digest: Option<&str>) -> Result<Self> {
        let name = required(&mut params, "name", Name::parse);
        let size_gb = required(&mut params, "size_gb", size_gb);
        let region_id = required(&mut params, "region_id", short(REFERENCE));
        let kind = params.read("type", DiskType::parse);
        let digest = content_digest.map(digest).transpose();
        let digest = digest.map_err(|message| params.fail(CONTENT_DIGEST, message)).unwrap_or_default();
        params.finish()?;
        let (Some(name), Some(size_gb), Some(region_id)) = (name, size_gb, region_id) else {
            return Err(Error::internal("a mistake was noted and not told"));
        };
        Ok(Self { name, kind: kind.unwrap_or(DiskType::Block), size_gb, region_id, digest })
    }

    /// Refuses a file that has more bytes than any that fits the disk, or more than the service takes.
    ///
    /// # Errors
    /// 413, with what to do about it.
    pub fn admit(&self, bytes: u64, most: u64) -> Result<()> {
        bounded(bytes, most)?;
        let fits = (u64::try_from(self.size_gb).unwrap_or_default() << 30).saturating_add(TABLES);
        if bytes > fits {
            let message =
                format!("The file is larger than a disk of {} GiB. Ask for a larger disk. {SMALLER}", self.size_gb);
            return Err(Error::new(Code::PayloadTooLarge, message));
        }
        Ok(())
    }

    /// Refuses a file that hashes to something else than was said.
    ///
    /// # Errors
    /// 400.
    pub fn compare(&self, found: [u8; 32]) -> Result<()> {
        match self.digest {
            Some(wanted) if wanted != found => {
                let found = STANDARD.encode(found);
                Err(Error::field(
                    CONTENT_DIGEST,
                    format!("what came hashes to sha-256=:{found}: and not to this; send it again"),
                ))
            }
            _ => Ok(()),
        }
    }
}

/// Refuses a file that has more bytes than the service takes, whatever disk is to be made of it.
///
/// # Errors
/// 413, with what to do about it.
pub fn bounded(bytes: u64, most: u64) -> Result<()> {
    if bytes <= most {
        return Ok(());
    }
    let mib = most >> 20;
    Err(Error::new(Code::PayloadTooLarge, format!("A disk's file may have at most {mib} MiB. {SMALLER}")))
}

/// How a file becomes smaller.
const SMALLER: &str = "Make the file smaller with: qemu-img convert -c -O qcow2 FILE smaller.qcow2";

fn required<T>(params: &mut Params, name: &str, rule: impl FnOnce(&str) -> Parsed<T>) -> Option<T> {
    if params.get(name).is_none() {
        params.fail(name, "is required");
        return None;
    }
    params.read(name, rule)
}

fn size_gb(text: &str) -> Parsed<i64> {
    let (least, most) = size::DATA;
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("must be an integer from {least} to {most}"))
}

/// The SHA-256 of a field of digests: the same one where it has several. Where it has others only, nobody here could tell
/// whether they are right.
fn digest(field: &str) -> Parsed<[u8; 32]> {
    let decode = |encoded: &str| -> Option<[u8; 32]> {
        STANDARD.decode(encoded.strip_prefix(':')?.strip_suffix(':')?).ok()?.try_into().ok()
    };
    let mut found = field.split(',').filter_map(|one| one.trim().strip_prefix("sha-256=")).map(decode);
    let first = found.next().flatten().filter(|first| field.is_ascii() && found.all(|other| other == Some(*first)));
    first.ok_or_else(|| "must have the file's SHA-256, as sha-256=:BASE64:".into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EMPTY: &str = "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:";

    fn read(query: &str, digest: Option<&str>) -> Result<ImportDisk> {
        ImportDisk::read(Params::parse(query), digest)
    }

    fn fields(error: Error) -> Vec<String> {
        error.details.into_iter().map(|d| d.field).collect()
    }

    #[test]
    fn all_of_a_disk_stands_in_the_address() {
        let disk = read("name=data&size_gb=10&region_id=local", None).unwrap();
        assert_eq!((disk.name.as_str(), disk.size_gb, disk.kind, disk.digest), ("data", 10, DiskType::Block, None));
        let disk = read("name=data&size_gb=2048&region_id=local&type=filesystem", Some(EMPTY)).unwrap();
        assert_eq!((disk.kind, disk.size_gb, disk.digest.unwrap()[0]), (DiskType::Filesystem, 2048, 0xe3));
        assert_eq!(fields(read("", None).unwrap_err()), ["name", "size_gb", "region_id"]);
        let wrong = "name=A&size_gb=9&region_id=&type=raw&snapshot_id=x";
        let told = fields(read(wrong, Some("sha-512=:AA==:")).unwrap_err());
        assert_eq!(told, ["name", "size_gb", "region_id", "type", CONTENT_DIGEST, "snapshot_id"]);
        for size in ["9", "2049", "-10", "10.5", "1e1", ""] {
            assert_eq!(fields(read(&format!("name=a&region_id=l&size_gb={size}"), None).unwrap_err()), ["size_gb"]);
        }
    }

    #[test]
    fn a_digest_is_one_that_can_be_compared() {
        let with_others = format!("sha-512=:AA==:, {EMPTY}");
        assert!(digest(EMPTY).is_ok() && digest(&with_others).is_ok());
        for text in ["", "sha-256=:AA==:", "sha-256=47DEQ", "sha-256=:!:", "sha-512=:AA==:"] {
            assert!(digest(text).is_err(), "{text}");
        }
        let disk = read("name=data&size_gb=10&region_id=local", Some(EMPTY)).unwrap();
        assert!(disk.compare(disk.digest.unwrap()).is_ok());
        let error = disk.compare([0; 32]).unwrap_err();
        assert_eq!((error.code, error.details[0].field.as_str()), (Code::InvalidRequest, CONTENT_DIGEST));
        assert!(read("name=data&size_gb=10&region_id=local", None).unwrap().compare([0; 32]).is_ok());
    }

    #[test]
    fn a_file_is_bounded_by_its_disk_and_by_the_service() {
        let disk = read("name=data&size_gb=10&region_id=local", None).unwrap();
        let fits = (10 << 30) + TABLES;
        assert!(disk.admit(fits, u64::MAX).is_ok());
        assert_eq!(disk.admit(fits + 1, u64::MAX).unwrap_err().code, Code::PayloadTooLarge);
        assert!(disk.admit(100, 100).is_ok());
        assert_eq!(disk.admit(101, 100).unwrap_err().code, Code::PayloadTooLarge);
    }

    proptest! {
        #[test]
        fn no_header_panics(text in ".{0,80}") {
            let _ = digest(&text);
        }
    }
}
