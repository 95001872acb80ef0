//! The command line as a person and as a script use it.

use std::process::Output;

use berth_testkit::{Service, token_in};
use serde_json::{Value, json};

use crate::BERTH;

/// What a command ended with.
pub fn berth(service: &Service, arguments: &[&str]) -> Output {
    service.berth(arguments).output().expect("an end")
}

/// What it answered.
pub fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A service with these images, and its administrator signed in.
pub fn signed_in(images: &[&str]) -> Service {
    let service = Service::started(BERTH, images);
    let (email, password) = service.login();
    let output = service.berth(&["login", &service.base, "--email", email]).env("BERTH_PASSWORD", password).output();
    let output = output.expect("an end");
    assert!(output.status.success(), "{output:?}");
    service
}

#[test]
fn from_login_to_a_shell_in_the_guest() {
    let service = signed_in(&["micro"]);
    let created = berth(
        &service,
        &["vm", "create", "web", "--image", "micro", "--size", "tiny", "--data", "data:10", "--port", "8080", "--wait"],
    );
    assert!(created.status.success(), "{created:?}");
    assert!(err(&created).contains("a key") || err(&created).contains("one was made"), "{created:?}");
    let said = berth(&service, &["vm", "ssh", "web", "--", "hostname; df /mnt/data | tail -n 1 | wc -l"]);
    assert_eq!(out(&said), "web\n1\n", "{said:?}");
    let listed = out(&berth(&service, &["vm", "list"]));
    assert!(listed.starts_with("NAME") && listed.contains("web") && listed.contains("running"), "{listed}");
    let json: Value = serde_json::from_str(&out(&berth(&service, &["vm", "get", "web", "--json"]))).expect("JSON");
    assert_eq!((json["name"].as_str(), json["status"].as_str()), (Some("web"), Some("running")));
    let log = out(&berth(&service, &["vm", "console", "--log", "web"]));
    assert!(log.contains("login"), "{log}");
    assert!(berth(&service, &["vm", "stop", "web", "--wait"]).status.success());
    assert!(out(&berth(&service, &["disk", "list"])).contains("data"));
    assert!(berth(&service, &["disk", "detach", "data"]).status.success());
    assert!(berth(&service, &["vm", "start", "web", "--wait"]).status.success());
    assert!(
        out(&berth(&service, &["vm", "operations", "web"])).contains("restart")
            || out(&berth(&service, &["vm", "operations", "web"])).contains("start")
    );
    assert!(berth(&service, &["vm", "delete", "web", "--wait"]).status.success());
    assert!(berth(&service, &["disk", "delete", "data"]).status.success());
    assert!(err(&berth(&service, &["vm", "list"])).contains("berth vm create"));
    for command in [
        &["whoami"][..],
        &["org", "list"],
        &["project", "list"],
        &["image", "list"],
        &["catalog"],
        &["quota"],
        &["completions", "bash"],
    ] {
        let output = berth(&service, command);
        assert!(output.status.success() && !out(&output).is_empty(), "{command:?} {output:?}");
    }
}

#[test]
fn exit_codes_and_words_that_help() {
    let service = signed_in(&["micro"]);
    let cases: [(&[&str], i32, &str); 6] = [
        (&["vm", "get", "nothing"], 4, "berth vm list"),
        (&["vm", "create", "Bad Name", "--no-ssh-key"], 2, "NAME must be"),
        (&["vm", "create", "web", "--no-ssh-key", "--image", "plan9"], 4, "plan9"),
        (&["vm", "create", "web", "--port", "x"], 2, "80"),
        (&["vm", "frobnicate"], 2, "Usage"),
        (&["--url", "http://127.0.0.1:1", "vm", "list"], 3, "berth login"),
    ];
    for (command, code, word) in cases {
        let output = berth(&service, command);
        assert_eq!(output.status.code(), Some(code), "{command:?} {output:?}");
        assert!(err(&output).contains(word), "{command:?} {output:?}");
    }
    let nobody = service
        .berth(&["login", "http://127.0.0.1:1", "--email", "a@example.com"])
        .env("BERTH_PASSWORD", "x")
        .output()
        .expect("an end");
    assert_eq!(nobody.status.code(), Some(6), "{nobody:?}");
    let wrong = service
        .berth(&["login", &service.base, "--email", "a@example.com"])
        .env("BERTH_PASSWORD", "wrong")
        .output()
        .expect("an end");
    assert_eq!(wrong.status.code(), Some(3), "{wrong:?}");
    assert!(berth(&service, &["logout"]).status.success());
    assert_eq!(berth(&service, &["vm", "list"]).status.code(), Some(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_in_no_log() {
    let mut service = Service::new(BERTH, &["micro"]);
    service.set("BERTH_LOG", "trace");
    service.start();
    let (email, password) = service.login();
    let output = service.berth(&["login", &service.base, "--email", email]).env("BERTH_PASSWORD", password).output();
    assert!(output.expect("an end").status.success());
    assert!(berth(&service, &["vm", "list"]).status.success());
    let kept =
        std::fs::read_to_string(service.dir.path().join("home/.config/berth/credentials.json")).expect("a sign-in");
    let kept = serde_json::from_str::<Value>(&kept).expect("JSON")["contexts"][0].take();
    let ada = service.sign_up("ada@example.com").await;
    let made = ada.post("/api_keys", json!({"name": "k", "scopes": ["vm"]})).await;
    let key = made.body["key"].as_str().expect("a key").to_owned();
    assert_eq!(ada.with_token(&key).get("/vms").await.status, 200);
    let verify = token_in(&service.mail("ada@example.com", "Verify"));
    assert_eq!(ada.anonymous().post("/api/v1/auth/email/verify", json!({"token": verify})).await.status, 204);
    ada.anonymous().post("/api/v1/auth/password/forgot", json!({"email": "ada@example.com"})).await;
    let reset = token_in(&service.mail("ada@example.com", "new password"));
    let other = "five boats in the morning";
    let body = json!({"token": reset, "new_password": other});
    assert_eq!(ada.anonymous().post("/api/v1/auth/password/reset", body).await.status, 204);
    let log = service.log();
    assert!(log.contains("/api/v1/auth/password/reset"), "the log is on");
    for secret in [
        password,
        other,
        &key,
        &verify,
        &reset,
        &ada.token,
        &ada.refresh_token,
        kept["tokens"]["access_token"].as_str().expect("a token"),
        kept["tokens"]["refresh_token"].as_str().expect("a token"),
    ] {
        assert!(!log.contains(secret), "a secret is in the log");
    }
}
