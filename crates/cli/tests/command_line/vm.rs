//! VMs and disks from the command line, over a simulated engine.

use std::process::Output;

use berth_host::EngineError;
use berth_testkit::vm;
use serde_json::{Value, json};

use crate::harness::{Here, ended, err, out, until};

/// A host key as ssh keeps it.
const HOST_KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJTLFenqOeMLjDE/JI2CnNLWdtoqqbFkFL36i2vXPSR7";

async fn berth(here: &Here, arguments: &[&str]) -> Output {
    ended(here.berth(arguments)).await
}

/// The statuses of VMs, by their names.
async fn statuses(here: &Here) -> Vec<(String, String)> {
    let listed = here.platform.admin.get("/vms?sort=name").await.body;
    let text = |vm: &Value, field: &str| vm[field].as_str().expect("a text").to_owned();
    listed["data"].as_array().expect("a list").iter().map(|vm| (text(vm, "name"), text(vm, "status"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verb_on_several_finds_all_before_it_touches_one() {
    let here = Here::start().await;
    for name in ["one", "two"] {
        here.platform.admin.running_vm(name).await;
    }
    for verb in ["stop", "restart", "delete"] {
        let refused = berth(&here, &["vm", verb, "one", "nope", "two", "neither"]).await;
        assert_eq!(refused.status.code(), Some(4), "{refused:?}");
        for part in ["'nope'", "'neither'", "Nothing was done"] {
            assert!(err(&refused).contains(part), "{part}: {refused:?}");
        }
        let all = statuses(&here).await;
        assert!(all.len() == 2 && all.iter().all(|(_, status)| status == "running"), "{all:?}");
    }
    let done = berth(&here, &["vm", "stop", "one", "two", "--wait"]).await;
    assert_eq!(out(&done), "one stopped\ntwo stopped\n");
    // One that refuses is named, and the others go on.
    here.platform.admin.act(&format!("/vms/{}/start", id_of(&here, "two").await)).await;
    let two = id_of(&here, "two").await;
    here.platform.admin.reaches(&two, "running").await;
    here.platform.engine.refuse("make_disk", transient());
    here.platform.admin.create_vm(vm("new")).await;
    let some = berth(&here, &["vm", "stop", "new", "two", "--wait"]).await;
    assert_eq!(some.status.code(), Some(5), "{some:?}");
    assert_eq!(out(&some), "two stopped\n");
    assert!(err(&some).contains("berth: new: ") && err(&some).contains("1 of 2 failed"), "{some:?}");
    here.platform.engine.allow("make_disk");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_to_live_is_typed_as_a_span_and_shown() {
    let here = Here::start().await;
    let line = ["vm", "create", "web", "--no-ssh-key", "--image", "micro", "--size", "tiny", "--ttl"];
    let shown = berth(&here, &[&line[..], &["2h"]].concat()).await;
    assert!(out(&shown).contains("expires"), "{shown:?}");
    let listed = out(&berth(&here, &["vm", "list"]).await);
    assert!(listed.contains("TTL") && listed.contains("1h"), "{listed}");
    let changed = berth(&here, &["vm", "update", "web", "--ttl", "7d", "--json"]).await;
    let changed: Value = serde_json::from_str(&out(&changed)).expect("JSON");
    assert!(changed["expires_at"].is_string(), "{changed}");
    let refused = berth(&here, &[&line[..], &["31d"]].concat()).await;
    assert!(refused.status.code() == Some(2) && err(&refused).contains("--ttl must be"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn several_are_made_with_one_command() {
    let here = Here::start().await;
    let line = ["vm", "create", "web", "--no-ssh-key", "--image", "micro", "--size", "tiny", "--wait", "--count"];
    let made = berth(&here, &[&line[..], &["3", "--no-headers"]].concat()).await;
    let lines: Vec<_> =
        out(&made).lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(lines, ["web-1 running", "web-2 running", "web-3 running"], "{made:?}");
    let refused = berth(&here, &[&line[..], &["21"]].concat()).await;
    assert!(refused.status.code() == Some(2) && err(&refused).contains("--count must be"), "{refused:?}");
    let both = berth(&here, &[&line[..], &["2", "--attach", "d"]].concat()).await;
    assert_eq!(both.status.code(), Some(2), "{both:?}");
}

fn transient() -> EngineError {
    EngineError::Transient("not now".into())
}

async fn id_of(here: &Here, name: &str) -> String {
    let listed = here.platform.admin.get(&format!("/vms?name={name}")).await.body;
    listed["data"][0]["id"].as_str().expect("an id").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_what_will_not_come_ends_at_once() {
    let here = Here::start().await;
    let id = here.platform.admin.running_vm("web").await;
    here.platform.admin.act(&format!("/vms/{id}/stop")).await;
    here.platform.admin.reaches(&id, "stopped").await;
    let stopped = berth(&here, &["vm", "wait", "web"]).await;
    assert_eq!(stopped.status.code(), Some(1), "{stopped:?}");
    assert!(err(&stopped).contains("berth vm start web"), "{stopped:?}");
    assert!(berth(&here, &["vm", "wait", "web", "--status", "stopped"]).await.status.success());
    let not_ready = berth(&here, &["vm", "wait", "web", "--ready"]).await;
    assert!(not_ready.status.code() == Some(1) && err(&not_ready).contains("berth vm start web"), "{not_ready:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_s_boot_can_be_waited_for() {
    let here = Here::start().await;
    here.platform.admin.create_vm(vm("web")).await;
    let waited = berth(&here, &["vm", "wait", "web", "--ready", "--json"]).await;
    let shown: Value = serde_json::from_str(&out(&waited)).unwrap_or_else(|_| panic!("{waited:?}"));
    assert_eq!((&shown["status"], &shown["guest_ready"]), (&json!("running"), &json!(true)));
    assert!(berth(&here, &["vm", "wait", "web", "--status", "Running"]).await.status.success());
    // A word that is none of a status is refused before anything is waited for.
    for words in [&["vm", "wait", "web", "--status", "runing"][..], &["vm", "list", "--status", "runing"]] {
        let refused = berth(&here, words).await;
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert!(["running", "deleted"].iter().all(|word| err(&refused).contains(word)), "{refused:?}");
    }
    let id = id_of(&here, "web").await;
    assert!(berth(&here, &["vm", "delete", "web", "--wait"]).await.status.success());
    let gone = berth(&here, &["vm", "wait", &id, "--status", "deleted"]).await;
    assert!(gone.status.success() && out(&gone).contains("deleted"), "{gone:?}");
    let both = berth(&here, &["vm", "wait", "web", "--ready", "--status", "stopped"]).await;
    assert_eq!(both.status.code(), Some(2), "{both:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_is_told_in_the_words_that_were_typed() {
    let here = Here::start().await;
    for (arguments, parts) in [
        (
            &["vm", "create", "web", "--no-ssh-key", "--image", "micro", "--size", "huge"][..],
            &["--size is not known; berth catalog"][..],
        ),
        (&["vm", "create", "Web", "--no-ssh-key", "--image", "micro", "--disk", "5"], &["NAME ", "--disk must be"]),
        (&["vm", "create", "web", "--no-ssh-key", "--image", "micro", "--data", "d:1"], &["--data must be"]),
        (&["disk", "create", "data", "--size", "3"], &["--size must be"]),
        (&["sandbox", "create", "--template", "nothing"], &["berth template list"]),
        (&["sandbox", "create", "--timeout", "1s"], &["--timeout must be"]),
    ] {
        let refused = berth(&here, arguments).await;
        assert!(matches!(refused.status.code(), Some(2 | 4)), "{arguments:?}: {refused:?}");
        for part in parts {
            assert!(err(&refused).contains(part), "{part}: {refused:?}");
        }
        for word in ["_id", "size_gb", "GET "] {
            assert!(!err(&refused).contains(word), "{word}: {refused:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_of_a_program_s_call_are_json() {
    let here = Here::start().await;
    for (arguments, code) in [
        (&["vm", "get", "nope", "--json"][..], "not_found"),
        (&["disk", "create", "data", "--size", "3", "--json"], "invalid_request"),
        (&["vm", "get", "01939f2e-7c00-7abc-8def-0123456789ab", "--json"], "vm_not_found"),
        (&["vm", "get", "--json"], "usage"),
        (&["vm", "lst", "--json"], "usage"),
        (&["vm", "get", "-o", "json"], "usage"),
        (&["-o=json", "vm", "lst"], "usage"),
        (&["vm", "lst", "--output=json"], "usage"),
        (&["vm", "get", "nope", "-o", "json"], "not_found"),
    ] {
        let refused = berth(&here, arguments).await;
        let told: Value = serde_json::from_str(&err(&refused)).unwrap_or_else(|_| panic!("{refused:?}"));
        assert_eq!(told["code"], code, "{arguments:?}");
        assert!(told["message"].is_string(), "{told}");
    }
    let create = ["vm", "create", "web", "--no-ssh-key", "--image", "micro", "--size", "huge", "--json"];
    let refused = err(&berth(&here, &create).await);
    let told: Value = serde_json::from_str(&refused).expect("JSON");
    assert_eq!(told["message"], "--size is not known; berth catalog lists what is");
    assert_eq!(told["details"][0]["field"], "vm_config_id");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_asked_of_a_vm_is_told_by_pages() {
    let here = Here::start().await;
    here.platform.admin.running_vm("web").await;
    assert!(berth(&here, &["vm", "stop", "web", "--wait"]).await.status.success());
    for (page, verb) in [("1", "stop"), ("2", "create")] {
        let told = berth(&here, &["vm", "operations", "web", "--limit", "1", "--page", page, "--no-headers"]).await;
        assert_eq!(out(&told).split_whitespace().nth(1), Some(verb), "{told:?}");
    }
    let ids = out(&berth(&here, &["vm", "operations", "web", "-q"]).await);
    assert!(ids.lines().count() == 2 && ids.lines().all(|id| id.len() == 36), "{ids}");
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_are_set_and_taken_away() {
    let here = Here::start().await;
    let create = ["vm", "create", "web", "--no-ssh-key", "--image", "micro", "--size", "tiny", "--label", "team=blue"];
    assert!(out(&berth(&here, &create).await).contains("team=blue"));
    let named = berth(&here, &["vm", "update", "web", "--name", "site"]).await;
    assert!(out(&named).contains("team=blue"), "{named:?}");
    let bare = berth(&here, &["vm", "update", "site", "--no-labels"]).await;
    assert!(bare.status.success() && !out(&bare).contains("team=blue"), "{bare:?}");
    let both = berth(&here, &["vm", "update", "site", "--no-labels", "--label", "a=b"]).await;
    assert_eq!(both.status.code(), Some(2), "{both:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_failed_says_why() {
    let here = Here::start().await;
    here.platform.engine.refuse("make_disk", EngineError::Permanent("the platter is cracked".into()));
    let made = berth(&here, &["disk", "create", "bad", "--wait"]).await;
    assert_eq!(made.status.code(), Some(1), "{made:?}");
    for (words, told) in [
        (&["disk", "get", "bad"][..], true),
        (&["disk", "get", "bad", "-o", "wide"], true),
        (&["disk", "list", "-o", "wide"], true),
        (&["disk", "list"], false),
    ] {
        let shown = out(&berth(&here, words).await);
        assert!(shown.contains("failed") && shown.contains("the platter is cracked") == told, "{words:?}: {shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_disks_are_deleted_by_one_command() {
    let here = Here::start().await;
    for name in ["a", "b", "c"] {
        assert!(berth(&here, &["disk", "create", name, "--wait"]).await.status.success());
    }
    assert_eq!(berth(&here, &["disk", "delete", "a", "nope"]).await.status.code(), Some(4));
    let done = berth(&here, &["disk", "delete", "a", "b"]).await;
    assert_eq!(out(&done), "a is being deleted\nb is being deleted\n", "{done:?}");
    until("their end", async || here.platform.admin.get("/disks").await.body["pagination"]["total_items"] == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_is_made_larger_and_one_that_stays_as_it_is_says_why() {
    let here = Here::start().await;
    here.platform.admin.running_vm("web").await;
    assert!(berth(&here, &["disk", "create", "data", "--wait"]).await.status.success());
    let grown = berth(&here, &["disk", "resize", "data", "20G", "--wait"]).await;
    assert!(grown.status.success() && out(&grown).contains("20 GiB"), "{grown:?}");
    let grown = berth(&here, &["disk", "resize", "--root", "root", "30", "--wait"]).await;
    assert!(grown.status.success() && out(&grown).contains("30 GiB"), "{grown:?}");
    let smaller = berth(&here, &["disk", "resize", "data", "20"]).await;
    assert_eq!(smaller.status.code(), Some(2), "{smaller:?}");
    assert!(err(&smaller).contains("larger than 20"), "{smaller:?}");
    here.platform.engine.refuse("grow_disk", EngineError::Permanent("it is stuck".into()));
    let stuck = berth(&here, &["disk", "resize", "data", "30", "--wait"]).await;
    assert_eq!(stuck.status.code(), Some(1), "{stuck:?}");
    assert!(err(&stuck).contains("data stays at 20 GiB: it is stuck"), "{stuck:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_is_off_is_given_another_size() {
    let here = Here::start().await;
    here.platform.admin.running_vm("web").await;
    let runs = berth(&here, &["vm", "resize", "web", "small"]).await;
    assert!(!runs.status.success() && err(&runs).contains("Stop it first"), "{runs:?}");
    assert!(berth(&here, &["vm", "stop", "web", "--wait"]).await.status.success());
    let unknown = berth(&here, &["vm", "resize", "web", "huge"]).await;
    assert!(unknown.status.code() == Some(2) && err(&unknown).contains("SIZE is not known"), "{unknown:?}");
    let resized = berth(&here, &["vm", "resize", "web", "small", "--json"]).await;
    let shown: Value = serde_json::from_str(&out(&resized)).unwrap_or_else(|_| panic!("{resized:?}"));
    assert_eq!(shown["vm_config_id"], "small");
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_of_disks_are_taken_shown_and_deleted() {
    let here = Here::start().await;
    here.platform.admin.running_vm("web").await;
    assert!(berth(&here, &["disk", "create", "data", "--wait"]).await.status.success());
    let taken = berth(&here, &["disk", "snapshot", "create", "--root", "root", "--name", "before"]).await;
    assert!(taken.status.success() && out(&taken).contains("ready") && out(&taken).contains("root"), "{taken:?}");
    assert!(berth(&here, &["disk", "snapshot", "create", "data"]).await.status.success());
    let named = berth(&here, &["disk", "snapshot", "create", "data", "--name", "Big"]).await;
    assert!(named.status.code() == Some(2) && err(&named).contains("--name"), "{named:?}");
    for (words, count) in [(&["list"][..], 2), (&["list", "data"], 1), (&["list", "root", "--root"], 1)] {
        let words: Vec<_> = ["disk", "snapshot"].into_iter().chain(words.iter().copied()).chain(["--json"]).collect();
        let shown: Value = serde_json::from_str(&out(&berth(&here, &words).await)).expect("JSON");
        assert_eq!(shown["data"].as_array().map(Vec::len), Some(count), "{words:?}: {shown}");
    }
    assert!(out(&berth(&here, &["disk", "snapshot", "get", "before"]).await).contains("before"));
    let again = berth(&here, &["disk", "create", "again", "--snapshot", "data", "--wait", "--json"]).await;
    let again: Value = serde_json::from_str(&out(&again)).unwrap_or_else(|_| panic!("{again:?}"));
    assert_eq!((&again["type"], &again["size_gb"]), (&json!("filesystem"), &json!(10)));
    let small = berth(&here, &["disk", "create", "small", "--snapshot", "before"]).await;
    assert!(small.status.code() == Some(2) && err(&small).contains("--snapshot"), "{small:?}");
    let web =
        berth(&here, &["vm", "create", "again", "--snapshot", "before", "--no-ssh-key", "--wait", "--json"]).await;
    assert!(web.status.success(), "{web:?}");
    let gone = berth(&here, &["disk", "snapshot", "delete", "before", "data", "--wait"]).await;
    assert_eq!(out(&gone), "before deleted\ndata deleted\n", "{gone:?}");
    here.platform.engine.refuse("snapshot_disk", EngineError::Permanent("it could not be read".into()));
    let failed = berth(&here, &["disk", "snapshot", "create", "data"]).await;
    assert!(failed.status.code() == Some(1) && err(&failed).contains("it could not be read"), "{failed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_comes_to_a_vm_that_runs_and_leaves_it() {
    let here = Here::start().await;
    here.platform.admin.running_vm("web").await;
    assert!(berth(&here, &["disk", "create", "data", "--wait"]).await.status.success());
    let attached = berth(&here, &["disk", "attach", "data", "web", "--wait"]).await;
    assert!(attached.status.success() && out(&attached).contains("web"), "{attached:?}");
    here.platform.engine.set_holds_on(true);
    let in_time = async {
        let asked = async || here.platform.admin.get("/disks").await.body["data"][0]["change"] == "detaching";
        until("the wish", asked).await;
        here.platform.advance(21);
    };
    let (kept, ()) = tokio::join!(berth(&here, &["disk", "detach", "data", "--wait"]), in_time);
    assert_eq!(kept.status.code(), Some(1), "{kept:?}");
    assert!(err(&kept).contains("data was not detached: the guest did not let go"), "{kept:?}");
    here.platform.engine.set_holds_on(false);
    let detached = berth(&here, &["disk", "detach", "data", "--wait"]).await;
    assert!(detached.status.success() && !out(&detached).contains("web"), "{detached:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_not_there_is_named() {
    let here = Here::start().await;
    let refused = berth(&here, &["image", "import", "nofile.img"]).await;
    assert!(!refused.status.success());
    assert_eq!(err(&refused).matches("nofile.img").count(), 1, "{refused:?}");
    assert_eq!(err(&refused).matches("No such file").count(), 1, "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_shows_where_its_ports_are_and_only_a_running_one_a_guest() {
    let here = Here::start().await;
    let mut body = vm("web");
    body["exposed_ports"] = json!([{"port": 8080, "protocol": "tcp"}]);
    let id = here.platform.admin.create_vm(body).await;
    let running = here.platform.admin.reaches(&id, "running").await;
    let at = format!("8080/tcp at {}:8080", running["public_ip"].as_str().expect("an address"));
    let shown = out(&berth(&here, &["vm", "show", "web"]).await);
    assert!(shown.contains(&at), "{shown}");
    assert!(berth(&here, &["vm", "stop", "web", "--wait"]).await.status.success());
    let shown = out(&berth(&here, &["vm", "show", "web"]).await);
    assert!(!shown.contains("guest ready"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_is_reinstalled_once_that_was_meant() {
    let here = Here::start().await;
    let id = here.platform.admin.running_vm("web").await;
    let disk = here.platform.admin.get(&format!("/vms/{id}")).await.body["root_disk"]["id"].clone();
    let clones = || here.platform.engine.clones(disk.as_str().expect("an id"));
    let refused = berth(&here, &["vm", "reinstall", "web"]).await;
    assert!(refused.status.code() == Some(2) && err(&refused).contains("berth vm reinstall web --yes"), "{refused:?}");
    assert_eq!(clones(), ["micro"]);
    // What its next system will not have is not waited for.
    let known = here.home.path().join(".config/berth/known_hosts");
    std::fs::create_dir_all(known.parent().expect("a folder")).expect("a folder");
    let other = format!("other {HOST_KEY}\n");
    std::fs::write(&known, format!("{id} {HOST_KEY}\n{other}")).expect("a file");
    let large = berth(&here, &["vm", "reinstall", "web", "--image", "large", "--yes"]).await;
    assert!(!large.status.success() && err(&large).contains("--image needs a root disk of 25 GiB"), "{large:?}");
    let done = berth(&here, &["vm", "reinstall", "web", "--yes", "--wait", "--json"]).await;
    let shown: Value = serde_json::from_str(&out(&done)).unwrap_or_else(|_| panic!("{done:?}"));
    assert_eq!((&shown["status"], &shown["root_disk"]["id"]), (&json!("running"), &disk));
    assert_eq!(clones(), ["micro", "micro"]);
    assert_eq!(std::fs::read_to_string(&known).expect("a file"), other);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_is_rescued_and_shows_how_that_ends() {
    let here = Here::start().await;
    here.platform.admin.running_vm("web").await;
    let done = berth(&here, &["vm", "rescue", "web", "--wait", "--json"]).await;
    let shown: Value = serde_json::from_str(&out(&done)).unwrap_or_else(|_| panic!("{done:?}"));
    assert_eq!((&shown["status"], &shown["rescue"]), (&json!("running"), &json!(true)));
    let shown = out(&berth(&here, &["vm", "show", "web"]).await);
    assert!(shown.contains("yes; restart leaves it") && shown.contains("log in as root"), "{shown}");
    // A rescue system has another host key each time, and settings stay.
    let settings = out(&berth(&here, &["vm", "ssh-config"]).await);
    assert!(settings.contains("is in rescue: berth vm ssh ") && !settings.contains("\nHost "), "{settings}");
    let suspended = berth(&here, &["vm", "suspend", "web"]).await;
    assert!(!suspended.status.success() && err(&suspended).contains("Restart it first"), "{suspended:?}");
    assert!(berth(&here, &["vm", "restart", "web", "--wait"]).await.status.success());
    let shown = out(&berth(&here, &["vm", "show", "web"]).await);
    assert!(!shown.contains("rescue"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_screen_is_saved_or_opened_to_a_viewer() {
    let here = Here::start().await;
    here.platform.admin.running_vm("web").await;
    let saved = berth(&here, &["vm", "screen", "web", "-"]).await;
    assert!(saved.status.success() && saved.stdout.starts_with(b"\x89PNG"), "{:?}", saved.status);
    let file = here.platform.config.data_dir.join("shot.png");
    let saved = berth(&here, &["vm", "screen", "web", file.to_str().expect("a path")]).await;
    assert!(out(&saved).contains("shot.png"), "{saved:?}");
    assert!(std::fs::read(&file).expect("a file").starts_with(b"\x89PNG"));
    here.platform.engine.refuse("screen", EngineError::Permanent("it has no screen; restart it first".into()));
    let none = berth(&here, &["vm", "screen", "web", "--vnc"]).await;
    assert!(!none.status.success() && err(&none).contains("restart it first"), "{none:?}");
}
