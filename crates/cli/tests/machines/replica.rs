//! Two replicas of a service on one PostgreSQL, each with machines of its own, of which the active one is lost in every way.

use berth_testkit::{Caller, Postgres, Service, eventually, replicas};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::BERTH;
use crate::guest::{ready, says, with_login};

/// Two services that share a database.
struct Pair {
    alpha: Service,
    beta: Service,
    postgres: Postgres,
}

impl Pair {
    /// The first is active, the second stands by.
    async fn started() -> Self {
        let postgres = Postgres::started();
        let [alpha, beta] = replicas(BERTH, "micro", &postgres);
        let pair = Self { alpha, beta, postgres };
        let admin = pair.alpha.admin().await;
        admin.until("two hosts", async |admin| hosts(&admin).await.iter().all(|host| host["state"] == "ready")).await;
        pair
    }
}

/// Both hosts: that of the active service, then that of the one that stands by.
async fn hosts(admin: &Caller) -> [Value; 2] {
    let all = admin.get("/api/v1/admin/hosts").await.body;
    let of = |service: &str| {
        let mut all = all["data"].as_array().into_iter().flatten();
        all.find(|host| host["service"] == service).cloned().unwrap_or_default()
    };
    [of("active"), of("standby")]
}

/// Creates a VM on a host while the other one takes none.
async fn vm_on(admin: &Caller, service: &Service, host: &Value, other: &Value) -> Value {
    let said = async |verb: &str| {
        let path = format!("/api/v1/admin/hosts/{}/{verb}", other["id"].as_str().expect("an id"));
        assert_eq!(admin.act(&path).await.status, 202);
    };
    said("cordon").await;
    let id = admin.create_vm(with_login(service)).await;
    let vm = ready(admin, &id).await;
    said("uncordon").await;
    assert_eq!(vm["host_id"], host["id"]);
    vm
}

/// The administrator at a service, once it is active.
async fn active(service: &Service) -> Caller {
    let login = |service: &Service| {
        let (base, (email, password)) = (service.base.clone(), service.login());
        async move {
            let http = reqwest::Client::new();
            let body = json!({"email": email, "password": password});
            let sent = http.post(format!("{base}/api/v1/auth/login")).json(&body).send().await;
            sent.is_ok_and(|answer| answer.status() == 200)
        }
    };
    for _ in 0..600 {
        if service.log().contains("Berth answers at") && login(service).await {
            return service.admin().await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("it is not active within 60 s: {}", service.log());
}

/// Waits until a VM is as it was: running in the same process, which its guest's uptime tells, too.
async fn is_untouched(admin: &Caller, service: &Service, vm: &Value, process: Pid) {
    let path = format!("/vms/{}", vm["id"].as_str().expect("an id"));
    let is_there = async |admin: Caller| {
        let now = admin.get(&path).await.body;
        now["status"] == "running" && now["message"].is_null()
    };
    admin.until("the VM, as it was", is_there).await;
    assert_eq!(service.machine(vm["id"].as_str().expect("an id")), Some(process));
}

fn process_of(service: &Service, vm: &Value) -> Pid {
    service.machine(vm["id"].as_str().expect("an id")).expect("a process")
}

fn signal(service: &Service, signal: Signal) {
    let pid = i32::try_from(service.pid()).ok().and_then(Pid::from_raw).expect("a process");
    kill_process(pid, signal).expect("a signal");
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_outlive_every_replica_and_whoever_is_left_goes_on_with_them() {
    let Pair { mut alpha, mut beta, postgres: _postgres } = Pair::started().await;
    let admin = alpha.admin().await;
    let [own, other] = hosts(&admin).await;
    let here = vm_on(&admin, &alpha, &own, &other).await;
    let there = vm_on(&admin, &beta, &other, &own).await;
    let (on_alpha, on_beta) = (process_of(&alpha, &here), process_of(&beta, &there));
    assert_eq!(says(&beta, &there, "hostname"), "web");

    // Its power goes, and that of no machine.
    alpha.kill();
    let admin = active(&beta).await;
    is_untouched(&admin, &beta, &there, on_beta).await;
    let id = here["id"].as_str().expect("an id");
    let lost = async |admin: Caller| {
        let vm = admin.get(&format!("/vms/{id}")).await.body;
        vm["message"].as_str().is_some_and(|message| message.contains("host"))
    };
    admin.until("the loss of its host", lost).await;
    alpha.start();
    eventually("what it says", 60, || alpha.log().contains("standing by: the replica at").then_some(()));
    is_untouched(&admin, &alpha, &here, on_alpha).await;
    assert_eq!(says(&alpha, &here, "hostname"), "web");
    let [now_active, standby] = hosts(&admin).await;
    assert_eq!((&now_active["id"], &standby["id"]), (&other["id"], &own["id"]));

    // In good order the other one has its turn at once.
    assert_eq!(beta.stop(), Some(0), "{}", beta.log());
    let admin = active(&alpha).await;
    beta.start();
    is_untouched(&admin, &alpha, &here, on_alpha).await;
    is_untouched(&admin, &beta, &there, on_beta).await;

    // It is stopped in the middle of whatever it does, and wakes when another one is active.
    signal(&alpha, Signal::STOP);
    let admin = active(&beta).await;
    signal(&alpha, Signal::CONT);
    alpha.died();
    assert!(alpha.log().contains("this replica is active no more"), "{}", alpha.log());
    is_untouched(&admin, &beta, &there, on_beta).await;
    alpha.start();
    is_untouched(&admin, &alpha, &here, on_alpha).await;
    admin.delete(&format!("/vms/{id}")).await;
    admin.gone(id).await;
    assert_eq!(alpha.machine(id), None);
}

/// One of the version before the database's, and one of the version after it, as far as they know.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_of_another_version_stands_by_and_takes_no_database_that_a_newer_one_wrote() {
    let Pair { mut alpha, mut beta, postgres } = Pair::started().await;
    let last = postgres.sql("berth", "SELECT max(version) FROM _sqlx_migrations");
    let newer = format!("UPDATE _sqlx_migrations SET version = 9000 WHERE version = {last}");
    let older = format!("UPDATE _sqlx_migrations SET version = {last} WHERE version = 9000");
    postgres.sql("berth", &newer);
    assert_eq!(beta.stop(), Some(0), "{}", beta.log());
    beta.start();
    // It passes on what it is asked, and its host answers.
    let admin = beta.admin().await;
    admin.until("its host", async |admin| hosts(&admin).await.iter().all(|host| host["state"] == "ready")).await;
    assert_eq!(alpha.stop(), Some(0), "{}", alpha.log());
    let told = "a newer Berth wrote the database (step 9000 of its schema)";
    eventually("why it is not active", 60, || beta.log().contains(told).then_some(()));
    assert!(!beta.log().contains("Berth answers at"), "{}", beta.log());
    postgres.sql("berth", &older);
    active(&beta).await;
}
