//! Foreign images that somebody brings in: by a URL, a file of the host, or with the request.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::fields::{Fields, Parsed, sized, text};
use crate::names::Slug;
use crate::query::{Params, short};

/// Most characters of a name.
const NAME: usize = 100;
/// Most bytes of a name in an address: as many characters of up to four bytes.
const NAME_BYTES: usize = 4 * NAME;
/// Most bytes of a path of the host (Linux, `PATH_MAX`).
const PATH: usize = 4096;
/// Most bytes of a URL.
const URL: usize = 2048;
/// Most bytes of a user name (useradd(8)).
const USER: usize = 32;
/// Hexadecimal digits of a SHA-256.
const SHA256: usize = 64;
/// The user that SSH keys are installed for, where nobody says otherwise.
const LOGIN_USER: &str = "root";

/// A foreign image to take in, as it is kept on its row until that is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Import {
    /// Id in requests.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// The user that SSH keys are installed for.
    pub login_user: String,
    /// Where to get it from.
    pub url: Option<String>,
    /// A file of the host.
    pub path: Option<String>,
    /// A file that was uploaded, in the engine's staging folder.
    #[serde(default)]
    pub upload: Option<String>,
    /// What its content has to hash to.
    pub sha256: Option<String>,
    /// Whether it boots by UEFI.
    pub uefi: bool,
}

impl TryFrom<&Value> for Import {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let id = f.required("id", |v| id(text(v)?));
        let name = f.optional("name", sized(1, NAME));
        let login_user = f.optional("login_user", |v| login_user(text(v)?));
        let url = f.optional("url", |v| url(text(v)?));
        let path = f.optional("path", sized(1, PATH));
        let sha256 = f.optional("sha256", |v| sha256(text(v)?));
        let uefi = f.optional("firmware", |v| firmware(text(v)?)).unwrap_or(false);
        if f.has("url") == f.has("path") {
            f.fail("url", "give exactly one of url and path");
        }
        let import = id.map(|id| Self {
            name: name.unwrap_or_else(|| id.clone()),
            login_user: login_user.unwrap_or_else(|| LOGIN_USER.into()),
            id,
            url,
            path,
            upload: None,
            sha256,
            uefi,
        });
        f.finish(import)
    }
}

impl Import {
    /// Reads an upload: the id of its path, and the parameters of its address.
    ///
    /// # Errors
    /// Every mistake of both.
    pub fn of_upload(image_id: &str, mut params: Params) -> Result<Self> {
        let id = id(image_id).map_err(|message| params.fail("image_id", message)).ok();
        let name = params.read("name", short(NAME_BYTES));
        let user = params.read("login_user", login_user);
        let hash = params.read("sha256", sha256);
        let uefi = params.read("firmware", firmware);
        params.finish()?;
        Ok(Self {
            id: id.unwrap_or_default(),
            name: name.unwrap_or_else(|| image_id.to_owned()),
            login_user: user.unwrap_or_else(|| LOGIN_USER.into()),
            url: None,
            path: None,
            upload: None,
            sha256: hash,
            uefi: uefi.unwrap_or(false),
        })
    }

    /// The file that a download is written to, in the engine's staging folder.
    pub fn download(&self) -> String {
        format!("{}.download", self.id)
    }
}

fn id(text: &str) -> Parsed<String> {
    Slug::parse(text).map(|slug| slug.as_str().to_owned())
}

fn login_user(text: &str) -> Parsed<String> {
    let first = text.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b == b'_');
    let rest = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-".contains(&b));
    if first && rest && text.len() <= USER { Ok(text.to_owned()) } else { Err("must be a user name of Linux".into()) }
}

fn url(text: &str) -> Parsed<String> {
    let known = text.starts_with("http://") || text.starts_with("https://");
    if known && text.len() <= URL { Ok(text.to_owned()) } else { Err("must be an http or https URL".into()) }
}

fn sha256(text: &str) -> Parsed<String> {
    let good = text.len() == SHA256 && text.bytes().all(|b| b.is_ascii_hexdigit());
    if good { Ok(text.to_ascii_lowercase()) } else { Err("must be 64 hexadecimal digits".into()) }
}

fn firmware(text: &str) -> Parsed<bool> {
    match text {
        "bios" => Ok(false),
        "uefi" => Ok(true),
        _ => Err("must be bios or uefi".into()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn fields(error: Error) -> Vec<String> {
        error.details.into_iter().map(|d| d.field).collect()
    }

    #[test]
    fn an_import_comes_from_one_place() {
        let import = Import::try_from(&json!({"id": "debian", "url": "https://example.org/d.qcow2"})).unwrap();
        assert_eq!((import.name.as_str(), import.login_user.as_str(), import.uefi), ("debian", "root", false));
        assert_eq!(import.download(), "debian.download");
        let both = json!({"id": "debian", "url": "https://example.org/d", "path": "/d"});
        for body in [json!({"id": "debian"}), both] {
            let error = Import::try_from(&body).unwrap_err();
            assert_eq!(error.message, "url: give exactly one of url and path");
        }
        let wrong = json!({"id": "A", "name": "", "login_user": "0", "url": "ftp://h", "sha256": "x", "firmware": "efi",
            "os": "linux"});
        assert_eq!(
            fields(Import::try_from(&wrong).unwrap_err()),
            ["id", "name", "login_user", "url", "sha256", "firmware", "os"]
        );
    }

    #[test]
    fn an_upload_says_the_same_in_its_address() {
        let hash = "A".repeat(SHA256);
        let query = format!("name=Debian+13&login_user=debian&sha256={hash}&firmware=uefi");
        let import = Import::of_upload("debian", Params::parse(&query)).unwrap();
        assert_eq!((import.id.as_str(), import.name.as_str(), import.uefi), ("debian", "Debian 13", true));
        assert_eq!(import.sha256, Some(hash.to_ascii_lowercase()));
        assert_eq!((import.url, import.path, import.upload), (None, None, None));
        assert_eq!(Import::of_upload("debian", Params::parse("")).unwrap().name, "debian");
        let wrong = Params::parse("name=&login_user=&sha256=&firmware=&url=x");
        assert_eq!(
            fields(Import::of_upload("A", wrong).unwrap_err()),
            ["image_id", "name", "login_user", "sha256", "firmware", "url"]
        );
    }

    #[test]
    fn texts_have_two_sides() {
        let name = |length: usize| short(NAME_BYTES)(&"a".repeat(length)).is_ok();
        assert!(name(NAME_BYTES) && !name(NAME_BYTES + 1));
        let user = |length: usize| login_user(&"a".repeat(length)).is_ok();
        assert!(user(1) && user(USER) && !user(USER + 1));
        for (name, good) in [("_apt", true), ("a-1", true), ("-a", false), ("1a", false), ("A", false), ("a.b", false)]
        {
            assert_eq!(login_user(name).is_ok(), good, "{name}");
        }
        let of = |length: usize| url(&format!("http://{}", "a".repeat(length - 7))).is_ok();
        assert!(of(URL) && !of(URL + 1));
        let hash = |length: usize| sha256(&"0".repeat(length)).is_ok();
        assert!(hash(SHA256) && !hash(SHA256 - 1) && !hash(SHA256 + 1) && sha256(&"g".repeat(SHA256)).is_err());
        let path = |length: usize| Import::try_from(&json!({"id": "a", "path": "/".repeat(length)})).is_ok();
        assert!(path(PATH) && !path(PATH + 1));
    }

    #[test]
    fn rows_of_before_are_read() {
        let row = json!({"id": "a", "name": "A", "login_user": "root", "url": null, "path": "/a", "sha256": null,
            "uefi": false});
        let import: Import = serde_json::from_value(row).unwrap();
        assert_eq!((import.path.as_deref(), import.upload), (Some("/a"), None));
    }

    proptest! {
        #[test]
        fn what_is_taken_is_a_name_of_files_and_comes_back_from_its_row(
            id in "[a-z0-9./-]{0,44}", user in "[a-z0-9_-]{0,34}", firmware in "bios|uefi|",
        ) {
            let body = json!({"id": id, "login_user": user, "path": "/image", "firmware": firmware});
            if let Ok(import) = Import::try_from(&body) {
                prop_assert!(!import.id.is_empty() && !import.id.contains(['/', '.']));
                prop_assert_eq!(import.uefi, firmware == "uefi");
                let kept = serde_json::to_string(&import).unwrap();
                prop_assert_eq!(serde_json::from_str::<Import>(&kept).unwrap(), import);
            }
        }
    }
}
