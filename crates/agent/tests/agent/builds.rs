//! A disk that a build makes: layers, copies and programs. The workspace stands for the disk.

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use berth_domain::agent::runtime::OutputEvent;
use http::Method;
use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};

use crate::harness::{Agent, Client, Events, Reply, posting, request, until, whole};

/// An entry: type, path, content or target, permissions, owner.
pub type Entry<'a> = (EntryType, &'a str, &'a str, u32, u64);

pub const FILE: EntryType = EntryType::Regular;
pub const DIRECTORY: EntryType = EntryType::Directory;

fn tar(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (kind, path, content, mode, owner) in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(*mode);
        header.set_uid(*owner);
        header.set_gid(*owner);
        header.set_mtime(1_000_000_000);
        let linked = matches!(kind, EntryType::Symlink | EntryType::Link);
        header.set_size(if linked { 0 } else { content.len() as u64 });
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        if linked {
            header.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
        }
        header.set_cksum();
        builder.append(&header, if linked { &[] } else { content.as_bytes() }).unwrap();
    }
    builder.into_inner().unwrap()
}

pub fn file<'a>(path: &'a str, content: &'a str) -> Entry<'a> {
    (FILE, path, content, 0o644, 0)
}

pub async fn unpack(client: &Client, query: &str, archive: Vec<u8>) -> Reply {
    client.call(request(Method::POST, &format!("/control/unpack{query}"), whole(archive))).await
}

pub async fn layer(client: &Client, entries: &[Entry<'_>]) -> Value {
    unpack(client, "", tar(entries)).await.ok().json()
}

pub async fn bare() -> (Agent, Client) {
    let agent = Agent::start_bare(&[]);
    let client = agent.client().await;
    (agent, client)
}

/// Whether this test may change owners.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Everything below a folder, sorted.
fn tree(folder: &Path) -> Vec<String> {
    fn walk(root: &Path, folder: &Path, all: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            all.push(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
            if path.symlink_metadata().unwrap().is_dir() {
                walk(root, &path, all);
            }
        }
    }
    let mut all = Vec::new();
    walk(folder, folder, &mut all);
    all.sort();
    all
}

pub fn read(agent: &Agent, path: &str) -> String {
    std::fs::read_to_string(agent.path(path)).unwrap()
}

#[tokio::test]
async fn a_layer_brings_everything_as_it_says() {
    let (agent, client) = bare().await;
    let entries = [
        (DIRECTORY, "./", "", 0o755, 0),
        (DIRECTORY, "usr/bin/", "", 0o2750, 7),
        (FILE, "usr/bin/su", "binary", 0o4755, 7),
        (EntryType::Symlink, "bin", "usr/bin", 0o777, 7),
        (EntryType::Link, "usr/bin/same", "bin/su", 0o644, 0),
        (EntryType::Char, "dev/null", "", 0o666, 0),
        (EntryType::Fifo, "pipe", "", 0o666, 0),
        file("/bin/absolute", "through the link"),
    ];
    assert_eq!(layer(&client, &entries).await, json!({"entries": 5, "skipped": 3}));
    assert_eq!(
        tree(&agent.workspace()),
        ["bin", "dev", "usr", "usr/bin", "usr/bin/absolute", "usr/bin/same", "usr/bin/su"]
    );
    let su = std::fs::metadata(agent.path("usr/bin/su")).unwrap();
    assert_eq!((su.mode() & 0o7777, su.mtime(), su.nlink()), (0o4755, 1_000_000_000, 2));
    let bin = std::fs::metadata(agent.path("usr/bin")).unwrap();
    assert_eq!((bin.mode() & 0o7777, bin.mtime()), (0o2750, 1_000_000_000));
    if is_root() {
        let link = std::fs::symlink_metadata(agent.path("bin")).unwrap();
        assert_eq!([su.uid(), su.gid(), bin.uid(), link.uid()], [7; 4]);
    }
}

#[tokio::test]
async fn a_layer_takes_the_place_of_what_is_there() {
    let (agent, client) = bare().await;
    layer(&client, &[file("a/f", "1"), file("b", "1"), (EntryType::Symlink, "c", "a", 0o777, 0), file("d/x/y", "1")])
        .await;
    let second = [
        file("a", "2"),
        (DIRECTORY, "b", "", 0o700, 0),
        file("b/f", "2"),
        (DIRECTORY, "c", "", 0o755, 0),
        file("c/f", "2"),
    ];
    layer(&client, &second).await;
    layer(&client, &[(EntryType::Symlink, "d", "b", 0o777, 0)]).await;
    assert_eq!(tree(&agent.workspace()), ["a", "b", "b/f", "c", "c/f", "d"]);
    assert_eq!((read(&agent, "a"), read(&agent, "d/f")), ("2".into(), "2".into()));
}

#[tokio::test]
async fn whiteouts_take_away_what_was_below_and_not_what_comes_with_them() {
    let (agent, client) = bare().await;
    layer(&client, &[file("a", "1"), file("d/x", "1"), file("d/y/z", "1"), file("e/x", "1"), file("e/s/x", "1")]).await;
    let second = [
        file(".wh.a", ""),
        file("d/.wh.y", ""),
        file("e/new", "2"),
        file("e/s/new", "2"),
        file("e/.wh..wh..opq", ""),
        file("e/newer", "2"),
        file("d/.wh..wh.plnk", ""),
        file("d/.wh.none", ""),
        file("n/.wh.none", ""),
    ];
    layer(&client, &second).await;
    let left = ["d", "d/x", "e", "e/new", "e/newer", "e/s", "e/s/new", "n"];
    assert_eq!(tree(&agent.workspace()), left);
    layer(&client, &[file(".wh..wh..opq", ""), file("last", "3")]).await;
    assert_eq!(tree(&agent.workspace()), ["last"]);
}

#[tokio::test]
async fn nothing_leaves_the_disk() {
    let (agent, client) = bare().await;
    let outside = agent.folder.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("kept"), "kept").unwrap();
    let up = format!("up{}/f", outside.to_str().unwrap());
    symlink(&outside, agent.path("absolute")).unwrap();
    symlink("../outside", agent.path("relative")).unwrap();
    symlink("../../../../../..", agent.path("up")).unwrap();
    let entries = [
        file("relative/f", "1"),
        file(&up, "1"),
        file("relative/.wh.kept", ""),
        file("relative/.wh..wh..opq", ""),
        (EntryType::Link, "hard", "relative/kept", 0o644, 0),
    ];
    for entry in entries {
        let reply = unpack(&client, "", tar(&[entry])).await;
        assert!(reply.status.is_success() || reply.status.is_client_error(), "{:?}", reply.bytes);
    }
    unpack(&client, "?keep", tar(&[file("absolute/f", "1")])).await;
    assert_eq!(tree(&outside), ["kept"]);
    assert!(!agent.path("hard").exists());
    for name in ["../x", "a/../../x", "a/.."] {
        unpack(&client, "", tar(&[file(name, "1")])).await.refused(400, "invalid_archive");
    }
    assert!(!agent.folder.path().join("x").exists());
    client
        .post("/control/pack", json!({"sources": ["up/etc/hostname"], "to": "/x", "into": false}))
        .await
        .refused(404, "not_found");
    client.get("/control/stat?path=/up/etc/passwd").await.refused(404, "not_found");
}

#[tokio::test]
async fn a_link_to_what_is_the_same_file_leaves_it() {
    let (agent, client) = bare().await;
    layer(&client, &[file("usr/bin/a", "1"), (EntryType::Symlink, "bin", "usr/bin", 0o777, 0)]).await;
    let copy = tar(&[file("bin/b", "2"), (EntryType::Link, "bin/a", "usr/bin/a", 0o644, 0)]);
    unpack(&client, "?keep", copy).await.ok();
    assert_eq!(std::fs::read_to_string(agent.path("usr/bin/a")).unwrap(), "1");
}

#[tokio::test]
async fn a_copy_keeps_the_directories_that_are_there() {
    let (agent, client) = bare().await;
    layer(
        &client,
        &[
            (DIRECTORY, "etc", "", 0o700, 0),
            file("etc/passwd", "app:x:33:34::/app:/bin/sh\n"),
            file("etc/group", "app:x:34:\nother:x:35:\n"),
        ],
    )
    .await;
    layer(&client, &[(EntryType::Symlink, "conf", "etc", 0o777, 0)]).await;
    let copy = tar(&[(DIRECTORY, "conf", "", 0o755, 9), file("conf/a", "1"), file("new/deep/b", "2")]);
    unpack(&client, "?keep&owner=app:other&mode=0640", copy).await.ok();
    assert_eq!(std::fs::metadata(agent.path("etc")).unwrap().mode() & 0o7777, 0o700);
    assert!(agent.path("conf").is_symlink());
    for path in ["etc/a", "new/deep/b"] {
        let found = std::fs::metadata(agent.path(path)).unwrap();
        assert_eq!(found.mode() & 0o7777, 0o640);
        if is_root() {
            assert_eq!((found.uid(), found.gid()), (33, 35));
        }
    }
    if is_root() {
        assert_eq!(std::fs::metadata(agent.path("new")).unwrap().uid(), 33);
    }
    unpack(&client, "?keep", tar(&[file("etc", "1")])).await.refused(400, "is_a_directory");
    unpack(&client, "?keep", tar(&[(DIRECTORY, "etc/a", "", 0o755, 0)])).await.refused(400, "not_a_directory");
    unpack(&client, "?keep&owner=nobody-here", tar(&[])).await.names(&["user"]);
    unpack(&client, "?mode=9&keep=maybe", tar(&[])).await.names(&["keep", "mode"]);
    unpack(&client, "?path=/sub/dir", tar(&[file("f", "3")])).await.ok();
    assert_eq!(read(&agent, "sub/dir/f"), "3");
}

#[tokio::test]
async fn attributes_and_long_names_arrive() {
    let (agent, client) = bare().await;
    let long = format!("{}/{}", "d".repeat(150), "ä".repeat(100));
    let mut builder = Builder::new(Vec::new());
    builder
        .append_pax_extensions([
            ("SCHILY.xattr.user.berth", &b"value"[..]),
            ("SCHILY.xattr.trusted.x", b"no"),
            ("mtime", b"7.5"),
        ])
        .unwrap();
    let mut header = Header::new_gnu();
    header.set_size(1);
    header.set_mode(0o600);
    header.set_cksum();
    builder.append_data(&mut header, &long, &b"x"[..]).unwrap();
    unpack(&client, "", builder.into_inner().unwrap()).await.ok();
    let path = agent.path(&long);
    assert_eq!(std::fs::metadata(&path).unwrap().mtime(), 7);
    let mut value = [0; 16];
    match rustix::fs::getxattr(&path, c"user.berth", &mut value) {
        Ok(length) => assert_eq!(&value[..length], b"value"),
        // Some file systems of hosts have no attributes.
        Err(error) => assert_eq!(error, rustix::io::Errno::OPNOTSUPP),
    }
    unpack(&client, "", b"no archive".repeat(100)).await.refused(400, "invalid_archive");
    let mut huge = tar(&[(EntryType::GNULongName, "x", &"a".repeat(64 * 1024), 0, 0), file("x", "")]);
    unpack(&client, "", huge).await.refused(400, "invalid_path");
    huge = tar(&[(EntryType::GNULongName, "x", &"a".repeat(64 * 1024 + 1), 0, 0), file("x", "")]);
    unpack(&client, "", huge).await.refused(400, "invalid_archive");
}

#[tokio::test]
async fn what_is_at_a_path_is_told() {
    let (_agent, client) = bare().await;
    layer(&client, &[file("d/f", ""), (EntryType::Symlink, "l", "/d", 0o777, 0)]).await;
    for (path, directory) in [("/", true), ("/d", true), ("/l", true), ("/d/f", false), ("d/f", false)] {
        assert_eq!(
            client.get(&format!("/control/stat?path={path}")).await.ok().json(),
            json!({"directory": directory})
        );
    }
    client.get("/control/stat?path=/x").await.refused(404, "not_found");
    client.get("/control/stat").await.names(&["path"]);
}

/// Runs a program; returns its output and how it ended.
async fn run(client: &Client, other: Value) -> (Vec<String>, OutputEvent) {
    let mut body = json!({"argv": ["sh", "-c", "true"], "cwd": "/", "network": true, "timeout_seconds": 60});
    if !is_root() {
        body["user"] = json!(rustix::process::geteuid().as_raw().to_string());
    }
    body.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
    let mut events = events(client, &body).await.all().await;
    let last = events.pop().unwrap();
    let said = events.into_iter().filter_map(|event| match event {
        OutputEvent::Output { output, .. } => output.line,
        _ => None,
    });
    (said.collect(), last)
}

async fn events(client: &Client, body: &Value) -> Events {
    client.events(posting("/control/run", body)).await
}

fn ended(event: &OutputEvent, code: i32) -> bool {
    matches!(event, OutputEvent::Exit(exit) if exit.code == Some(code))
}

#[tokio::test]
async fn a_program_runs_as_it_is_told() {
    let (agent, client) = bare().await;
    let script = "echo $A $PATH; pwd -P; echo err >&2; exit 3";
    let env = json!({"A": "1", "PATH": "/usr/bin:/bin"});
    let (said, last) = run(&client, json!({"argv": ["sh", "-c", script], "env": env, "cwd": "/made/for/it"})).await;
    assert!(ended(&last, 3), "{last:?}");
    let place = agent.path("made/for/it").canonicalize().unwrap();
    let mut expected = vec!["1 /usr/bin:/bin", place.to_str().unwrap(), "err"];
    let mut said = said.iter().map(String::as_str).collect::<Vec<_>>();
    said.sort_unstable();
    expected.sort_unstable();
    assert_eq!(said, expected);
    if !is_root() {
        return;
    }
    layer(&client, &[file("etc/passwd", "app:x:4321:4322::/home/app:/bin/sh\n"), file("etc/group", "other:x:4323:\n")])
        .await;
    let who = json!(["sh", "-c", "echo $(id -u) $(id -g) $(id -G) $HOME; test \"$A\" || echo no A"]);
    for (user, says) in [
        (json!(null), "0 0 0 /"),
        (json!("app"), "4321 4322 4322 /home/app"),
        (json!("app:other"), "4321 4323 4323 /home/app"),
        (json!("77:78"), "77 78 78 /"),
    ] {
        let (said, last) = run(&client, json!({"argv": who, "user": user})).await;
        assert!(ended(&last, 0), "{last:?}");
        assert_eq!(said[0].trim_end_matches("root"), says);
        assert_eq!(said[1], "no A");
    }
    let (said, _) = run(&client, json!({"argv": ["cat", "/proc/net/dev"], "network": false})).await;
    assert_eq!(said.iter().filter(|line| line.contains(':')).count(), 1, "only the loopback: {said:?}");
}

#[tokio::test]
async fn what_cannot_run_is_told() {
    let (_agent, client) = bare().await;
    let reply = client.post("/control/run", json!({"argv": [], "cwd": "x", "timeout_seconds": 86_401})).await;
    reply.names(&["argv", "cwd", "network", "timeout_seconds"]);
    let body = json!({"argv": ["a"], "cwd": "/", "network": true, "timeout_seconds": 1, "user": "nobody-here"});
    client.post("/control/run", body).await.names(&["user"]);
    let own = rustix::process::geteuid().as_raw().to_string();
    let body = json!({"argv": ["/no/such"], "cwd": "/", "network": true, "timeout_seconds": 1, "user": own});
    client.post("/control/run", body).await.refused(400, "command_not_found");
    let long = "x".repeat(1 << 20);
    let body = json!({"argv": ["echo", long], "cwd": "/", "network": true, "timeout_seconds": 1});
    client.post("/control/run", body).await.refused(413, "payload_too_large");
}

#[tokio::test]
async fn a_program_ends_with_its_time_and_with_its_client() {
    let (agent, client) = bare().await;
    let (_, last) = run(&client, json!({"argv": ["sleep", "600"], "timeout_seconds": 1})).await;
    assert!(matches!(&last, OutputEvent::Exit(exit) if exit.timed_out), "{last:?}");
    let own = rustix::process::geteuid().as_raw().to_string();
    let body = json!({"argv": ["sh", "-c", "echo $$; exec sleep 600"], "cwd": "/", "network": true,
        "timeout_seconds": 600, "user": own});
    let mut events = events(&client, &body).await;
    let Some(OutputEvent::Start { pid }) = events.output().await else { panic!("a start") };
    assert!(Path::new(&format!("/proc/{pid}")).exists());
    drop(events);
    until("the end of the program", || !Path::new(&format!("/proc/{pid}")).exists()).await;
    drop(agent);
}
