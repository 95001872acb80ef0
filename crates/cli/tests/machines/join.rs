//! A second machine: a service and a host in processes of their own, each with its folder, over loopback.

use std::path::Path;
use std::process::{Output, Stdio};

use berth_testkit::{Caller, HostProcess, Service, eventually};
use reqwest::Method;
use serde_json::{Value, json};

use crate::BERTH;
use crate::crash::{LEAVING, TRAVEL, killed_at};
use crate::guest::{ready, says, with_login};

/// Has a service expect a host; what is typed there.
pub fn added(service: &Service, admin: &Caller) -> String {
    let mut adding = service.berth(&["admin", "host", "add", "beta"]);
    let added = adding.env("BERTH_URL", &service.base).env("BERTH_TOKEN", &admin.token).output().expect("an end");
    text(&added).lines().last().expect("a command").to_owned()
}

/// What `berth admin host list` says of hosts called so.
fn listed(service: &Service, admin: &Caller, name: &str) -> Value {
    let mut command = service.berth(&["admin", "host", "list", "--json"]);
    let output = command.env("BERTH_URL", &service.base).env("BERTH_TOKEN", &admin.token).output().expect("an end");
    assert!(output.status.success(), "{output:?}");
    let list: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let all = list["data"].as_array().expect("hosts");
    all.iter().find(|host| host["name"] == name).cloned().unwrap_or_default()
}

pub fn reaches(service: &Service, admin: &Caller, state: &str) -> Value {
    eventually(state, 120, || Some(listed(service, admin, "beta")).filter(|host| host["state"] == state))
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_machine_joins_with_one_command_and_both_may_die_and_start_again() {
    let mut service = Service::started(BERTH, &[]);
    let admin = service.admin().await;
    let mut adding = service.berth(&["admin", "host", "add", "beta", "--label", "rack=7"]);
    let added = adding.env("BERTH_URL", &service.base).env("BERTH_TOKEN", &admin.token).output().expect("an end");
    assert!(added.status.success(), "{added:?}");
    let printed = text(&added);
    let typed = printed.lines().last().expect("a command").to_owned();
    assert!(typed.starts_with(&format!("berth host join {} bht_", service.base)), "{printed}");
    assert_eq!(listed(&service, &admin, "beta")["state"], "joining");
    let mut host = HostProcess::new(BERTH);
    host.join(&typed);
    let found = reaches(&service, &admin, "ready");
    assert_eq!(
        (&found["addresses"], &found["labels"]),
        (&json!([host.listen.to_string()]), &json!({"rack": "7"})),
        "{}",
        host.log()
    );
    assert_eq!(found["version"], json!(env!("CARGO_PKG_VERSION")));
    // Its power goes.
    host.kill();
    let lost = reaches(&service, &admin, "lost");
    assert!(lost["trouble"].as_str().is_some_and(|why| why.starts_with(&host.listen.to_string())), "{lost}");
    host.start(&["host", "serve"]);
    reaches(&service, &admin, "ready");
    // The service's power goes.
    let seen = |host: &Value| host["last_seen_at"].as_str().expect("a time").to_owned();
    let before = seen(&listed(&service, &admin, "beta"));
    service.kill();
    service.start();
    let admin = service.admin().await;
    eventually("another look", 60, || {
        let host = listed(&service, &admin, "beta");
        (host["state"] == "ready" && seen(&host) > before).then_some(())
    });
    // In good order; the same command says that it has joined, and serves.
    assert_eq!(host.stop(), Some(0), "{}", host.log());
    host.join(&typed);
    eventually("what it says", 60, || host.log().contains("This host has joined").then_some(()));
    eventually("what it says", 60, || host.log().contains("already, as beta").then_some(()));
    reaches(&service, &admin, "ready");
    let told = text(&host.ends(&["doctor"]));
    assert!(told.contains(&format!("this host joined {} as beta", service.base)), "{told}");
    assert!(told.contains(&format!("something answers at {}", host.listen)), "{told}");
    let mut doctor = service.command_of("doctor");
    let told = text(&doctor.stdout(Stdio::piped()).stderr(Stdio::piped()).output().expect("an end"));
    assert!(told.contains(&format!("beta answers at {}", host.listen)), "{told}");
    // Nothing of a host lies where a service would look, and the secret ones are its own.
    assert!(!host.dir.path().join("berth.db").exists());
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(host.dir.path().join("joined.json")).expect("a file").permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    assert!(!host.log().contains("bht_") && !host.log().contains("PRIVATE") && !service.log().contains("bht_"));
    refuses_what_it_is_not(&mut host, &service);
}

/// A host's folder is no service's, nor a service's folder a host's.
fn refuses_what_it_is_not(host: &mut HostProcess, service: &Service) {
    assert_eq!(host.stop(), Some(0), "{}", host.log());
    let told = text(&host.ends(&["serve", "--listen", "127.0.0.1:0"]));
    assert!(told.contains("is a host's that joined") && told.contains("berth host serve"), "{told}");
    let token = format!("bht_{}", "A".repeat(86));
    let told = text(&host.ends(&["host", "join", "http://127.0.0.1:1", &token]));
    assert!(told.contains("has joined") && told.contains("--again"), "{told}");
    let told = text(&host.ends(&["host", "join", "http://192.0.2.1:1", &token]));
    assert!(told.contains("anybody on the way reads the token") && told.contains("--insecure"), "{told}");
    let other = HostProcess::new(BERTH);
    let told = text(&other.ends(&["host", "serve"]));
    assert!(told.contains("has joined no platform"), "{told}");
    std::fs::write(other.dir.path().join("identity"), "x").expect("a file");
    let wrong = text(&other.ends(&["host", "join", &service.base, &token]));
    assert!(wrong.contains("is a service's"), "{wrong}");
    std::fs::remove_file(other.dir.path().join("identity")).expect("a file");
    let at = ["--listen", "127.79.0.1:0", "--address", "127.79.0.1:1"];
    let wrong = text(&other.ends(&[&["host", "join", &service.base, &token], &at[..]].concat()));
    assert!(wrong.contains("berth admin host token"), "{wrong}");
    assert!(!Path::new(&other.dir.path().join("joined.json")).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_comes_to_a_machine_that_joined_and_a_vm_boots_there() {
    let mut service = Service::started(BERTH, &["micro"]);
    let admin = service.admin().await;
    let typed = added(&service, &admin);
    let mut host = HostProcess::new(BERTH);
    host.join(&typed);
    let found = reaches(&service, &admin, "ready");
    let images = host.dir.path().join("images");
    let came = eventually("an image", 120, || std::fs::read(images.join("micro/image.json")).ok());
    let sent = berth_testkit::images().join("micro");
    assert_eq!(came, std::fs::read(sent.join("image.json")).expect("a file"));
    for file in ["disk.qcow2", "vmlinux", "initrd"] {
        let [came, sent] =
            [images.join("micro"), sent.clone()].map(|dir| std::fs::read(dir.join(file)).expect("a file"));
        assert!(came == sent, "{file}");
    }
    let left = std::fs::read_dir(&images).expect("a folder").flatten().map(|entry| entry.file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["micro"], "nothing else is there");
    // The service's own host takes no more.
    let own = admin.get("/api/v1/admin/hosts").await.body;
    let own =
        own["data"].as_array().expect("hosts").iter().find(|host| host["id"] != found["id"]).expect("another one");
    let hosts = [found["id"].clone(), own["id"].clone()];
    assert_eq!(admin.act(&of(&hosts[1], "cordon")).await.status, 202);
    let mut body = with_login(&service);
    let id = admin.create_vm(body.clone()).await;
    let vm = ready(&admin, &id).await;
    assert_eq!(vm["host_id"], found["id"]);
    assert_eq!(says(&service, &vm, "hostname"), "web");
    let admin = disks_come(&mut service, &host, &id).await;
    admin.delete(&format!("/vms/{id}")).await;
    admin.gone(&id).await;
    body["data_disks"] = json!({"create_disks": [{"name": "its", "type": "block", "size_gb": 10}]});
    let id = admin.create_vm(body).await;
    leaves(&mut service, &host, &hosts, &id).await;
}

/// The path of what is said of a host.
pub fn of(host: &Value, verb: &str) -> String {
    format!("/api/v1/admin/hosts/{}/{verb}", host.as_str().expect("an id"))
}

/// Has a VM go from host to host and back while the service dies at every step; it has what was written, and there is one of it.
async fn leaves(service: &mut Service, host: &HostProcess, hosts: &[Value; 2], id: &str) {
    let folders = [host.dir.path().to_owned(), service.dir.path().to_owned()];
    let mut admin = service.admin().await;
    let vm = ready(&admin, id).await;
    assert_eq!(vm["host_id"], hosts[0]);
    let disks: Vec<_> = [&vm["root_disk"]].into_iter().chain(vm["data_disks"].as_array().expect("disks")).collect();
    let disks: Vec<_> = disks.into_iter().map(|disk| disk["id"].as_str().expect("an id").to_owned()).collect();
    for (number, point) in LEAVING.iter().enumerate() {
        let (from, to) = (number % 2, 1 - number % 2);
        // It comes back to where it was with what was written since.
        says(service, &ready(&admin, id).await, &format!("echo {point} >/kept && sync"));
        assert_eq!(admin.act(&of(&hosts[to], "uncordon")).await.status, 202);
        admin = killed_at(service, point, async |admin: &Caller| {
            admin.ask(Method::POST, &of(&hosts[from], "drain?restart=true"), Value::Null, 202).await;
        })
        .await;
        let path = format!("/vms/{id}");
        let has_come = async |admin: Caller| {
            let vm = admin.get(&path).await.body;
            vm["host_id"] == hosts[to] && vm["status"] == "running"
        };
        admin.until("the other host", has_come).await;
        let vm = ready(&admin, id).await;
        assert_eq!(says(service, &vm, "cat /kept"), *point);
        assert!(vm["message"].is_null(), "{point}: {vm}");
        let is_there = |at: usize| {
            let all = std::fs::read_dir(folders[at].join("disks")).into_iter().flatten().flatten();
            let all: Vec<_> = all.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
            disks.iter().filter(|disk| all.iter().any(|file| file.starts_with(disk.as_str()))).count()
        };
        assert_eq!(is_there(to), disks.len(), "{point}");
        eventually("one copy", 60, || (is_there(from) == 0).then_some(()));
        assert!(!folders[from].join("machines").join(id).exists(), "{point}: its machine is there once");
    }
}

/// Attaches disks of the service's own host to a VM of another, and has the service die at every step; one copy of each is left.
async fn disks_come(service: &mut Service, host: &HostProcess, vm: &str) -> Caller {
    let mut admin = service.admin().await;
    for point in TRAVEL {
        let body = json!({"name": "data", "type": "block", "size_gb": 10, "region_id": "local"});
        let disk = admin.post("/disks", body).await.id();
        let path = format!("/disks/{disk}");
        let is = async |admin: &Caller| admin.get(&path).await.body;
        admin.until("the disk", async |admin| is(&admin).await["status"] == "ready").await;
        admin = killed_at(service, point, async |admin: &Caller| {
            admin.ask(Method::POST, &format!("{path}/attach"), json!({"vm_id": vm}), 202).await;
        })
        .await;
        let file = format!("disks/{disk}.raw");
        admin.until("its end", async |admin| is(&admin).await["change"].is_null()).await;
        let at_rest = is(&admin).await;
        assert_eq!((&at_rest["vm_id"], &at_rest["message"]), (&json!(vm), &Value::Null), "{point}");
        assert!(host.dir.path().join(&file).exists(), "{point}");
        // What a death left of it where it was is set aside by a search.
        let former = || service.dir.path().join(&file).exists();
        eventually("one copy", 60, || (!former()).then_some(()));
        let staged = std::fs::read_dir(service.dir.path().join("staging")).into_iter().flatten().count();
        assert_eq!(staged, 0, "{point}");
    }
    admin
}
