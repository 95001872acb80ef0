//! Files and directories into a sandbox and out of it.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::harness::{Here, err, out};

/// A path as an argument.
fn text(path: &Path) -> &str {
    path.to_str().expect("a path")
}

#[tokio::test(flavor = "multi_thread")]
async fn files_go_in_and_come_out_as_they_were() {
    let here = Here::start().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tool");
    let content: Vec<u8> = (0..2_000_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(&file, &content).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o750)).unwrap();
    here.fine(&["cp", text(&file), "box:a/b/copy"]).await;
    assert_eq!(std::fs::read(here.inside("a/b/copy")).unwrap(), content);
    assert_eq!(here.inside("a/b/copy").metadata().unwrap().permissions().mode() & 0o777, 0o750);
    // Into a directory that is there, was said to be one, or is the root.
    for (to, path) in [("box:a", "a/tool"), ("box:new/", "new/tool"), ("box:", "tool"), ("box:.", "tool")] {
        here.fine(&["cp", text(&file), to]).await;
        assert!(here.inside(path).is_file(), "{to}");
    }
    let back = dir.path().join("back");
    std::fs::write(&back, "old").unwrap();
    here.fine(&["cp", "box:a/b/copy", text(&back)]).await;
    assert_eq!(std::fs::read(&back).unwrap(), content);
    assert_eq!(back.metadata().unwrap().permissions().mode() & 0o777, 0o750);
    let folder = dir.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    here.fine(&["cp", "box:a/b/copy", text(&folder)]).await;
    assert_eq!(std::fs::read(folder.join("copy")).unwrap(), content);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3, "nothing half is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn standard_streams_are_files() {
    let here = Here::start().await;
    let sent = here.fed(&["cp", "-", "box:notes/today"], b"first\nsecond").await;
    assert!(sent.status.success(), "{sent:?}");
    assert_eq!(here.fine(&["cp", "box:notes/today", "-"]).await, "first\nsecond");
    let nameless = here.fed(&["cp", "-", "box:notes/"], b"x").await;
    assert_eq!(nameless.status.code(), Some(2), "{nameless:?}");
    let tar = here.sandbox(&["cp", "box:notes", "-"]).await;
    let mut archive = tar::Archive::new(tar.stdout.as_slice());
    let names: Vec<_> = archive.entries().unwrap().map(|e| e.unwrap().path().unwrap().into_owned()).collect();
    assert_eq!(names, [Path::new("today")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn trees_go_in_and_come_out_as_they_were() {
    let here = Here::start().await;
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    std::fs::create_dir_all(tree.join("deep/empty")).unwrap();
    for number in 0..200 {
        std::fs::write(tree.join(format!("deep/{number}")), vec![7; number * 100]).unwrap();
    }
    std::fs::write(tree.join("run"), "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(tree.join("run"), PermissionsExt::from_mode(0o755)).unwrap();
    symlink("deep/7", tree.join("link")).unwrap();
    here.fine(&["cp", text(&tree), "box:"]).await;
    here.fine(&["cp", text(&tree), "box:other/name"]).await;
    for inside in ["tree", "other/name"] {
        let root = here.inside(inside);
        assert_eq!(std::fs::read(root.join("deep/199")).unwrap().len(), 19_900, "{inside}");
        assert_eq!(std::fs::read_link(root.join("link")).unwrap(), Path::new("deep/7"));
        assert!(root.join("deep/empty").is_dir());
        assert_eq!(root.join("run").metadata().unwrap().permissions().mode() & 0o777, 0o755);
    }
    let back = dir.path().join("back");
    here.fine(&["cp", "box:tree", text(&back)]).await;
    here.fine(&["cp", "box:tree/", text(&back)]).await;
    for root in [back.clone(), back.join("tree")] {
        assert_eq!(std::fs::read(root.join("deep/150")).unwrap(), vec![7; 15_000]);
        assert_eq!(std::fs::read_link(root.join("link")).unwrap(), Path::new("deep/7"));
        assert_eq!(root.join("run").metadata().unwrap().permissions().mode() & 0o777, 0o755);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_from_inside_leaves_the_target() {
    let here = Here::start().await;
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("secret"), "as it was").unwrap();
    let script = "mkdir evil && cd evil && ln -s ../secret out && ln -s / root && echo fine >fine && mkfifo pipe";
    assert!(here.exec(&["sh", "-c", script]).await.status.success());
    let target = dir.path().join("target");
    let copied = here.sandbox(&["cp", "box:evil", text(&target)]).await;
    assert_eq!(copied.status.code(), Some(1), "{copied:?}");
    assert!(err(&copied).contains("out is left out") && err(&copied).contains("2 entries"), "{copied:?}");
    let mut names: Vec<_> = std::fs::read_dir(&target).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["fine"]);
    assert_eq!(std::fs::read_to_string(dir.path().join("secret")).unwrap(), "as it was");
}

#[tokio::test(flavor = "multi_thread")]
async fn absolute_paths_are_of_the_machine() {
    let here = Here::start().await;
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(here.inside("file"), "x").unwrap();
    let inside = |name: &str| format!("box:{}", text(&here.inside(name)));
    let copied = dir.path().join("copied");
    here.fine(&["cp", &inside("file"), text(&copied)]).await;
    assert_eq!(std::fs::read_to_string(&copied).unwrap(), "x");
    here.fine(&["cp", text(&copied), &format!("{}/", inside("made"))]).await;
    assert_eq!(std::fs::read_to_string(here.inside("made/copied")).unwrap(), "x");
    let pwd = here.sandbox(&["exec", "--cwd", "/usr", "box", "pwd"]).await;
    assert_eq!(out(&pwd), "/usr\n");
    let unknown = here.sandbox(&["exec", "--user", "no-such-account", "box", "pwd"]).await;
    assert!(err(&unknown).contains("no-such-account"), "{unknown:?}");
    let unknown = here.sandbox(&["cp", "--user", "no-such-account", "box:file", "-"]).await;
    assert!(err(&unknown).contains("no-such-account"), "{unknown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_copied_says_why() {
    let here = Here::start().await;
    let dir = tempfile::tempdir().unwrap();
    let absent = dir.path().join("absent");
    for (from, to, code, word) in [
        ("box:absent", text(dir.path()), 4, "absent"),
        ("box:/absent", text(dir.path()), 4, "absent"),
        ("box:../x", text(dir.path()), 2, ""),
        (text(&absent), "box:x", 1, "absent"),
        ("a", "b", 2, "SANDBOX:PATH"),
        ("box:a", "box:b", 2, "cp - B:FILE"),
        ("nobox:a", "b", 4, "berth sandbox list"),
    ] {
        let output = here.sandbox(&["cp", from, to]).await;
        assert_eq!(output.status.code(), Some(code), "{from} {to} {output:?}");
        assert!(err(&output).contains(word), "{from} {to} {output:?}");
        assert_eq!(out(&output), "");
    }
    std::fs::write(here.inside("file"), "x").unwrap();
    let full = here.sandbox(&["cp", "box:file", "/dev/full"]).await;
    assert_eq!(full.status.code(), Some(1), "{full:?}");
    here.fine(&["cp", "box:file", "/dev/null"]).await;
    assert!(!Path::new("/dev/null").is_file());
}
