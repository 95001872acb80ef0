//! Where sign-ins are kept: `credentials.json` in the folder of settings, which only its owner can read.
//!
//! Each sign-in is a context with a name, and one of them is the current one. Commands that run at the same time each
//! change their own context, so a change reads, changes and writes under a lock; a reader sees the file from before or
//! after it.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use berth_client::Tokens;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// A sign-in, with its default organization and project.
#[derive(Clone, Deserialize, Serialize)]
pub struct Credentials {
    /// The name of the context.
    #[serde(default)]
    pub name: String,
    /// Address of the service.
    pub url: String,
    /// The address of the person.
    pub email: String,
    /// Organization by default.
    pub org: String,
    /// Project by default.
    pub project: String,
    /// The session's tokens.
    pub tokens: Tokens,
}

/// All kept sign-ins.
#[derive(Clone, Default, Deserialize, Serialize)]
pub struct Store {
    /// Name of the current one; empty if there is none.
    pub current: String,
    /// Each of them, by the time of its first sign-in.
    pub contexts: Vec<Credentials>,
}

/// The content of the file: all sign-ins, or the single one that an older version kept.
#[derive(Deserialize)]
#[serde(untagged)]
enum Kept {
    Several(Store),
    One(Credentials),
}

/// The failure that no one is signed in.
pub fn signed_out() -> anyhow::Error {
    let others = Store::load().is_ok_and(|store| !store.contexts.is_empty());
    let other = if others { "; or use another sign-in: berth context list" } else { "" };
    Failure::of(3, format!("You are not signed in. Type: berth login URL{other}"))
}

/// `$XDG_CONFIG_HOME/berth`, or `~/.config/berth`; made if it is missing.
pub fn folder() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")));
    let dir = base.context("neither HOME nor XDG_CONFIG_HOME is set")?.join("berth");
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    made.with_context(|| format!("the folder {} cannot be made", dir.display()))?;
    Ok(dir)
}

fn file() -> Result<PathBuf> {
    Ok(folder()?.join("credentials.json"))
}

/// The default name of a service: its host and port.
fn host(url: &str) -> &str {
    let host = url.split_once("://").map_or(url, |(_, host)| host);
    host.trim_end_matches('/')
}

impl Store {
    /// The kept sign-ins.
    pub fn load() -> Result<Self> {
        let path = file()?;
        match std::fs::read(&path) {
            Ok(bytes) => Self::read(&bytes)
                .with_context(|| format!("{} cannot be read; sign in again: berth login", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display())),
        }
    }

    fn read(bytes: &[u8]) -> serde_json::Result<Self> {
        Ok(match serde_json::from_slice(bytes)? {
            Kept::Several(store) => store,
            Kept::One(only) => {
                let name = host(&only.url).to_owned();
                Self { current: name.clone(), contexts: vec![Credentials { name, ..only }] }
            }
        })
    }

    /// Changes the kept sign-ins, in their latest state. A change that fails changes nothing.
    pub fn change<T>(change: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let _locked = lock()?;
        let mut store = Self::load()?;
        let done = change(&mut store)?;
        store.save()?;
        Ok(done)
    }

    /// Keeps a new sign-in and makes it the current one; one without a name gets a free one. Replaces a file that
    /// cannot be read. Returns all sign-ins.
    pub fn put(mut credentials: Credentials) -> Result<Self> {
        let _locked = lock()?;
        let mut store = Self::load().unwrap_or_default();
        if credentials.name.is_empty() {
            credentials.name = store.name_for(&credentials.url, &credentials.email);
        }
        store.require_free(&credentials.name, &credentials.url, &credentials.email)?;
        store.current.clone_from(&credentials.name);
        match store.named_mut(&credentials.name) {
            Some(kept) => *kept = credentials,
            None => store.contexts.push(credentials),
        }
        store.save()?;
        Ok(store)
    }

    /// The current sign-in.
    pub fn current(&self) -> Option<&Credentials> {
        self.named(&self.current)
    }

    /// The sign-in with a name.
    pub fn named(&self, name: &str) -> Option<&Credentials> {
        self.contexts.iter().find(|kept| kept.name == name)
    }

    /// The sign-in with a typed name.
    pub fn find(&self, name: &str) -> Result<&Credentials> {
        self.named(name).ok_or_else(|| match name {
            "" => signed_out(),
            _ => Failure::not_found(format!("There is no context called '{name}'. List them: berth context list")),
        })
    }

    /// The sign-in with a name, to change it.
    pub fn named_mut(&mut self, name: &str) -> Option<&mut Credentials> {
        self.contexts.iter_mut().find(|kept| kept.name == name)
    }

    /// A sign-in at a service: the current one, or else the first.
    pub fn at(&self, url: &str) -> Option<&Credentials> {
        self.current().filter(|kept| kept.url == url).or_else(|| self.contexts.iter().find(|kept| kept.url == url))
    }

    /// A person's sign-in at a service.
    pub fn of(&self, url: &str, email: &str) -> Option<&Credentials> {
        self.contexts.iter().find(|kept| kept.url == url && kept.email == email)
    }

    /// Replaces spent tokens of a service by new ones, if they are kept.
    pub fn renew(&mut self, url: &str, spent: &str, tokens: &Tokens) {
        let mut all = self.contexts.iter_mut();
        if let Some(kept) = all.find(|kept| kept.url == url && kept.tokens.refresh_token == spent) {
            kept.tokens = tokens.clone();
        }
    }

    /// Refuses a name that belongs to a sign-in at another service or of another account.
    pub fn require_free(&self, name: &str, url: &str, email: &str) -> Result<()> {
        match self.named(name) {
            Some(kept) if (kept.url.as_str(), kept.email.as_str()) != (url, email) => Err(Failure::usage(format!(
                "The context '{name}' is of {} at {}; sign in under another name: --context NAME, or forget it first: \
                 berth context delete {name}",
                kept.email, kept.url
            ))),
            _ => Ok(()),
        }
    }

    /// Renames a sign-in; the new name must be free.
    pub fn rename(&mut self, name: &str, new_name: &str) -> Result<()> {
        self.find(name)?;
        if new_name.is_empty() || (new_name != name && self.named(new_name).is_some()) {
            return Err(Failure::usage(format!("'{new_name}' is no free name: berth context list")));
        }
        if self.current == name {
            new_name.clone_into(&mut self.current);
        }
        if let Some(kept) = self.named_mut(name) {
            new_name.clone_into(&mut kept.name);
        }
        Ok(())
    }

    /// The default name of a sign-in: its former one, or that of its service, or of service and account if another
    /// account has that name.
    fn name_for(&self, url: &str, email: &str) -> String {
        match self.of(url, email) {
            Some(kept) => kept.name.clone(),
            None if self.named(host(url)).is_none() => host(url).to_owned(),
            None => format!("{}/{email}", host(url)),
        }
    }

    /// Forgets a sign-in.
    pub fn forget(&mut self, name: &str) {
        self.contexts.retain(|kept| kept.name != name);
        if self.current == name {
            self.current.clear();
        }
    }

    fn save(&self) -> Result<()> {
        let path = file()?;
        let tmp = path.with_extension(format!("tmp-{}", std::process::id()));
        write(&tmp, &path, &serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("{} cannot be written", path.display()))
    }
}

/// Writes a file that only its owner can read, and puts it in place of the former one.
fn write(tmp: &Path, path: &Path, content: &[u8]) -> std::io::Result<()> {
    // Never writes into an existing file: an earlier process with this number may have left it, open to others.
    match std::fs::remove_file(tmp) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut open = OpenOptions::new().write(true).create_new(true).mode(0o600).open(tmp)?;
    open.write_all(content)?;
    open.sync_all()?;
    std::fs::rename(tmp, path)
}

/// Excludes every other change while the file is open.
fn lock() -> Result<File> {
    let path = folder()?.join("credentials.lock");
    let open = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = open.with_context(|| format!("{} cannot be opened", path.display()))?;
    file.lock().with_context(|| format!("{} cannot be locked", path.display()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn kept(name: &str, url: &str, email: &str) -> serde_json::Value {
        let tokens = json!({"access_token": "a", "refresh_token": "r"});
        let mut kept = json!({"url": url, "email": email, "org": "o", "project": "p", "tokens": tokens});
        if !name.is_empty() {
            kept["name"] = name.into();
        }
        kept
    }

    #[test]
    fn a_file_of_an_older_version_is_a_context() {
        let old = kept("", "http://127.0.0.1:8080", "ana@example.com");
        let store = Store::read(old.to_string().as_bytes()).unwrap();
        assert_eq!(store.current().map(|c| (c.name.as_str(), c.project.as_str())), Some(("127.0.0.1:8080", "p")));
        let again = Store::read(&serde_json::to_vec(&store).unwrap()).unwrap();
        assert_eq!(again.current, "127.0.0.1:8080");
        assert!(Store::read(b"{\"url\": 1}").is_err());
    }

    #[test]
    fn a_second_account_at_a_service_has_a_name_of_its_own() {
        let (url, ana) = ("https://berth.example.com", "ana@example.com");
        let store = json!({"current": "work", "contexts": [kept("work", url, ana), kept("x", "http://b", ana)]});
        let store = Store::read(store.to_string().as_bytes()).unwrap();
        assert_eq!(store.name_for(url, ana), "work");
        assert_eq!(store.name_for(url, "bob@example.com"), "berth.example.com");
        let taken = json!({"current": "", "contexts": [kept("berth.example.com", url, ana)]});
        let taken = Store::read(taken.to_string().as_bytes()).unwrap();
        assert_eq!(taken.name_for(url, "bob@example.com"), "berth.example.com/bob@example.com");
        assert!(taken.current().is_none() && taken.at(url).is_some() && store.at("http://b").is_some());
    }

    #[test]
    fn renewed_tokens_take_the_place_of_those_that_were_spent() {
        let (url, ana) = ("https://berth.example.com", "ana@example.com");
        let mut second = kept("second", url, ana);
        second["tokens"]["refresh_token"] = "s".into();
        let store = json!({"current": "first", "contexts": [kept("first", url, ana), second]});
        let mut store = Store::read(store.to_string().as_bytes()).unwrap();
        let tokens = |text: &str| Tokens { access_token: text.into(), refresh_token: text.into() };
        store.renew(url, "s", &tokens("t"));
        store.renew(url, "unknown", &tokens("u"));
        store.renew("https://other.example.com", "t", &tokens("u"));
        let all: Vec<_> = store.contexts.iter().map(|kept| kept.tokens.refresh_token.as_str()).collect();
        assert_eq!(all, ["r", "t"]);
    }

    #[test]
    fn a_name_that_another_sign_in_has_is_not_free() {
        let (url, ana) = ("https://berth.example.com", "ana@example.com");
        let store = json!({"current": "work", "contexts": [kept("work", url, ana)]});
        let store = Store::read(store.to_string().as_bytes()).unwrap();
        assert!(store.require_free("work", url, ana).is_ok() && store.require_free("new", "http://b", ana).is_ok());
        for (url, email) in [("http://b", ana), (url, "bob@example.com")] {
            let refused = store.require_free("work", url, email).unwrap_err().to_string();
            assert!(refused.contains("berth context delete work"), "{refused}");
        }
    }

    #[test]
    fn what_is_written_is_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let (tmp, path) = (dir.path().join("tmp"), dir.path().join("file"));
        // Left by another process, and open to everybody.
        std::fs::write(&tmp, "left").unwrap();
        std::fs::set_permissions(&tmp, PermissionsExt::from_mode(0o666)).unwrap();
        write(&tmp, &path, b"secret").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"secret");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!tmp.exists());
    }
}
