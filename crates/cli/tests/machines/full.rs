//! Full disks: of a service, of a host that joined, and of a database. What runs stands still or goes on, what is new goes elsewhere or says why
//! not, nothing that was acknowledged is lost, and all of it goes on once there is room.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Command;

use berth_testkit::{Caller, HostProcess, Postgres, Service, eventually, images, vm};
use serde_json::{Value, json};

use crate::BERTH;
use crate::guest::{login, ready, says, with_login};
use crate::join::{added, of, reaches};

/// Has a host's data folder be a small file system of its own, in a mount namespace, and its configuration reserve nothing.
const ON_A_SMALL_DISK: &str = "mount -t tmpfs -o size=1100m tmpfs \"$BERTH_DATA_DIR\" && export \
    BERTH_CONFIG=\"$BERTH_DATA_DIR/berth.toml\" && printf '[vm]\\ndisk_reserve_gb = 0\\ndisk_overcommit = 1000.0\\n' \
    >\"$BERTH_CONFIG\" && exec \"$@\"";
/// Writes more than there is room for, and says so once it is written.
const WRITES: &str =
    "(dd if=/dev/urandom of=/root/more bs=1M count=64 && sync && echo all >/root/written) >/dev/null 2>&1 &";

/// Bytes that are left for a guest to write more than.
const LEFT: u64 = 32 << 20;
/// Most projects that a file system which is full takes, in what its database has there already.
const MOST: usize = 5000;

/// Fills a disk with one file, to its last block.
fn fill(file: &Path) {
    let of = format!("of={}", file.display());
    let full = Command::new("dd").args(["if=/dev/zero", &of, "bs=8k"]).output().expect("dd");
    assert!(!full.status.success(), "the disk is full");
}

/// A service whose data folder is a small file system of its own, in a mount namespace.
fn on_a_small_disk(megabytes: u32) -> Service {
    let mut service = Service::new(BERTH, &[]);
    service.configure("disk_reserve_gb = 0\ndisk_overcommit = 1000.0\n");
    let dir = service.dir.path().to_owned();
    let config = std::fs::read_to_string(dir.join("berth.toml")).expect("a file");
    let script = format!(
        "mount -t tmpfs -o size={megabytes}m tmpfs \"$BERTH_DATA_DIR\" && mkdir \"$BERTH_DATA_DIR/images\" && \
         cp -r \"$IMAGE\" \"$BERTH_DATA_DIR/images/\" && printf %s \"$CONFIG\" >\"$BERTH_CONFIG\" && exec \"$0\" serve"
    );
    let inner = service.command();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", &script, BERTH]);
    for (name, value) in inner.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command.env("IMAGE", images().join("micro")).env("CONFIG", config);
    let log = OpenOptions::new().create(true).append(true).open(dir.join("service.log")).expect("a log");
    command.stdout(log.try_clone().expect("a log")).stderr(log);
    service.start_as(command);
    service
}

/// A process that lives in the service's mount namespace.
fn process_in(service: &Service) -> u32 {
    let port = service.base.rsplit(':').next().expect("a port").to_owned();
    for entry in std::fs::read_dir("/proc").expect("processes").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let listens = String::from_utf8_lossy(&environment).contains(&format!("BERTH_LISTEN=127.0.0.1:{port}"));
        if listens && String::from_utf8_lossy(&command).ends_with("serve\0") {
            return pid;
        }
    }
    panic!("no such process");
}

/// The message of a VM.
async fn message(admin: &Caller, id: &str) -> String {
    admin.get(&format!("/vms/{id}")).await.body["message"].to_string()
}

/// Has a host take new VMs, or none.
async fn does(admin: &Caller, host: &Value, verb: &str) {
    assert_eq!(admin.act(&of(host, verb)).await.status, 202);
}

/// Has VMs go, with all that is theirs.
async fn go(admin: &Caller, ids: &[&str]) {
    for id in ids {
        assert_eq!(admin.delete(&format!("/vms/{id}")).await.status, 202);
        admin.gone(id).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_of_a_service_loses_nothing() {
    let service = on_a_small_disk(1100);
    let caller = service.admin().await;
    caller.until("the image", |c| async move { c.get("/api/v1/images/micro").await.body["status"] == "ready" }).await;
    let id = caller.running_vm("web").await;
    // Seen through the namespace of the service's machine.
    let inside = format!("/proc/{}/root{}", process_in(&service), service.dir.path().display());
    let filler = PathBuf::from(format!("{inside}/filler"));
    fill(&filler);
    let answer = caller.post("/vms", vm("late")).await;
    assert!([201, 503].contains(&answer.status), "{answer:?}");
    if answer.status == 201 {
        let late = caller.get(&format!("/vms/{}/wait?status=running&timeout=5", answer.id())).await.body;
        assert_ne!(late["status"], "running");
    }
    assert_eq!(caller.get(&format!("/vms/{id}")).await.status, 200);
    std::fs::remove_file(&filler).expect("room again");
    eventually("the service to work again", 120, || {
        let output = Command::new("curl").args(["-sf", &format!("{}/readyz", service.base)]).output().ok()?;
        output.status.success().then_some(())
    });
    for vm in caller.get("/vms").await.body["data"].as_array().expect("a list") {
        let id = vm["id"].as_str().expect("an id");
        caller
            .until("the deletion", |c| {
                let path = format!("/vms/{id}");
                async move { [202, 404].contains(&c.delete(&path).await.status) }
            })
            .await;
        caller.gone(id).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_of_a_host_that_joined_loses_nothing() {
    let service = Service::started(BERTH, &["micro"]);
    let admin = service.admin().await;
    let mut host = HostProcess::new(BERTH);
    host.launcher = ["unshare", "--mount", "sh", "-c", ON_A_SMALL_DISK, "sh"].map(str::to_owned).to_vec();
    host.join(&added(&service, &admin));
    let small = reaches(&service, &admin, "ready")["id"].clone();
    let all = admin.get("/api/v1/admin/hosts").await.body["data"].as_array().cloned().expect("hosts");
    let own = all.iter().find(|host| host["id"] != small).expect("another one")["id"].clone();
    // Seen through the namespace of the host's program.
    let inside = format!("/proc/{}/root{}", host.pid(), host.dir.path().display());
    let image = format!("{inside}/images/micro/image.json");
    eventually("the image", 120, || Path::new(&image).exists().then_some(()));
    does(&admin, &own, "cordon").await;
    let id = admin.create_vm(with_login(&service)).await;
    let shown = ready(&admin, &id).await;
    assert_eq!(shown["host_id"], small);

    let filler = PathBuf::from(format!("{inside}/filler"));
    fill(&filler);
    // The guest fills the rest itself, once somebody has logged in to it.
    let file = OpenOptions::new().write(true).open(&filler).expect("the filler");
    file.set_len(file.metadata().expect("its size").len() - LEFT).expect("some room");
    // Who has it open keeps its room.
    drop(file);
    assert!(login(&service, &shown).arg(WRITES).status().expect("ssh").success());
    admin
        .until("its disk has no room", async |admin| message(&admin, &id).await.contains("the host's disk is full"))
        .await;
    // What is new says why it is not there, and goes to whoever has room.
    let late = admin.create_vm(vm("late")).await;
    let failed = admin.reaches(&late, "failed").await;
    assert!(failed["message"].as_str().is_some_and(|why| why.contains("room") || why.contains("capacity")), "{failed}");
    does(&admin, &own, "uncordon").await;
    let next = admin.running_vm("next").await;
    assert_eq!(admin.get(&format!("/vms/{next}")).await.body["host_id"], own);
    assert_eq!(admin.get(&format!("/vms/{id}")).await.body["status"], "running");

    std::fs::remove_file(&filler).expect("room again");
    admin.until("it goes on", async |admin| message(&admin, &id).await == "null").await;
    let written = "until [ -s /root/written ]; do sleep 0.2; done; wc -c </root/more";
    assert_eq!(says(&service, &shown, written), (64 << 20).to_string());
    reaches(&service, &admin, "ready");
    go(&admin, &[&id, &late, &next]).await;
}

/// Has clients make projects until one is refused; what was made, and how the refusal reads.
async fn makes_until_refused(admin: &Caller, made: &mut Vec<String>) -> String {
    for number in 0..MOST {
        let name = format!("full-{number}");
        let answer = admin.post(&format!("{}/projects", admin.org()), json!({"name": name})).await;
        if answer.status != 201 {
            assert_eq!(answer.status, 503, "{answer:?}");
            return answer.body["message"].to_string();
        }
        made.push(answer.id());
    }
    panic!("{MOST} projects fit on a full disk");
}

/// Whether a project can be made.
fn writes(service: &Service, admin: &Caller) -> bool {
    let (to, token) =
        (format!("{}{}/projects", service.base, admin.org()), format!("Authorization: Bearer {}", admin.token));
    let mut command = Command::new("curl");
    command.args(["-sf", &to, "-H", &token, "-H", "Content-Type: application/json", "-d", r#"{"name": "again"}"#]);
    command.output().expect("an end").status.success()
}

/// The service and its database are restarted where they ended, as a system does; what was acknowledged is there, whatever happened.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_of_the_database_takes_nothing_back() {
    let postgres = Postgres::started_on_a_small_disk(200);
    let mut service = Service::new(BERTH, &[]);
    service.set("BERTH_DATABASE_URL", &format!("postgres://berth@127.0.0.1:{}/berth", postgres.port()));
    service.start();
    let (admin, mut made) = (service.admin().await, Vec::new());
    let filler = postgres.folder().join("filler");
    fill(&filler);
    let told = makes_until_refused(&admin, &mut made).await;
    println!("after {} projects: {told}", made.len());
    std::fs::remove_file(&filler).expect("room again");
    eventually("a write", 120, || {
        if service.has_ended() {
            service.start();
        }
        (postgres.runs() && writes(&service, &admin)).then_some(())
    });
    let admin = service.admin().await;
    for id in &made {
        assert_eq!(admin.get(&format!("{}/projects/{id}", admin.org())).await.status, 200, "{id}");
    }
}
