//! A foreign image with a boot loader of its own.

use berth_testkit::{Service, eventually, vm};
use serde_json::json;

use crate::BERTH;

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
    let service = Service::started(BERTH, &["micro"]);
    let (email, password) = service.login();
    let file = service.dir.path().join("Foreign_Loader.img");
    std::fs::write(&file, disk()).expect("a file");
    let login = service
        .berth(&["login", &service.base, "--email", email])
        .env("BERTH_PASSWORD", password)
        .output()
        .expect("an end");
    assert!(login.status.success(), "{login:?}");
    let path = file.to_str().expect("a path");
    let wrong = service.berth(&["image", "import", path, "--sha256", &"0".repeat(64)]).output().expect("an end");
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
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
