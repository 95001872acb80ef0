//! What one caller sees of another: nothing.

use berth_testkit::{Platform, vm};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_strangers_project_is_as_one_that_does_not_exist() {
    let platform = Platform::start().await;
    let stranger = platform.sign_up("stranger@example.com").await;
    let vm_id = platform.admin.running_vm("web").await;
    let theirs = &platform.admin.project;
    let missing = stranger.get("/api/v1/orgs/none/projects/none/vms").await;
    for path in [
        format!("{theirs}/vms"),
        format!("{theirs}/vms/{vm_id}"),
        format!("{theirs}/root_disks"),
        format!("{theirs}/quota"),
    ] {
        let answer = stranger.get(&path).await;
        assert_eq!((answer.status, &answer.body), (missing.status, &missing.body), "{path}");
    }
    let answer = stranger.post(&format!("{theirs}/vms"), vm("web")).await;
    assert_eq!((answer.status, &answer.body), (missing.status, &missing.body));
    // Through their own project, another's things are not there.
    stranger.get(&format!("/vms/{vm_id}")).await.refused(404, "vm_not_found");
    stranger.delete(&format!("/vms/{vm_id}")).await.refused(404, "vm_not_found");
    let disk = platform.admin.get("/root_disks").await.body["data"][0]["id"].clone();
    let mut body = vm("web");
    body["root_disk"] = json!({"attach_disk_request": {"disk_id": disk}});
    stranger.post("/vms", body).await.refused(400, "disk_not_found");
    // A project of ours under an organization of theirs.
    let ours = stranger.project_id().to_owned();
    let org = theirs.split('/').nth(4).expect("an id");
    assert_eq!(stranger.get(&format!("/api/v1/orgs/{org}/projects/{ours}/vms")).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn slugs_and_ids_name_the_same() {
    let platform = Platform::start().await;
    let id = platform.admin.running_vm("web").await;
    // From here on nothing changes by itself.
    let path = format!("/vms/{id}");
    platform
        .admin
        .until("the guest", |c| {
            let path = path.clone();
            async move { c.get(&path).await.body["guest_ready"] == true }
        })
        .await;
    let by_slug = platform.admin.get(&format!("/api/v1/orgs/administrator/projects/default/vms/{id}")).await;
    let by_id = platform.admin.get(&format!("/vms/{id}")).await;
    assert_eq!((by_slug.status, &by_slug.body), (200, &by_id.body));
}

#[tokio::test(flavor = "multi_thread")]
async fn images_are_for_administrators_to_change() {
    let platform = Platform::start().await;
    let stranger = platform.sign_up("stranger@example.com").await;
    assert_eq!(stranger.get("/api/v1/images").await.status, 200);
    stranger.delete("/api/v1/images/micro").await.refused(403, "forbidden");
    stranger.post("/api/v1/images", json!({"id": "x", "url": "http://127.0.0.1:1/x"})).await.refused(403, "forbidden");
}
