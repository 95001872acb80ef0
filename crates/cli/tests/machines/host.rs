//! What a host can lack: QEMU, an image's bytes, room on its disk, exclusiveness.

use berth_testkit::{Service, images, vm};

use crate::BERTH;

#[tokio::test(flavor = "multi_thread")]
async fn the_second_service_on_a_folder_refuses() {
    let service = Service::started(BERTH, &["micro"]);
    let mut second = service.command();
    second.env("BERTH_LISTEN", "127.0.0.1:0").stderr(std::process::Stdio::piped());
    let output = second.output().expect("an end");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("another service runs on the data folder"), "{text}");
    service.admin().await.running_vm("web").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_qemu_the_service_says_so() {
    let mut service = Service::new(BERTH, &["micro"]);
    service.configure("qemu = \"/nonexistent/qemu\"\n");
    service.start();
    let caller = service.admin().await;
    let probe = reqwest::get(format!("{}/readyz", service.base)).await.expect("an answer");
    assert_eq!(probe.status(), 503);
    let id = caller.create_vm(vm("web")).await;
    let failed = caller.reaches(&id, "failed").await;
    let message = failed["message"].as_str().unwrap_or_default();
    assert!(message.contains("qemu-system-x86_64") && !message.contains("/nonexistent"), "{message}");
    caller.delete(&format!("/vms/{id}")).await;
    caller.gone(&id).await;
    let mut doctor = service.berth(&["doctor", "--config"]);
    doctor.arg(service.dir.path().join("berth.toml")).env("BERTH_DATA_DIR", service.dir.path());
    let output = doctor.output().expect("an end");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.code() == Some(1) && text.contains("qemu-system-x86_64") && text.contains("apt install"),
        "{text}"
    );
    // Where nobody built what sandboxes boot, it says what to type, and how they would be confined.
    for word in ["script/quickstart", "confinement", "limits"] {
        assert!(text.contains(word), "{word} is not in {text}");
    }
}

/// A service with an image of its own, not shared with other tests.
fn with_own_image() -> Service {
    let service = Service::new(BERTH, &[]);
    let to = service.dir.path().join("images/micro");
    std::fs::create_dir_all(&to).expect("a folder");
    for entry in std::fs::read_dir(images().join("micro")).expect("an image").flatten() {
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
    }
    service
}

fn damage(service: &Service, file: &str, bytes: u64) {
    let path = service.dir.path().join("images/micro").join(file);
    std::fs::OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(bytes)).expect("a cut");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_image_is_not_offered() {
    for (file, bytes) in [("disk.qcow2", 100_000), ("vmlinux", 5000), ("initrd", 0)] {
        let mut service = with_own_image();
        service.start();
        let caller = service.admin().await;
        caller
            .until("the image", |c| async move { c.get("/api/v1/images/micro").await.body["status"] == "ready" })
            .await;
        damage(&service, file, bytes);
        caller
            .until("the verdict", |c| async move { c.get("/api/v1/images/micro").await.body["status"] == "failed" })
            .await;
        let image = caller.get("/api/v1/images/micro").await.body;
        assert!(image["message"].as_str().is_some_and(|m| m.contains("damaged")), "{image}");
        caller.post("/vms", vm("web")).await.refused(404, "image_not_found");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_whose_image_was_damaged_says_so_and_can_go() {
    let mut service = with_own_image();
    service.configure("stop_seconds = 1\n");
    service.start();
    let caller = service.admin().await;
    caller.until("the image", |c| async move { c.get("/api/v1/images/micro").await.body["status"] == "ready" }).await;
    let id = caller.running_vm("web").await;
    caller.act(&format!("/vms/{id}/stop")).await;
    caller.reaches(&id, "stopped").await;
    damage(&service, "vmlinux", 5000);
    assert_eq!(caller.act(&format!("/vms/{id}/start")).await.status, 202);
    let failed = caller.reaches(&id, "failed").await;
    assert!(failed["message"].as_str().is_some_and(|m| m.contains("image 'micro' is damaged")), "{failed}");
    caller.delete(&format!("/vms/{id}")).await;
    caller.gone(&id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_stops_the_machines_of_every_project() {
    let mut service = Service::started(BERTH, &["micro"]);
    service.configure("stop_seconds = 1\n");
    let mut machines = Vec::new();
    for email in ["ada@example.com", "bob@example.com"] {
        let caller = service.sign_up(email).await;
        let id = caller.running_vm("web").await;
        machines.push((email, id));
    }
    let refused = service.command_of("shutdown").status().expect("an end");
    assert!(!refused.success(), "the service runs still");
    assert_eq!(service.stop(), Some(0));
    assert!(service.machine(&machines[0].1).is_some());
    assert!(service.command_of("shutdown").status().expect("an end").success());
    for (_, id) in &machines {
        assert!(service.machine(id).is_none());
    }
    service.start();
    for (email, id) in machines {
        let caller = service.signed_in(email).await;
        assert_eq!(caller.get(&format!("/vms/{id}")).await.body["status"], "stopped");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_an_older_copy_of_the_database_does_not_know_so_is_taken_up_and_stopped() {
    let mut service = Service::new(BERTH, &["micro"]);
    service.configure("stop_seconds = 1\n");
    service.start();
    let caller = service.admin().await;
    let id = caller.running_vm("web").await;
    let copy = service.dir.path().join("older.db");
    let mut backup = service.berth(&["backup", "--config"]);
    backup.arg(service.dir.path().join("berth.toml")).arg("--data-dir").arg(service.dir.path()).arg(&copy);
    let output = backup.output().expect("an end");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for (act, reached) in [("stop", "stopped"), ("start", "running")] {
        assert_eq!(caller.act(&format!("/vms/{id}/{act}")).await.status, 202);
        caller.reaches(&id, reached).await;
    }
    let before = service.machine(&id).expect("a machine");
    service.stop();
    let database = service.dir.path().join("berth.db");
    for beside in ["berth.db-wal", "berth.db-shm"] {
        let _ = std::fs::remove_file(service.dir.path().join(beside));
    }
    std::fs::rename(copy, database).expect("a restored database");
    service.start();
    let caller = service.admin().await;
    assert_eq!(caller.get(&format!("/vms/{id}")).await.body["status"], "running");
    assert_eq!(service.machine(&id), Some(before), "it is the machine of after the copy");
    assert_eq!(caller.act(&format!("/vms/{id}/stop")).await.status, 202);
    caller.reaches(&id, "stopped").await;
    assert!(service.log().contains("its host has acted on a later decision"), "{}", service.log());
    assert_eq!(service.machine(&id), None);
    assert_eq!(caller.act(&format!("/vms/{id}/start")).await.status, 202);
    caller.reaches(&id, "running").await;
}
