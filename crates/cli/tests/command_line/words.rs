//! What is refused, and what is worth knowing, in the words that were typed: over a simulated engine.

use std::process::Output;

use berth_host::EngineError;
use berth_server::config::{Plan, PlanPrice};

use crate::harness::{BOX, Here, ended, err, out};

async fn berth(here: &Here, arguments: &[&str]) -> Output {
    ended(here.berth(arguments)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_name_the_options_that_were_typed() {
    let here = Here::start().await;
    assert!(berth(&here, &["key", "create", "old", "--scope", "vm"]).await.status.success());
    for (arguments, part) in [
        (&["template", "create", "Big", "--image", "base"][..], "NAME "),
        (&["template", "create", "x", "--image", "base", "--vcpu", "99"], "--vcpu must be"),
        (&["template", "create", "x", "--image", "base", "--memory", "1"], "--memory must be"),
        (&["template", "create", "x", "--image", "base", "--disk", "1000"], "--disk must be"),
        (&["key", "create", "ci", "--scope", "cats"], "--scope "),
        (&["key", "create", "ci", "--scope", "vm", "--from", "everywhere"], "--from "),
        (&["key", "create", "ci", "--scope", "vm", "--expires", "2001-01-01T00:00:00Z"], "--expires "),
        (&["quota", "set", "default", "--vms", "-1"], "--vms '-1' is no limit; it looks like 5, or unlimited"),
        (&["quota", "set", "default", "--disk-gb", "99999999999999999"], "--disk-gb "),
        (&["invite", "nobody"], "ADDRESS "),
        (&["invite", "bob@example.com", "--role", "king"], "--role "),
        (&["invite", "bob@example.com", "--role", "viewer"], "--project PROJECT"),
        (&["invite", "bob@example.com", "--project", "default:viewr"], "--project default:viewr: 'viewr'"),
        (&["sandbox", "fork", BOX, "--count", "1000"], "--count must be"),
        (&["org", "create", "Acme", "--slug", "A B"], "--slug "),
        (&["project", "create", "Web", "--slug", "A B"], "--slug "),
        (&["quota", "set", "default", "--projects", "3"], "--projects is a limit of an organization; berth quota set"),
        (&["model", "add", "a/b", "http://127.0.0.1:1/v1", "--weight", "5000"], "--weight must be"),
        (&["model", "add", "a/b", "nowhere"], "UPSTREAM "),
        (&["model", "add", "a/b", "http://127.0.0.1:1/v1", "--strategy", "luck"], "--strategy must be"),
        (&["model", "serve", "/not/here.gguf"], "FILE "),
        (&["model", "serve", "/not/here.gguf", "--id", "a b"], "--id "),
        (&["image", "import", "http://127.0.0.1:1/a.img", "--sha256", "x"], "--sha256 must be"),
        (&["account", "update", "--phone", "12"], "--phone "),
        (&["signup", "--email", "nobody", "--password-stdin"], "--email "),
        (&["signup", "--email", "ana@example.com", "--password-stdin"], "the password must"),
        (&["admin", "user", "create", "nobody"], "EMAIL "),
        (&["key", "rotate", "old", "--overlap", "30d"], "--overlap must be"),
        (&["speak", "hello", "--format", "mod", "--speed", "9"], "--format must be"),
        (&["speak", "hello", "--speed", "9"], "--speed must be"),
        (&["usage", "--window", "99d"], "--window must be"),
        (&["usage", "--from", "999d"], "--from "),
    ] {
        let refused = berth(&here, arguments).await;
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {refused:?}");
        assert!(err(&refused).contains(part), "{arguments:?}: {refused:?}");
        for word in [
            "_mb",
            "_gb",
            "scopes:",
            "source_networks",
            "project_roles",
            "expires_at",
            "upstreams",
            "password:",
            "_seconds",
            "_format",
            "speed:",
        ] {
            assert!(!err(&refused).contains(word), "{arguments:?} {word}: {refused:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_go_together_is_told_without_fields() {
    let large = Plan {
        id: "large-only".into(),
        name: String::new(),
        vm_configs: vec!["large".into()],
        price: PlanPrice::default(),
    };
    let here = Here::start_with(|config| config.catalog.plans.push(large)).await;
    here.platform.admin.running_vm("web").await;
    here.platform.engine.refuse("make_disk", EngineError::Transient("not now".into()));
    assert!(berth(&here, &["disk", "create", "slow"]).await.status.success());
    let create = ["vm", "create", "small", "--no-ssh-key", "--image", "micro", "--size", "tiny"];
    for (arguments, part) in [
        (&["disk", "attach", "slow", "web"][..], "not ready"),
        (&[&create[..], &["--plan", "large-only"]].concat(), "--plan is not offered for this size"),
    ] {
        let refused = berth(&here, arguments).await;
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {refused:?}");
        assert!(err(&refused).contains(part) && !err(&refused).contains("_id"), "{arguments:?}: {refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_whom_nobody_knows_is_looked_for_in_the_project_that_was_named() {
    let here = Here::start().await;
    for verb in [&["role", "nobody", "viewer"][..], &["remove", "nobody"]] {
        let of_project = berth(&here, &[&["member"], verb, &["--project", "default"]].concat()).await;
        assert!(err(&of_project).contains("berth member list --project default"), "{of_project:?}");
        let of_org = berth(&here, &[&["member"], verb].concat()).await;
        assert!(err(&of_org).trim_end().ends_with("berth member list"), "{of_org:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_invited_with_a_project_gets_the_role_there() {
    let here = Here::start().await;
    let invited = berth(&here, &["invite", "bob@example.com", "--role", "viewer", "--project", "default"]).await;
    assert!(invited.status.success() && out(&invited).contains("member of"), "{invited:?}");
    let listed = berth(&here, &["invitation", "list", "--json"]).await;
    assert!(
        out(&listed).contains("\"role\": \"viewer\"") && out(&listed).contains("\"role\": \"member\""),
        "{listed:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_there_already_is_told() {
    let here = Here::start().await;
    for (arguments, told) in [
        (&["vm", "create", "web", "--no-ssh-key", "--image", "micro", "--size", "tiny"][..], "2 VMs are called 'web'"),
        (&["disk", "create", "data"], "2 disks are called 'data'"),
        (&["sandbox", "create", "--name", "twin"], "2 sandboxes are called 'twin'"),
        (&["key", "create", "ci", "--scope", "vm"], "2 keys are called 'ci'"),
    ] {
        let first = berth(&here, arguments).await;
        assert!(first.status.success() && !err(&first).contains("are called"), "{first:?}");
        let second = berth(&here, arguments).await;
        assert!(second.status.success() && err(&second).contains(told), "{second:?}");
        let for_a_program = berth(&here, &[arguments, &["--json"]].concat()).await;
        assert!(for_a_program.status.success() && !err(&for_a_program).contains("are called"), "{for_a_program:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_and_phases_are_said_as_for_other_nouns() {
    let here = Here::start().await;
    let pending = berth(&here, &["sandbox", "create", "--name", "web", "--wait", "--wait-timeout", "90"]).await;
    assert!(out(&pending).contains("Ready"), "{pending:?}");
    let listed = berth(&here, &["sandbox", "list", "--status", "ready", "-o", "name"]).await;
    assert!(out(&listed).lines().any(|line| line == "web"), "{listed:?}");
    assert!(berth(&here, &["sandbox", "wait", "web", "--phase", "ready", "--timeout", "1m"]).await.status.success());
    assert!(berth(&here, &["sandbox", "pause", "web", "--wait"]).await.status.success());
    assert!(berth(&here, &["disk", "create", "data", "--wait", "--timeout", "1m"]).await.status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_understood_is_told_with_what_may_be_meant() {
    let here = Here::start().await;
    for (arguments, part, never) in [
        (&["vm", "lst"][..], "'list'", "stop"),
        (&["users"], "admin users", "serve"),
        (&["vm", "create", "web", "--sizes", "tiny"], "--sizes", "as a value"),
    ] {
        let refused = berth(&here, arguments).await;
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert!(err(&refused).contains(part) && !err(&refused).contains(never), "{arguments:?}: {refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sizes_have_units_and_things_are_shown_by_the_names_of_others() {
    let here = Here::start().await;
    let create = ["vm", "create", "web", "--no-ssh-key", "--image", "micro", "--size", "tiny", "--disk", "20G"];
    assert!(berth(&here, &[&create[..], &["--data", "data:20G", "--wait"]].concat()).await.status.success());
    for list in [&["disk", "list", "--no-headers"][..], &["disk", "get", "data", "--no-headers"]] {
        let listed = out(&berth(&here, list).await);
        assert!(listed.contains("20 GiB") && listed.contains(" web "), "{listed}");
    }
    let roots = out(&berth(&here, &["disk", "list", "--root", "--no-headers"]).await);
    assert!(roots.contains("20 GiB") && roots.matches("web").count() == 2, "{roots}");
    let shown = out(&berth(&here, &["sandbox", "show", BOX]).await);
    assert!(shown.lines().any(|line| line.split_whitespace().eq(["template", "base"])), "{shown}");
    let wrong = berth(&here, &["disk", "create", "large", "--size", "1X"]).await;
    assert!(wrong.status.code() == Some(2) && err(&wrong).contains("20, 20G or 1T"), "{wrong:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_images_and_guest_is_not_fit() {
    let here = Here::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let told = ended(here.berth(&["doctor", "--data-dir", folder.path().to_str().expect("text")])).await;
    assert_eq!(told.status.code(), Some(1), "{told:?}");
    for what in ["images", "sandboxes"] {
        let missing = |line: &str| line.starts_with(&format!("MISS {what}")) && line.contains("script/quickstart");
        assert!(out(&told).lines().any(missing), "{what}: {told:?}");
    }
}
