//! The system's own ssh, told by `berth vm ssh-config` where VMs are, and lists that are watched; over simulated engines.

use std::path::Path;
use std::process::Stdio;

use berth_host::EngineError;
use berth_testkit::vm;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::harness::{Here, PATIENCE, ended, out, terminal};

/// What ssh makes of a host, with these settings.
async fn settings(config: &Path, host: &str) -> Vec<String> {
    let mut ssh = Command::new("ssh");
    ssh.arg("-G").arg("-F").arg(config).arg(host).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = ssh.output().await.expect("ssh");
    assert!(output.status.success(), "{output:?}");
    out(&output).lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn ssh_finds_vms_by_name() {
    let here = Here::start().await;
    let caller = &here.platform.admin;
    let id = caller.running_vm("web").await;
    let off = caller.running_vm("off").await;
    caller.act(&format!("/vms/{off}/stop")).await;
    caller.reaches(&off, "stopped").await;
    let ssh = caller.get(&format!("/vms/{id}")).await.body["ssh"].clone();
    let home = tempfile::tempdir().expect("a folder");
    let berth = |arguments: &[&str]| {
        let mut command = here.berth(arguments);
        command.env("HOME", home.path());
        command
    };
    let printed = ended(berth(&["vm", "ssh-config"])).await;
    assert!(printed.status.success(), "{printed:?}");
    assert!(!home.path().join(".ssh").exists(), "nothing is written unless that is asked for");
    let config = home.path().join("printed");
    std::fs::write(&config, out(&printed)).expect("a file");
    let wanted = [
        format!("hostname {}", ssh["host"].as_str().expect("a host")),
        format!("port {}", ssh["port"]),
        format!("user {}", ssh["user"].as_str().expect("a user")),
        format!("hostkeyalias {id}"),
        format!("userknownhostsfile {}/.config/berth/known_hosts", home.path().display()),
        "stricthostkeychecking accept-new".to_owned(),
    ];
    for name in ["web".to_owned(), id[24..].to_owned()] {
        let found = settings(&config, &format!("{name}.berth")).await;
        for line in &wanted {
            assert!(found.contains(line), "{line}: {found:?}");
        }
    }
    let other = settings(&config, "off.berth").await;
    assert!(other.contains(&"hostname off.berth".to_owned()), "{other:?}");
    // Installed twice, it is included once, before what the person wrote.
    let own = home.path().join(".ssh").join("config");
    std::fs::create_dir(home.path().join(".ssh")).expect("a folder");
    std::fs::write(&own, "Host example\n  Port 2222\n").expect("a file");
    for _ in 0..2 {
        let written = ended(berth(&["vm", "ssh-config", "--write"])).await;
        assert!(written.status.success() && out(&written).contains("ssh web.berth"), "{written:?}");
        let found = settings(&own, "web.berth").await;
        assert!(wanted.iter().all(|line| found.contains(line)), "{found:?}");
    }
    let kept = std::fs::read_to_string(&own).expect("a file");
    assert_eq!((kept.matches("Include").count(), kept.ends_with("Host example\n  Port 2222\n")), (1, true), "{kept}");
    assert!(settings(&own, "example").await.contains(&"port 2222".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watched_list_is_told_again_when_it_changes() {
    let here = Here::start().await;
    let caller = &here.platform.admin;
    caller.running_vm("first").await;
    let mut command = here.berth(&["vm", "list", "--watch", "--no-headers"]);
    let mut watching = command.spawn().expect("a process");
    let mut lines = BufReader::new(watching.stdout.take().expect("its output")).lines();
    let mut line = async || {
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("a line in time");
        line.expect("its output").expect("a line")
    };
    let first = line().await;
    assert!(first.starts_with("first") && !first.contains('\x1b'), "{first:?}");
    // Held where it is, so that each list has the same two lines.
    here.platform.engine.refuse("make_disk", EngineError::Transient("not now".into()));
    caller.create_vm(vm("second")).await;
    while !line().await.starts_with("second") {}
    assert!(line().await.starts_with("first"));
    // Whoever watches ends it, as Ctrl-C does.
    let pid = rustix::process::Pid::from_raw(i32::try_from(watching.id().expect("a process")).expect("a number"));
    rustix::process::kill_process(pid.expect("a number"), rustix::process::Signal::INT).expect("a signal");
    let status = tokio::time::timeout(PATIENCE, watching.wait()).await.expect("its end in time").expect("its end");
    assert!(!status.success());
    here.platform.engine.allow("make_disk");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_list_of_what_changes_by_itself_is_watched() {
    let here = Here::start().await;
    let caller = &here.platform.admin;
    let (vm, disk) = (caller.running_vm("web").await, "first");
    let body = |name: &str| serde_json::json!({"name": name, "type": "block", "size_gb": 10, "region_id": "local"});
    caller.post("/disks", body(disk)).await;
    caller.post("/networks", serde_json::json!({"name": "lan"})).await;
    let root = caller.get(&format!("/vms/{vm}")).await.body["root_disk"]["name"].as_str().expect("a name").to_owned();
    for (list, first) in [
        (&["disk", "list"][..], disk),
        (&["disk", "list", "--root"], &root),
        (&["network", "list"], "lan"),
        (&["image", "list"], "large"),
        (&["template", "list"], "base"),
    ] {
        let mut command = here.berth(&[list, &["--watch", "--no-headers"]].concat());
        let mut watching = command.spawn().expect("a process");
        let mut lines = BufReader::new(watching.stdout.take().expect("its output")).lines();
        let mut begins_with = async |name: &str| {
            while !tokio::time::timeout(PATIENCE, lines.next_line())
                .await
                .expect("a line in time")
                .expect("its output")
                .unwrap_or_else(|| panic!("{list:?} ended without {name}"))
                .starts_with(name)
            {}
        };
        begins_with(first).await;
        if list == ["disk", "list"] {
            caller.post("/disks", body("second")).await;
            begins_with("second").await;
        }
        watching.kill().await.expect("its end");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_is_drawn_anew_in_a_window() {
    const CLEARED: &str = "\x1b[H\x1b[2J";
    let here = Here::start().await;
    let (master, slave) = terminal(100, 24);
    let mut command = here.berth(&["sandbox", "list", "--watch"]);
    let mut watching = command.stdout(Stdio::from(slave)).spawn().expect("a process");
    // The program alone holds its other side from now on, so that its end is the end of what comes.
    drop(command);
    let drawn = tokio::task::spawn_blocking(move || {
        let (mut text, mut buffer) = (String::new(), [0; 4096]);
        while !text.contains("second") {
            let Ok(count @ 1..) = rustix::io::read(&master, &mut buffer) else { break };
            text.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
        text
    });
    here.platform.admin.create_sandbox(serde_json::json!({"name": "second"})).await;
    let drawn = tokio::time::timeout(PATIENCE, drawn).await;
    watching.kill().await.expect("its end");
    let text = drawn.expect("a list in time").expect("a text");
    let lists: Vec<_> = text.split(CLEARED).skip(1).collect();
    assert!(text.starts_with(CLEARED) && lists.iter().all(|list| list.starts_with("NAME")), "{text:?}");
    assert!(lists.last().is_some_and(|list| list.contains("second")), "{text:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_vm_costs_is_told_before_it_is_made() {
    let here = Here::start_with(|config| {
        let units =
            |units: f64| berth_server::config::Amount(berth_domain::gateway::Nano::of_price(units).expect("an amount"));
        config.catalog.plans[0].price.vcpu_hour = units(0.5);
        config.catalog.plans[0].price.memory_gb_hour = units(1.0);
        config.prices.disk_gb_hour = units(0.005);
    })
    .await;
    let line = ["vm", "create", "web", "--no-ssh-key", "--image", "micro", "--size", "tiny"];
    let priced = ended(here.berth(&[&line[..], &["--count", "2", "--dry-run", "--json"]].concat())).await;
    let price: Value = serde_json::from_str(&out(&priced)).expect("JSON");
    // A virtual CPU and half a GiB are a unit an hour, and 20 GiB a tenth of one.
    assert_eq!((price["hour"].to_string(), price["disks_hour"].to_string()), ("2.2".into(), "0.2".into()), "{price}");
    let listed = here.platform.admin.get("/vms").await.body;
    assert_eq!(listed["pagination"]["total_items"], 0, "nothing is made");
    let made = ended(here.berth(&line)).await;
    let told = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(told.contains("it costs 1.1 an hour and 803 a month of 730 hours, while it runs"), "{made:?}");
    let free = Here::start().await;
    let made = ended(free.berth(&line)).await;
    assert!(made.status.success() && !String::from_utf8_lossy(&made.stderr).contains("costs"), "{made:?}");
}
