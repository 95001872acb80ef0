//! Templates that are built: of Dockerfiles, of images, on real machines.

use berth_testkit::{Answer, Caller, Service, eventually};
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{events, service, shell};

/// A template of this name, of a Dockerfile or an image.
fn wish(name: &str, source: &Value) -> Value {
    let mut body = json!({"name": name, "vcpu": 1, "memory_mb": 256, "disk_gb": 1});
    let fields = source.as_object().expect("an object").clone();
    body.as_object_mut().expect("an object").extend(fields);
    body
}

/// Where a template stands.
async fn template(caller: &Caller, name: &str) -> Value {
    caller.get(&format!("/sandbox_templates/{name}")).await.body
}

/// Builds a template to its end; `ready` or `failed`, and its log.
async fn build(caller: &Caller, name: &str, source: Value) -> (Value, String) {
    let made = caller.post("/sandbox_templates", wish(name, &source)).await;
    assert_eq!(made.status, 201, "{made:?}");
    let log = log(caller, name, true).await;
    let name = name.to_owned();
    caller
        .until("the build's end", |c| {
            let name = name.clone();
            async move { ["ready", "failed"].contains(&template(&c, &name).await["status"].as_str().unwrap_or_default()) }
        })
        .await;
    (template(caller, &name).await, log)
}

/// What a build told; to its end, if it is followed.
async fn log(caller: &Caller, name: &str, follow: bool) -> String {
    let answer = caller.get(&format!("/sandbox_templates/{name}/logs?follow={follow}")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let events = events(answer.body.as_str().expect("a stream"));
    assert_eq!(events.last().expect("an end").0, "end", "{events:?}");
    events.iter().filter(|(name, _)| name == "log").filter_map(|(_, data)| data["text"].as_str()).collect()
}

/// Sends an archive; the answer.
async fn upload(caller: &Caller, archive: Vec<u8>) -> Answer {
    caller.send(caller.request(Method::POST, "/sandbox_uploads").body(archive)).await
}

/// An archive of files: path, content, permissions.
fn tar(files: &[(&str, &[u8], u32)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, content, mode) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(*mode);
        builder.append_data(&mut header, path, *content).expect("a member");
    }
    builder.into_inner().expect("an archive")
}

const APP: &str = r#"FROM base AS tools
RUN mkdir -p /out && printf 'made by %s\n' "$(id -un)" >/out/made.txt

FROM base
ENV GREETING="hello there" PATH=/opt/app/bin:$PATH
RUN useradd -m -u 4711 app && install -d -o app /opt/app
WORKDIR /opt/app
COPY --from=tools /out/made.txt ./
COPY --chown=app . .
USER app
RUN id -un >who.txt && echo "$GREETING" >>who.txt
CMD ["sh", "-c", "echo started >>/opt/app/started.txt; exec sleep 1000000"]
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_dockerfile_becomes_a_template() {
    let (service, caller) = service().await;
    let files = tar(&[("bin/tool", b"#!/bin/sh\necho the tool\n", 0o755), ("data.txt", b"data\n", 0o644)]);
    let context = upload(&caller, files).await;
    assert_eq!(context.status, 201, "{context:?}");
    let source = json!({"dockerfile": APP, "context_id": context.id(), "env": {"OWN": "1"}});
    let (built, log) = build(&caller, "app", source).await;
    assert_eq!(built["status"], "ready", "{built}\n{log}");
    assert!(log.contains("COPY --from=tools"), "{log}");
    let id = caller.create_sandbox(json!({"template_id": "app"})).await;
    caller.sandbox_reaches(&id, "Ready").await;
    let told = shell(
        &caller,
        &id,
        "id -un; pwd; tool; echo $GREETING $OWN; cat made.txt who.txt data.txt; stat -c %U data.txt",
    )
    .await;
    assert_eq!(told, "app\n/opt/app\nthe tool\nhello there 1\nmade by root\napp\nhello there\ndata\napp\n");
    // What it starts with was started once, and runs.
    assert_eq!(shell(&caller, &id, "cat started.txt; pgrep -x sleep | wc -l").await, "started\n1\n");
    eventually("nothing left of the build", 20, || {
        (service.files("sandbox/builds").is_empty() && service.files("sandbox/machines").len() == 1).then_some(())
    });
}
