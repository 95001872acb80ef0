//! A database that answers slowly or not at all, and an engine that refuses every kind of call.

use berth_host::EngineError;
use berth_server::config::Config;
use berth_testkit::{Platform, vm};

fn sqlite(config: &Config) -> String {
    format!("sqlite:{}", config.data_dir.join("berth.db").display())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_held_by_somebody_else() {
    let platform = Platform::start_with(|config| {
        config.database_url = sqlite(config);
        config.database_wait_seconds = 5;
    })
    .await;
    let caller = platform.admin.clone();
    let id = caller.running_vm("web").await;
    let file = platform.config.data_dir.join("berth.db");
    let held = std::process::Command::new("python3")
        .args(["-c", "import sqlite3,sys,time; c=sqlite3.connect(sys.argv[1],isolation_level=None,timeout=300); c.execute('BEGIN IMMEDIATE'); print('held',flush=True); sys.stdin.read()"])
        .arg(&file)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn();
    let mut held = held.expect("python3");
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(held.stdout.take().expect("output")), &mut line)
        .expect("a line");
    assert_eq!(line.trim(), "held");
    // Reading goes on; writing is refused, with the word for it, and nothing is lost.
    assert_eq!(caller.get(&format!("/vms/{id}")).await.status, 200);
    let answer = caller.post("/vms", vm("late")).await;
    answer.refused(503, "service_unavailable");
    drop(held.stdin.take());
    held.wait().expect("its end");
    assert_eq!(caller.act(&format!("/vms/{id}/stop")).await.status, 202);
    caller.reaches(&id, "stopped").await;
    let next = caller.running_vm("next").await;
    assert_eq!(caller.get("/vms").await.body["data"][0]["id"], next.as_str());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_refuses_for_a_while() {
    let calls = ["capacity", "make_disk", "observe", "start", "press_power", "power_off", "discard", "remove_disk"];
    for call in calls {
        let platform = Platform::start().await;
        let caller = &platform.admin;
        platform.engine.refuse(call, EngineError::Transient("not now".into()));
        let mut body = vm("web");
        body["delete_root_disk"] = true.into();
        let id = caller.create_vm(body).await;
        let stopping = ["press_power", "power_off", "discard", "remove_disk"].contains(&call);
        if stopping {
            caller.reaches(&id, "running").await;
            assert_eq!(caller.act(&format!("/vms/{id}/stop")).await.status, 202);
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        platform.engine.allow(call);
        platform.advance(20);
        caller.reaches(&id, if stopping { "stopped" } else { "running" }).await;
        caller.delete(&format!("/vms/{id}")).await;
        caller.gone(&id).await;
        caller
            .until(
                "the disk's end",
                |c| async move { c.get("/root_disks").await.body["pagination"]["total_items"] == 0 },
            )
            .await;
        assert_eq!((platform.engine.counts().0, platform.engine.counts().1), (0, 0), "{call}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_refuses_for_good() {
    for call in ["capacity", "make_disk", "start"] {
        let platform = Platform::start().await;
        let caller = &platform.admin;
        platform.engine.refuse(call, EngineError::Permanent("it is broken".into()));
        let id = caller.create_vm(vm("web")).await;
        let failed = caller.reaches(&id, "failed").await;
        assert!(failed["message"].as_str().is_some_and(|m| m.contains("it is broken")), "{call}: {failed}");
        assert_eq!(caller.delete(&format!("/vms/{id}")).await.status, 202);
        caller.gone(&id).await;
    }
}
