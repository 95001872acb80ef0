//! What a copy takes from a disk, and what arrives.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;
use tar::{Archive, EntryType};

use crate::builds::{DIRECTORY, FILE, bare, file, is_root, layer, read, unpack};
use crate::harness::Client;

/// Packs the files that match the sources.
async fn pack(client: &Client, sources: &[&str], to: &str, into: bool) -> Vec<u8> {
    let body = json!({"sources": sources, "to": to, "into": into});
    let reply = client.post("/control/pack", body).await.ok();
    assert_eq!(reply.headers["content-type"], "application/x-tar");
    reply.bytes.to_vec()
}

fn entries(archive: &[u8]) -> usize {
    Archive::new(archive).entries().unwrap().map(|entry| drop(entry.unwrap())).count()
}

#[tokio::test]
async fn another_disk_takes_what_it_copies() {
    let (agent, client) = bare().await;
    let entries = [
        (FILE, "out/app", "A", 0o755, 5),
        (FILE, "out/a.whl", "1", 0o644, 5),
        (FILE, "out/sub/b.whl", "2", 0o644, 5),
        (EntryType::Symlink, "out/l", "app", 0o777, 5),
        (EntryType::Symlink, "current", "/out", 0o777, 5),
    ];
    layer(&client, &entries).await;
    let packed = async |sources: &[&str], to: &str, into: bool| {
        let bytes = pack(&client, sources, to, into).await;
        let mut archive = Archive::new(&bytes[..]);
        let entries = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let owner = entry.header().uid().unwrap();
            assert!(owner == 5 || !is_root() || entry.header().entry_type() == DIRECTORY);
            entry.path().unwrap().to_str().unwrap().trim_end_matches('/').to_owned()
        });
        let mut paths = entries.collect::<Vec<_>>();
        paths.sort();
        paths
    };
    let whole = ["x", "x/a.whl", "x/app", "x/l", "x/sub", "x/sub/b.whl"];
    for (sources, to, into, found) in [
        (&["out/app"][..], "/x", false, &["x"][..]),
        (&["/out/app"], "/x/", true, &["x/app"]),
        (&["out/l"], "/x", true, &["x/l"]),
        (&["out"], "/x", false, &whole),
        (&["current"], "/x/", true, &whole),
        (&["out/*.whl"], "/x", true, &["x/a.whl"]),
        (&["**/*.whl", "out/app"], "/", true, &["a.whl", "app", "b.whl"]),
        (&["/"], "/", true, &["current", "out", "out/a.whl", "out/app", "out/l", "out/sub", "out/sub/b.whl"]),
    ] {
        assert_eq!(packed(sources, to, into).await, found, "{sources:?}");
    }
    for missing in ["none", "out/app/x", "*.rs", "none/*"] {
        client
            .post("/control/pack", json!({"sources": [missing], "to": "/x", "into": true}))
            .await
            .refused(404, "not_found");
    }
    client
        .post("/control/pack", json!({"sources": ["out/*.whl", "out/app"], "to": "/x", "into": false}))
        .await
        .names(&["to"]);
    client.post("/control/pack", json!({"sources": ["[", "a"], "to": "x"})).await.names(&["to", "into"]);
    // What is packed here unpacks unchanged elsewhere.
    unpack(&client, "?keep", pack(&client, &["out"], "/copy", false).await).await.ok();
    assert_eq!(std::fs::metadata(agent.path("copy/app")).unwrap().permissions().mode() & 0o7777, 0o755);
    assert_eq!(std::fs::read_link(agent.path("copy/l")).unwrap(), Path::new("app"));
}

#[tokio::test]
async fn names_of_one_file_and_attributes_arrive() {
    let (agent, client) = bare().await;
    layer(&client, &[file("out/a", "1"), (EntryType::Link, "out/sub/b", "out/a", 0o644, 0), file("out/c", "2")]).await;
    let value = b"a\nb=c";
    let set = |path: &str| setxattr(agent.path(path), "user.berth", value, XattrFlags::empty());
    // Some file systems of hosts have no attributes.
    let has = set("out/a").map_or_else(
        |error| {
            assert_eq!(error, Errno::OPNOTSUPP);
            false
        },
        |()| true,
    );
    if has {
        set("out/sub").unwrap();
    }
    let packed = pack(&client, &["out"], "/copy", false).await;
    unpack(&client, "?keep", packed).await.ok();
    let [a, b, c] = ["copy/a", "copy/sub/b", "copy/c"].map(|path| std::fs::metadata(agent.path(path)).unwrap());
    assert_eq!((a.ino(), a.nlink(), c.nlink()), (b.ino(), 2, 1));
    assert_eq!((read(&agent, "copy/a"), read(&agent, "copy/c")), ("1".into(), "2".into()));
    for path in ["copy/a", "copy/sub"].into_iter().filter(|_| has) {
        let mut found = [0_u8; 16];
        let length = getxattr(agent.path(path), "user.berth", &mut found).unwrap();
        assert_eq!(&found[..length], value, "{path}");
    }
    assert!(getxattr(agent.path("copy/c"), "user.berth", &mut [0_u8; 16]).is_err());
}

#[tokio::test]
async fn a_name_that_another_file_takes_stands_for_it() {
    let (agent, client) = bare().await;
    layer(&client, &[file("l/f", "1"), file("m/f", "2"), (EntryType::Link, "n/g", "l/f", 0o644, 0)]).await;
    let packed = pack(&client, &["l/f", "m/f", "n/g"], "/x", true).await;
    unpack(&client, "?keep", packed).await.ok();
    assert_eq!((read(&agent, "x/f"), read(&agent, "x/g")), ("2".into(), "1".into()));
}

#[tokio::test]
async fn more_files_are_taken_than_may_be_open() {
    let (agent, client) = bare().await;
    let names = (0..200).map(|n| format!("out/{n}")).collect::<Vec<_>>();
    layer(&client, &names.iter().map(|name| file(name, "1")).collect::<Vec<_>>()).await;
    let few = Rlimit { current: Some(64), maximum: Some(64) };
    prlimit(Pid::from_raw(agent.pid().cast_signed()), Resource::Nofile, few).unwrap();
    assert_eq!(entries(&pack(&client, &["out/*"], "/x", true).await), names.len());
}

#[tokio::test]
async fn a_tree_that_is_too_deep_is_refused_before_anything_is_sent() {
    let (agent, client) = bare().await;
    let body = json!({"sources": ["deep"], "to": "/copy", "into": false});
    std::fs::create_dir_all(agent.path("deep").join("d/".repeat(255))).unwrap();
    let packed = client.post("/control/pack", body.clone()).await.ok().bytes.to_vec();
    assert_eq!(entries(&packed), 256);
    unpack(&client, "?keep", packed).await.ok();
    assert!(agent.path("copy").join("d/".repeat(255)).is_dir());
    std::fs::create_dir_all(agent.path("deep").join("d/".repeat(256))).unwrap();
    client.post("/control/pack", body).await.refused(409, "conflict");
}
