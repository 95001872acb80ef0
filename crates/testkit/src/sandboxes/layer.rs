//! What a simulated host sends and takes of layers: files that say what was written to them.

use std::collections::BTreeSet;

use berth_domain::ids::LayerId;
use berth_host::sandbox::ImageFile;
use berth_host::{EngineError, Result};
use serde_json::{Value, json};

use crate::exports;

/// A layer, as far as a simulated host remembers it.
#[derive(Default)]
pub struct Layer {
    /// What it lies on.
    pub parent: Option<LayerId>,
    /// Whether nobody writes to it any more.
    pub frozen: bool,
    /// What was written to it.
    pub written: BTreeSet<String>,
}

/// What is under way to and from a host.
#[derive(Default)]
pub struct Travels {
    /// How many layers came.
    pub brought: u32,
    /// How many come, and how many did at most at the same time.
    pub coming: (usize, usize),
    /// Whether what is sent is not what was said.
    pub spoilt: bool,
    /// After how many bytes of each file it breaks off.
    pub after: Option<usize>,
}

/// The bytes of a layer: what it is, and more than is under way at a time.
pub fn bytes(id: LayerId, layer: &Layer) -> Vec<u8> {
    let parent = layer.parent.map(|parent| parent.to_string());
    let mut bytes = json!({"parent": parent, "written": layer.written}).to_string().into_bytes();
    bytes.push(b'\n');
    bytes.extend(exports::file(&id));
    bytes
}

/// What is said of a layer's file.
pub fn file(id: LayerId, bytes: &[u8]) -> ImageFile {
    said(format!("{id}.qcow2"), bytes)
}

/// What is said of a file.
pub fn said(name: String, bytes: &[u8]) -> ImageFile {
    let about = exports::about(bytes);
    ImageFile { name, bytes: about.bytes, sha256: about.sha256 }
}

/// The layer of these bytes, to which nobody writes any more.
pub fn read(bytes: &[u8]) -> Result<Layer> {
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let said: Value = serde_json::from_slice(line).map_err(|error| EngineError::Permanent(error.to_string()))?;
    let written: BTreeSet<String> = serde_json::from_value(said["written"].clone()).expect("texts");
    Ok(Layer { parent: said["parent"].as_str().map(|id| id.parse().expect("an id")), frozen: true, written })
}
