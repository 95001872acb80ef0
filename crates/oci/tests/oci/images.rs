use std::io::Read;
use std::path::Path;

use berth_oci::{Budget, Error, Image, MAX_LAYERS};
use serde_json::json;
use tempfile::TempDir;

use crate::fixture::{Parts, blob_path, file, gzip, image, index, link, sha, tar, zstd};

const MOST: u64 = 10 << 20;

fn open(path: &Path) -> Result<Image, Error> {
    Image::open(path, path.parent().unwrap(), MOST)
}

fn refusal(path: &Path) -> String {
    open(path).err().unwrap().to_string()
}

fn layers(image: &Image, budget: &Budget) -> Result<Vec<Vec<u8>>, Error> {
    let read = |layer: &berth_oci::ImageLayer| {
        let mut bytes = Vec::new();
        layer.open(budget)?.read_to_end(&mut bytes).map_err(Error::from_stream)?;
        Ok(bytes)
    };
    image.layers.iter().map(read).collect()
}

#[track_caller]
fn holds(image: &Image, parts: &Parts) {
    assert!(layers(image, &Budget::new(MOST)).unwrap() == parts.layers);
    let config = &image.config;
    assert_eq!(config.env, [("PATH".into(), "/opt:/bin".into()), ("A".to_owned(), "b=c".to_owned())]);
    assert_eq!((config.user.as_deref(), config.workdir.as_deref()), (Some("app"), Some("/srv")));
    assert_eq!(config.start_command().as_deref(), Some("run it"));
}

/// A folder's files as an archive.
fn packed(folder: &Path) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_dir_all(".", folder).unwrap();
    builder.into_inner().unwrap()
}

#[test]
fn an_image_is_the_same_in_every_form() {
    let (folder, parts) = (TempDir::new().unwrap(), image());
    let layout = folder.path().join("layout");
    parts.layout(&layout, &[parts.entry("amd64", "app:1")]);
    holds(&open(&layout).unwrap(), &parts);
    let archive = packed(&layout);
    let saved = parts.saved("app:1");
    for (number, bytes) in
        [archive.clone(), gzip(&archive), zstd(&archive), saved.clone(), gzip(&saved)].iter().enumerate()
    {
        let path = folder.path().join(format!("{number}.tar"));
        std::fs::write(&path, bytes).unwrap();
        holds(&open(&path).unwrap(), &parts);
    }
    let names = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(names, 6, "nothing is left behind");
}

#[test]
fn the_platform_decides_and_there_is_one_image() {
    let (folder, parts) = (TempDir::new().unwrap(), image());
    let arm = Parts::with(vec![], vec![], "arm64");
    let nested = index(&[arm.entry("arm64", ""), parts.entry("amd64", "")]);
    let outer =
        json!({"mediaType": "application/vnd.oci.image.index.v1+json", "digest": sha(&nested), "size": nested.len()});
    let layout = folder.path().join("layout");
    parts.layout(&layout, std::slice::from_ref(&outer));
    std::fs::write(layout.join(blob_path(&nested)), &nested).unwrap();
    holds(&open(&layout).unwrap(), &parts);

    let other = Parts::with(vec![tar(&[])], vec![tar(&[])], "amd64");
    parts.layout(&layout, &[other.entry("amd64", "other:2"), parts.entry("amd64", "app:1")]);
    assert!(refusal(&layout).contains("other:2, app:1"));
    parts.layout(&layout, &[parts.entry("amd64", "app:1"), parts.entry("amd64", "app:2")]);
    holds(&open(&layout).unwrap(), &parts);
    let saved = |tag: &str| json!({"Config": "a", "RepoTags": [tag], "Layers": []});
    let several = json!([saved("other:2"), saved("app:1")]);
    let path = folder.path().join("several.tar");
    for (manifest, says) in [(several, "other:2, app:1"), (json!([]), "exactly one image")] {
        std::fs::write(&path, tar(&[file("manifest.json", manifest.to_string().as_bytes())])).unwrap();
        assert!(refusal(&path).contains(says), "{says}");
    }

    parts.layout(&layout, &[arm.entry("arm64", "app:1")]);
    assert!(refusal(&layout).contains("linux/amd64"));
    // The index says one thing, the configuration another.
    let lying = Parts::with(vec![], vec![], "arm64");
    lying.layout(&layout, &[lying.entry("amd64", "app:1")]);
    assert!(refusal(&layout).contains("linux/arm64") || refusal(&layout).contains("linux/amd64"));
}

#[test]
fn indexes_cannot_lie_within_each_other_for_ever() {
    let (folder, parts) = (TempDir::new().unwrap(), image());
    let layout = folder.path().join("layout");
    let mut entry = parts.entry("amd64", "");
    let mut blobs = Vec::new();
    for depth in 1..=4 {
        let inner = index(&[entry]);
        entry =
            json!({"mediaType": "application/vnd.oci.image.index.v1+json", "digest": sha(&inner), "size": inner.len()});
        blobs.push(inner);
        parts.layout(&layout, std::slice::from_ref(&entry));
        for blob in &blobs {
            std::fs::write(layout.join(blob_path(blob)), blob).unwrap();
        }
        assert_eq!(open(&layout).is_ok(), depth <= 3, "{depth}");
    }
}

#[test]
fn what_is_damaged_or_missing_is_told() {
    let folder = TempDir::new().unwrap();
    let parts = image();
    let layout = folder.path().join("layout");
    parts.layout(&layout, &[parts.entry("amd64", "")]);
    let image = open(&layout).unwrap();
    // Another blob that decodes to the same layer.
    let path = layout.join(blob_path(&parts.blobs[0]));
    for (bytes, says) in [
        ([parts.blobs[0].clone(), vec![0]].concat(), "damaged"),
        (gzip(b"other"), "damaged"),
        (parts.blobs[0][..20].to_vec(), "damaged"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let error = layers(&image, &Budget::new(MOST)).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    std::fs::remove_file(&path).unwrap();
    assert!(layers(&image, &Budget::new(MOST)).unwrap_err().to_string().contains("with all its layers"));
    // The right blob of a wrong layer.
    let lying = Parts::with(vec![tar(&[file("x", b"y")])], vec![gzip(&tar(&[file("x", b"z")]))], "amd64");
    lying.layout(&layout, &[lying.entry("amd64", "")]);
    let error = layers(&open(&layout).unwrap(), &Budget::new(MOST)).unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    // A manifest that is not what the index names.
    std::fs::write(layout.join(blob_path(&lying.manifest)), parts.manifest).unwrap();
    assert!(refusal(&layout).contains("damaged"));

    for (name, bytes) in
        [("a", b"no archive at all".to_vec()), ("b", tar(&[file("x", b"")])), ("c", vec![]), ("d", gzip(b"x"))]
    {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        assert!(matches!(open(&path), Err(Error::Invalid(_))), "{name}");
    }
    let path = folder.path().join("lost.tar");
    std::fs::write(&path, tar(&[file("manifest.json", br#"[{"Config": "x.json", "Layers": []}]"#)])).unwrap();
    assert!(refusal(&path).contains("configuration"));
    std::fs::write(&path, tar(&[link("manifest.json", "index.json"), link("index.json", "manifest.json")])).unwrap();
    assert!(refusal(&path).contains("docker save"));
    std::fs::write(&path, tar(&[file("../index.json", b"{}")])).unwrap();
    assert!(refusal(&path).contains("'..'"));
}

#[test]
fn a_layout_cannot_name_files_of_the_host() {
    let (folder, parts) = (TempDir::new().unwrap(), image());
    let layout = folder.path().join("layout");
    parts.layout(&layout, &[parts.entry("amd64", "")]);
    let (path, secret) = (layout.join(blob_path(&parts.config)), folder.path().join("secret"));
    std::fs::rename(&path, &secret).unwrap();
    std::os::unix::fs::symlink(&secret, &path).unwrap();
    assert!(refusal(&layout).contains("lacks its part"));
    let up =
        json!({"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": "sha256:../../secret", "size": 1});
    std::fs::write(layout.join("index.json"), index(&[up])).unwrap();
    assert!(matches!(open(&layout), Err(Error::Invalid(_))));
}

#[test]
fn bytes_are_bounded_whatever_they_decode_to() {
    let folder = TempDir::new().unwrap();
    let bomb = tar(&[file("zeros", &vec![0; 1 << 20])]);
    let whole = bomb.len() as u64;
    let parts = Parts::new(vec![bomb.clone(), bomb]);
    let layout = folder.path().join("layout");
    parts.layout(&layout, &[parts.entry("amd64", "")]);
    let image = open(&layout).unwrap();
    assert!(layers(&image, &Budget::new(2 * whole)).is_ok());
    let error = layers(&image, &Budget::new(2 * whole - 1)).unwrap_err();
    assert!(matches!(&error, Error::TooLarge(message) if message.contains("disk_gb")), "{error}");

    let archive = packed(&layout);
    let path = folder.path().join("image.tar.gz");
    std::fs::write(&path, gzip(&archive)).unwrap();
    let size = archive.len() as u64;
    assert!(Image::open(&path, folder.path(), size).is_ok());
    assert!(matches!(Image::open(&path, folder.path(), size - 1), Err(Error::TooLarge(_))));
}

#[test]
fn layers_are_counted() {
    let folder = TempDir::new().unwrap();
    for (count, fine) in [(0, true), (MAX_LAYERS, true), (MAX_LAYERS + 1, false)] {
        let parts = Parts::new(vec![tar(&[]); count]);
        let layout = folder.path().join(count.to_string());
        parts.layout(&layout, &[parts.entry("amd64", "")]);
        assert_eq!(open(&layout).map(|image| image.layers.len()).ok(), fine.then_some(count));
    }
    let parts = image();
    let less = Parts { manifest: Parts::with(vec![], vec![], "amd64").manifest, ..image() };
    let mut manifest: serde_json::Value = serde_json::from_slice(&parts.manifest).unwrap();
    manifest["layers"].as_array_mut().unwrap().pop();
    let less = Parts { manifest: manifest.to_string().into_bytes(), ..less };
    let layout = folder.path().join("less");
    less.layout(&layout, &[less.entry("amd64", "")]);
    assert!(refusal(&layout).contains("different layers"));
}
