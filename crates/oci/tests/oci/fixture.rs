//! Images and archives, made in memory.

use std::io::{Read, Write};
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

pub fn sha(bytes: &[u8]) -> String {
    let hex = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("sha256:{hex}")
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

/// A member of an archive: its type, path, target or content, and permissions.
pub type Entry<'a> = (EntryType, &'a str, &'a [u8], u32);

pub fn file<'a>(path: &'a str, content: &'a [u8]) -> Entry<'a> {
    (EntryType::Regular, path, content, 0o644)
}

pub fn link<'a>(path: &'a str, target: &'a str) -> Entry<'a> {
    (EntryType::Symlink, path, target.as_bytes(), 0o777)
}

pub fn directory(path: &str) -> Entry<'_> {
    (EntryType::Directory, path, b"", 0o755)
}

/// An archive. It contains paths as given, even those that no honest archive has.
pub fn tar(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (kind, path, content, mode) in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(*mode);
        header.set_mtime(1_700_000_000);
        header.set_uid(1234);
        header.set_gid(1234);
        if matches!(kind, EntryType::Symlink | EntryType::Link) {
            header.set_size(0);
            let target = std::str::from_utf8(content).unwrap();
            builder.append_link(&mut header, path, target).unwrap();
            continue;
        }
        header.set_size(content.len() as u64);
        if path.starts_with('/') || path.contains("..") {
            header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
            header.set_cksum();
            builder.append(&header, *content).unwrap();
        } else {
            builder.append_data(&mut header, path, *content).unwrap();
        }
    }
    builder.into_inner().unwrap()
}

/// The content of an archive: type, path, content or target, permissions, user.
pub fn untar(bytes: &[u8]) -> Vec<(EntryType, String, String, u32, u64)> {
    let mut archive = tar::Archive::new(bytes);
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().to_string_lossy().into_owned();
        let link = entry.link_name().unwrap().map(|link| link.to_string_lossy().into_owned());
        let mut content = String::new();
        entry.read_to_string(&mut content).unwrap();
        let header = entry.header();
        let (mode, uid) = (header.mode().unwrap(), header.uid().unwrap());
        (header.entry_type(), path, link.unwrap_or(content), mode, uid)
    });
    entries.collect()
}

/// The parts of an image, for writing it in several forms.
pub struct Parts {
    /// Layers without compression.
    pub layers: Vec<Vec<u8>>,
    /// The same in their stored form.
    pub blobs: Vec<Vec<u8>>,
    pub config: Vec<u8>,
    pub manifest: Vec<u8>,
}

impl Parts {
    pub fn new(layers: Vec<Vec<u8>>) -> Self {
        let blobs = layers.iter().enumerate().map(|(index, layer)| match index % 3 {
            0 => gzip(layer),
            1 => zstd(layer),
            _ => layer.clone(),
        });
        Self::with(layers.clone(), blobs.collect(), "amd64")
    }

    pub fn with(layers: Vec<Vec<u8>>, blobs: Vec<Vec<u8>>, architecture: &str) -> Self {
        let diff_ids = layers.iter().map(|layer| sha(layer)).collect::<Vec<_>>();
        let config = json!({
            "architecture": architecture, "os": "linux", "created": "2024-01-01T00:00:00Z",
            "config": {"Env": ["PATH=/opt:/bin", "A=b=c"], "User": "app", "WorkingDir": "/srv", "Entrypoint": ["run"],
                "Cmd": ["it"], "ExposedPorts": {"80/tcp": {}}, "Labels": {"a": "b"}},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
            "history": [{"created_by": "x", "empty_layer": true}],
        });
        let config = config.to_string().into_bytes();
        let described = blobs.iter().map(|blob| descriptor("application/vnd.oci.image.layer.v1.tar+gzip", blob));
        let manifest = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": described.collect::<Vec<_>>(),
        });
        Self { layers, blobs, config, manifest: manifest.to_string().into_bytes() }
    }

    /// Everything that is named by its digest.
    pub fn all(&self) -> Vec<&Vec<u8>> {
        self.blobs.iter().chain([&self.config, &self.manifest]).collect()
    }

    /// The manifest's entry in an index.
    pub fn entry(&self, architecture: &str, name: &str) -> Value {
        let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &self.manifest);
        entry["platform"] = json!({"architecture": architecture, "os": "linux"});
        entry["annotations"] = json!({"org.opencontainers.image.ref.name": name});
        entry
    }

    /// Writes an OCI layout with an index of these entries.
    pub fn layout(&self, folder: &Path, entries: &[Value]) {
        std::fs::create_dir_all(folder.join("blobs/sha256")).unwrap();
        for blob in self.all() {
            std::fs::write(folder.join(blob_path(blob)), blob).unwrap();
        }
        std::fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#).unwrap();
        std::fs::write(folder.join("index.json"), index(entries)).unwrap();
    }

    /// The form that `docker save` wrote before it wrote layouts.
    pub fn saved(&self, tag: &str) -> Vec<u8> {
        let config = format!("{}.json", &sha(&self.config)[7..]);
        let names = (0..self.layers.len()).map(|index| format!("{index}/layer.tar")).collect::<Vec<_>>();
        let manifest = json!([{"Config": config, "RepoTags": [tag], "Layers": names}]).to_string();
        let mut entries = vec![file("manifest.json", manifest.as_bytes()), file(&config, &self.config)];
        // The second layer is a link to its real place, as old versions wrote it.
        for (index, (name, layer)) in names.iter().zip(&self.layers).enumerate() {
            if index == 1 {
                entries.push(link(name, "../elsewhere/layer.tar"));
                entries.push(file("elsewhere/layer.tar", layer));
            } else {
                entries.push(file(name, layer));
            }
        }
        tar(&entries)
    }
}

pub fn blob_path(blob: &[u8]) -> String {
    sha(blob).replace("sha256:", "blobs/sha256/")
}

pub fn descriptor(kind: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": kind, "digest": sha(bytes), "size": bytes.len()})
}

pub fn index(entries: &[Value]) -> Vec<u8> {
    let kind = "application/vnd.oci.image.index.v1+json";
    json!({"schemaVersion": 2, "mediaType": kind, "manifests": entries}).to_string().into_bytes()
}

/// An image of three layers, each with another compression.
pub fn image() -> Parts {
    Parts::new(vec![
        tar(&[directory("etc"), file("etc/a", b"one")]),
        tar(&[file("etc/.wh.a", b""), file("b", &[7; 100_000])]),
        tar(&[file("c", b"three")]),
    ])
}
