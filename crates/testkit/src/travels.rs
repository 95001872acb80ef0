//! What a simulated host sends and takes of images: files whose bytes follow from the image.

use std::collections::HashMap;

use berth_domain::Timestamp;
use berth_host::vm::{Arrival, Content, Edition, ImageFile, ImageInfo};
use berth_host::{EngineError, Result};
use tokio::io::AsyncReadExt;
use uuid::Uuid;

use crate::exports;

/// The file that tells what an image is.
const MANIFEST: &str = "image.json";

/// What is under way to and from a host.
#[derive(Default)]
pub struct Travels {
    made_at: HashMap<String, i64>,
    /// What came of each image: which try, and its files.
    pub arriving: HashMap<String, (Uuid, HashMap<String, Vec<u8>>)>,
    /// Whether what is sent is not what was said.
    pub spoilt: bool,
    /// After how many bytes of each file it breaks off.
    pub after: Option<usize>,
}

/// The bytes of the files of an image.
fn contents(image: &ImageInfo) -> [(&'static str, Vec<u8>); 2] {
    let disk = exports::file(&(&image.id, &image.version));
    [("disk.qcow2", disk), (MANIFEST, serde_json::to_vec(image).expect("JSON"))]
}

/// The files of an image.
pub fn files(image: &ImageInfo) -> Vec<ImageFile> {
    let file = |(name, bytes): (&str, Vec<u8>)| {
        let about = exports::about(&bytes);
        ImageFile { name: name.into(), bytes: about.bytes, sha256: about.sha256 }
    };
    contents(image).into_iter().map(file).collect()
}

/// Receives a file whole, and judges it.
pub async fn receive(file: &ImageFile, content: Box<dyn Content>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = content.take(file.bytes).read_to_end(&mut bytes).await;
    read.map_err(|error| EngineError::Transient(error.to_string()))?;
    if exports::about(&bytes).sha256 == file.sha256 {
        return Ok(bytes);
    }
    Err(EngineError::Transient("the file is not what it was sent as".into()))
}

impl Travels {
    /// An image was made at this second.
    pub fn note(&mut self, id: &str, second: i64) {
        self.made_at.insert(id.into(), second);
    }

    /// What an image is an edition of.
    pub fn edition(&self, image: &ImageInfo) -> Edition {
        let second = self.made_at.get(&image.id).copied().unwrap_or_default();
        let made_at = Timestamp(second * Timestamp::SECOND);
        Edition { id: image.id.clone(), version: image.version.clone(), made_at }
    }

    /// What it sends of a file.
    pub fn send(&self, image: &ImageInfo, file: &ImageFile) -> Result<Vec<u8>> {
        let found = contents(image).into_iter().find(|(name, _)| *name == file.name);
        let (_, mut bytes) = found.ok_or_else(|| EngineError::Permanent("the image has no such file".into()))?;
        if self.spoilt {
            bytes[0] ^= 1;
        }
        bytes.truncate(self.after.unwrap_or(bytes.len()));
        Ok(bytes)
    }

    /// An image comes.
    pub fn expect(&mut self, arrival: &Arrival) {
        self.arriving.insert(arrival.edition.id.clone(), (arrival.travel, HashMap::new()));
    }

    /// A file came.
    pub fn take(&mut self, (travel, image): (Uuid, &str), file: &ImageFile, bytes: Vec<u8>) -> Result<()> {
        let known = self.arriving.get_mut(image).filter(|known| known.0 == travel);
        known.ok_or_else(superseded)?.1.insert(file.name.clone(), bytes);
        Ok(())
    }

    /// All files came: the image, unless it has that edition or a later one.
    pub fn adopt(&mut self, arrival: &Arrival, known: Option<Edition>) -> Result<Option<ImageInfo>> {
        if known.is_some_and(|known| !arrival.edition.replaces(&known)) {
            self.arriving.remove(&arrival.edition.id);
            return Ok(None);
        }
        let came = self.arriving.get(&arrival.edition.id).filter(|known| known.0 == arrival.travel);
        let (_, files) = came.ok_or_else(superseded)?;
        if arrival.files.iter().any(|file| !files.contains_key(&file.name)) {
            return Err(superseded());
        }
        let manifest = files.get(MANIFEST).ok_or_else(superseded)?;
        let image = serde_json::from_slice(manifest).map_err(|error| EngineError::Permanent(error.to_string()))?;
        self.arriving.remove(&arrival.edition.id);
        self.made_at.insert(arrival.edition.id.clone(), arrival.edition.made_at.0 / Timestamp::SECOND);
        Ok(Some(image))
    }
}

fn superseded() -> EngineError {
    EngineError::Transient("the image is not expected any more; it has to be sent anew".into())
}
