//! What machines, disks and snapshots took and cost, and the money of a month that pays for them.

use std::collections::BTreeMap;

use berth_domain::gateway::Nano;
use berth_domain::{Month, Timestamp};
use berth_server::config::{Amount, Config};
use berth_server::db::sql;
use berth_testkit::{Answer, Caller, Platform, vm};
use reqwest::Method;
use serde_json::{Value, json};

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

/// Tokens that outlast the hours of a test; a unit for a tiny VM's hour, a tenth for a root disk's, a unit for a sandbox's virtual CPU.
fn priced(config: &mut Config) {
    config.identity.access_token_seconds = 2_000_000;
    let units = |units: f64| Amount(Nano::of_price(units).expect("an amount"));
    config.catalog.plans[0].price.vcpu_hour = units(0.5);
    config.catalog.plans[0].price.memory_gb_hour = units(1.0);
    config.prices.disk_gb_hour = units(0.005);
    config.prices.sandbox_vcpu_hour = units(1.0);
}

async fn usage(caller: &Caller, query: &str) -> Value {
    let answer = caller.get(&format!("/resource_usage?{query}")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body
}

/// Quantity and cost of a resource, summed over its rows.
fn of(usage: &Value, kind: &str, id: &str) -> (f64, f64) {
    let rows = usage["data"].as_array().expect("rows");
    let mine = rows.iter().filter(|row| row["resource_type"] == kind && row["resource_id"] == id);
    let number = |row: &Value, name: &str| row[name].as_f64().expect("a number");
    mine.fold((0.0, 0.0), |(q, c), row| (q + number(row, "quantity"), c + number(row, "cost")))
}

/// Sums over rows of any kind.
fn total(usage: &Value, name: &str) -> f64 {
    usage["data"].as_array().expect("rows").iter().map(|row| row[name].as_f64().expect("a number")).sum()
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-3
}

/// Whether so many whole hours passed: a test sets the clock forward by hours and takes less than one itself.
#[track_caller]
fn hours(seconds: f64, whole: i64) {
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let (least, most) = ((whole * HOUR) as f64, ((whole + 1) * HOUR) as f64);
    assert!((least..most).contains(&seconds), "{seconds} s are not {whole} hours");
}

async fn stop(caller: &Caller, id: &str) {
    assert_eq!(caller.act(&format!("/vms/{id}/stop")).await.status, 202);
    caller.reaches(id, "stopped").await;
}

async fn limit(platform: &Platform, caller: &Caller, units: i64) {
    let project = caller.project_id();
    let path = format!("/api/v1/admin/projects/{project}/quota");
    let limits = json!({"spend_per_month": units});
    let set = platform.admin.send(platform.admin.request(Method::PUT, &path).json(&limits)).await;
    assert_eq!(set.status, 200, "{set:?}");
}

/// Goes on to the next noon, and into the next month where this one has no two days left: what a test does then, it does
/// in one day, and in one month.
async fn at_noon(platform: &Platform) {
    // What is built while the time goes on is given up.
    let base = async |c: Caller| c.get("/sandbox_templates/base").await.body["status"] == "ready";
    platform.admin.until("the template", base).await;
    let clock = &platform.app().clock;
    let now = clock.now();
    let days = if now.plus_seconds(2 * DAY) < Month::of(now).end { 0 } else { 2 };
    platform.advance((DAY / 2 - now.seconds()).rem_euclid(DAY) + days * DAY);
}

/// A query for everything that ever was, as long as a year.
fn ever(platform: &Platform) -> String {
    let now = platform.app().clock.now();
    format!("from={}&to={}", now.plus_seconds(-365 * DAY), now.plus_seconds(DAY))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_is_counted_while_it_holds_the_host_and_its_disk_while_it_is_there() {
    let platform = Platform::start_with(priced).await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    let disk = caller.get(&format!("/vms/{id}")).await.body["root_disk"]["id"].as_str().expect("an id").to_owned();
    platform.advance(10 * HOUR);
    let ran = usage(caller, &ever(&platform)).await;
    let (seconds, cost) = of(&ran, "vm", &id);
    hours(seconds, 10);
    assert!(near(cost, seconds / 3600.0), "half a GiB and a CPU are a unit an hour: {cost}");
    let (gib_hours, cost) = of(&ran, "root_disk", &disk);
    hours(gib_hours * 3600.0 / 20.0, 10);
    assert!(near(cost, gib_hours * 0.005));
    let row = ran["data"].as_array().expect("rows").iter().find(|row| row["resource_id"] == id.as_str());
    let row = row.expect("a row");
    assert_eq!((&row["name"], &row["size"], &row["unit"]), (&json!("web"), &json!("tiny"), &json!("seconds")));
    assert!(row.get("day").is_none() && near(ran["cost"].as_f64().expect("a number"), total(&ran, "cost")));
    stop(caller, &id).await;
    let stopped = of(&usage(caller, &ever(&platform)).await, "vm", &id);
    platform.advance(10 * HOUR);
    let later = usage(caller, &ever(&platform)).await;
    assert_eq!(of(&later, "vm", &id), stopped);
    hours(of(&later, "root_disk", &disk).0 * 3600.0 / 20.0, 20);
    assert_eq!(caller.act(&format!("/vms/{id}/start")).await.status, 202);
    caller.reaches(&id, "running").await;
    platform.advance(5 * HOUR);
    hours(of(&usage(caller, &ever(&platform)).await, "vm", &id).0, 15);
    // What is gone keeps its rows, under its last name.
    assert_eq!(caller.patch(&format!("/vms/{id}"), json!({"name": "old"})).await.status, 200);
    assert_eq!(caller.delete(&format!("/vms/{id}")).await.status, 202);
    caller.gone(&id).await;
    let gone = of(&usage(caller, &ever(&platform)).await, "vm", &id);
    platform.advance(50 * HOUR);
    let after = usage(caller, &ever(&platform)).await;
    assert_eq!(of(&after, "vm", &id), gone);
    assert!(after["data"].as_array().expect("rows").iter().any(|row| row["name"] == "old"));
}

#[tokio::test(flavor = "multi_thread")]
async fn days_are_told_apart_and_add_up() {
    let platform = Platform::start_with(priced).await;
    at_noon(&platform).await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    let disk =
        caller.post("/disks", json!({"name": "data", "region_id": "local", "size_gb": 10, "type": "block"})).await;
    assert_eq!(disk.status, 201, "{disk:?}");
    caller
        .until("the disk", |c| {
            let path = format!("/disks/{}", disk.id());
            async move { c.get(&path).await.body["status"] == "ready" }
        })
        .await;
    platform.advance(3 * DAY);
    stop(caller, &id).await;
    assert_eq!(caller.delete(&format!("/disks/{}", disk.id())).await.status, 204);
    caller
        .until("the disk's end", |c| {
            let path = format!("/disks/{}", disk.id());
            async move { c.get(&path).await.status == 404 }
        })
        .await;
    // Nothing but the root disk goes on from here; it is asked for the same span each time.
    let span = ever(&platform);
    let whole = usage(caller, &span).await;
    let days = usage(caller, &format!("{span}&by=day,resource")).await;
    assert_eq!(
        usage(caller, &format!("{span}&by=resource")).await["data"][0]["resource_id"],
        whole["data"][0]["resource_id"]
    );
    for (kind, resource) in [("vm", &id), ("disk", &disk.id())] {
        let ((q, c), (quantity, cost)) = (of(&whole, kind, resource), of(&days, kind, resource));
        assert!(near(q, quantity) && near(c, cost) && q > 0.0, "{kind}: {q} {quantity}, {c} {cost}");
    }
    let dates: Vec<_> =
        days["data"].as_array().expect("rows").iter().filter(|row| row["resource_id"] == id.as_str()).collect();
    assert_eq!(dates.len(), 4);
    for row in &dates[1..3] {
        assert_eq!(row["quantity"].as_f64(), Some(86_400.0), "a whole day");
        assert_eq!(row["cost"].as_f64(), Some(24.0));
    }
    assert!(dates.windows(2).all(|pair| pair[0]["day"].as_str() < pair[1]["day"].as_str()));
    let by_day = usage(caller, &format!("{span}&by=day")).await;
    let rows = by_day["data"].as_array().expect("rows");
    assert!(rows.iter().all(|row| row["resource_id"].is_null() && row["name"].is_null() && row["day"].is_string()));
    let of_vms = rows.iter().filter(|row| row["size"] == "tiny").map(|row| row["quantity"].as_f64().expect("a number"));
    assert!(near(of_vms.sum(), of(&whole, "vm", &id).0));
    // One whole day of them, from midnight to midnight.
    let day = dates[1]["day"].as_str().expect("a day");
    let next = dates[2]["day"].as_str().expect("a day");
    let one = usage(caller, &format!("from={day}T00:00:00Z&to={next}T00:00:00Z")).await;
    assert_eq!((of(&one, "vm", &id), of(&one, "disk", &disk.id()).0), ((86_400.0, 24.0), 10.0 * 24.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_is_counted_while_it_is_ready_and_its_snapshot_by_what_it_takes() {
    let platform = Platform::start_with(priced).await;
    let caller = &platform.admin;
    let id = caller.ready_sandbox().await;
    platform.advance(2 * HOUR);
    let snapshot = caller.post(&format!("/sandboxes/{id}/snapshots"), json!({})).await.id();
    caller
        .until("the snapshot", |c| {
            let path = format!("/snapshots/{snapshot}");
            async move { c.get(&path).await.body["status"] == "Ready" }
        })
        .await;
    assert_eq!(caller.act(&format!("/sandboxes/{id}/pause")).await.status, 202);
    let paused = caller.sandbox_reaches(&id, "Paused").await;
    platform.advance(10 * HOUR);
    let ran = usage(caller, &ever(&platform)).await;
    let (seconds, cost) = of(&ran, "sandbox", &id);
    hours(seconds, 2);
    assert_eq!(Some(seconds.floor()), paused["running_seconds"].as_f64());
    assert!(cost > 0.0);
    let rows = ran["data"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["resource_id"] == id.as_str()).expect("a row");
    assert!(row["size"].as_str().is_some_and(|size| size.contains("vCPU") && size.contains("MiB")), "{row}");
    // The snapshot stands there with its bytes, which are few here; what a fork makes for itself does not.
    assert_eq!(caller.post(&format!("/sandboxes/{id}/fork"), json!({"count": 1})).await.status, 201);
    let again = usage(caller, &ever(&platform)).await;
    let snapshots = again["data"].as_array().expect("rows").iter().filter(|row| row["resource_type"] == "snapshot");
    assert_eq!(snapshots.map(|row| row["resource_id"].clone()).collect::<Vec<_>>(), [json!(snapshot)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_that_is_wrong_names_what_is() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    for (query, field) in [
        ("from=today", "from"),
        ("to=tomorrow", "to"),
        ("by=hour", "by"),
        ("by=project", "by"),
        ("window=1h", "window"),
        ("from=2030-01-02T00:00:00Z&to=2030-01-02T00:00:00Z", "from"),
        ("from=2030-01-01T00:00:00Z&to=2031-01-02T00:00:00.000001Z", "from"),
    ] {
        let refused = caller.get(&format!("/resource_usage?{query}")).await;
        refused.refused(400, "invalid_request");
        assert!(refused.names(field), "{query}: {refused:?}");
    }
    let longest = usage(caller, "from=2030-01-01T00:00:00Z&to=2031-01-02T00:00:00Z").await;
    assert_eq!((&longest["data"], &longest["cost"]), (&json!([]), &json!(0.0)));
    let month = usage(caller, "").await;
    assert!(month["from"].as_str().is_some_and(|from| from.ends_with("-01T00:00:00.000000Z")), "{month}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_organization_sees_its_projects_beside_each_other() {
    let platform = Platform::start_with(priced).await;
    let ada = platform.sign_up("ada@example.com").await;
    let other = ada.another_project("second").await;
    let (one, two) = (ada.running_vm("one").await, other.running_vm("two").await);
    platform.advance(6 * HOUR);
    let span = ever(&platform);
    let all = ada.get(&format!("{}/resource_usage?{span}&by=project,resource", ada.org())).await.body;
    hours(of(&all, "vm", &one).0, 6);
    hours(of(&all, "vm", &two).0, 6);
    let by_project = ada.get(&format!("{}/resource_usage?{span}", ada.org())).await.body;
    let vms: Vec<_> = by_project["data"].as_array().expect("rows").iter().filter(|row| row["size"] == "tiny").collect();
    assert_eq!(vms.len(), 2);
    assert!(vms.iter().any(|row| row["project_id"] == other.project_id()));
    // Each project sees its own.
    assert_eq!(of(&usage(&other, &span).await, "vm", &one), (0.0, 0.0));
    hours(of(&usage(&other, &span).await, "vm", &two).0, 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_price_counts_from_the_start_on_and_rewrites_nothing() {
    let mut platform = Platform::start_with(priced).await;
    let id = platform.admin.running_vm("web").await;
    platform.advance(10 * HOUR);
    platform.config.catalog.plans[0].price.vcpu_hour = Amount(Nano::of_price(1.5).expect("an amount"));
    let platform = platform.crash_and_restart().await;
    platform.advance(10 * HOUR);
    let (seconds, cost) = of(&usage(&platform.admin, &ever(&platform)).await, "vm", &id);
    hours(seconds, 20);
    assert!((30.0..33.0).contains(&cost), "ten hours for one unit, ten for two: {cost}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_month_s_money_bounds_what_is_made_and_started_not_what_runs() {
    let platform = Platform::start_with(priced).await;
    at_noon(&platform).await;
    let ada = platform.sign_up("ada@example.com").await;
    let running = ada.running_vm("runs").await;
    let off = ada.running_vm("off").await;
    stop(&ada, &off).await;
    let (ready, paused) = (ada.ready_sandbox().await, ada.ready_sandbox().await);
    assert_eq!(ada.act(&format!("/sandboxes/{paused}/pause")).await.status, 202);
    ada.sandbox_reaches(&paused, "Paused").await;
    limit(&platform, &ada, 1000).await;
    assert_eq!(ada.act(&format!("/vms/{off}/start")).await.status, 202);
    ada.reaches(&off, "running").await;
    stop(&ada, &off).await;
    platform.advance(2 * HOUR);
    limit(&platform, &ada, 1).await;
    let refused = |answer: &Answer| {
        answer.refused(403, "quota_exceeded");
        assert!(answer.body["message"].as_str().is_some_and(|text| text.contains("a month")), "{answer:?}");
    };
    refused(&ada.post("/vms", vm("more")).await);
    refused(&ada.act(&format!("/vms/{off}/start")).await);
    refused(&ada.post("/disks", json!({"name": "d", "region_id": "local", "size_gb": 10, "type": "block"})).await);
    refused(&ada.post("/sandboxes", json!({})).await);
    refused(&ada.act(&format!("/sandboxes/{paused}/resume")).await);
    refused(&ada.post(&format!("/sandboxes/{ready}/fork"), json!({"count": 1})).await);
    refused(&ada.post(&format!("/sandboxes/{ready}/snapshots"), json!({})).await);
    // What runs goes on, and may be restarted, stopped and deleted.
    assert_eq!(ada.get(&format!("/vms/{running}")).await.body["status"], "running");
    assert_eq!(ada.act(&format!("/vms/{running}/restart")).await.status, 202);
    ada.reaches(&running, "running").await;
    assert_eq!(ada.get(&format!("/sandboxes/{ready}")).await.body["phase"], "Ready");
    // Others' money is theirs; more is more.
    assert_eq!(platform.admin.post("/vms", vm("other")).await.status, 201);
    limit(&platform, &ada, 1000).await;
    assert_eq!(ada.post("/vms", vm("more")).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_machines_are_free_nobody_is_refused_them_for_money() {
    let platform = Platform::start_with(|config| config.identity.access_token_seconds = 2_000_000).await;
    let ada = platform.sign_up("ada@example.com").await;
    limit(&platform, &ada, 0).await;
    let id = ada.running_vm("web").await;
    platform.advance(10 * HOUR);
    assert_eq!(ada.post("/vms", vm("more")).await.status, 201);
    let (seconds, cost) = of(&usage(&ada, &ever(&platform)).await, "vm", &id);
    hours(seconds, 10);
    assert!(near(cost, 0.0));
}

/// Numbers that follow from a seed, the same in every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// What was told of machines and disks: when, of which, and which status it has from then on.
#[derive(Default)]
struct Told(BTreeMap<i64, (Timestamp, String, String)>);

impl Told {
    /// Adds what was told since the last time: the service keeps events for some days.
    async fn read(&mut self, platform: &Platform) {
        let events = sql(
            "SELECT seq || ' ' || created_at || ' ' || subject || ' ' || data FROM events WHERE kind IN ('vm.status', \
             'disk.status', 'sandbox.phase')",
        );
        let rows: Vec<String> = events.fetch_all(&platform.app().db).await.expect("events");
        for row in rows {
            let mut parts = row.splitn(4, ' ');
            let mut part = || parts.next().expect("one of four parts");
            let (number, at, subject) = (part().parse().expect("a number"), part(), part().to_owned());
            let at = Timestamp(at.parse().expect("a time"));
            let data: Value = serde_json::from_str(part()).expect("JSON");
            let status = data["status"].as_str().or(data["phase"].as_str()).expect("a status").to_owned();
            self.0.insert(number, (at, subject, status));
        }
    }

    /// The seconds that something is counted until a time that lies between these two: at least those for which it had
    /// the one status, and at most those for which it did not have the other. Only what it takes to start and to end it
    /// lies in between.
    fn seconds(&self, subject: &str, (full, none): (&str, &str), until: (Timestamp, Timestamp)) -> (f64, f64) {
        let own: Vec<_> = self.0.values().filter(|(_, of, _)| of == subject).collect();
        let ends = own.iter().skip(1).map(|(at, ..)| (*at, *at)).chain([until]);
        let (mut least, mut most) = (0, 0);
        for ((since, _, status), (early, late)) in std::iter::zip(&own, ends) {
            least += if status == full { early.0 - since.0 } else { 0 };
            most += if status == none { 0 } else { late.0 - since.0 };
        }
        #[expect(clippy::cast_precision_loss, reason = "some days of microseconds")]
        (least as f64 / 1e6, most as f64 / 1e6)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_crashes_in_between_loses_no_second_and_counts_none_twice() {
    for seed in 1..=4 {
        let (mut chance, mut told) = (Chance(seed), Told::default());
        let mut platform = Platform::start_with(priced).await;
        let disks = json!([{"name": "data", "type": "block", "size_gb": 10}]);
        let mut body = vm("web");
        body["data_disks"] = json!({"create_disks": disks});
        let id = platform.admin.create_vm(body).await;
        let running = platform.admin.reaches(&id, "running").await;
        let disk = running["data_disks"][0]["id"].as_str().expect("an id").to_owned();
        let sandbox = platform.admin.ready_sandbox().await;
        let (mut runs, mut is_ready, mut ran, mut was_ready) = (true, true, 0, 0);
        for _ in 0..8 {
            let pause = 1 + i64::try_from(chance.below(30)).expect("a small number");
            platform.advance(pause * HOUR);
            ran += if runs { pause } else { 0 };
            was_ready += if is_ready { pause } else { 0 };
            // A wish, and the service dies while it comes true, or before, or after.
            if chance.below(2) == 0 {
                runs = !runs;
                let verb = if runs { "start" } else { "stop" };
                assert_eq!(platform.admin.act(&format!("/vms/{id}/{verb}")).await.status, 202);
            } else {
                is_ready = !is_ready;
                let verb = if is_ready { "resume" } else { "pause" };
                assert_eq!(platform.admin.act(&format!("/sandboxes/{sandbox}/{verb}")).await.status, 202);
            }
            for _ in 0..chance.below(3) {
                for _ in 0..chance.below(200) {
                    tokio::task::yield_now().await;
                }
                platform = platform.crash_and_restart().await;
            }
            platform.admin.reaches(&id, if runs { "running" } else { "stopped" }).await;
            platform.admin.sandbox_reaches(&sandbox, if is_ready { "Ready" } else { "Paused" }).await;
            told.read(&platform).await;
        }
        let before = platform.app().clock.now();
        let used = usage(&platform.admin, &ever(&platform)).await;
        let until = (before, platform.app().clock.now());
        let gib_hours = of(&used, "disk", &disk).0;
        for (counted, subject, statuses) in [
            (of(&used, "vm", &id).0, &id, ("running", "stopped")),
            (gib_hours * 3600.0 / 10.0, &disk, ("ready", "deleted")),
            (of(&used, "sandbox", &sandbox).0, &sandbox, ("Ready", "Paused")),
        ] {
            let (least, most) = told.seconds(subject, statuses, until);
            // It is told a moment after it was decided.
            assert!((least - 1.0..=most + 1.0).contains(&counted), "{statuses:?}: {counted} s of {least} to {most} s");
        }
        hours(of(&used, "vm", &id).0, ran);
        hours(of(&used, "sandbox", &sandbox).0, was_ready);
        if !is_ready {
            let seconds = platform.admin.get(&format!("/sandboxes/{sandbox}")).await.body["running_seconds"].as_f64();
            assert_eq!(Some(of(&used, "sandbox", &sandbox).0.floor()), seconds);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_in_which_the_host_was_off_is_not_counted() {
    let platform = Platform::start_with(priced).await;
    at_noon(&platform).await;
    let (vm, sandbox) = (platform.admin.running_vm("web").await, platform.admin.ready_sandbox().await);
    platform.engine.restart_host();
    platform.sandboxes.restart_host();
    let starts = (platform.engine.counts().2, platform.sandboxes.counts().3);
    let platform = platform.crash_for(3 * DAY).await;
    let caller = &platform.admin;
    // Until the worker looks at them, their rows say what was true before.
    let engines = (platform.engine.clone(), platform.sandboxes.clone());
    let both = async |_| engines.0.counts().2 == starts.0 + 1 && engines.1.counts().3 == starts.1 + 1;
    caller.until("both machines", both).await;
    caller.reaches(&vm, "running").await;
    caller.sandbox_reaches(&sandbox, "Ready").await;
    platform.advance(2 * HOUR);
    let told = usage(caller, &ever(&platform)).await;
    hours(of(&told, "vm", &vm).0, 2);
    hours(of(&told, "sandbox", &sandbox).0, 2);
    let running = caller.get(&format!("/sandboxes/{sandbox}")).await.body["running_seconds"].as_f64().expect("seconds");
    hours(running, 2);
    // Disks are there also while the host is off.
    assert!(total(&told, "quantity") > 20.0 * 72.0, "{told}");
}
