//! How the command line prints, and what it takes for a name: over a simulated engine.

use std::process::Output;

use berth_testkit::Upstream;
use serde_json::{Value, json};

use crate::harness::{BOX, Here, ended, err, out, until};

/// Columns of a window that nobody makes larger.
const WINDOW: u16 = 80;

async fn berth(here: &Here, arguments: &[&str]) -> Output {
    ended(here.berth(arguments)).await
}

async fn fine(here: &Here, arguments: &[&str]) -> String {
    let output = berth(here, arguments).await;
    assert!(output.status.success(), "{arguments:?} {output:?}");
    out(&output)
}

/// A table in a window has no line that goes on below itself.
async fn fits(here: &Here, arguments: &[&str]) {
    let shown = here.in_window(arguments, WINDOW).await;
    assert!(shown.lines().count() > 1, "{arguments:?}: {shown}");
    for line in shown.lines() {
        assert!(line.chars().count() <= usize::from(WINDOW), "{arguments:?}: {line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_fit_a_window_and_say_less_or_more_as_asked() {
    let here = Here::start().await;
    let id = here.platform.admin.running_vm("a-name-of-20-letters").await;
    fine(&here, &["disk", "create", "a-disk-of-20-letters"]).await;
    fine(&here, &["network", "create", "a-network"]).await;
    fine(&here, &["key", "create", "ci", "--scope", "vm"]).await;
    fine(&here, &["sandbox", "snapshot", "create", BOX, "--name", "clean"]).await;
    for list in [
        &["vm", "list"][..],
        &["disk", "list"],
        &["disk", "list", "--root"],
        &["network", "list"],
        &["sandbox", "list"],
        &["sandbox", "snapshot", "list"],
        &["template", "list"],
        &["image", "list"],
        &["key", "list"],
        &["project", "list"],
        &["org", "list"],
        &["member", "list"],
        &["account", "sessions"],
        &["admin", "users"],
        &["admin", "vms"],
        &["admin", "sandboxes"],
        &["audit"],
        &["admin", "audit"],
    ] {
        let with = |more: &[&'static str]| [list, more].concat();
        fits(&here, list).await;
        let narrow = fine(&here, list).await;
        let (header, rows) = narrow.split_once('\n').expect("a header");
        let bare = fine(&here, &with(&["--no-headers"])).await;
        assert!(bare.lines().count() == rows.lines().count() && !bare.contains(header), "{list:?}: {bare}");
        let ids = fine(&here, &with(&["-q"])).await;
        assert_eq!(ids.lines().count(), rows.lines().count(), "{list:?}");
        let wide = fine(&here, &with(&["-o", "wide", "--no-headers"])).await;
        let json = fine(&here, &with(&["-o", "json"])).await;
        for all in [&json, &fine(&here, &with(&["--json"])).await] {
            let all: Value = serde_json::from_str(all).expect("JSON");
            assert_eq!(all["data"].as_array().map(Vec::len), Some(rows.lines().count()), "{list:?}");
        }
        for id in ids.lines() {
            assert!(wide.contains(id) && json.contains(id), "{list:?} {id}");
        }
        let names = fine(&here, &with(&["-o", "name"])).await;
        assert_eq!(names.lines().count(), rows.lines().count(), "{list:?}: {names}");
    }
    assert_eq!(fine(&here, &["vm", "list", "-q"]).await.trim(), id);
    assert_eq!(fine(&here, &["vm", "list", "-o", "name"]).await, "a-name-of-20-letters\n");
    let shown = fine(&here, &["vm", "get", &id]).await;
    let created = shown.lines().find(|line| line.starts_with("created")).expect("a time");
    assert!(!created.contains('.') && created.ends_with('Z'), "{created}");
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_of_models_is_a_table_like_others() {
    let here = Here::start().await;
    let upstream = Upstream::start().await;
    let model = "acme/a-model-whose-name-alone-is-longer-than-many-a-row-of-numbers";
    fine(&here, &["model", "add", model, &upstream.url()]).await;
    fine(&here, &["chat", model, "hi"]).await;
    until("the books", async || !fine(&here, &["usage"]).await.is_empty()).await;
    let told = fine(&here, &["usage", "--by", "model"]).await;
    let (header, rows) = told.split_once('\n').expect("a header");
    assert!(header.starts_with("TIME") && rows.contains(model), "{told}");
    let bare = fine(&here, &["usage", "--by", "model", "--no-headers"]).await;
    assert!(bare.split_whitespace().eq(rows.split_whitespace()), "{bare}");
    for list in [&["usage"][..], &["usage", "--by", "model"]] {
        fits(&here, list).await;
    }
    let time = rows.split_whitespace().next().expect("a time");
    assert!(time.ends_with('Z') && !time.contains('.'), "{time}");
    let none = err(&berth(&here, &["usage", "--machines", "--from", "20d", "--to", "10d"]).await);
    assert!(none.starts_with("There was no machine") && none.matches('.').count() == 1, "{none}");
    for alone in [&["usage", "-q"][..], &["usage", "-o", "name"]] {
        assert_eq!(fine(&here, alone).await.trim_end(), time, "{alone:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_an_id_is_taken_wherever_a_name_is() {
    let here = Here::start().await;
    let id = here.platform.admin.running_vm("web").await;
    let shown = fine(&here, &["vm", "list", "--no-headers"]).await;
    let part = shown.split_whitespace().last().expect("an id");
    assert!(id.ends_with(part) && part.len() == 12, "{part}");
    let found: Value = serde_json::from_str(&fine(&here, &["vm", "get", part, "--json"]).await).expect("JSON");
    assert_eq!(found["id"], id);
    fine(&here, &["disk", "create", "data", "--wait"]).await;
    fine(&here, &["network", "create", "lan"]).await;
    fine(&here, &["key", "create", "ci", "--scope", "vm"]).await;
    fine(&here, &["sandbox", "snapshot", "create", BOX, "--name", "clean"]).await;
    for noun in [
        &["disk"][..],
        &["network"],
        &["sandbox"],
        &["sandbox", "snapshot"],
        &["template"],
        &["key"],
        &["project"],
        &["org"],
    ] {
        let listed = fine(&here, &[noun, &["list", "-q"]].concat()).await;
        let id = listed.lines().next().expect("an id");
        let found = fine(&here, &[noun, &["get", &id[24..], "-q"]].concat()).await;
        assert_eq!(found.trim(), id, "{noun:?}");
    }
    let done = fine(&here, &["audit", "--subject", part, "--no-headers"]).await;
    assert!(done.lines().count() > 0 && done.lines().all(|line| line.contains("vm.")), "{done}");
    let none = berth(&here, &["vm", "get", "ffffffffffff"]).await;
    assert!(err(&none).contains("no VM called") && none.status.code() == Some(4), "{none:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_that_a_text_names_the_ids_are_told() {
    let here = Here::start().await;
    for _ in 0..2 {
        assert_eq!(here.platform.admin.post("/sandboxes", json!({"name": "twin"})).await.status, 201);
    }
    let several = berth(&here, &["sandbox", "get", "twin"]).await;
    assert_eq!(several.status.code(), Some(2), "{several:?}");
    let listed = fine(&here, &["sandbox", "list", "--no-headers"]).await;
    for line in listed.lines().filter(|line| line.starts_with("twin")) {
        let id = line.split_whitespace().last().expect("an id");
        assert!(err(&several).contains(id), "{several:?}");
        fine(&here, &["sandbox", "get", id]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_for_e2b_s_sdks_is_printed_as_a_shell_takes_it() {
    let here = Here::start().await;
    let words = ["key", "create", "sdk", "--scope", "sandbox", "--e2b"];
    let shown = fine(&here, &words).await;
    let base = &here.way.url;
    let [key, api, sandboxes] = shown.lines().collect::<Vec<_>>()[..] else { unreachable!("{shown}") };
    let key = key.strip_prefix("export E2B_API_KEY=e2b_").expect("a key");
    assert!(key.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)), "{key}");
    assert_eq!(api, format!("export E2B_API_URL={base}/e2b"));
    assert_eq!(sandboxes, format!("export E2B_SANDBOX_URL={base}"));
    let refused = berth(&here, &["key", "create", "sdk", "--scope", "vm", "--e2b"]).await;
    assert!(!refused.status.success() && err(&refused).contains("--scope sandbox"), "{refused:?}");
}
