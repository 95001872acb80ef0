//! SIGKILL of QEMU, and the end of the agent, in the middle of everything: what comes of it is told.

use std::time::Duration;

use berth_testkit::{Answer, Caller, eventually};
use futures::{SinkExt, StreamExt};
use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::crash::World;
use crate::harness::{act, content, decided, delete, events, gone, put, run, shell, there};
use crate::inside::{open, shows, text};

/// How a machine dies.
#[derive(Clone, Copy, Debug)]
enum Death {
    /// Its process is killed.
    Process,
    /// The guest's kernel gives up, and the agent with it.
    Guest,
}

/// A process of a sandbox that makes its kernel give up once it is told to.
struct Crash {
    stdin: String,
}

impl Crash {
    async fn prepare(caller: &Caller, sandbox: &str) -> Self {
        let processes = format!("/sandbox/{sandbox}/processes");
        let body = json!({"cmd": "read line; echo c >/proc/sysrq-trigger", "user": "root"});
        let started = caller.post(&processes, body).await;
        assert_eq!(started.status, 201, "{started:?}");
        Self { stdin: format!("{processes}/{}/stdin", started.body["pid"]) }
    }

    /// The machine may be gone before it answers.
    async fn now(self, caller: &Caller) {
        let told = caller.send(caller.request(Method::POST, &self.stdin).body("now\n")).await;
        assert!(matches!(told.status, 204 | 409 | 503), "{told:?}");
    }
}

impl World {
    /// Another sandbox with the files of the first; deaths count for each alone.
    async fn renew(&mut self) {
        let first = World::of(&self.caller).await;
        (self.id, self.pid, self.tree) = first;
    }

    /// The machine dies while the service waits at a point that a request leads to. It goes on after the death.
    async fn machine_dies_at(&mut self, death: Death, point: &str, verb: &str, body: Value) -> Answer {
        self.renew().await;
        let crash = Crash::prepare(&self.caller, &self.id).await;
        self.service.stop();
        let go = self.service.dir.path().join("go");
        let _ = std::fs::remove_file(&go);
        self.service.set("BERTH_FAULT", &format!("{point}=wait"));
        self.service.set("BERTH_FAULT_GO", go.to_str().expect("a path"));
        self.service.start();
        let answer = self.caller.post(&format!("/sandboxes/{}/{verb}", self.id), body).await;
        eventually("the point", 120, || (self.service.reached(point, "wait") > 0).then_some(()));
        let machine = self.service.sandbox(&self.id).expect("a machine");
        match death {
            Death::Process => kill_process(machine, Signal::KILL).expect("it runs"),
            Death::Guest => crash.now(&self.caller).await,
        }
        eventually("its end", 120, || (self.service.sandbox(&self.id) != Some(machine)).then_some(()));
        assert_eq!(self.service.reached(point, "nobody let it go on"), 0, "it went on before the machine was dead");
        std::fs::write(go, "").expect("a file");
        answer
    }

    /// Another machine came in the place of the one that died.
    async fn comes_back(&self) {
        let caller = &self.caller;
        eventually("another machine", 120, || self.service.sandbox(&self.id));
        caller.sandbox_reaches(&self.id, "Ready").await;
        self.is_whole(&self.id, false).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_dies_during_a_checkpoint_has_its_files() {
    let mut world = World::new().await;
    for death in [Death::Process, Death::Guest] {
        let taken = world.machine_dies_at(death, "sandbox.capture.frozen", "snapshots", json!({})).await;
        world.comes_back().await;
        let taken = decided(&world.caller, &taken.id()).await;
        assert_eq!(taken["status"], "Ready", "the disk is all that it needs: {taken}");
        let made = world.caller.create_sandbox(json!({"snapshot_id": taken["id"]})).await;
        world.is_whole(&made, false).await;
        delete(&world.caller, &made).await;
    }
    for point in ["sandbox.capture.frozen", "sandbox.capture.done", "sandbox.checkpoint.done"] {
        let body = json!({"include_memory": true});
        let taken = world.machine_dies_at(Death::Process, point, "snapshots", body).await;
        world.comes_back().await;
        let taken = decided(&world.caller, &taken.id()).await;
        if point == "sandbox.checkpoint.done" {
            assert_eq!(taken["status"], "Ready", "{taken}");
        } else {
            assert_eq!(taken["status"], "Failed", "{point}: {taken}");
            assert!(taken["message"].as_str().is_some_and(|text| text.contains("memory")), "{taken}");
        }
        let forked = json!({"count": 2, "include_memory": true});
        let forked = world.machine_dies_at(Death::Process, point, "fork", forked).await;
        world.comes_back().await;
        for fork in forked.body["data"].as_array().expect("forks") {
            let id = fork["id"].as_str().expect("an id");
            if point == "sandbox.checkpoint.done" {
                world.is_whole(id, true).await;
            } else {
                let failed = world.caller.sandbox_reaches(id, "Failed").await;
                assert!(failed["message"].as_str().is_some_and(|text| text.contains("memory")), "{failed}");
            }
        }
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_dies_during_a_pause_or_a_restore_has_its_files() {
    let mut world = World::new().await;
    for (point, kept) in
        [("sandbox.capture.frozen", false), ("sandbox.capture.done", true), ("sandbox.pause.intent", false)]
    {
        world.machine_dies_at(Death::Process, point, "pause", Value::Null).await;
        let paused = world.caller.sandbox_reaches(&world.id, "Paused").await;
        assert_eq!(paused["message"].is_null(), kept, "{point}: {paused}");
        act(&world.caller, &world.id, "resume", Value::Null).await;
        world.is_whole(&world.id, kept).await;
    }
    let kept = crate::harness::snapshot(&world.caller, &world.id, json!({})).await;
    for point in ["sandbox.end.before", "sandbox.start.launched", "sandbox.start.done"] {
        let tree = world.tree.clone();
        world.machine_dies_at(Death::Process, point, "restore", json!({"snapshot_id": kept})).await;
        world.tree = tree;
        // At the last point it is Ready for the moment in which nobody knows of the death.
        world.comes_back().await;
    }
    world.end().await;
}

/// Goes on with a machine when it goes.
struct Stopped(Pid);

impl Stopped {
    fn stop(machine: Pid) -> Self {
        kill_process(machine, Signal::STOP).expect("it runs");
        Self(machine)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_hangs_holds_nobody_up() {
    let world = World::new().await;
    let (caller, path) = (world.caller.clone(), format!("/sandbox/{}/commands", world.id));
    let streaming = caller.request(Method::POST, &path).json(&json!({"cmd": "echo first; sleep 100"}));
    let mut streaming = streaming.send().await.expect("an answer");
    while !String::from_utf8_lossy(&streaming.chunk().await.expect("bytes").expect("an event")).contains("first") {}
    let stopped = Stopped::stop(world.service.sandbox(&world.id).expect("a machine"));
    // What is under way ends with an error, and what comes is refused, while everything else goes on.
    let rest = tokio::time::timeout(Duration::from_mins(1), streaming.text()).await.expect("an end in time");
    let rest = rest.expect("text");
    assert!(rest.contains("event: error") && !rest.contains("event: exit"), "{rest}");
    let command = caller.request(Method::POST, &path).json(&json!({"cmd": "true"}));
    let refused = tokio::time::timeout(Duration::from_mins(1), caller.send(command)).await.expect("an end in time");
    assert_eq!(refused.status, 503, "{refused:?}");
    let (other, pid, tree) = World::of(&caller).await;
    drop(stopped);
    let other = World { id: other, pid, tree, ..world };
    other.is_whole(&other.id, true).await;
    other.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_never_invent_an_exit_code() {
    let mut world = World::new().await;
    for end in ["killed", "crashed", "paused", "restored", "deleted"] {
        world.renew().await;
        let (caller, id) = (world.caller.clone(), world.id.clone());
        let kept = crate::harness::snapshot(&caller, &id, json!({})).await;
        let command = tokio::spawn({
            let (caller, id) = (caller.clone(), id.clone());
            async move { run(&caller, &id, json!({"cmd": "echo begun; echo >begun; sleep 1000"})).await }
        });
        let log = tokio::spawn({
            let (caller, path) = (caller.clone(), format!("/sandbox/{id}/processes/{}/logs?follow=true", world.pid));
            async move { caller.get(&path).await }
        });
        let mut terminal = open(&caller, &format!("/sandbox/{id}/terminal")).await;
        assert_eq!(text(&mut terminal).await["type"], "ready");
        terminal.send(Message::binary("echo $((40 + 2)); sleep 1000\n")).await.expect("sent");
        shows(&mut terminal, "42").await;
        there(&caller, &id, "begun").await;
        assert_eq!(put(&caller, &id, "kept", end.into()).await.status, 201);
        let machine = world.service.sandbox(&id).expect("a machine");
        match end {
            "killed" => kill_process(machine, Signal::KILL).expect("it runs"),
            "crashed" => Crash::prepare(&caller, &id).await.now(&caller).await,
            "paused" => act(&caller, &id, "pause", Value::Null).await,
            "restored" => act(&caller, &id, "restore", json!({"snapshot_id": kept})).await,
            _ => assert_eq!(caller.delete(&format!("/sandboxes/{id}")).await.status, 202),
        }
        let outcome = command.await.expect("an end");
        assert_eq!((outcome.last.0.as_str(), outcome.stdout.as_str()), ("error", "begun\n"), "{end}: {outcome:?}");
        let log = log.await.expect("an end").body;
        let last = events(log.as_str().expect("a stream")).pop().expect("an event");
        assert_eq!(last.0, "error", "{end}: {last:?}");
        let close = loop {
            match terminal.next().await {
                Some(Ok(Message::Text(text))) => panic!("{end}: {text}"),
                Some(Ok(Message::Close(frame))) => break frame.expect("a reason"),
                Some(Ok(_)) => {}
                other => panic!("{end}: {other:?}"),
            }
        };
        assert_eq!(u16::from(close.code), 1001, "{end}: {close:?}");
        if end == "deleted" {
            gone(&caller, &format!("/sandboxes/{id}")).await;
        }
        if matches!(end, "killed" | "crashed") {
            eventually("another machine", 120, || world.service.sandbox(&id).filter(|pid| *pid != machine));
            caller.sandbox_reaches(&id, "Ready").await;
            assert_eq!(content(&caller, &id, "kept").await, end.as_bytes());
            shell(&caller, &id, "true").await;
        }
    }
    world.end().await;
}
