//! An image: chosen among those in its source, with its configuration and its layers.

use std::path::Path;
use std::sync::Arc;

use berth_domain::sandbox::dockerfile::ImageConfig;
use oci_spec::image::{Arch, Descriptor, ImageConfiguration, ImageIndex, ImageManifest, MediaType, Os};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::archive::Archive;
use crate::blobs::{Blobs, Sha, is_hex, missing};
use crate::{Error, ImageLayer, MAX_LAYERS, Result};

/// How deep indexes may nest.
const MAX_DEPTH: usize = 3;
/// Most bytes of an image's environment.
const MAX_ENV: usize = 128 * 1024;

/// An image for linux/amd64.
pub struct Image {
    /// The configuration of its programs.
    pub config: ImageConfig,
    /// Its layers, the lowest first.
    pub layers: Vec<ImageLayer>,
}

impl Image {
    /// Opens the only image of an OCI layout (a folder, or an archive of one) or of an archive by `docker save`;
    /// archives may be compressed. `scratch` is a folder for the decompressed archive, which may have `most` bytes.
    ///
    /// # Errors
    /// The source is neither, is damaged or too large, or does not have exactly one image for linux/amd64.
    pub fn open(path: &Path, scratch: &Path, most: u64) -> Result<Self> {
        let folder = std::fs::metadata(path)?.is_dir();
        let blobs =
            if folder { Blobs::Folder(path.to_owned()) } else { Blobs::Archive(Archive::open(path, scratch, most)?) };
        let blobs = Arc::new(blobs);
        if let Some(index) = blobs.document("index.json")? {
            let index = parse::<ImageIndex>(&index, "index.json")?;
            let manifest = choose(&blobs, &index)?;
            return Self::of_manifest(&blobs, &manifest);
        }
        match blobs.document("manifest.json")? {
            Some(saved) if !folder => Self::of_saved(&blobs, &parse::<Vec<Saved>>(&saved, "manifest.json")?),
            _ => Err(Error::invalid(
                "This is no image: neither an OCI layout nor what 'docker save' writes. Make one with \
                 'docker save IMAGE -o image.tar'.",
            )),
        }
    }

    /// Opens an image that a [`crate::Puller`] put into a store.
    ///
    /// # Errors
    /// The image is missing or damaged.
    pub fn in_store(store: &Path, manifest: &str) -> Result<Self> {
        Self::of_manifest(&Arc::new(Blobs::Folder(store.to_owned())), &Sha::parse(manifest)?)
    }

    fn of_manifest(blobs: &Arc<Blobs>, digest: &Sha) -> Result<Self> {
        let manifest = parse::<ImageManifest>(&blobs.verified(digest)?, "the manifest")?;
        let digest = Sha::parse(manifest.config().digest().as_ref())?;
        let config = configuration(&blobs.verified(&digest)?)?;
        let diff_ids = diff_ids(&config, manifest.layers().len())?;
        let layers = manifest.layers().iter().zip(diff_ids).map(|(layer, diff_id)| {
            if matches!(layer.media_type(), MediaType::ImageLayerNonDistributable) {
                let message = "The image has a layer that may not be distributed; use another image.";
                return Err(Error::invalid(message));
            }
            let blob = Sha::parse(layer.digest().as_ref())?;
            Ok(ImageLayer { blobs: blobs.clone(), name: blob.path(), blob: Some(blob), diff_id, size: layer.size() })
        });
        Ok(Self { config: programs(&config)?, layers: layers.collect::<Result<_>>()? })
    }

    fn of_saved(blobs: &Arc<Blobs>, saved: &[Saved]) -> Result<Self> {
        let [saved] = saved else {
            return Err(several(
                saved.iter().filter_map(|saved| saved.tags.iter().flatten().next()).map(String::as_str),
            ));
        };
        let bytes = blobs.document(&saved.config)?.ok_or_else(damaged_archive)?;
        let stem = saved.config.rsplit('/').next().unwrap_or_default().trim_end_matches(".json");
        if is_hex(stem) {
            Sha(stem.to_owned()).verify(&bytes)?;
        }
        let config = configuration(&bytes)?;
        let layers = saved.layers.iter().zip(diff_ids(&config, saved.layers.len())?).map(|(layer, diff_id)| {
            let (_, size) = blobs.open(layer)?.ok_or_else(|| missing(&diff_id))?;
            Ok(ImageLayer { blobs: blobs.clone(), name: layer.clone(), blob: None, diff_id, size })
        });
        Ok(Self { config: programs(&config)?, layers: layers.collect::<Result<_>>()? })
    }
}

/// The entry of one image in `manifest.json`.
#[derive(Deserialize)]
struct Saved {
    #[serde(rename = "Config")]
    config: String,
    #[serde(rename = "RepoTags", default)]
    tags: Option<Vec<String>>,
    #[serde(rename = "Layers")]
    layers: Vec<String>,
}

fn damaged_archive() -> Error {
    Error::invalid("The archive lacks the image's configuration; save the image again.")
}

/// The error for a source without exactly one image.
fn several<'a>(names: impl Iterator<Item = &'a str>) -> Error {
    let names = names.take(20).collect::<Vec<_>>();
    if names.is_empty() {
        return Error::NotFound("The archive must have exactly one image; save a single one.".into());
    }
    Error::NotFound(format!("The archive has several images ({}); save one alone.", names.join(", ")))
}

pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8], what: &str) -> Result<T> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::invalid(format!("{what} of the image makes no sense: {error}.")))
}

fn configuration(bytes: &[u8]) -> Result<ImageConfiguration> {
    let config = parse::<ImageConfiguration>(bytes, "The configuration")?;
    if *config.architecture() != Arch::Amd64 || *config.os() != Os::Linux {
        let found = format!("{}/{}", config.os(), config.architecture());
        return Err(Error::invalid(format!("The image is for {found}; build or pull it for linux/amd64.")));
    }
    Ok(config)
}

fn diff_ids(config: &ImageConfiguration, layers: usize) -> Result<Vec<Sha>> {
    if layers > MAX_LAYERS {
        return Err(Error::TooLarge(format!(
            "An image may have {MAX_LAYERS} layers at most, not {layers}; squash it."
        )));
    }
    let ids = config.rootfs().diff_ids();
    if ids.len() != layers {
        return Err(Error::invalid("The image's manifest and configuration name different layers; build it again."));
    }
    ids.iter().map(|id| Sha::parse(id)).collect()
}

fn programs(image: &ImageConfiguration) -> Result<ImageConfig> {
    let mut config = ImageConfig::default();
    let Some(said) = image.config() else { return Ok(config) };
    let env = said.env().iter().flatten();
    if env.clone().map(String::len).sum::<usize>() > MAX_ENV {
        return Err(Error::TooLarge(format!("The image's environment has more than {MAX_ENV} bytes.")));
    }
    for (name, value) in env.filter_map(|pair| pair.split_once('=')).filter(|(name, _)| !name.is_empty()) {
        config.set(name, value.to_owned());
    }
    let some = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    config.user = some(said.user());
    config.workdir = some(said.working_dir()).filter(|path| path.starts_with('/'));
    config.entrypoint.clone_from(said.entrypoint());
    config.cmd.clone_from(said.cmd());
    Ok(config)
}

/// Chooses a manifest from an index.
fn choose(blobs: &Blobs, index: &ImageIndex) -> Result<Sha> {
    let entries = index.manifests().iter().filter(|entry| fits(entry)).collect::<Vec<_>>();
    let (first, rest) = entries.split_first().ok_or_else(no_platform)?;
    if rest.iter().any(|entry| entry.digest() != first.digest()) {
        return Err(several(entries.iter().copied().filter_map(name)));
    }
    descend(blobs, first, 0)
}

fn name(entry: &Descriptor) -> Option<&str> {
    let keys = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];
    keys.into_iter().find_map(|key| entry.annotations().as_ref()?.get(key)).map(String::as_str)
}

fn descend(blobs: &Blobs, entry: &Descriptor, depth: usize) -> Result<Sha> {
    let digest = Sha::parse(entry.digest().as_ref())?;
    if !is_index(entry) {
        return Ok(digest);
    }
    if depth == MAX_DEPTH {
        return Err(Error::invalid("The image's indexes lie too deep within each other; save one image alone."));
    }
    let index = parse::<ImageIndex>(&blobs.verified(&digest)?, "an index")?;
    descend(blobs, pick(&index)?, depth + 1)
}

/// The entry of an index for the platform.
pub(crate) fn pick(index: &ImageIndex) -> Result<&Descriptor> {
    let named = index.manifests().iter().find(|entry| entry.platform().is_some() && fits(entry));
    named.or_else(|| index.manifests().iter().find(|entry| fits(entry))).ok_or_else(no_platform)
}

pub(crate) fn is_index(entry: &Descriptor) -> bool {
    let docker = "application/vnd.docker.distribution.manifest.list.v2+json";
    *entry.media_type() == MediaType::ImageIndex || entry.media_type().as_ref() == docker
}

fn fits(entry: &Descriptor) -> bool {
    entry
        .platform()
        .as_ref()
        .is_none_or(|platform| *platform.architecture() == Arch::Amd64 && *platform.os() == Os::Linux)
}

fn no_platform() -> Error {
    Error::NotFound("There is no image for linux/amd64 in it; build or pull one for that platform.".into())
}
