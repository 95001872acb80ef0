//! Sandboxes from the command line on real machines: what the README shows.

use std::process::{Output, Stdio};

use berth_testkit::Service;

use crate::harness::service;

fn berth(service: &Service, arguments: &[&str]) -> Output {
    service.berth(arguments).output().expect("an end")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A service with sandboxes, and its administrator signed in.
async fn signed_in() -> Service {
    let (service, _) = service().await;
    let (email, password) = service.login();
    let output = service.berth(&["login", &service.base, "--email", email]).env("BERTH_PASSWORD", password).output();
    assert!(output.expect("an end").status.success());
    service
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_from_creation_to_deletion() {
    let service = signed_in().await;
    let fine = |arguments: &[&str]| {
        let output = berth(&service, &[&["sandbox"], arguments].concat());
        assert!(output.status.success(), "{arguments:?} {output:?}");
        out(&output)
    };
    fine(&["create", "--name", "box", "--env", "GREETING=hello"]);
    let said = berth(&service, &["sandbox", "exec", "box", "--", "sh", "-c", "echo $GREETING; hostname; exit 3"]);
    assert_eq!((out(&said).as_str(), said.status.code()), ("hello\nbox\n", Some(3)), "{said:?}");
    assert_eq!(fine(&["exec", "box", "--", "python3", "-c", "print(6 * 7)"]), "42\n");
    let mut copy = service.berth(&["sandbox", "cp", "-", "box:notes/a"]);
    let mut child = copy.stdin(Stdio::piped()).spawn().expect("a process");
    std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), b"first").expect("writing");
    assert!(child.wait().expect("an end").success());
    assert_eq!(fine(&["exec", "box", "--", "cat", "notes/a"]), "first");
    fine(&["snapshot", "create", "box", "--name", "clean"]);
    fine(&["exec", "box", "--", "rm", "-r", "notes"]);
    fine(&["restore", "box", "clean"]);
    assert_eq!(fine(&["cp", "box:notes/a", "-"]), "first");
    let forks = fine(&["fork", "box", "--count", "3", "--name", "copy"]);
    assert_eq!(forks.matches("Ready").count(), 3, "{forks}");
    assert_eq!(fine(&["exec", "copy-2", "--", "sh", "-c", "hostname; cat notes/a"]), "copy-2\nfirst");
    fine(&["pause", "copy-1"]);
    assert_eq!(berth(&service, &["sandbox", "exec", "copy-1", "--", "true"]).status.code(), Some(125));
    fine(&["resume", "copy-1"]);
    fine(&["exec", "copy-1", "--", "true"]);
    let mut shell = service.berth(&["sandbox", "shell", "box"]);
    let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
    std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), b"echo sum=$((40 + 2)); exit 4\n")
        .expect("typing");
    let ended = child.wait_with_output().expect("an end");
    assert!(out(&ended).contains("sum=42") && ended.status.code() == Some(4), "{ended:?}");
    assert_eq!(fine(&["run", "--", "python3", "-c", "print('once')"]), "once\n");
    fine(&["delete", "--wait", "box", "copy-1", "copy-2", "copy-3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_is_built_and_told_of() {
    let service = signed_in().await;
    let berth = |arguments: &[&str]| berth(&service, &[&["template"], arguments].concat());
    let folder = service.dir.path().join("app");
    std::fs::create_dir_all(folder.join("secret")).expect("a folder");
    for (name, content) in [
        ("Dockerfile", "FROM base\nCOPY . /app/\nRUN echo from the build; ls -A /app\nWORKDIR /app\n"),
        (".dockerignore", "secret\nDockerfile\n"),
        ("hello.txt", "hello\n"),
        ("secret/key", "private\n"),
    ] {
        std::fs::write(folder.join(name), content).expect("a file");
    }
    let file = folder.join("Dockerfile");
    let (folder, file) = (folder.to_str().expect("text"), file.to_str().expect("text"));
    let made = berth(&["create", "app", "--dockerfile", file, "--context", folder]);
    let told = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(made.status.success() && out(&made).contains("ready"), "{made:?}");
    assert!(told.contains("    from the build\n    .dockerignore\n    hello.txt\n    done in"), "{told}");
    assert!(told.contains("berth sandbox create --template app"), "{told}");
    let shown = self::berth(&service, &["sandbox", "run", "--template", "app", "--", "cat", "hello.txt"]);
    assert_eq!(out(&shown), "hello\n", "{shown:?}");
    let again = berth(&["logs", "app"]);
    assert!(out(&again).contains("    hello.txt\n") && out(&again).ends_with("built\n"), "{again:?}");
    std::fs::write(file, "FROM base\nRUN false\n").expect("a file");
    let failed = berth(&["create", "bad", "--dockerfile", file]);
    let told = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    assert!(
        told.ends_with("berth: bad failed: line 2: RUN false: it ended with exit code 1; the build's log tells why\n"),
        "{told}"
    );
    std::fs::write(file, "FROM base\nCOPY x y\n").expect("a file");
    let refused = berth(&["create", "worse", "--dockerfile", file]);
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("line 2: there are no files to copy from"),
        "{refused:?}"
    );
}
