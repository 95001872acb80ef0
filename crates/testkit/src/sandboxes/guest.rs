//! What the sandboxes of a simulated host boot, and what it sends and takes of that: files whose bytes follow from a version.

use std::collections::HashMap;

use berth_domain::host::guest::MANIFEST;
use berth_host::sandbox::{GuestArrival, ImageFile};
use berth_host::{EngineError, Result};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::exports;

/// The guest of a host, and the one that comes.
pub struct Guests {
    /// The version of the one that machines boot.
    pub here: Option<String>,
    /// What came so far: of which try, and its files.
    pub arriving: Option<(Uuid, HashMap<String, Vec<u8>>)>,
    /// Whether what is sent is not what was said.
    pub spoilt: bool,
    /// After how many bytes of each file it breaks off.
    pub after: Option<usize>,
}

impl Default for Guests {
    fn default() -> Self {
        Self { here: Some("1".into()), arriving: None, spoilt: false, after: None }
    }
}

/// The bytes of the files of a guest.
fn contents(version: &str) -> [(&'static str, Vec<u8>); 2] {
    let manifest = json!({"version": version}).to_string();
    [("vmlinux", exports::file(&("guest", version))), (MANIFEST, manifest.into_bytes())]
}

fn files_of(version: &str) -> Vec<ImageFile> {
    let file = |(name, bytes): (&str, Vec<u8>)| {
        let about = exports::about(&bytes);
        ImageFile { name: name.into(), bytes: about.bytes, sha256: about.sha256 }
    };
    contents(version).into_iter().map(file).collect()
}

impl Guests {
    /// What the manifest of the one that machines boot hashes to.
    pub fn hash(&self) -> Option<String> {
        let [_, (_, manifest)] = contents(self.here.as_ref()?);
        Some(exports::about(&manifest).sha256)
    }

    /// The files of the one that machines boot, if its manifest hashes to this.
    pub fn files(&self, hash: &str) -> Result<Vec<ImageFile>> {
        let here = self.here.as_ref().filter(|_| self.hash().as_deref() == Some(hash));
        let other = || EngineError::Transient("the host has another guest by now".into());
        Ok(files_of(here.ok_or_else(other)?))
    }

    /// What it sends of a file.
    pub fn send(&self, hash: &str, file: &ImageFile) -> Result<Vec<u8>> {
        self.files(hash)?;
        let found = contents(self.here.as_deref().unwrap_or_default()).into_iter().find(|(name, _)| *name == file.name);
        let (_, mut bytes) = found.ok_or_else(|| EngineError::Permanent("the guest has no such file".into()))?;
        if self.spoilt {
            bytes[0] ^= 1;
        }
        bytes.truncate(self.after.unwrap_or(bytes.len()));
        Ok(bytes)
    }

    /// A file came.
    pub fn take(&mut self, travel: Uuid, file: &ImageFile, bytes: Vec<u8>) -> Result<()> {
        let known = self.arriving.as_mut().filter(|known| known.0 == travel);
        known.ok_or_else(superseded)?.1.insert(file.name.clone(), bytes);
        Ok(())
    }

    /// All files came.
    pub fn adopt(&mut self, arrival: &GuestArrival) -> Result<()> {
        if self.hash().as_ref() == Some(&arrival.version) {
            self.arriving = None;
            return Ok(());
        }
        let came = self.arriving.as_ref().filter(|known| known.0 == arrival.travel);
        let (_, files) = came.ok_or_else(superseded)?;
        if arrival.files.iter().any(|file| !files.contains_key(&file.name)) {
            return Err(superseded());
        }
        let manifest: Value = serde_json::from_slice(&files[MANIFEST]).expect("JSON");
        self.here = Some(manifest["version"].as_str().expect("a version").into());
        self.arriving = None;
        Ok(())
    }
}

fn superseded() -> EngineError {
    EngineError::Transient("what comes is not expected any more; it has to be sent anew".into())
}
