//! Commands that run at the same time: each keeps what it changed, and nothing of another's is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::header;
use berth_testkit::Platform;
use serde_json::Value;

use crate::harness::{ended, until};
use crate::person::Person;

/// Another address of a service; the path of each request is told once its answer is there, before it goes on.
async fn passage(platform: &Platform, told: impl Fn(&str) + Clone + Send + Sync + 'static) -> String {
    let (http, base) = (reqwest::Client::new(), platform.admin.base.clone());
    let forward = move |request: Request| {
        let (http, base, told) = (http.clone(), base.clone(), told.clone());
        async move {
            let (parts, body) = request.into_parts();
            let body = to_bytes(body, usize::MAX).await.expect("a body");
            let asked = http.request(parts.method, format!("{base}{}", parts.uri)).headers(parts.headers).body(body);
            let answer = asked.send().await.expect("an answer");
            let (status, body) = (answer.status(), answer.bytes().await.expect("a body"));
            told(parts.uri.path());
            (status, [(header::CONTENT_TYPE, "application/json")], body)
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(forward)).await });
    url
}

fn kept(person: &Person) -> Value {
    serde_json::from_slice(&std::fs::read(person.file()).expect("a file")).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_another_command_renewed_meanwhile_stay() {
    let platform = Platform::start().await;
    platform.sign_up("ana@example.com").await;
    let ana = Arc::new(Person::new());
    let other = ana.clone();
    let url = passage(&platform, move |path| {
        if path.ends_with("/projects/default") {
            let mut kept = kept(&other);
            kept["contexts"][0]["tokens"]["refresh_token"] = "renewed".into();
            std::fs::write(other.file(), kept.to_string()).expect("a file");
        }
    })
    .await;
    ana.types(&["login", &url, "--email", "ana@example.com"]).await;
    ana.types(&["project", "use", "default"]).await;
    assert_eq!(kept(&ana)["contexts"][0]["tokens"]["refresh_token"], "renewed");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sign_ins_have_two_names() {
    let platform = Platform::start().await;
    let looked = Arc::new(AtomicUsize::new(0));
    let counted = looked.clone();
    let url = passage(&platform, move |path| {
        if path.ends_with("/projects") {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    })
    .await;
    let person = Arc::new(Person::new());
    let folder = person.file().parent().expect("a folder").to_owned();
    std::fs::create_dir_all(&folder).expect("a folder");
    // Neither is kept before both are about to be.
    let lock = std::fs::File::create(folder.join("credentials.lock")).expect("a file");
    lock.lock().expect("a lock");
    let mut both = tokio::task::JoinSet::new();
    for email in ["ana@example.com", "bob@example.com"] {
        platform.sign_up(email).await;
        both.spawn(ended(person.command(&["login", &url, "--email", email])));
    }
    until("both", async || looked.load(Ordering::Relaxed) == 2).await;
    drop(lock);
    for output in both.join_all().await {
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(person.types(&["context", "list", "-q"]).await.lines().count(), 2);
}
