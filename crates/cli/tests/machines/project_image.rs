//! Images and files that are made of real disks have what these had, and what is interrupted is made on.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use berth_domain::vm::project_image::ProjectImageStep;
use berth_testkit::{Caller, Service, eventually};
use reqwest::Method;
use serde_json::{Value, json};

use crate::crash::{killed_at, service as impatient};
use crate::guest::{ready, says, with_login};
use crate::shell::signed_in;

/// Where the service is killed while an image is made.
const MADE: &[&str] = &[
    "vm.snapshot_disk.before",
    "disk.snapshot.done",
    "project_image.make.before",
    "project_image.make.placed",
    "image.make.copied",
    "image.make.half",
    "image.make.whole",
    "project_image.make.done",
    "project_image.make.after",
    "disk_snapshot.remove.done",
];
/// While one goes that was made, and one that was not to be.
const REMOVED: &[&str] = &["project_image.remove.before", "project_image.remove.done", "project_image.remove.after"];
const FAILED: &[&str] = &["project_image.fail.before", "project_image.fail.after"];

fn id_of(thing: &Value) -> String {
    thing["id"].as_str().expect("an id").to_owned()
}

/// Waits until an image has a status.
async fn reaches(caller: &Caller, id: &str, status: &str) -> Value {
    let path = format!("/images/{id}");
    caller.until(status, async |caller: Caller| caller.get(&path).await.body["status"] == status).await;
    caller.get(&path).await.body
}

/// Deletes a thing, and waits until it is gone.
async fn deleted(caller: &Caller, path: &str) {
    let answer = caller.delete(path).await;
    assert!(matches!(answer.status, 202 | 204), "{answer:?}");
    caller.until("its end", async |caller: Caller| caller.get(path).await.status == 404).await;
}

/// The folders of projects' images, and what is half made of them.
fn images(service: &Service) -> Vec<String> {
    let mut files = service.files("images");
    files.retain(|name| name != "micro");
    files
}

fn qemu_img(arguments: &[&str], file: &Path) -> String {
    let output = Command::new("qemu-img").args(arguments).arg(file).output().expect("qemu-img");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What a file has at a place, as a guest would read it.
fn read(file: &Path, place: u64) -> Vec<u8> {
    let raw = file.with_extension("raw");
    let mut convert = Command::new("qemu-img");
    convert.args(["convert", "-f", "qcow2", "-O", "raw"]).arg(file).arg(&raw);
    assert!(convert.status().expect("qemu-img").success());
    let mut found = vec![0; 6];
    File::open(raw).expect("a file").read_exact_at(&mut found, place).expect("what is there");
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_is_made_of_an_image_of_another_that_runs() {
    let service = signed_in(&["micro"]);
    let caller = service.admin().await;
    let login = with_login(&service);
    let mut body = login.clone();
    body["delete_root_disk"] = json!(true);
    let first = caller.create_vm(body).await;
    let vm = ready(&caller, &first).await;
    says(&service, &vm, "echo before >/what; sync");
    let made = service.berth(&["image", "create", "Mine", "--from-vm", &first, "--json"]).output().expect("an end");
    assert!(made.status.success(), "{made:?}");
    let image: Value = serde_json::from_slice(&made.stdout).expect("JSON");
    let id = id_of(&image);
    assert_eq!((&image["status"], &image["image_id"]), (&json!("ready"), &json!("micro")));
    says(&service, &vm, "echo after >/what; sync");
    let listed = service.berth(&["image", "ls"]).output().expect("an end");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("Mine") && listed.contains("micro"), "{listed}");
    deleted(&caller, &format!("/vms/{first}")).await;
    eventually("the end of its copy", 60, || service.files("snapshots").is_empty().then_some(()));
    // It is whole by itself, and what is told of its file is so.
    let file = service.dir.path().join("mine.qcow2");
    let path = file.to_str().expect("a path");
    let saved = service.berth(&["image", "export", "Mine", path]).output().expect("an end");
    assert!(saved.status.success(), "{saved:?}");
    let said = String::from_utf8_lossy(&saved.stdout).into_owned();
    assert!(said.starts_with(image["version"].as_str().expect("a hash")), "{said}");
    qemu_img(&["check", "-f", "qcow2"], &file);
    let mut body = login;
    body["name"] = json!("again");
    body["root_disk"]["create_disk_request"]["image_id"] = json!(id);
    let again = caller.create_vm(body).await;
    let vm = ready(&caller, &again).await;
    let gone = service.berth(&["image", "rm", "Mine", "--wait"]).output().expect("an end");
    assert!(gone.status.success() && images(&service).is_empty(), "{gone:?} {:?}", images(&service));
    assert_eq!(says(&service, &vm, "cat /what; hostname"), "before\nagain");
    caller.act(&format!("/vms/{again}/stop")).await;
    caller.reaches(&again, "stopped").await;
    caller.act(&format!("/vms/{again}/start")).await;
    caller.reaches(&again, "running").await;
    assert_eq!(says(&service, &vm, "cat /what"), "before", "it begins again without its image");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_disks_have_what_these_have() {
    const PLACE: u64 = 5 << 30;
    let service = signed_in(&["micro"]);
    let caller = service.admin().await;
    let disk = json!({"name": "data", "type": "block", "size_gb": 10, "region_id": "local"});
    let disk = caller.post("/disks", disk).await.id();
    let path = format!("/disks/{disk}");
    caller.until("the disk", async |caller: Caller| caller.get(&path).await.body["status"] == "ready").await;
    let raw = service.dir.path().join("disks").join(format!("{disk}.raw"));
    let raw = File::options().write(true).open(raw).expect("a disk");
    raw.write_all_at(b"before", PLACE).expect("a write");
    let snapshot = caller.post("/disk_snapshots", json!({"disk_id": disk, "name": "then"})).await.id();
    let path = format!("/disk_snapshots/{snapshot}");
    caller.until("the copy", async |caller: Caller| caller.get(&path).await.body["status"] == "ready").await;
    raw.write_all_at(b"after!", PLACE).expect("a write");
    for (number, (arguments, has)) in
        [(&["data"][..], b"after!"), (&["then", "--snapshot"], b"before")].iter().enumerate()
    {
        let file = service.dir.path().join(format!("export-{number}.qcow2"));
        let to = [file.to_str().expect("a path")];
        let saved = service.berth(&[&["disk", "export"], *arguments, &to].concat()).output().expect("an end");
        assert!(saved.status.success(), "{saved:?}");
        let info: Value = serde_json::from_str(&qemu_img(&["info", "--output=json"], &file)).expect("JSON");
        assert_eq!((&info["format"], &info["virtual-size"]), (&json!("qcow2"), &json!(10_u64 << 30)));
        assert!(info.get("backing-filename").is_none() && info.get("full-backing-filename").is_none(), "{info}");
        qemu_img(&["check", "-f", "qcow2"], &file);
        let sum = Command::new("sha256sum").arg(&file).output().expect("sha256sum");
        assert_eq!(sum.stdout[..64], saved.stdout[..64], "what was said of it");
        assert_eq!(read(&file, PLACE), *has);
        let again = service.berth(&[&["disk", "export"], *arguments, &to].concat()).output().expect("an end");
        assert!(!again.status.success(), "what is there is not written over");
    }
    // What broke off goes on: half of it is there already.
    let (whole, file) = (service.dir.path().join("export-1.qcow2"), service.dir.path().join("resumed.qcow2"));
    let bytes = std::fs::read(&whole).expect("a file");
    let tag = &sum_of(&whole)[..12];
    let part = service.dir.path().join(format!("resumed.qcow2.{tag}.part"));
    std::fs::write(&part, &bytes[..bytes.len() / 2]).expect("a file");
    let to = ["disk", "export", "then", "--snapshot", file.to_str().expect("a path")];
    assert!(service.berth(&to).output().expect("an end").status.success());
    assert!(std::fs::read(&file).expect("a file") == bytes && !part.exists());
    // What is wrong in it is found.
    std::fs::remove_file(&file).expect("a file");
    std::fs::write(&part, vec![7; bytes.len() / 2]).expect("a file");
    let wrong = service.berth(&to).output().expect("an end");
    assert!(!wrong.status.success() && !part.exists() && !file.exists(), "{wrong:?}");
}

fn sum_of(file: &Path) -> String {
    let sum = Command::new("sha256sum").arg(file).output().expect("sha256sum");
    String::from_utf8_lossy(&sum.stdout).into_owned()
}

/// The id of the root disk of a VM that runs.
async fn running_root(caller: &Caller) -> String {
    let mut body = berth_testkit::vm("web");
    body["delete_root_disk"] = json!(true);
    let vm = caller.create_vm(body).await;
    id_of(&caller.reaches(&vm, "running").await["root_disk"])
}

/// Deletes everything, and asserts that the host has nothing any more.
async fn leaves_nothing(service: &Service, caller: &Caller, point: &str) {
    for path in ["/images", "/vms"] {
        for thing in caller.get(path).await.body["data"].as_array().expect("a list") {
            let path = format!("{path}/{}", id_of(thing));
            if thing["status"] == "deleting" {
                caller.until("its end", async |caller: Caller| caller.get(&path).await.status == 404).await;
            } else {
                deleted(caller, &path).await;
            }
        }
    }
    let is_empty = || ["machines", "disks", "snapshots"].iter().all(|folder| service.files(folder).is_empty());
    eventually("an empty host", 60, || is_empty().then_some(()));
    assert!(images(service).is_empty(), "{point}: {:?}", images(service));
    let sums = async |caller: Caller| {
        let quota = caller.get("/quota").await.body;
        (&quota["disks"]["used"], &quota["disk_gb"]["used"]) == (&json!(0), &json!(0))
    };
    caller.until("empty sums", sums).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_made_on_and_goes() {
    let mut service = impatient();
    service.start();
    for point in MADE.iter().chain(REMOVED) {
        let root = running_root(&service.admin().await).await;
        let body = json!({"from_root_disk": root, "name": "mine"});
        let caller = killed_at(&mut service, point, async |caller| {
            let asked = caller.ask(Method::POST, "/images", body, 201).await;
            if REMOVED.contains(point) {
                let id = asked.expect("an answer").id();
                reaches(caller, &id, "ready").await;
                caller.ask(Method::DELETE, &format!("/images/{id}"), Value::Null, 202).await;
            }
        })
        .await;
        if MADE.contains(point) {
            let id = id_of(&caller.get("/images").await.body["data"][0]);
            reaches(&caller, &id, "ready").await;
            assert_eq!(images(&service), [id], "{point}");
        }
        leaves_nothing(&service, &caller, point).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_whose_copy_fails_is_told_of_and_leaves_nothing() {
    for point in FAILED {
        let mut service = impatient();
        service.start();
        let root = running_root(&service.admin().await).await;
        service.kill();
        // No copy has a place beside the disk.
        service.configure("disk_overcommit = 0.000001\n");
        let body = json!({"from_root_disk": root, "name": "mine"});
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::POST, "/images", body, 201).await;
        })
        .await;
        let id = id_of(&caller.get("/images").await.body["data"][0]);
        let failed = reaches(&caller, &id, "failed").await;
        assert!(failed["message"].as_str().is_some_and(|text| text.starts_with("insufficient_capacity:")), "{failed}");
        leaves_nothing(&service, &caller, point).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_half_made_goes_with_its_service() {
    let mut service = impatient();
    service.start();
    let caller = service.admin().await;
    let disk = json!({"name": "data", "type": "block", "size_gb": 10, "region_id": "local"});
    let disk = caller.post("/disks", disk).await.id();
    let path = format!("/disks/{disk}");
    caller.until("the disk", async |caller: Caller| caller.get(&path).await.body["status"] == "ready").await;
    service.kill();
    let caller = killed_at(&mut service, "disk.export.noted", async |caller| {
        let begun = caller.request(Method::GET, &format!("{path}/export")).send().await;
        assert!(begun.is_err(), "the service is gone before the answer: {begun:?}");
    })
    .await;
    eventually("an empty folder", 60, || service.files("exports").is_empty().then_some(()));
    assert_eq!(caller.request(Method::GET, &format!("{path}/export")).send().await.expect("an answer").status(), 200);
    assert_eq!(service.files("exports").len(), 2);
}

#[test]
fn every_step_of_an_image_has_points_at_which_the_service_is_killed() {
    let killed: Vec<_> = MADE.iter().chain(REMOVED).chain(FAILED).collect();
    for step in ProjectImageStep::ALL {
        for moment in ["before", "after"] {
            let point = format!("project_image.{step}.{moment}");
            assert!(killed.contains(&&point.as_str()), "no test kills the service at {point}");
        }
    }
}
