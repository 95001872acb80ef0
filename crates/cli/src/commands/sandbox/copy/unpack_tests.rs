use super::*;
use proptest::prelude::*;
use std::os::unix::fs::PermissionsExt;
use tar::{Builder, Header};

enum Kind<'a> {
    File(&'a [u8], u32),
    Directory(u32),
    Symlink(&'a str),
    Hard(&'a str),
    Pipe,
}

/// An archive of entries with names that no builder would accept.
fn archive(entries: &[(&str, Kind<'_>)]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (name, kind) in entries {
        let mut header = Header::new_gnu();
        let (entry_type, mode, link, content): (_, _, _, &[u8]) = match kind {
            Kind::File(content, mode) => (EntryType::Regular, *mode, "", content),
            Kind::Directory(mode) => (EntryType::Directory, *mode, "", b""),
            Kind::Symlink(target) => (EntryType::Symlink, 0o777, *target, b""),
            Kind::Hard(target) => (EntryType::Link, 0o644, *target, b""),
            Kind::Pipe => (EntryType::Fifo, 0o644, "", b""),
        };
        let old = header.as_old_mut();
        old.name[..name.len()].copy_from_slice(name.as_bytes());
        old.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(entry_type);
        header.set_mode(mode);
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append(&header, content).unwrap();
    }
    builder.into_inner().unwrap()
}

/// A directory `in` beside a file `secret`.
fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let inside = dir.path().join("in");
    std::fs::create_dir(&inside).unwrap();
    std::fs::write(dir.path().join("secret"), "as it was").unwrap();
    (dir, inside)
}

fn beside(dir: &tempfile::TempDir) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(std::fs::read_to_string(dir.path().join("secret")).unwrap(), "as it was");
    names
}

#[test]
fn an_ordinary_tree_comes_out_as_it_was() {
    let (dir, inside) = place();
    let bytes = archive(&[
        ("./", Kind::Directory(0o700)),
        ("closed/", Kind::Directory(0o500)),
        ("closed/run", Kind::File(b"#!/bin/sh\n", 0o4755)),
        ("deep/er/file", Kind::File(&[7; 2000], 0o600)),
        ("deep/up", Kind::Symlink("../closed/run")),
        ("deep/hard", Kind::Hard("deep/er/file")),
    ]);
    let done = unpack(bytes.as_slice(), &inside).unwrap();
    assert_eq!((done.refused, done.reasons.len()), (0, 0), "{:?}", done.reasons);
    assert_eq!(std::fs::read(inside.join("deep/up")).unwrap(), b"#!/bin/sh\n");
    assert_eq!(std::fs::read(inside.join("deep/hard")).unwrap(), [7; 2000]);
    let mode = |name: &str| inside.join(name).metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("closed"), mode("deep/er/file")), (0o500, 0o600));
    assert_eq!(mode("closed/run") & 0o7000, 0, "it runs as nobody but who runs it");
    // Again, over the same files.
    std::fs::set_permissions(inside.join("closed"), std::fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(unpack(bytes.as_slice(), &inside).unwrap().refused, 0);
    assert_eq!(beside(&dir), ["in", "secret"]);
}

#[test]
fn nothing_leaves_the_directory() {
    let (dir, inside) = place();
    let secret = dir.path().join("secret");
    let secret = secret.to_str().unwrap();
    let cases: Vec<Vec<(&str, Kind<'_>)>> = vec![
        vec![("../evil", Kind::File(b"x", 0o644))],
        vec![("a/../../evil", Kind::File(b"x", 0o644))],
        vec![("/tmp/berth-evil", Kind::File(b"x", 0o644))],
        vec![("../evil/", Kind::Directory(0o755))],
        vec![("out", Kind::Symlink("..")), ("out/evil", Kind::File(b"x", 0o644))],
        vec![("out", Kind::Symlink("/")), ("out/tmp/berth-evil", Kind::File(b"x", 0o644))],
        vec![("out", Kind::Symlink(secret)), ("out", Kind::Hard("out"))],
        vec![("out", Kind::Hard(secret))],
        vec![("out", Kind::Hard("../secret"))],
        vec![("a/b/s", Kind::Symlink("../..")), ("a/b/l", Kind::Symlink("s/.."))],
        vec![("pipe", Kind::Pipe)],
    ];
    for entries in cases {
        let names: Vec<String> = entries.iter().map(|(name, _)| (*name).to_owned()).collect();
        let done = unpack(archive(&entries).as_slice(), &inside).unwrap();
        assert!(done.refused > 0 && done.reasons[0].contains("left out"), "{names:?} {:?}", done.reasons);
        assert_eq!(beside(&dir), ["in", "secret"], "{names:?}");
        assert!(!Path::new("/tmp/berth-evil").exists());
    }
}

#[test]
fn a_link_is_replaced_and_never_written_through() {
    let (dir, inside) = place();
    std::os::unix::fs::symlink("../secret", inside.join("mine")).unwrap();
    std::os::unix::fs::symlink("..", inside.join("up")).unwrap();
    let bytes = archive(&[("mine", Kind::File(b"new", 0o644)), ("up/evil", Kind::File(b"x", 0o644))]);
    let done = unpack(bytes.as_slice(), &inside).unwrap();
    assert_eq!(done.refused, 1, "{:?}", done.reasons);
    assert_eq!(std::fs::read(inside.join("mine")).unwrap(), b"new");
    assert_eq!(beside(&dir), ["in", "secret"]);
    let bytes = archive(&[("a/b", Kind::File(b"", 0o644)), ("a", Kind::File(b"", 0o644))]);
    assert_eq!(unpack(bytes.as_slice(), &inside).unwrap().refused, 1, "a directory is in the way");
}

#[test]
fn names_obey_no_terminal_and_reasons_are_bounded() {
    let (_dir, inside) = place();
    let entries: Vec<_> = (0..REASONS + 5).map(|_| ("\x1b[2Jpipe", Kind::Pipe)).collect();
    let done = unpack(archive(&entries).as_slice(), &inside).unwrap();
    assert_eq!((done.refused, done.reasons.len()), (REASONS + 5, REASONS));
    assert!(!done.reasons[0].contains('\x1b'), "{:?}", done.reasons[0]);
    let deep = "d/".repeat(45);
    assert_eq!(unpack(archive(&[(&deep, Kind::Directory(0o755))]).as_slice(), &inside).unwrap().refused, 0);
}

/// Blocks of an archive as a hostile guest writes them: headers of a kind, with a content that belongs to no file.
fn raw(kind: EntryType, content: &[u8]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(content.len() as u64);
    header.set_cksum();
    builder.append(&header, content).unwrap();
    builder.into_inner().unwrap()
}

#[test]
fn long_names_are_read_and_bounded() {
    let (_dir, inside) = place();
    let long = format!("{}/{}", "d".repeat(200), "f".repeat(200));
    let mut builder = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_size(1);
    builder.append_data(&mut header, &long, &b"x"[..]).unwrap();
    header.set_entry_type(EntryType::Symlink);
    header.set_size(0);
    builder.append_link(&mut header, "link", &long).unwrap();
    assert_eq!(unpack(builder.into_inner().unwrap().as_slice(), &inside).unwrap().refused, 0);
    assert_eq!(std::fs::read(inside.join("link")).unwrap(), b"x");
    for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader] {
        let most = usize::try_from(LONGEST).unwrap();
        let error = unpack(raw(kind, &vec![b'a'; most + 1]).as_slice(), &inside).unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
        let fits = unpack(raw(kind, &vec![b'a'; most]).as_slice(), &inside);
        assert!(fits.is_ok() || !fits.unwrap_err().to_string().contains("too long"));
    }
}

#[test]
fn files_with_holes_are_refused() {
    let (_dir, inside) = place();
    assert!(unpack(raw(EntryType::GNUSparse, b"x").as_slice(), &inside).unwrap_err().to_string().contains("holes"));
    for pax in ["22 GNU.sparse.major=1\n", "19 GNU.sparse.size=9\n"] {
        let sized = format!("{} {}", pax.len(), pax.split_once(' ').unwrap().1);
        assert!(unpack(raw(EntryType::XHeader, sized.as_bytes()).as_slice(), &inside).is_err(), "{sized}");
    }
    assert!(unpack(raw(EntryType::XHeader, b"12 size=999\n").as_slice(), &inside).is_err());
}

#[test]
fn half_an_archive_is_none() {
    let (_dir, inside) = place();
    let bytes = archive(&[("a", Kind::File(&[1; 5000], 0o644))]);
    assert!(unpack(&bytes[..1024], &inside).is_err());
}

#[test]
fn links_that_stay() {
    for (target, depth, fine) in [
        ("a", 0, true),
        ("./a/b", 0, true),
        ("..", 0, false),
        ("..", 1, true),
        ("../..", 1, false),
        ("../../a", 2, true),
        ("a/..", 5, false),
        ("/a", 5, false),
    ] {
        assert_eq!(stays(Path::new(target), depth), fine, "{target} {depth}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_history_of_entries_leaves_the_directory(
        entries in prop::collection::vec((0_u8..4, "(\\.\\./|a/|b/|/){0,4}(a|b|\\.\\.)", "(\\.\\./|a/|b/|/){0,4}(a|b|secret|\\.\\.)"), 1..12)
    ) {
        let (dir, inside) = place();
        let entries: Vec<_> = entries.iter().map(|(kind, name, target)| (name.as_str(), match kind {
            0 => Kind::File(b"evil", 0o644),
            1 => Kind::Directory(0o755),
            2 => Kind::Symlink(target),
            _ => Kind::Hard(target),
        })).collect();
        let _ = unpack(archive(&entries).as_slice(), &inside);
        prop_assert_eq!(beside(&dir), ["in", "secret"]);
        // None of the links that were made leads out, either.
        let root = inside.canonicalize().unwrap();
        for found in walkdir::WalkDir::new(&inside).follow_links(false).into_iter().flatten() {
            if let Ok(real) = found.path().canonicalize() {
                prop_assert!(real.starts_with(&root), "{} leads to {}", found.path().display(), real.display());
            }
        }
    }
}
