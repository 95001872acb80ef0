//! What becomes of snapshots of disks that lie in a store, and of their copies, where a host is lost, or removed.

use berth_server::db::sql;
use serde_json::json;

use crate::drain::verb;
use crate::fence::{AFTER, fencing, lose, one_on_beta, runs_here};
use crate::fleet::{disk, ready};
use crate::project_image::{self, root_of};
use crate::shared_snapshot::{asked, delete, made};

const HOSTS: &str = "/api/v1/admin/hosts";

#[tokio::test(flavor = "multi_thread")]
async fn what_was_begun_on_a_host_that_is_lost_begins_anew_on_the_next() {
    let (platform, mut beta, id) = one_on_beta(Some(fencing())).await;
    let admin = &platform.admin;
    let root = root_of(&admin.get(&format!("/vms/{id}")).await.body);
    beta.engine.hold("copy_shared_disk");
    let image = project_image::asked(admin, &root).await;
    admin.until("it is copied", async |_| beta.engine.waiting() > 0).await;
    lose(&platform, &mut beta).await;
    // Until the VM is elsewhere all that is asked of its disk waits.
    let snapshot = asked(admin, json!({"root_disk_id": root})).await;
    assert_eq!(admin.get(&format!("/disk_snapshots/{snapshot}")).await.body["status"], "pending");
    assert_eq!((platform.engine.snapshots(), platform.engine.shared_snapshots()), ((0, 0), 0));
    platform.advance(AFTER);
    runs_here(&platform, &id).await;
    project_image::reaches(admin, &image, "ready").await;
    ready(admin, &format!("/disk_snapshots/{snapshot}")).await;
    assert_eq!((platform.engine.shared_snapshots(), beta.engine.snapshots()), (1, (0, 0)));
    admin.until("the copy's end", async |_| platform.engine.snapshots() == (0, 0)).await;
    beta.engine.let_go();
    assert_eq!(platform.engine.violations(), [] as [String; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_no_host_has_is_copied_by_any_that_is_there() {
    let (platform, mut beta, off) = one_on_beta(Some(fencing())).await;
    let admin = &platform.admin;
    let root = root_of(&admin.get(&format!("/vms/{off}")).await.body);
    verb(admin, &off, "stop", "stopped").await;
    let loose = disk(admin, "loose").await;
    lose(&platform, &mut beta).await;
    // A disk of no VM waits for nobody.
    made(admin, json!({"disk_id": loose})).await;
    let waits = asked(admin, json!({"root_disk_id": root})).await;
    assert_eq!(admin.get(&format!("/disk_snapshots/{waits}")).await.body["status"], "pending");
    platform.advance(AFTER);
    // Its VM has let go of the host, and is on none.
    platform.advance(30);
    ready(admin, &format!("/disk_snapshots/{waits}")).await;
    let image = project_image::asked(admin, &root).await;
    project_image::reaches(admin, &image, "ready").await;
    assert_eq!(admin.get(&format!("/vms/{off}")).await.body["status"], "stopped");
    delete(admin, &waits).await;
    assert_eq!((platform.engine.shared_snapshots(), beta.engine.snapshots()), (1, (0, 0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_a_lost_host_was_making_of_a_disk_of_no_vm_begins_anew_on_another() {
    let (platform, mut beta, id) = one_on_beta(None).await;
    let admin = &platform.admin;
    let root = root_of(&admin.get(&format!("/vms/{id}")).await.body);
    assert_eq!(admin.delete(&format!("/vms/{id}")).await.status, 202);
    admin.gone(&id).await;
    beta.engine.hold("copy_shared_disk");
    let image = project_image::asked(admin, &root).await;
    admin.until("it is copied", async |_| beta.engine.waiting() > 0).await;
    lose(&platform, &mut beta).await;
    platform.advance(30);
    project_image::reaches(admin, &image, "ready").await;
    admin.until("the copy's end", async |_| platform.engine.snapshots() == (0, 0)).await;
    beta.engine.let_go();
    assert_eq!(beta.engine.snapshots(), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_a_host_that_was_removed_goes_with_it() {
    let (platform, mut beta, id) = one_on_beta(None).await;
    let admin = &platform.admin;
    let root = root_of(&admin.get(&format!("/vms/{id}")).await.body);
    beta.engine.hold("make_image");
    let image = project_image::asked(admin, &root).await;
    admin.until("it is copied", async |_| beta.engine.waiting() > 0).await;
    lose(&platform, &mut beta).await;
    beta.engine.restart_host();
    assert_eq!(admin.delete(&format!("{HOSTS}/{}?lost=true", beta.id)).await.status, 204);
    runs_here(&platform, &id).await;
    project_image::reaches(admin, &image, "failed").await;
    beta.engine.let_go();
    // Nothing waits for that host.
    let copies = async |_| {
        let text = "SELECT COUNT(*) FROM disk_snapshots WHERE deleted_at IS NULL";
        let left: i64 = sql(text).fetch_one(&platform.app().db).await.expect("a number");
        left == 0
    };
    admin.until("the copy's end", copies).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_a_vm_that_is_off_outlives_the_removal_of_its_host() {
    let (platform, mut beta, id) = one_on_beta(Some(fencing())).await;
    let admin = &platform.admin;
    let root = root_of(&admin.get(&format!("/vms/{id}")).await.body);
    verb(admin, &id, "stop", "stopped").await;
    beta.engine.hold("snapshot_shared_disk");
    let snapshot = asked(admin, json!({"root_disk_id": root})).await;
    admin.until("it is made", async |_| beta.engine.waiting() > 0).await;
    lose(&platform, &mut beta).await;
    assert_eq!(admin.delete(&format!("{HOSTS}/{}?lost=true", beta.id)).await.status, 204);
    platform.advance(AFTER);
    platform.advance(30);
    ready(admin, &format!("/disk_snapshots/{snapshot}")).await;
    assert_eq!(admin.get(&format!("/vms/{id}")).await.body["status"], "stopped");
    verb(admin, &id, "start", "running").await;
    beta.engine.let_go();
    assert_eq!(platform.engine.violations(), [] as [String; 0]);
}
