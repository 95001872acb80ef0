//! The platform's images and a project's own from the command line, over a simulated engine.

use serde_json::{Value, json};

use crate::harness::{Here, ended, err, out, until};

async fn told(here: &Here, words: &[&str]) -> Value {
    let output = ended(here.berth(&[words, &["--json"]].concat())).await;
    assert!(output.status.success(), "{words:?}: {output:?}");
    serde_json::from_str(&out(&output)).expect("JSON")
}

/// One of the project's own images, ready; its id.
async fn own(here: &Here, root: &Value, name: &str) -> String {
    let caller = &here.platform.admin;
    let id = caller.post("/images", json!({"from_root_disk": root, "name": name})).await.id();
    let path = format!("/images/{id}");
    until("the image", async || caller.get(&path).await.body["status"] == "ready").await;
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_means_the_same_image_to_every_verb() {
    let here = Here::start().await;
    let vm = here.platform.admin.running_vm("web").await;
    let root = here.platform.admin.get(&format!("/vms/{vm}")).await.body["root_disk"]["id"].clone();
    let (same, mine) = (own(&here, &root, "micro").await, own(&here, &root, "mine").await);
    for (text, id) in [("micro", "micro"), ("mine", mine.as_str()), (same.as_str(), same.as_str())] {
        assert_eq!(told(&here, &["image", "get", text]).await["id"], id, "{text}");
        let made = told(&here, &["vm", "create", "again", "--image", text, "--no-ssh-key"]).await;
        assert_eq!(made["image_id"], id, "{text}");
        assert_eq!(told(&here, &["vm", "reinstall", &vm, "--image", text, "--yes", "--wait"]).await["image_id"], id);
    }
    let file = here.home.path().join("file.qcow2");
    let file = file.to_str().expect("a path");
    let refused = ended(here.berth(&["image", "export", "micro", file])).await;
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(err(&refused).contains(&format!("berth image export {same}")), "{refused:?}");
    for text in [same.as_str(), "mine"] {
        let file = here.home.path().join(text);
        assert!(told(&here, &["image", "export", text, file.to_str().expect("a path")]).await["bytes"].is_number());
    }
    let none = ended(here.berth(&["image", "rm", "nope"])).await;
    assert!(none.status.code() == Some(4) && err(&none).contains("berth image list"), "{none:?}");
    assert!(ended(here.berth(&["image", "rm", "mine", "--wait"])).await.status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn both_kinds_are_one_list_of_pages() {
    let here = Here::start().await;
    let caller = &here.platform.admin;
    let vm = caller.running_vm("web").await;
    let root = caller.get(&format!("/vms/{vm}")).await.body["root_disk"]["id"].clone();
    let own = own(&here, &root, "mine").await;
    let of = async |path: &str| caller.get(path).await.body["data"].as_array().expect("a list").clone();
    let all = [of("/images").await, of("/api/v1/images").await].concat();
    assert!(all.len() > 1 && all[0]["id"] == own.as_str(), "{all:?}");
    for limit in [1, 2, 3, 100] {
        let (pages, mut found) = (all.len().div_ceil(limit), Vec::new());
        for page in 1..=pages {
            let (page, limit_text) = (page.to_string(), limit.to_string());
            let words = ["image", "list", "--limit", &limit_text, "--page", &page];
            let list = told(&here, &words).await;
            let data = list["data"].as_array().expect("a list").clone();
            let paging = &list["pagination"];
            assert_eq!((&paging["total_items"], &paging["total_pages"]), (&json!(all.len()), &json!(pages)), "{list}");
            assert!(data.len() <= limit, "{list}");
            found.extend(data);
        }
        let ids = |images: &[Value]| images.iter().map(|image| image["id"].clone()).collect::<Vec<_>>();
        assert_eq!(ids(&found), ids(&all), "{limit}, {pages} pages");
        assert_eq!(found[0], all[0], "as the service tells of it");
    }
}
