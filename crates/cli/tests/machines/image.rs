//! Foreign images with a boot loader of their own: brought in, killed half way, removed.

use std::io::{Read, Write};
use std::net::TcpListener;

use berth_domain::vm::image::ImageStep;
use berth_testkit::{Caller, Service, eventually, vm};
use reqwest::Method;
use serde_json::{Value, json};

use crate::BERTH;
use crate::crash::{killed_at, service as with_still_guests};
use crate::shell::signed_in;

/// A boot sector that writes a line to the serial port through the firmware, and halts.
fn disk() -> Vec<u8> {
    let code = [
        0x31, 0xc0, 0x8e, 0xd8, 0xbe, 0x18, 0x7c, 0xfc, // ax, ds = 0; si = the text
        0xac, 0x08, 0xc0, 0x74, 0x08, // the next byte; the end is 0
        0xb4, 0x01, 0x31, 0xd2, 0xcd, 0x14, 0xeb, 0xf3, // int 14h, function 1
        0xf4, 0xeb, 0xfd, // halt
    ];
    let mut disk = vec![0; 1 << 20];
    disk[..code.len()].copy_from_slice(&code);
    disk[code.len()..code.len() + 24].copy_from_slice(b"a foreign loader speaks\n");
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_image_is_imported_and_boots_itself() {
    let service = signed_in(&["micro"]);
    let file = service.dir.path().join("Foreign_Loader.img");
    std::fs::write(&file, disk()).expect("a file");
    let path = file.to_str().expect("a path");
    let wrong = service.berth(&["image", "import", path, "--sha256", &"0".repeat(64)]).output().expect("an end");
    assert_eq!(wrong.status.code(), Some(1), "{wrong:?}");
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("SHA-256"), "{wrong:?}");
    let right =
        service.berth(&["image", "import", path, "--name", "Foreign", "--login-user", "ada"]).output().expect("an end");
    assert!(right.status.success(), "{right:?}");
    let caller = service.admin().await;
    let image = caller.get("/api/v1/images/foreign-loader").await.body;
    assert_eq!((image["status"].as_str(), image["login_user"].as_str()), (Some("ready"), Some("ada")), "{image}");
    let mut body = vm("foreign");
    body["root_disk"]["create_disk_request"]["image_id"] = json!("foreign-loader");
    let id = caller.create_vm(body).await;
    let running = caller.reaches(&id, "running").await;
    assert_eq!(running["ssh"]["user"], "ada");
    let log = service.dir.path().join("machines").join(&id).join("console.log");
    eventually("the loader's word", 60, || {
        std::fs::read(&log).ok().filter(|text| String::from_utf8_lossy(text).contains("a foreign loader speaks"))
    });
    assert_eq!(caller.delete("/api/v1/images/foreign-loader").await.status, 409);
    caller.delete(&format!("/vms/{id}")).await;
    caller.gone(&id).await;
    assert!(service.files("staging").is_empty());
}

/// A server that gives one file to whoever asks, for as long as the test runs; the file's URL.
fn served(content: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/disk.img", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            // A client that was killed is no failure of the server.
            let _ = stream.read(&mut [0; 4096]);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", content.len());
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&content));
        }
    });
    url
}

// The points at which the service is killed, by what it was doing.
const IMPORT: &[&str] = &[
    "image.import.before",
    "image.import.fetched",
    "image.import.done",
    "image.import.recorded",
    "image.import.after",
];
const REMOVAL: &[&str] = &["image.remove.before", "image.remove.done", "image.remove.after"];
const MISS: &[&str] = &["image.miss.before", "image.miss.after"];
const RECORD: &[&str] = &["image.record.before", "image.record.after"];

async fn ready(caller: &Caller) {
    let image = |c: Caller| async move { c.get("/api/v1/images/foreign").await.body };
    caller.until("the image", |c| async move { image(c).await["status"] == "ready" }).await;
}

#[test]
fn every_step_of_an_image_has_points_at_which_the_service_is_killed() {
    let killed: Vec<_> = [IMPORT, REMOVAL, MISS, RECORD].into_iter().flatten().collect();
    for step in ImageStep::ALL {
        for moment in ["before", "after"] {
            let point = format!("image.{step}.{moment}");
            assert!(killed.contains(&&point.as_str()), "no test kills the service at {point}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_follow_the_host_after_a_kill() {
    let mut service = Service::started(BERTH, &["micro"]);
    // With an image that is missing, no administrator would be waited for.
    let caller = service.admin().await;
    let (here, aside) = (service.dir.path().join("images/micro"), service.dir.path().join("aside"));
    for (missed, recorded) in MISS.iter().zip(RECORD) {
        for (point, from, to, status) in [(missed, &here, &aside, "failed"), (recorded, &aside, &here, "ready")] {
            service.stop();
            std::fs::rename(from, to).expect("moved");
            service.start_and_die_at(point);
            service.start();
            caller.until(status, |c| async move { c.get("/api/v1/images/micro").await.body["status"] == status }).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_goes_on_after_a_kill() {
    let url = served(disk());
    let mut service = with_still_guests();
    for point in IMPORT {
        for uploaded in [false, true] {
            let caller = killed_at(&mut service, point, async |caller| {
                if uploaded {
                    // The service may be gone before it has answered.
                    let request = caller.request(Method::PUT, "/api/v1/images/foreign/content").body(disk());
                    assert!(request.send().await.map_or(true, |answer| answer.status() == 201));
                } else {
                    caller.ask(Method::POST, "/api/v1/images", json!({"id": "foreign", "url": url}), 201).await;
                }
            })
            .await;
            ready(&caller).await;
            eventually("an empty folder", 120, || service.files("staging").is_empty().then_some(()));
            let mut images = service.files("images");
            images.sort();
            assert_eq!(images, ["foreign", "micro"], "{point}");
            assert_eq!(caller.delete("/api/v1/images/foreign").await.status, 204);
            eventually("the end of its files", 120, || (service.files("images") == ["micro"]).then_some(()));
            let is_gone = async |c: Caller| c.get("/api/v1/images/foreign").await.status == 404;
            caller.until("its end", is_gone).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_goes_on_after_a_kill() {
    let mut service = with_still_guests();
    service.start();
    for point in REMOVAL {
        let caller = service.admin().await;
        let request = caller.request(Method::PUT, "/api/v1/images/foreign/content").body(disk());
        assert_eq!(caller.send(request).await.status, 201);
        ready(&caller).await;
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::DELETE, "/api/v1/images/foreign", Value::Null, 204).await;
        })
        .await;
        caller.get("/api/v1/images/foreign").await.refused(404, "image_not_found");
        eventually("the end of its files", 120, || (service.files("images") == ["micro"]).then_some(()));
    }
}
