use berth_domain::sandbox::dockerfile::{Action, Dockerfile, plan::Copy};
use berth_oci::{Context, Error};
use proptest::prelude::*;
use tar::EntryType;
use tempfile::NamedTempFile;

use crate::fixture::{Entry, directory, file, gzip, link, tar, untar, zstd};

const MOST: u64 = 10 << 20;

fn context_of(bytes: &[u8]) -> (NamedTempFile, Result<Context, Error>) {
    let archive = NamedTempFile::new().unwrap();
    std::fs::write(archive.path(), bytes).unwrap();
    let context = Context::open(archive.path(), MOST);
    (archive, context)
}

fn copy(instruction: &str) -> Copy {
    let dockerfile = Dockerfile::parse(&format!("FROM scratch\nWORKDIR /w\n{instruction}\n")).unwrap();
    let plan = dockerfile.plan(&std::collections::BTreeMap::new(), None, &|_| None).unwrap();
    match plan.stages[0].steps[1].action.clone() {
        Action::Copy(copy) => copy,
        other => panic!("{other:?}"),
    }
}

fn select(context: &Context, instruction: &str, directory: bool) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    context.select(&copy(instruction), directory, &mut out)?;
    Ok(out)
}

/// Paths and contents of the files that an instruction copies.
fn copied(entries: &[Entry<'_>], instruction: &str) -> Vec<(String, String)> {
    let (_archive, context) = context_of(&tar(entries));
    let out = select(&context.unwrap(), instruction, false).unwrap_or_else(|error| panic!("{instruction}: {error}"));
    let mut found = untar(&out).into_iter().map(|(_, path, content, ..)| (path, content)).collect::<Vec<_>>();
    found.sort();
    found
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(path, content)| ((*path).to_owned(), (*content).to_owned())).collect()
}

fn project() -> Vec<Entry<'static>> {
    vec![
        directory("./"),
        file("./a.txt", b"A"),
        file("b.txt", b"B"),
        directory("src"),
        (EntryType::Regular, "src/run", b"R", 0o755),
        file("src/deep/x.txt", b"X"),
        link("src/l", "../a.txt"),
        link("current", "src"),
        (EntryType::Link, "src/same", b"src/run", 0o755),
    ]
}

#[test]
fn a_copy_takes_what_docker_takes() {
    let src = |to: &str| {
        let mut all = vec![
            (format!("{to}/deep"), String::new()),
            (format!("{to}/deep/x.txt"), "X".to_owned()),
            (format!("{to}/l"), "../a.txt".to_owned()),
            (format!("{to}/run"), "R".to_owned()),
            (format!("{to}/same"), format!("{to}/run")),
        ];
        all.insert(0, (to.to_owned(), String::new()));
        all
    };
    for (instruction, found) in [
        ("COPY a.txt /x", pairs(&[("x", "A")])),
        ("COPY a.txt /x/", pairs(&[("x/a.txt", "A")])),
        ("COPY a.txt .", pairs(&[("w/a.txt", "A")])),
        ("COPY *.txt /x/", pairs(&[("x/a.txt", "A"), ("x/b.txt", "B")])),
        ("COPY [\"a.txt\", \"src/deep\", \"/x/\"]", pairs(&[("x", ""), ("x/a.txt", "A"), ("x/x.txt", "X")])),
        ("COPY src /app", src("app")),
        ("COPY src/ /app/", src("app")),
        ("COPY current /app", src("app")),
        ("COPY src/l /x", pairs(&[("x", "A")])),
        ("COPY src/**/x.txt /x", pairs(&[("x", "X")])),
        ("COPY <<EOF /x\n1\nEOF", pairs(&[("x", "1\n")])),
        ("COPY <<EOF a.txt /x/\n1\nEOF", pairs(&[("x/EOF", "1\n"), ("x/a.txt", "A")])),
        ("COPY src/run src/same src/run /x/", pairs(&[("x/run", "R"), ("x/same", "x/run")])),
        ("COPY src/deep /", pairs(&[("x.txt", "X")])),
    ] {
        assert_eq!(copied(&project(), instruction), found, "{instruction}");
    }
    assert_eq!(copied(&project(), "COPY . /").len(), 9);
}

#[test]
fn permissions_stay_and_owners_do_not() {
    let (_archive, context) = context_of(&tar(&project()));
    let out = select(&context.unwrap(), "COPY src/run a.txt /x/", false).unwrap();
    let mut found = untar(&out).into_iter().map(|(_, path, _, mode, uid)| (path, mode, uid)).collect::<Vec<_>>();
    found.sort();
    assert_eq!(found, [("x/a.txt".to_owned(), 0o644, 0), ("x/run".to_owned(), 0o755, 0)]);
}

#[test]
fn a_directory_that_is_there_takes_a_file_in() {
    let (_archive, context) = context_of(&tar(&project()));
    let context = context.unwrap();
    assert_eq!(untar(&select(&context, "COPY a.txt /x", true).unwrap())[0].1, "x/a.txt");
    assert_eq!(untar(&select(&context, "COPY <<E /x\nE", true).unwrap())[0].1, "x/E");
}

#[test]
fn what_is_not_there_is_told() {
    let (_archive, context) = context_of(&tar(&project()));
    let context = context.unwrap();
    for missing in ["COPY c.txt /", "COPY *.md /", "COPY a.txt/b /", "COPY [\"src/none\", \"/\"]"] {
        assert!(matches!(select(&context, missing, false), Err(Error::NotFound(_))), "{missing}");
    }
    assert!(select(&context, "COPY *.txt /x", false).unwrap_err().to_string().contains("'/x/'"));
    assert!(matches!(select(&Context::empty(), "COPY a /", false), Err(Error::NotFound(_))));
    assert_eq!(untar(&select(&Context::empty(), "COPY . /x", false).unwrap()).len(), 1);
    assert_eq!(untar(&select(&Context::empty(), "COPY <<E /x\nE", false).unwrap()).len(), 1);
}

#[test]
fn dockerignore_leaves_out() {
    let entries = [
        file("app.py", b"1"),
        file("node_modules/x.js", b"2"),
        file("notes.md", b"3"),
        file("README.md", b"4"),
        file(".dockerignore", b"node_modules\n*.md\n!README.md\n.git\n.dockerignore\n"),
        file(".git/config", b"5"),
    ];
    assert_eq!(copied(&entries, "COPY . /x/"), pairs(&[("x", ""), ("x/README.md", "4"), ("x/app.py", "1")]));
    let (_archive, context) = context_of(&tar(&entries));
    let error = select(&context.unwrap(), "COPY node_modules /x/", false).unwrap_err().to_string();
    assert!(error.contains(".dockerignore"), "{error}");
}

#[test]
fn add_unpacks_archives_and_copy_does_not() {
    let inner = tar(&[directory("d"), file("d/f", b"F"), link("d/l", "f"), (EntryType::Link, "h", b"d/f", 0o644)]);
    for bytes in [inner.clone(), gzip(&inner), zstd(&inner)] {
        let entries = [file("x.tgz", &bytes)];
        let (_archive, context) = context_of(&tar(&entries));
        let context = context.unwrap();
        let mut out = untar(&select(&context, "ADD x.tgz /opt", false).unwrap());
        out.sort_by(|a, b| a.1.cmp(&b.1));
        let found =
            out.iter().map(|(kind, path, content, ..)| (*kind, path.as_str(), content.as_str())).collect::<Vec<_>>();
        assert_eq!(
            found,
            [
                (EntryType::Directory, "opt/d", ""),
                (EntryType::Regular, "opt/d/f", "F"),
                (EntryType::Symlink, "opt/d/l", "f"),
                (EntryType::Link, "opt/h", "opt/d/f"),
            ]
        );
        let mut raw = Vec::new();
        context.select(&copy("COPY x.tgz /opt"), false, &mut raw).unwrap();
        assert!(raw.windows(5).any(|window| window == b"x.tgz" || window == b"opt\0\0"));
    }
    let (_archive, context) = context_of(&tar(&[file("e.tar", &tar(&[file("../../etc/passwd", b"x")]))]));
    assert!(select(&context.unwrap(), "ADD e.tar /opt", false).unwrap_err().to_string().contains("'..'"));
    let (_archive, context) = context_of(&tar(&[file("x.txz", b"\xfd7zXZ\0......")]));
    assert!(select(&context.unwrap(), "ADD x.txz /opt", false).unwrap_err().to_string().contains("gzip or zstd"));
}

#[test]
fn a_file_that_goes_to_several_places_is_written_once() {
    let big = vec![b'x'; usize::try_from(MOST).unwrap() * 2 / 3];
    let inner = gzip(&tar(&[file("f", b"F")]));
    let entries: [Entry<'_>; 5] = [
        file("a", &big),
        link("b", "a"),
        (EntryType::Link, "c", b"a", 0o644),
        file("x.tgz", &inner),
        link("y.tgz", "x.tgz"),
    ];
    let (_archive, context) = context_of(&tar(&entries));
    let out = untar(&select(&context.unwrap(), "ADD a b c x.tgz y.tgz /x/", false).unwrap());
    let found = out.iter().map(|(kind, path, content, ..)| (*kind, path.as_str(), content.len())).collect::<Vec<_>>();
    assert_eq!(
        found,
        [
            (EntryType::Regular, "x/a", big.len()),
            (EntryType::Link, "x/b", "x/a".len()),
            (EntryType::Link, "x/c", "x/a".len()),
            (EntryType::Regular, "x/f", 1),
        ]
    );
    assert!(out[1..3].iter().all(|(_, _, target, ..)| target == "x/a"));
}

#[test]
fn everything_that_is_read_of_an_archive_within_is_counted() {
    // Members without content count no bytes of files, but the archive is read all the same.
    let blocks = usize::try_from(MOST).unwrap() / 512;
    for (count, fine) in [(blocks - 10, true), (blocks + 10, false)] {
        let inner = gzip(&tar(&vec![directory("d"); count]));
        let (_archive, context) = context_of(&tar(&[file("x.tgz", &inner)]));
        let added = select(&context.unwrap(), "ADD x.tgz /opt", false);
        assert_eq!(added.is_ok(), fine, "{count}");
        assert!(fine || matches!(added, Err(Error::TooLarge(_))));
    }
}

#[test]
fn archives_that_lie_are_refused() {
    for (bytes, says) in [
        (tar(&[file("../x", b"")]), "'..'"),
        (tar(&[file("a/../../x", b"")]), "'..'"),
        (tar(&[file("/etc/passwd", b"")]), "absolute"),
        (tar(&[(EntryType::Link, "a", b"/etc/passwd", 0o644)]), "absolute"),
        (tar(&[(EntryType::Link, "a", b"none", 0o644)]), "leads nowhere"),
        (b"this is no archive, but a text of some length".repeat(20), "tar archive"),
        (tar(&[file("a", &[1; 2000])])[..1000].to_vec(), ""),
        (tar(&[file(".dockerignore", b"[")]), "line 1"),
        (tar(&[(EntryType::GNUSparse, "a", b"", 0o644)]), "sparse"),
    ] {
        let (_archive, context) = context_of(&bytes);
        let error = context.err().unwrap_or_else(|| panic!("{says}"));
        assert!(matches!(error, Error::Invalid(_)) && error.to_string().contains(says), "{error:?}");
    }
}

#[test]
fn a_context_is_bounded_without_its_compression() {
    let bytes = tar(&[file("zeros", &vec![0; 1 << 20])]);
    let archive = NamedTempFile::new().unwrap();
    std::fs::write(archive.path(), gzip(&bytes)).unwrap();
    // The end of an archive is two blocks, which need not be read.
    assert!(Context::open(archive.path(), bytes.len() as u64).is_ok());
    assert!(matches!(Context::open(archive.path(), 1 << 20), Err(Error::TooLarge(_))));
    // A long name that would fill the memory.
    let (_archive, context) = context_of(&gzip(&tar(&[(EntryType::GNULongName, "x", &vec![b'a'; 1 << 20], 0)])));
    assert!(matches!(context, Err(Error::TooLarge(_))));
}

#[test]
fn a_dockerignore_that_cannot_be_read_is_not_the_hosts_fault() {
    let text = (0..20_000_u32).map(|n| format!("{:x}\n", n.wrapping_mul(2_654_435_761))).collect::<String>();
    let bytes = tar(&[file(".dockerignore", text.as_bytes())]);
    let archive = NamedTempFile::new().unwrap();
    std::fs::write(archive.path(), &bytes).unwrap();
    assert!(matches!(Context::open(archive.path(), bytes.len() as u64 / 2), Err(Error::TooLarge(_))));
    let packed = gzip(&bytes);
    let (_archive, context) = context_of(&packed[..packed.len() / 2]);
    assert!(matches!(context, Err(Error::Invalid(_))), "{:?}", context.err());
}

#[test]
fn paths_and_what_links_lead_to_are_bounded() {
    let (deep, long) = (|parts: usize| vec!["d"; parts].join("/"), |bytes: usize| "n".repeat(bytes));
    let open = |entry: Entry<'_>| context_of(&tar(&[entry])).1;
    for (fine, refused) in [
        (file(&deep(64), b""), file(&deep(65), b"")),
        (file(&long(4095), b""), file(&long(4096), b"")),
        (link("s", &long(4095)), link("s", &long(4096))),
    ] {
        assert!(open(fine).is_ok());
        assert!(matches!(open(refused), Err(Error::Invalid(_))));
    }
}

#[test]
fn names_cannot_fill_the_memory() {
    // Each path has 4095 bytes and 63 parent directories; every name counts 64 bytes more.
    let path = |n: usize| format!("{n:063}{}", format!("/{}", "p".repeat(63)).repeat(63));
    let paths = (0..500).map(path).collect::<Vec<_>>();
    let entries = paths.iter().map(|path| file(path, b"")).collect::<Vec<_>>();
    let each = (1..=64).map(|parts| 64 * parts - 1 + 64).sum::<usize>();
    let most = (64 << 20) / each;
    assert!(context_of(&tar(&entries[..most])).1.is_ok());
    assert!(matches!(context_of(&tar(&entries[..=most])).1, Err(Error::TooLarge(_))));
    // A member counts as often as it is copied.
    let (_archive, context) = context_of(&tar(&entries[..most * 2 / 3]));
    let context = context.unwrap();
    assert!(context.look_for(&copy("COPY . /x/")).is_ok());
    assert!(matches!(context.look_for(&copy("COPY . . /x/")), Err(Error::TooLarge(_))));
}

#[test]
fn what_a_copy_takes_is_looked_for() {
    let (_archive, context) = context_of(&tar(&project()));
    let context = context.unwrap();
    assert!(context.look_for(&copy("COPY src /x")).is_ok());
    assert!(matches!(context.look_for(&copy("COPY src none /x/")), Err(Error::NotFound(_))));
}

proptest! {
    #[test]
    fn every_file_of_a_context_arrives_once(names in prop::collection::btree_set("[a-c]/[a-c]{1,2}|[d-f]{1,3}", 1..12)) {
        let content = names.iter().map(String::as_bytes).collect::<Vec<_>>();
        let entries = names.iter().zip(&content).map(|(name, content)| file(name, content)).collect::<Vec<_>>();
        let files = copied(&entries, "COPY . /x/").into_iter().filter(|(_, content)| !content.is_empty());
        let files = files.map(|(path, content)| { assert_eq!(path, format!("x/{content}")); content }).collect::<Vec<_>>();
        prop_assert_eq!(files, names.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn no_bytes_make_it_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..2048), at in 0_usize..1024, with in any::<u8>()) {
        let _ = context_of(&bytes);
        bytes = tar(&project());
        let end = bytes.len();
        bytes[at % end] = with;
        let (_archive, context) = context_of(&bytes);
        if let Ok(context) = context {
            let _ = select(&context, "COPY . /x/", false);
        }
    }
}
