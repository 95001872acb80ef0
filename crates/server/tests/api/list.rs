//! Lists: pages, bounds, order, filters.

use berth_testkit::{Platform, vm};
use serde_json::{Value, json};

const LISTS: [&str; 9] = [
    "/vms",
    "/root_disks",
    "/disks",
    "/api/v1/orgs",
    "/api/v1/images",
    "/api/v1/regions",
    "/api/v1/vm_configs",
    "/api/v1/plans",
    "/api/v1/orgs/administrator/projects",
];

#[tokio::test(flavor = "multi_thread")]
async fn pages_and_limits_have_bounds_on_every_list() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    for list in LISTS {
        for good in ["", "page=1", "limit=1", "limit=100", "page=2147483647", "page=1&limit=100"] {
            assert_eq!(caller.get(&format!("{list}?{good}")).await.status, 200, "{list}?{good}");
        }
        for bad in [
            "page=0",
            "page=-1",
            "page=2147483648",
            "page=",
            "page=x",
            "page=1.5",
            "limit=0",
            "limit=101",
            "limit=",
            "limit=+1",
            "limit=1e1",
            "page=99999999999999999999",
        ] {
            caller.get(&format!("{list}?{bad}")).await.refused(400, "invalid_request");
        }
    }
    let both = caller.get("/vms?page=0&limit=0").await;
    assert!(both.names("page") && both.names("limit"), "{both:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_list_and_a_page_beyond_the_end() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let empty = caller.get("/vms").await.body;
    assert_eq!(
        empty,
        json!({"data": [], "pagination": {"total_items": 0, "total_pages": 0, "current_page": 1, "items_per_page": 20}})
    );
    caller.create_vm(vm("web")).await;
    let beyond = caller.get("/vms?page=7&limit=5").await.body;
    assert_eq!(
        beyond,
        json!({"data": [], "pagination": {"total_items": 1, "total_pages": 1, "current_page": 7, "items_per_page": 5}})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn newest_first_and_every_item_once() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let mut made = Vec::new();
    for number in 0..7 {
        made.push(caller.create_vm(vm(&format!("vm{number}"))).await);
    }
    made.reverse();
    let mut seen = Vec::new();
    for page in 1..=3 {
        let answer = caller.get(&format!("/vms?limit=3&page={page}")).await.body;
        assert_eq!(
            (&answer["pagination"]["total_items"], &answer["pagination"]["total_pages"]),
            (&json!(7), &json!(3))
        );
        seen.extend(
            answer["data"].as_array().expect("a list").iter().map(|v| v["id"].as_str().expect("an id").to_owned()),
        );
    }
    assert_eq!(seen, made);
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_and_order() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    for (name, label) in [("b", "test"), ("a", "live"), ("c", "test")] {
        let mut body = vm(name);
        body["labels"] = json!({"env": label});
        let id = caller.create_vm(body).await;
        caller.reaches(&id, "running").await;
    }
    let names = async |query: &str| -> Vec<Value> {
        let answer = caller.get(&format!("/vms?{query}")).await;
        assert_eq!(answer.status, 200, "{query} {answer:?}");
        answer.body["data"].as_array().expect("a list").iter().map(|v| v["name"].clone()).collect()
    };
    assert_eq!(names("sort=name").await, ["a", "b", "c"]);
    assert_eq!(names("sort=-name").await, ["c", "b", "a"]);
    assert_eq!(names("sort=created_at").await, ["b", "a", "c"]);
    assert_eq!(names("label=env=test&sort=name").await, ["b", "c"]);
    assert_eq!(names("label=env&sort=name").await, ["a", "b", "c"]);
    assert_eq!(names("label=nothing").await.len(), 0);
    assert_eq!(names("name=a").await, ["a"]);
    assert_eq!(names("status=running").await.len(), 3);
    assert_eq!(names("status=stopped").await.len(), 0);
    for bad in ["status=asleep", "sort=size", "include_deleted=maybe"] {
        caller.get(&format!("/vms?{bad}")).await.refused(400, "invalid_request");
    }
    let id = caller.get("/vms?name=a").await.body["data"][0]["id"].as_str().expect("an id").to_owned();
    caller.delete(&format!("/vms/{id}")).await;
    caller.gone(&id).await;
    assert_eq!(names("sort=name").await, ["b", "c"]);
    assert_eq!(names("sort=name&include_deleted=true").await, ["a", "b", "c"]);
}
