//! Archives: packing, unpacking, and malicious ones.

use http::{Method, StatusCode};
use serde_json::json;
use tar::{Builder, EntryType, Header};

use crate::harness::{Agent, Client, Reply, request, whole};

async fn extract(client: &Client, path: &str, archive: Vec<u8>) -> Reply {
    client.call(request(Method::POST, &format!("/runtime/files/extract{path}"), whole(archive))).await
}

fn header(kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o640);
    header.set_mtime(1_000_000_000);
    header
}

/// An archive with one entry, whatever its name.
fn one(kind: EntryType, name: &str, link: Option<&str>, content: &[u8]) -> Vec<u8> {
    let mut header = header(kind, content.len() as u64);
    // The crate's own setters refuse malicious names.
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    if let Some(link) = link {
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    }
    header.set_cksum();
    let mut builder = Builder::new(Vec::new());
    builder.append(&header, content).unwrap();
    builder.into_inner().unwrap()
}

/// Several archives, one after the other, as one.
fn joined(archives: &[Vec<u8>]) -> Vec<u8> {
    let mut all = archives.iter().flat_map(|archive| &archive[..archive.len() - 1024]).copied().collect::<Vec<_>>();
    all.extend([0; 1024]);
    all
}

#[tokio::test]
async fn a_tree_goes_there_and_back() {
    let (agent, client) = Agent::start().await;
    let long = format!("{}/{}", "d".repeat(120), "f".repeat(200));
    for (path, content) in
        [("tree/a", &b"one"[..]), ("tree/sub/b", &vec![7; 300_000]), (&format!("tree/{long}"), b"long")]
    {
        agent.write(path, content);
    }
    std::os::unix::fs::symlink("sub/b", agent.path("tree/link")).unwrap();
    std::fs::set_permissions(agent.path("tree/a"), std::os::unix::fs::PermissionsExt::from_mode(0o750)).unwrap();
    let packed = client.post("/runtime/files/archive", json!({"path": "tree"})).await.ok();
    assert_eq!(packed.headers["content-type"], "application/x-tar");
    let reply = extract(&client, "?path=copy/of", packed.bytes.to_vec()).await;
    assert_eq!((reply.status, reply.json()), (StatusCode::OK, json!({"entries": 6})));
    assert_eq!(std::fs::read(agent.path("copy/of/sub/b")).unwrap(), vec![7; 300_000]);
    assert_eq!(std::fs::read(agent.path("copy/of").join(&long)).unwrap(), b"long");
    assert_eq!(std::fs::read_link(agent.path("copy/of/link")).unwrap().to_str(), Some("sub/b"));
    let entry = client.get("/runtime/files/stat?path=copy/of/a").await.json();
    assert_eq!((entry["mode"].clone(), entry["owner"].clone()), (json!("0750"), json!(agent.user)));
}

#[tokio::test]
async fn one_file_is_packed_under_its_name() {
    let (agent, client) = Agent::start().await;
    agent.write("dir/file", b"content");
    let packed = client.post("/runtime/files/archive", json!({"path": "dir/file"})).await.ok();
    let mut archive = tar::Archive::new(&packed.bytes[..]);
    let paths = archive.entries().unwrap().map(|e| e.unwrap().path().unwrap().into_owned()).collect::<Vec<_>>();
    assert_eq!(paths, [std::path::Path::new("file")]);
    client.post("/runtime/files/archive", json!({"path": "missing"})).await.refused(404, "not_found");
    client.post("/runtime/files/archive", json!({})).await.names(&["path"]);
}

#[tokio::test]
async fn entries_do_not_lead_out() {
    let (agent, client) = Agent::start().await;
    for name in ["../evil", "/evil", "a/../../evil", "..", "a/b/../../../evil"] {
        for kind in [EntryType::Regular, EntryType::Directory, EntryType::Symlink, EntryType::Link] {
            extract(&client, "", one(kind, name, Some("x"), b"")).await.refused(400, "invalid_path");
        }
    }
    let out = agent.folder.path().join("out");
    std::fs::create_dir(&out).unwrap();
    std::fs::set_permissions(&out, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::write(out.join("file"), "secret").unwrap();
    for target in ["../out", out.to_str().unwrap()] {
        let link = one(EntryType::Symlink, "way", Some(target), b"");
        let through = one(EntryType::Regular, "way/evil", None, b"x");
        extract(&client, "", joined(&[link.clone(), through])).await.refused(400, "invalid_path");
        let hard = one(EntryType::Link, "stolen", Some("way/file"), b"");
        extract(&client, "", joined(&[link.clone(), hard])).await.refused(400, "invalid_path");
        let directory = one(EntryType::Directory, "way/dir", None, b"");
        extract(&client, "", joined(&[link, directory])).await.refused(400, "invalid_path");
    }
    extract(&client, "", one(EntryType::Link, "stolen", Some("../out/file"), b"")).await.refused(400, "invalid_path");
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 1);
    assert!(!agent.path("stolen").exists());
}

#[tokio::test]
async fn a_file_takes_the_place_of_a_link_and_not_of_where_it_leads() {
    let (agent, client) = Agent::start().await;
    agent.write("kept", b"kept");
    let link = one(EntryType::Symlink, "a", Some("kept"), b"");
    extract(&client, "", joined(&[link, one(EntryType::Regular, "a", None, b"new")])).await.ok();
    assert_eq!(
        (std::fs::read(agent.path("kept")).unwrap(), std::fs::read(agent.path("a")).unwrap()),
        (b"kept".into(), b"new".into())
    );
    agent.write("dir/file", b"");
    extract(&client, "", one(EntryType::Regular, "dir", None, b"x")).await.refused(400, "is_a_directory");
}

#[tokio::test]
async fn what_is_no_file_is_refused() {
    let (_agent, client) = Agent::start().await;
    for kind in [EntryType::Char, EntryType::Block, EntryType::Fifo, EntryType::GNUSparse, EntryType::new(b'?')] {
        extract(&client, "", one(kind, "dev", None, b"")).await.refused(400, "invalid_archive");
    }
}

#[tokio::test]
async fn broken_archives_are_refused() {
    let (_agent, client) = Agent::start().await;
    extract(&client, "", vec![b'x'; 4096]).await.refused(400, "invalid_archive");
    let whole = one(EntryType::Regular, "a", None, &[1; 2000]);
    extract(&client, "", whole[..1000].to_vec()).await.refused(400, "invalid_archive");
    assert_eq!(extract(&client, "", Vec::new()).await.ok().json(), json!({"entries": 0}));
}

#[tokio::test]
async fn names_and_headers_are_bounded_whatever_they_claim() {
    let (_agent, client) = Agent::start().await;
    for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader] {
        let long = one(kind, "././@LongLink", None, &vec![b'a'; 64 * 1024 + 1]);
        extract(&client, "", long).await.refused(400, "invalid_archive");
    }
    let name = "a".repeat(255);
    let named = [one(EntryType::GNULongName, "l", None, name.as_bytes()), one(EntryType::Regular, "x", None, b"1")];
    assert_eq!(extract(&client, "", joined(&named)).await.ok().json(), json!({"entries": 1}));
    assert_eq!(client.get(&format!("/runtime/files/content?path={name}")).await.ok().bytes, "1");
    let pax = format!("{} path=../evil\n", 16);
    let evil = [one(EntryType::XHeader, "p", None, pax.as_bytes()), one(EntryType::Regular, "x", None, b"1")];
    extract(&client, "", joined(&evil)).await.refused(400, "invalid_path");
}
