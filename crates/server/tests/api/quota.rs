//! Quotas of organizations, and those that what is new begins with.

use berth_testkit::{Answer, Caller, Platform, vm};
use reqwest::Method;
use serde_json::{Value, json};

use super::slow::with;

/// The paths of somebody's organization: as its people and as administrators know it.
fn of_org(caller: &Caller) -> (String, String) {
    let org = caller.org();
    (org.to_owned(), format!("{}/quota", org.replace("/api/v1/", "/api/v1/admin/")))
}

async fn put(caller: &Caller, path: &str, limits: Value) -> Answer {
    caller.send(caller.request(Method::PUT, path).json(&limits)).await
}

/// Limits to be set one after the other, and whether one more tiny VM is within each: it has one virtual CPU, 512 MiB,
/// and a root disk of 20 GiB.
pub fn limits_for_tiny_vms() -> [(Value, bool); 11] {
    [
        (json!({"vms": 0}), false),
        (json!({"vms": 1}), true),
        (json!({"vms": 1}), false),
        (json!({"vcpu": 1}), false),
        (json!({"vcpu": 2}), true),
        (json!({"memory_mb": 1535}), false),
        (json!({"memory_mb": 1536}), true),
        (json!({"disks": 3}), false),
        (json!({"disks": 4}), true),
        (json!({"disk_gb": 99}), false),
        (json!({"disk_gb": 100}), true),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn an_organization_s_quota_bounds_the_sum_of_its_projects() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let (org, quota) = of_org(&ada);
    let other = ada.another_project("second").await;
    // Each time the other project asks.
    let mut asks = [&ada, &other].into_iter().cycle();
    for (limits, allowed) in limits_for_tiny_vms() {
        assert_eq!(put(&platform.admin, &quota, limits.clone()).await.status, 200);
        let made = asks.next().expect("a project").post("/vms", vm("web")).await;
        if allowed {
            assert_eq!(made.status, 201, "{limits}: {made:?}");
        } else {
            made.refused(403, "quota_exceeded");
            assert!(made.body["message"].as_str().is_some_and(|text| text.contains("The organization")), "{made:?}");
        }
    }
    put(&platform.admin, &quota, json!({"sandboxes": 1})).await;
    assert_eq!(ada.post("/sandboxes", json!({})).await.status, 201);
    other.post("/sandboxes", json!({})).await.refused(403, "quota_exceeded");
    let seen = ada.get(&format!("{org}/quota")).await.body;
    assert_eq!((&seen["vms"]["used"], &seen["vms"]["limit"]), (&json!(5), &Value::Null));
    assert_eq!((&seen["sandboxes"]["used"], &seen["sandboxes"]["limit"]), (&json!(1), &json!(1)));
    let own = ada.get("/quota").await.body["vms"]["used"].as_i64().expect("a number");
    let others = other.get("/quota").await.body["vms"]["used"].as_i64().expect("a number");
    assert_eq!(own + others, 5);
    assert!(own > 0 && others > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_organization_s_limits_are_an_administrator_s_to_set() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let (org, quota) = of_org(&ada);
    put(&ada, &quota, json!({"vms": 9})).await.refused(403, "forbidden");
    ada.get(&quota).await.refused(403, "forbidden");
    let limits = json!({"vms": 3, "tokens_per_minute": 5, "spend_per_month": 7});
    assert_eq!(put(&platform.admin, &quota, limits).await.status, 200);
    let set = platform.admin.get(&quota).await.body;
    assert_eq!((&set["vms"], &set["tokens_per_minute"], &set["vcpu"]), (&json!(3), &json!(5), &Value::Null));
    let misspelt = put(&platform.admin, &quota, json!({"wms": 1})).await;
    assert!(misspelt.names("wms"), "{misspelt:?}");
    assert_eq!(platform.admin.get(&quota).await.body["vms"], 3);
    let seen = ada.get(&format!("{org}/quota")).await.body;
    assert_eq!((&seen["vms"]["limit"], &seen["spend_per_month"]), (&json!(3), &json!(7)));
    let stranger = platform.sign_up("stranger@example.com").await;
    stranger.get(&format!("{org}/quota")).await.refused(404, "organization_not_found");
    let nothing = format!("/api/v1/admin/orgs/{}/quota", uuid::Uuid::now_v7());
    platform.admin.get(&nothing).await.refused(404, "organization_not_found");
    put(&platform.admin, &nothing, json!({})).await.refused(404, "organization_not_found");
    let log = ada.get(&format!("{org}/audit_log?action=org_quota.set")).await.body;
    assert_eq!((&log["pagination"]["total_items"], &log["data"][0]["data"]["vms"]), (&json!(1), &json!(3)));
    // Requests of all its projects count, too.
    put(&platform.admin, &quota, json!({"requests_per_minute": 0})).await;
    ada.get("/vms").await.refused(429, "rate_limited");
    put(&platform.admin, &quota, json!({})).await;
    assert_eq!(ada.get("/vms").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_new_begins_with_the_limits_of_the_configuration() {
    let platform = Platform::start_with(|config| {
        config.quota.project.vms = Some(1);
        config.quota.organization.vms = Some(2);
        config.quota.organizations_per_person = 2;
    })
    .await;
    let ada = platform.sign_up("ada@example.com").await;
    assert_eq!(ada.get("/quota").await.body["vms"]["limit"], 1);
    assert_eq!(ada.post("/vms", vm("web")).await.status, 201);
    let refused = ada.post("/vms", vm("web")).await;
    refused.refused(403, "quota_exceeded");
    assert!(refused.body["message"].as_str().is_some_and(|text| text.contains("The project")), "{refused:?}");
    // Another project does not help for long, nor does another organization.
    let second = ada.another_project("second").await;
    assert_eq!(second.post("/vms", vm("web")).await.status, 201);
    let third = ada.another_project("second").await;
    let refused = third.post("/vms", vm("web")).await;
    refused.refused(403, "quota_exceeded");
    assert!(refused.body["message"].as_str().is_some_and(|text| text.contains("The organization")), "{refused:?}");
    let made = ada.post("/api/v1/orgs", json!({"name": "Other"})).await;
    assert_eq!(made.status, 201, "{made:?}");
    let limits = platform.admin.get(&format!("/api/v1/admin/orgs/{}/quota", made.id())).await.body;
    assert_eq!(limits["vms"], 2);
    ada.post("/api/v1/orgs", json!({"name": "Third"})).await.refused(403, "quota_exceeded");
    assert_eq!(ada.delete(&format!("/api/v1/orgs/{}", made.id())).await.status, 204);
    assert_eq!(ada.post("/api/v1/orgs", json!({"name": "Third"})).await.status, 201);
    // Who runs the platform is not bounded by what is meant for others.
    assert_eq!(platform.admin.get("/quota").await.body["vms"]["limit"], Value::Null);
    for name in ["One", "Two", "Three"] {
        assert_eq!(platform.admin.post("/api/v1/orgs", json!({"name": name})).await.status, 201);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_organization_has_as_many_projects_as_it_may() {
    let platform = Platform::start_with(|config| config.quota.organization.projects = Some(2)).await;
    let ada = platform.sign_up("ada@example.com").await;
    let (org, quota) = of_org(&ada);
    let second = ada.another_project("second").await;
    let third = json!({"name": "third"});
    let refused = ada.post(&format!("{org}/projects"), third.clone()).await;
    refused.refused(403, "quota_exceeded");
    assert!(refused.body["message"].as_str().is_some_and(|text| text.contains("may have 2 projects")), "{refused:?}");
    let seen = ada.get(&format!("{org}/quota")).await.body;
    assert_eq!(seen["projects"], json!({"used": 2, "limit": 2}));
    assert_eq!(ada.delete(&second.project).await.status, 204);
    assert_eq!(ada.post(&format!("{org}/projects"), third.clone()).await.status, 201);
    // Administrators of the platform set another limit, and none; of a project it means nothing.
    assert_eq!(put(&platform.admin, &quota, json!({"projects": 3})).await.body["projects"], 3);
    assert_eq!(ada.post(&format!("{org}/projects"), third.clone()).await.status, 201);
    ada.post(&format!("{org}/projects"), third.clone()).await.refused(403, "quota_exceeded");
    assert_eq!(put(&platform.admin, &quota, json!({})).await.status, 200);
    assert_eq!(ada.post(&format!("{org}/projects"), third).await.status, 201);
    let project = ada.project_id();
    let misplaced =
        put(&platform.admin, &format!("/api/v1/admin/projects/{project}/quota"), json!({"projects": 3})).await;
    assert!(misplaced.names("projects"), "{misplaced:?}");
    assert!(ada.get("/quota").await.body.get("projects").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_owns_ten_organizations_of_a_hundred_projects_unless_somebody_says_otherwise() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let (org, _) = of_org(&ada);
    assert_eq!(ada.get(&format!("{org}/quota")).await.body["projects"], json!({"used": 1, "limit": 100}));
    for number in 1..10 {
        let made = ada.post("/api/v1/orgs", json!({"name": format!("Org {number}")})).await;
        assert_eq!(made.status, 201, "{made:?}");
    }
    ada.post("/api/v1/orgs", json!({"name": "One more"})).await.refused(403, "quota_exceeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_set_while_a_body_is_waited_for_counts() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let project = format!("/api/v1/admin/projects/{}/quota", ada.project_id());
    for path in [of_org(&ada).1, project] {
        let made = with(&ada, "POST", "/vms", vm("web"), async {
            assert_eq!(put(&platform.admin, &path, json!({"vms": 0})).await.status, 200);
        });
        made.await.refused(403, "quota_exceeded");
        assert_eq!(put(&platform.admin, &path, json!({})).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_limited_unless_somebody_says_so() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let (org, _) = of_org(&ada);
    for quota in [ada.get("/quota").await.body, ada.get(&format!("{org}/quota")).await.body] {
        for counted in ["vms", "vcpu", "memory_mb", "gpus", "disks", "disk_gb", "sandboxes", "networks"] {
            assert_eq!(quota[counted]["limit"], Value::Null, "{counted}");
        }
        for rate in ["requests_per_minute", "tokens_per_minute", "spend_per_month"] {
            assert_eq!(quota[rate], Value::Null, "{rate}");
        }
    }
}
