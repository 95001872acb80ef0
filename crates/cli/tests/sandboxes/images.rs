//! Images that come from elsewhere: archives that are sent, and registries.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use berth_testkit::{Caller, eventually};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::harness::{content, delete, service, shell};
use crate::templates::{build, nothing_left, tar, upload};

fn sha(bytes: &[u8]) -> String {
    let hex = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("sha256:{hex}")
}

/// What an image says of itself.
fn configuration(layers: &[Vec<u8>], config: &Value) -> String {
    let ids = layers.iter().map(|layer| sha(layer)).collect::<Vec<_>>();
    let rootfs = json!({"type": "layers", "diff_ids": ids});
    json!({"architecture": "amd64", "os": "linux", "config": config, "rootfs": rootfs}).to_string()
}

/// An image as `docker save` writes it: of layers, and what it says about its programs.
fn saved(layers: &[Vec<u8>], config: Value) -> Vec<u8> {
    let config = configuration(layers, &config);
    let names = (0..layers.len()).map(|number| format!("{number}/layer.tar")).collect::<Vec<_>>();
    let manifest = json!([{"Config": "config.json", "RepoTags": ["small:1"], "Layers": names}]).to_string();
    let mut files = vec![("manifest.json", manifest.as_bytes(), 0o644), ("config.json", config.as_bytes(), 0o644)];
    files.extend(names.iter().zip(layers).map(|(name, layer)| (name.as_str(), layer.as_slice(), 0o644)));
    tar(&files)
}

/// A layer with a shell and what it needs, out of `base`.
async fn shell_layer(caller: &Caller) -> Vec<u8> {
    let id = caller.ready_sandbox().await;
    let libraries = "lib64/ld-linux-x86-64.so.2 lib/x86_64-linux-gnu/libc.so.6";
    shell(caller, &id, &format!("tar -chf layer.tar -C / bin/sh bin/cat {libraries}")).await;
    let layer = content(caller, &id, "layer.tar").await;
    delete(caller, &id).await;
    layer
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_was_sent_becomes_a_template() {
    let (service, caller) = service().await;
    let passwd = b"root:x:0:0::/root:/bin/sh\nweb:x:77:77::/srv:/bin/sh\n";
    let second = tar(&[("gone.txt", b"gone", 0o644), ("etc/passwd", b"", 0o644)]);
    let third = tar(&[(".wh.gone.txt", b"", 0o644), ("etc/passwd", passwd, 0o644)]);
    let config = json!({"Env": ["PATH=/bin", "FROM_IMAGE=yes"], "User": "77", "WorkingDir": "/srv", "Cmd": ["sh"]});
    let sent = upload(&caller, saved(&[shell_layer(&caller).await, second, third], config)).await;
    assert_eq!(sent.status, 201, "{sent:?}");
    let (built, log) = build(&caller, "small", json!({"image": sent.body["image"]})).await;
    assert_eq!((&built["status"], &built["disk_gb"]), (&json!("ready"), &json!(1)), "{built}\n{log}");
    let id = caller.create_sandbox(json!({"template_id": "small"})).await;
    caller.sandbox_reaches(&id, "Ready").await;
    let told = shell(&caller, &id, "pwd; echo $FROM_IMAGE; echo /*; cat /proc/self/status").await;
    assert!(told.starts_with("/srv\nyes\n/bin /dev /etc ") && !told.contains("gone"), "{told}");
    assert!(told.contains("\nUid:\t77\t"), "{told}");
    // It is a beginning like any other.
    let dockerfile = "FROM small\nUSER root\nRUN echo more >/more\nFROM scratch\nCOPY --from=0 /bin /bin\nCOPY --from=0 /lib /lib\n\
        COPY --from=small /lib64 /lib64\nCOPY --from=0 /more /\n";
    let (built, log) = build(&caller, "smaller", json!({"dockerfile": dockerfile})).await;
    assert_eq!(built["status"], "ready", "{built}\n{log}");
    let id = caller.create_sandbox(json!({"template_id": "smaller"})).await;
    caller.sandbox_reaches(&id, "Ready").await;
    assert_eq!(shell(&caller, &id, "echo $HOME; cat /more").await, "/root\nmore\n");
    // A user may be a number that no account has.
    let (built, log) = build(&caller, "numbered", json!({"dockerfile": "FROM small\nUSER 1001:7\n"})).await;
    assert_eq!(built["status"], "ready", "{built}\n{log}");
    let id = caller.create_sandbox(json!({"template_id": "numbered"})).await;
    caller.sandbox_reaches(&id, "Ready").await;
    let told = shell(&caller, &id, "echo $HOME; cat /proc/self/status").await;
    assert!(
        told.starts_with("/home/user\n") && told.contains("\nUid:\t1001\t") && told.contains("\nGid:\t7\t"),
        "{told}"
    );
    nothing_left(&service);
    assert_eq!(caller.get("/sandbox_uploads").await.body["pagination"]["total_items"], 1);
    assert_eq!(caller.delete(&format!("/sandbox_uploads/{}", sent.id())).await.status, 204);
    eventually("its end", 120, || service.files("sandbox/uploads").is_empty().then_some(()));
}

/// A registry on the loopback that has one image, `small:1`.
async fn registry(layer: Vec<u8>) -> String {
    let config = configuration(std::slice::from_ref(&layer), &json!({"Env": ["PATH=/bin", "PULLED=yes"]}));
    let of = |kind: &str, bytes: &[u8]| json!({"mediaType": kind, "digest": sha(bytes), "size": bytes.len()});
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": of("application/vnd.oci.image.config.v1+json", config.as_bytes()),
        "layers": [of("application/vnd.oci.image.layer.v1.tar", &layer)],
    });
    let mut served = BTreeMap::from([("/v2/small/manifests/1".to_owned(), manifest.to_string().into_bytes())]);
    for blob in [config.into_bytes(), layer] {
        served.insert(format!("/v2/small/blobs/{}", sha(&blob)), blob);
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let host = listener.local_addr().expect("an address").to_string();
    let router = Router::new().fallback(answer).with_state(Arc::new(served));
    tokio::spawn(async move { axum::serve(listener, router).await });
    host
}

async fn answer(State(served): State<Arc<BTreeMap<String, Vec<u8>>>>, request: Request) -> Response {
    match served.get(request.uri().path()) {
        Some(bytes) => ([(header::CONTENT_TYPE, "application/octet-stream")], bytes.clone()).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_of_a_registry_becomes_a_template() {
    let (mut service, caller) = service().await;
    let host = registry(shell_layer(&caller).await).await;
    let source = json!({"image": format!("{host}/small:1")});
    // What lies within is not reached for anybody, but where the operator says so.
    let (failed, _) = build(&caller, "refused", source.clone()).await;
    assert!(failed["message"].as_str().is_some_and(|m| m.contains("ask the operator to allow it")), "{failed}");
    service.stop();
    service.configure(&format!("plain_registries = [\"{host}\"]\n"));
    service.start();
    let (built, log) = build(&caller, "pulled", source).await;
    assert_eq!(built["status"], "ready", "{built}\n{log}");
    assert!(log.contains("    pulling sha256:"), "{log}");
    let id = caller.create_sandbox(json!({"template_id": "pulled"})).await;
    caller.sandbox_reaches(&id, "Ready").await;
    assert_eq!(shell(&caller, &id, "echo $HOME $PULLED").await, "/root yes\n");
    let (failed, _) = build(&caller, "none", json!({"image": format!("{host}/small:2")})).await;
    assert!(failed["message"].as_str().is_some_and(|m| m.contains("check its name and tag")), "{failed}");
    nothing_left(&service);
}
