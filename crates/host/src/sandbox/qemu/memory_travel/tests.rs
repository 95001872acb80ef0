use std::os::unix::fs::MetadataExt;

use berth_domain::ids::LayerId;

use super::*;
use crate::sandbox::qemu::guest_travel::tests::{build, engine};
use crate::sandbox::travel::carry_memory;

const ID: MemoryId = MemoryId(Uuid::from_u128(1));
const MEMORY_MB: i64 = 64;

/// A memory of a guest: a few pages here and there.
async fn capture(engine: &QemuSandboxes) {
    let captured = engine.places.memory(ID);
    std::fs::create_dir_all(&captured.dir).unwrap();
    std::fs::write(captured.state(), b"devices".repeat(1000)).unwrap();
    let mut memory = File::create(captured.memory()).unwrap();
    memory.set_len(MEMORY_MB.unsigned_abs() << 20).unwrap();
    for at in [0, 5 << 20, (64 << 20) - 4] {
        memory.seek(SeekFrom::Start(at)).unwrap();
        memory.write_all(b"page").unwrap();
    }
    let about = About {
        fingerprint: engine.fingerprint().await.unwrap(),
        vcpu: 1,
        memory_mb: MEMORY_MB,
        disk_bytes: 1 << 30,
        layer: Some(LayerId(Uuid::from_u128(2))),
    };
    about.write(&captured).unwrap();
}

/// Two hosts whose sandboxes boot this, of which the first has a memory.
async fn two(here: &Path, there: &Path, other: &str) -> (QemuSandboxes, QemuSandboxes) {
    build(here, "1", 1000);
    build(there, other, 1000);
    let (from, to) = (engine(here), engine(there));
    capture(&from).await;
    (from, to)
}

/// The names of what lies among the memories.
fn found(engine: &QemuSandboxes) -> Vec<String> {
    let entries = std::fs::read_dir(engine.places.memories()).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[tokio::test]
async fn a_memory_is_the_same_on_another_host_with_its_holes() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, to) = two(here.path(), there.path(), "1").await;
    let bytes = carry_memory(&from, &to, ID).await.unwrap();
    assert!((1..1 << 20).contains(&bytes), "zeros take nothing: {bytes}");
    let [one, other] = [&from, &to].map(|engine| engine.places.memory(ID));
    for name in ["about.json", "state", "memory"] {
        let [one, other] = [&one, &other].map(|captured| std::fs::read(captured.dir.join(name)).unwrap());
        assert!(one == other, "{name}");
    }
    assert!(other.memory().metadata().unwrap().blocks() * 512 < 1 << 20);
    assert_eq!(found(&to), [ID.to_string()]);
    assert_eq!(to.scan().await.unwrap().memories, [ID]);
    assert_eq!(carry_memory(&from, &to, ID).await, Ok(0), "it is there");
    to.remove_memory(ID).await.unwrap();
    assert!(carry_memory(&from, &to, ID).await.is_ok_and(|bytes| bytes > 0));
    from.remove_memory(ID).await.unwrap();
    assert!(matches!(from.memory_file(ID).await, Err(EngineError::Transient(_))));
}

#[tokio::test]
async fn a_memory_that_no_machine_here_can_load_is_refused() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, to) = two(here.path(), there.path(), "2").await;
    let refused = carry_memory(&from, &to, ID).await;
    assert!(matches!(&refused, Err(EngineError::Permanent(why)) if why.contains("boot something else")), "{refused:?}");
    assert_eq!(found(&to), Vec::<String>::new());
    let about = About::read(&from.places.memory(ID)).unwrap();
    let fingerprint = about.fingerprint.clone();
    let said = Said { about, processor: "one".into() };
    let bytes = MEMORY_MB << 20;
    for (processor, free, is_fine) in [("one", bytes, true), ("two", bytes, false), ("one", bytes - 1, false)] {
        assert_eq!(fits(&said, &fingerprint, processor, free).is_ok(), is_fine, "{processor} {free}");
    }
    assert!(matches!(fits(&said, &fingerprint, "one", 0), Err(EngineError::NoCapacity(_))));
    // It is refused before anything of it is sent.
    let file = from.memory_file(ID).await.unwrap();
    assert!(matches!(to.expect_memory(ID, &file).await, Err(EngineError::Permanent(_))));
    assert!(loads("", &label(&fingerprint, "one")).is_err());
}

/// The archive of these entries.
fn archive(entries: &[(&str, u64)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(zstd::Encoder::new(Vec::new(), LEVEL).unwrap());
    for (name, bytes) in entries {
        let mut header = tar::Header::new_gnu();
        // As one who means ill writes them: the library refuses such names.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(*bytes);
        header.set_cksum();
        archive.append(&header, io::repeat(b'7').take(*bytes)).unwrap();
    }
    archive.into_inner().unwrap().finish().unwrap()
}

#[tokio::test]
async fn what_breaks_off_or_is_no_memory_is_not_seen() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, to) = two(here.path(), there.path(), "1").await;
    let file = from.memory_file(ID).await.unwrap();
    let mut whole = Vec::new();
    let mut content = from.read_memory(ID, &file).await.unwrap();
    tokio::io::AsyncReadExt::read_to_end(&mut content, &mut whole).await.unwrap();
    assert_eq!(whole.len() as u64, file.bytes);
    let said = |bytes: &[u8]| ImageFile {
        bytes: bytes.len() as u64,
        sha256: hex::encode(&Sha256::digest(bytes)),
        ..file.clone()
    };
    let half = &whole[..whole.len() / 2];
    let bad = [
        (said(&whole), half.to_vec()),
        (said(half), half.to_vec()),
        (said(b"bytes"), b"bytes".to_vec()),
        (said(&archive(&[])), archive(&[])),
        (said(&archive(&[("../about.json", 10)])), archive(&[("../about.json", 10)])),
        (said(&archive(&[("about.json", SAID + 1)])), archive(&[("about.json", SAID + 1)])),
        (said(&archive(&[("about.json", 10)])), archive(&[("about.json", 10)])),
    ];
    for (number, (file, bytes)) in bad.into_iter().enumerate() {
        assert_eq!(to.expect_memory(ID, &file).await, Ok(true));
        let taken = to.take_memory(ID, &file, Box::new(io::Cursor::new(bytes))).await;
        assert!(matches!(taken, Err(EngineError::Transient(_))), "{number}: {taken:?}");
        assert_eq!(found(&to), Vec::<String>::new(), "{number}");
    }
    let huge = ImageFile { bytes: u64::MAX, ..file };
    assert!(matches!(to.expect_memory(ID, &huge).await, Err(EngineError::NoCapacity(_))));
    assert!(matches!(fits_more(&whole, there.path()), Err(EngineError::Transient(_))));
}

/// Takes an archive whose memory is larger than its machine's.
fn fits_more(whole: &[u8], dir: &Path) -> Result<()> {
    let mut entries = tar::Archive::new(zstd::Decoder::new(whole).unwrap());
    let mut larger = tar::Builder::new(zstd::Encoder::new(Vec::new(), LEVEL).unwrap());
    for entry in entries.entries().unwrap() {
        let mut entry = entry.unwrap();
        let (mut header, mut content) = (entry.header().clone(), Vec::new());
        entry.read_to_end(&mut content).unwrap();
        if &*entry.path_bytes() == b"memory" {
            content.push(0);
            header.set_size(content.len() as u64);
            header.set_cksum();
        }
        larger.append(&header, content.as_slice()).unwrap();
    }
    let archive = dir.join("larger");
    std::fs::write(&archive, larger.into_inner().unwrap().finish().unwrap()).unwrap();
    unpack(&archive, &dir.join("larger-memory"), |_| Ok(()))
}
