//! Hosts as administrators see them: the service's own, and one that is lost.

use berth_domain::ids::HostId;
use berth_server::db::sql;
use berth_testkit::Platform;
use serde_json::{Value, json};
use uuid::Uuid;

const HOSTS: &str = "/api/v1/admin/hosts";

/// A host that was the database's before.
async fn lost(platform: &Platform) -> String {
    let id = Uuid::now_v7();
    let row = "INSERT INTO hosts (id, name, addresses, regions, cpus, memory_mb, overcommit, labels, state, last_seen, \
               created_at) VALUES ($1, 'beta', '[]', '[\"local\"]', 2, 1024, '{\"vm\": 1.5}', '{\"rack\":\"7\"}', \
               'lost', 1000000, 0)";
    let mut tx = platform.app().db.begin().await.expect("a transaction");
    sql(row).bind(HostId(id)).execute(&mut tx).await.expect("a row");
    tx.commit().await.expect("a commit");
    id.to_string()
}

/// A host without what changes every few seconds.
fn without_time(mut host: Value) -> Value {
    host.as_object_mut().expect("a host").remove("last_seen_at");
    host
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_sees_the_own_host_and_when_it_was_last_seen() {
    let platform = Platform::start().await;
    let own = platform.admin.get(HOSTS).await.body;
    assert_eq!(own["pagination"]["total_items"], 1, "{own}");
    let own = own["data"][0].clone();
    assert_eq!((&own["state"], &own["region_ids"], &own["labels"]), (&json!("ready"), &json!(["local"]), &json!({})));
    assert!(own["cpus"].as_i64() > Some(0) && own["memory_mb"].as_i64() > Some(0), "{own}");
    assert!(["vm", "sandbox"].iter().all(|kind| own["memory_overcommit"][kind].as_f64() > Some(0.0)), "{own}");
    let path = format!("{HOSTS}/{}", own["id"].as_str().expect("an id"));
    assert_eq!(without_time(platform.admin.get(&path).await.body), without_time(own.clone()));
    let platform = platform.restart().await;
    let again = platform.admin.get(&path).await.body;
    let seen = |host: &Value| host["last_seen_at"].as_str().expect("a time").to_owned();
    assert!(seen(&again) > seen(&own), "{again}");
    assert_eq!(without_time(again), without_time(own), "it is the same host");
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_are_found_by_state_name_and_label() {
    let platform = Platform::start().await;
    let admin = &platform.admin;
    let own = admin.get(HOSTS).await.body["data"][0]["id"].as_str().expect("an id").to_owned();
    let lost = lost(&platform).await;
    let found = async |query: &str| -> Vec<String> {
        let answer = admin.get(&format!("{HOSTS}?{query}")).await.body;
        let all = answer["data"].as_array().unwrap_or_else(|| panic!("{query} {answer}")).iter();
        all.map(|host| host["id"].as_str().expect("an id").to_owned()).collect()
    };
    assert_eq!(found("").await, [&*own, &lost], "newest first");
    assert_eq!(found("state=ready").await, [&*own]);
    assert_eq!(found("state=lost").await, [&*lost]);
    assert_eq!(found("state=draining").await, Vec::<String>::new());
    for query in ["name=beta", "label=rack", "label=rack%3D7"] {
        assert_eq!(found(query).await, [&*lost], "{query}");
    }
    let one = admin.get(&format!("{HOSTS}/{lost}")).await.body;
    let expected = json!({
        "id": lost, "name": "beta", "region_ids": ["local"], "addresses": [], "cpus": 2, "memory_mb": 1024,
        "memory_overcommit": {"vm": 1.5}, "gpus": [], "labels": {"rack": "7"}, "state": "lost",
        "last_seen_at": "1970-01-01T00:00:01.000000Z", "created_at": "1970-01-01T00:00:00.000000Z",
    });
    assert_eq!(one, expected);
    admin.get(&format!("{HOSTS}/{}", Uuid::now_v7())).await.refused(404, "not_found");
    admin.get(&format!("{HOSTS}/beta")).await.refused(400, "invalid_request");
    let ada = platform.sign_up("ada@example.com").await;
    for path in [HOSTS.to_owned(), format!("{HOSTS}/{own}")] {
        ada.get(&path).await.refused(403, "forbidden");
        ada.anonymous().get(&path).await.refused(401, "unauthorized");
    }
}
