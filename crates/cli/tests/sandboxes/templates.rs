//! Templates that are built: of Dockerfiles, of images, on real machines.

use berth_testkit::{Answer, Caller, Service, eventually};
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{delete, events, service, service_with, shell, template_ready};

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
pub async fn build(caller: &Caller, name: &str, source: Value) -> (Value, String) {
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
pub async fn upload(caller: &Caller, archive: Vec<u8>) -> Answer {
    caller.send(caller.request(Method::POST, "/sandbox_uploads").body(archive)).await
}

/// An archive of files: path, content, permissions.
pub fn tar(files: &[(&str, &[u8], u32)]) -> Vec<u8> {
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
    eventually("nothing left of the build", 120, || {
        (service.files("sandbox/builds").is_empty() && service.files("sandbox/machines").len() == 1).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_fails_says_where_and_leaves_nothing() {
    let (service, caller) = service().await;
    let dockerfile = "FROM base\nRUN echo fine\n# a comment\nRUN echo on the way; exit 3\nRUN echo never\n";
    let (failed, log) = build(&caller, "bad", json!({"dockerfile": dockerfile})).await;
    let message = failed["message"].as_str().unwrap_or_default().to_owned();
    assert_eq!(failed["status"], "failed", "{failed}");
    assert!(message.starts_with("line 4: RUN echo on the way; exit 3: it ended with exit code 3"), "{message}");
    assert!(log.contains("    on the way\n") && log.contains("ERROR: line 4") && !log.contains("never"), "{log}");
    // What was told stays, from any place on.
    assert_eq!(self::log(&caller, "bad", false).await, log);
    let rest = caller.get(&format!("/sandbox_templates/bad/logs?offset={}", log.len() - 5)).await;
    assert!(rest.body.as_str().is_some_and(|text| text.starts_with("event: log\n")), "{rest:?}");
    caller.get("/sandbox_templates/bad/logs?offset=-1").await.refused(400, "invalid_request");
    // A sandbox of it fails, too, and says why.
    let made = caller.post("/sandboxes", json!({"template_id": "bad"})).await;
    made.refused(409, "conflict");
    nothing_left(&service);
    assert_eq!(caller.delete("/sandbox_templates/bad").await.status, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_whose_commands_hang_is_ready_without_them() {
    let (service, caller) = service_with("[sandbox]\nwarm_machines = 0\nready_seconds = 5\n").await;
    // One that never answers, and one that is never content.
    for (name, ready) in [("hangs", "sleep 1000"), ("waits", "false")] {
        let (made, _) = build(&caller, name, json!({"dockerfile": "FROM base\n", "ready_command": ready})).await;
        assert_eq!(made["status"], "ready", "{made}");
        let message = "its sandboxes start from the disk: ready_command did not succeed within 5 s";
        assert_eq!(made["message"], message, "{made}");
    }
    nothing_left(&service);
    eventually("the machines' end", 120, || service.files("sandbox/machines").is_empty().then_some(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_are_told_at_once() {
    let (_service, caller) = service().await;
    for (dockerfile, what) in [
        ("FROM base\nRUNN true\n", "line 2"),
        ("FROM base\nRUN true\nCOPY . .\n", "line 3: there are no files to copy from"),
        ("FROM scratch\nWORKDIR $NONE\n", "line 2"),
        ("RUN true\n", "FROM"),
    ] {
        let answer = caller.post("/sandbox_templates", wish("x", &json!({"dockerfile": dockerfile}))).await;
        answer.refused(400, "invalid_request");
        assert!(answer.names("dockerfile") && answer.body.to_string().contains(what), "{answer:?}");
    }
    for image in ["a b", "base\nRUN true", "$x", ""] {
        let answer = caller.post("/sandbox_templates", wish("x", &json!({"image": image}))).await;
        answer.refused(400, "invalid_request");
    }
    // Nobody is made to reach what lies within.
    for (image, what) in [
        ("127.0.0.1:5000/x", "ask the operator to allow it"),
        ("169.254.169.254/x", "ask the operator to allow it"),
        ("upload:01939f2e-7c00-7abc-8def-0123456789ab", "there is no upload"),
    ] {
        let name = format!("no-{}", image.len());
        let (failed, _) = build(&caller, &name, json!({"image": image})).await;
        assert_eq!(failed["status"], "failed", "{failed}");
        assert!(failed["message"].as_str().is_some_and(|message| message.contains(what)), "{failed}");
    }
}

/// Nothing is left of builds but what templates are.
pub fn nothing_left(service: &Service) {
    eventually("nothing left of the build", 120, || service.files("sandbox/builds").is_empty().then_some(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_is_deleted_is_built_no_further() {
    let (service, caller) = service().await;
    let layers = service.files("sandbox/layers").len();
    let dockerfile = "FROM base\nRUN echo begun; sleep 1000\n";
    assert_eq!(caller.post("/sandbox_templates", wish("slow", &json!({"dockerfile": dockerfile}))).await.status, 201);
    caller.until("its beginning", |c| async move { log(&c, "slow", false).await.contains("    begun\n") }).await;
    assert_eq!(service.files("sandbox/builds").len(), 1);
    assert_eq!(caller.delete("/sandbox_templates/slow").await.status, 204);
    nothing_left(&service);
    eventually("its layer's end", 120, || (service.files("sandbox/layers").len() == layers).then_some(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_survives_the_service() {
    let (mut service, caller) = service().await;
    let dockerfile = "FROM base\nRUN echo one >/one\nCOPY two /two\n";
    for (number, point) in
        ["template.make_disk.intent", "sandbox.build_step.done", "template.make_disk.done", "template.warm.done"]
            .into_iter()
            .enumerate()
    {
        service.stop();
        service.set("BERTH_FAULT", &format!("{point}=kill"));
        service.start();
        let name = format!("t{number}");
        let context = upload(&caller, tar(&[("two", b"two\n", 0o644)])).await.id();
        let source = json!({"dockerfile": dockerfile, "context_id": context});
        let made = caller.request(Method::POST, "/sandbox_templates").json(&wish(&name, &source));
        // It may die before it answers.
        let _ = made.send().await;
        service.died_at(point);
        service.start();
        template_ready(&caller, &name).await;
        let id = caller.create_sandbox(json!({"template_id": name})).await;
        caller.sandbox_reaches(&id, "Ready").await;
        assert_eq!(shell(&caller, &id, "cat /one /two").await, "one\ntwo\n");
        delete(&caller, &id).await;
        assert_eq!(caller.delete(&format!("/sandbox_templates/{name}")).await.status, 204);
    }
    nothing_left(&service);
    eventually("nothing left", 120, || {
        (service.files("sandbox/machines").is_empty() && service.files("sandbox/layers").len() == 2).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_of_the_service_interrupts_a_build() {
    let (mut service, caller) = service().await;
    let dockerfile = "FROM base\nRUN echo begun; sleep 1000\n";
    assert_eq!(caller.post("/sandbox_templates", wish("slow", &json!({"dockerfile": dockerfile}))).await.status, 201);
    let begun = |c: Caller| async move { log(&c, "slow", false).await.contains("    begun\n") };
    caller.until("its beginning", begun).await;
    assert_eq!(service.stop(), Some(0));
    service.start();
    // What it told before went with the service.
    caller.until("its second beginning", begun).await;
    assert_eq!(caller.delete("/sandbox_templates/slow").await.status, 204);
    nothing_left(&service);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_is_as_large_as_was_asked() {
    let (_service, caller) = service().await;
    let source = json!({"dockerfile": "FROM base\nRUN df -BG --output=size / >/size", "disk_gb": 30});
    let (built, log) = build(&caller, "large", source).await;
    assert_eq!((&built["status"], &built["disk_gb"]), (&json!("ready"), &json!(30)), "{built}\n{log}");
    let id = caller.create_sandbox(json!({"template_id": "large"})).await;
    caller.sandbox_reaches(&id, "Ready").await;
    for line in ["cat /size", "df -BG --output=size /"] {
        let size = shell(&caller, &id, line).await;
        let size = size.lines().last().and_then(|line| line.trim().trim_end_matches('G').parse::<u32>().ok());
        assert!(size.is_some_and(|size| (28..=30).contains(&size)), "{line}: {size:?}");
    }
}
