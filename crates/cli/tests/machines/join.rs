//! A second machine: a service and a host in processes of their own, each with its folder, over loopback.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use berth_testkit::{Caller, HostProcess, Service, eventually};
use reqwest::Method;
use serde_json::{Value, json};

use crate::BERTH;
use crate::crash::{CALLED_OFF, LEAVING, MOVING, TRAVEL, killed_at, killed_twice};
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

/// Waits until a program of the guest that writes a line now and then has written another one, or fails.
const TICKS: &str = "was=$(wc -c </tmp/clock); for i in $(seq 300); do \
    test $(wc -c </tmp/clock) -gt $was && exit 0; sleep 0.2; done; exit 1";

/// A VM that goes from host to host and back, while the service dies.
struct Traveller<'a> {
    service: &'a mut Service,
    folders: [PathBuf; 2],
    hosts: &'a [Value; 2],
    id: &'a str,
    disks: Vec<String>,
    /// On which of them it is.
    at: usize,
}

impl Traveller<'_> {
    /// How many of its disks are on a host.
    fn disks_on(&self, host: usize) -> usize {
        let all = std::fs::read_dir(self.folders[host].join("disks")).into_iter().flatten().flatten();
        let all: Vec<_> = all.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
        self.disks.iter().filter(|disk| all.iter().any(|file| file.starts_with(disk.as_str()))).count()
    }

    /// Has it leave, while the service dies at the second point, and before that at the first one where there is such; there is
    /// one of it then.
    async fn leaves(&mut self, first: Option<&str>, point: &str, status: &str) -> Caller {
        let (from, to) = (self.at, 1 - self.at);
        let admin = self.service.admin().await;
        assert_eq!(admin.act(&of(&self.hosts[to], "uncordon")).await.status, 202);
        let drained = of(&self.hosts[from], "drain");
        let drain = async |admin: &Caller| {
            admin.ask(Method::POST, &drained, Value::Null, 202).await;
        };
        let admin = match first {
            Some(first) => killed_twice(self.service, (first, point), drain).await,
            None => killed_at(self.service, point, drain).await,
        };
        let path = format!("/vms/{}", self.id);
        let has_come = async |admin: Caller| {
            let vm = admin.get(&path).await.body;
            vm["host_id"] == self.hosts[to] && vm["status"] == status && vm["message"].is_null()
        };
        admin.until("the other host", has_come).await;
        eventually("its disks", 120, || (self.disks_on(to) == self.disks.len()).then_some(()));
        eventually("one copy", 120, || (self.disks_on(from) == 0).then_some(()));
        let machine = self.folders[from].join("machines").join(self.id);
        eventually("one machine", 120, || (!machine.exists()).then_some(()));
        self.at = to;
        admin
    }
}

/// Has a VM go from host to host and back while the service dies at every step. As long as it runs it never boots; it has what was
/// written, and there is one of it.
async fn leaves(service: &mut Service, host: &HostProcess, hosts: &[Value; 2], id: &str) {
    let folders = [host.dir.path().to_owned(), service.dir.path().to_owned()];
    let admin = service.admin().await;
    let vm = ready(&admin, id).await;
    assert_eq!(vm["host_id"], hosts[0]);
    let disks: Vec<_> = [&vm["root_disk"]].into_iter().chain(vm["data_disks"].as_array().expect("disks")).collect();
    let disks: Vec<_> = disks.into_iter().map(|disk| disk["id"].as_str().expect("an id").to_owned()).collect();
    let boot = says(service, &vm, "cat /proc/sys/kernel/random/boot_id");
    says(service, &vm, "(while :; do echo >>/tmp/clock; sleep 0.2; done) >/dev/null 2>&1 &");
    let mut traveller = Traveller { service, folders, hosts, id, disks, at: 0 };
    let alone = LEAVING.iter().map(|point| (None, *point));
    for (first, point) in alone.chain(CALLED_OFF.1.iter().map(|point| (Some(CALLED_OFF.0), *point))) {
        let vm = ready(&traveller.service.admin().await, id).await;
        says(traveller.service, &vm, &format!("echo {point} >/kept && sync"));
        let admin = traveller.leaves(first, point, "running").await;
        let vm = ready(&admin, id).await;
        let told = says(traveller.service, &vm, &format!("cat /kept /proc/sys/kernel/random/boot_id && {TICKS}"));
        assert_eq!(told, format!("{point}\n{boot}"), "it goes on, and so does what it runs");
    }
    let admin = traveller.service.admin().await;
    admin.ask(Method::POST, &format!("/vms/{id}/stop"), Value::Null, 202).await;
    admin.reaches(id, "stopped").await;
    for point in MOVING {
        traveller.leaves(None, point, "stopped").await;
    }
    let admin = traveller.service.admin().await;
    let last = traveller.hosts[traveller.at].clone();
    assert_eq!(admin.act(&of(&last, "uncordon")).await.status, 202);
    admin.ask(Method::POST, &format!("/vms/{id}/start"), Value::Null, 202).await;
    let vm = ready(&admin, id).await;
    assert_eq!(says(traveller.service, &vm, "cat /kept"), *CALLED_OFF.1.last().expect("a point"));
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
