//! A long life: random operations, and after each the files are those that a model says.

use std::collections::BTreeMap;
use std::time::Instant;

use berth_testkit::{Caller, Chance, Service};
use serde_json::{Value, json};

use crate::harness::{act, delete, fork, gone, hash_of, nothing_left, put, run, service, snapshot, tree};

/// Operations of a usual run; `BERTH_TEST_OPERATIONS` asks for others.
const OPERATIONS: u64 = 20;
/// Sandboxes at the same time.
const MOST: usize = 5;
/// Snapshots at the same time.
const MOST_SNAPSHOTS: usize = 6;

/// What a sandbox or a snapshot holds.
#[derive(Clone, Debug, Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    /// A process that runs in it, if its memory is kept.
    process: Option<u64>,
}

#[derive(Debug)]
struct Sandbox {
    id: String,
    state: State,
    paused: bool,
    /// Whether a pause kept its memory.
    kept: bool,
}

#[derive(Debug)]
struct Snapshot {
    id: String,
    state: State,
}

/// Sandboxes, their snapshots, and where chance stands.
struct Walk {
    service: Service,
    caller: Caller,
    chance: Chance,
    sandboxes: Vec<Sandbox>,
    snapshots: Vec<Snapshot>,
}

impl Walk {
    fn either(&mut self) -> bool {
        self.chance.below(2) == 0
    }

    /// One operation on one of the sandboxes; what it was.
    async fn step(&mut self) -> String {
        if self.sandboxes.is_empty() {
            return self.create(None).await;
        }
        let at = self.chance.below(self.sandboxes.len());
        let (paused, room) = (self.sandboxes[at].paused, self.sandboxes.len() < MOST);
        match self.chance.below(16) {
            0..=3 if !paused => self.write(at).await,
            4..=6 if !paused => self.pause(at).await,
            0..=6 => self.resume(at).await,
            7..=8 => self.snapshot(at).await,
            9..=10 if room => self.fork(at).await,
            11..=12 if !self.snapshots.is_empty() => self.restore(at).await,
            13 if room && !self.snapshots.is_empty() => {
                let of = self.chance.below(self.snapshots.len());
                self.create(Some(of)).await
            }
            14 if !self.snapshots.is_empty() => self.forget().await,
            15 => self.delete(at).await,
            _ if room => self.create(None).await,
            _ => self.delete(at).await,
        }
    }

    async fn create(&mut self, of: Option<usize>) -> String {
        let snapshot = of.map(|at| &self.snapshots[at]);
        let body = snapshot.map_or_else(|| json!({}), |snapshot| json!({"snapshot_id": snapshot.id}));
        let state = snapshot.map_or_else(State::default, |snapshot| snapshot.state.clone());
        let id = self.caller.create_sandbox(body).await;
        self.sandboxes.push(Sandbox { id, state, paused: false, kept: false });
        let made = self.sandboxes.len() - 1;
        self.check(made).await;
        format!("create {made} of {of:?}")
    }

    /// Files by the API and by a program that syncs nothing.
    async fn write(&mut self, at: usize) -> String {
        for _ in 0..=self.chance.below(3) {
            let name = format!("{}/{}", self.chance.below(3), self.chance.below(8));
            let content = format!("{} ", self.chance.below(1 << 30)).repeat(self.chance.below(20_000)).into_bytes();
            let Sandbox { id, state, .. } = &mut self.sandboxes[at];
            if content.len() % 3 == 0 && state.files.remove(&name).is_some() {
                let body = json!({"path": format!("tree/{name}")});
                assert_eq!(self.caller.post(&format!("/sandbox/{id}/files/remove"), body).await.status, 204);
            } else if content.len() < 100_000 {
                let line = format!("mkdir -p $(dirname tree/{name}) && cat >tree/{name}");
                let text = String::from_utf8_lossy(&content);
                let written = run(&self.caller, id, json!({"cmd": line, "stdin": text})).await;
                assert_eq!(written.last.1["code"], 0, "{written:?}");
                state.files.insert(name, content);
            } else {
                let answer = put(&self.caller, id, &format!("tree/{name}"), content.clone()).await;
                assert!(matches!(answer.status, 200 | 201), "{answer:?}");
                state.files.insert(name, content);
            }
        }
        let Sandbox { id, state, .. } = &mut self.sandboxes[at];
        if state.process.is_none() {
            let (path, body) = (format!("/sandbox/{id}/processes"), json!({"argv": ["sleep", "100000"]}));
            state.process = self.caller.post(&path, body).await.body["pid"].as_u64();
        }
        self.check(at).await;
        format!("write {at}")
    }

    async fn pause(&mut self, at: usize) -> String {
        let kept = self.either();
        let sandbox = &mut self.sandboxes[at];
        act(&self.caller, &sandbox.id, "pause", json!({"include_memory": kept})).await;
        let paused = self.caller.sandbox_reaches(&sandbox.id, "Paused").await;
        assert_eq!(paused["message"], Value::Null, "{paused}");
        (sandbox.paused, sandbox.kept) = (true, kept);
        sandbox.state.process = sandbox.state.process.filter(|_| kept);
        format!("pause {at}, with memory: {kept}")
    }

    async fn resume(&mut self, at: usize) -> String {
        act(&self.caller, &self.sandboxes[at].id, "resume", json!({})).await;
        self.sandboxes[at].paused = false;
        self.check(at).await;
        format!("resume {at}")
    }

    /// Whether a memory is to come along; what is paused without has none.
    fn with_memory(&mut self, at: usize) -> bool {
        self.either() && (!self.sandboxes[at].paused || self.sandboxes[at].kept)
    }

    async fn snapshot(&mut self, at: usize) -> String {
        if self.snapshots.len() == MOST_SNAPSHOTS {
            return self.forget().await;
        }
        let memory = self.with_memory(at);
        let id = snapshot(&self.caller, &self.sandboxes[at].id, json!({"include_memory": memory})).await;
        self.snapshots.push(Snapshot { id, state: copied(&self.sandboxes[at].state, memory) });
        self.check(at).await;
        format!("snapshot {at}, with memory: {memory}")
    }

    async fn fork(&mut self, at: usize) -> String {
        let (memory, count) = (self.with_memory(at), 1 + self.chance.below(2.min(MOST - self.sandboxes.len())));
        let body = json!({"count": count, "include_memory": memory});
        for id in fork(&self.caller, &self.sandboxes[at].id, body).await {
            let state = copied(&self.sandboxes[at].state, memory);
            self.sandboxes.push(Sandbox { id, state, paused: false, kept: false });
            self.check(self.sandboxes.len() - 1).await;
        }
        self.check(at).await;
        format!("fork {at}, {count} with memory: {memory}")
    }

    async fn restore(&mut self, at: usize) -> String {
        let of = self.chance.below(self.snapshots.len());
        act(&self.caller, &self.sandboxes[at].id, "restore", json!({"snapshot_id": self.snapshots[of].id})).await;
        self.sandboxes[at].state = self.snapshots[of].state.clone();
        self.sandboxes[at].paused = false;
        self.check(at).await;
        format!("restore {at} to {of}")
    }

    async fn forget(&mut self) -> String {
        let at = self.chance.below(self.snapshots.len());
        let path = format!("/snapshots/{}", self.snapshots.remove(at).id);
        assert_eq!(self.caller.delete(&path).await.status, 202);
        gone(&self.caller, &path).await;
        format!("delete snapshot {at}")
    }

    async fn delete(&mut self, at: usize) -> String {
        delete(&self.caller, &self.sandboxes.remove(at).id).await;
        format!("delete {at}")
    }

    /// A sandbox that is not paused is ready, and its files and its process are those of the model.
    async fn check(&self, at: usize) {
        let Sandbox { id, state, paused, .. } = &self.sandboxes[at];
        if *paused {
            return;
        }
        let ready = self.caller.sandbox_reaches(id, "Ready").await;
        assert_eq!(ready["message"], Value::Null, "{ready}");
        let made = run(&self.caller, id, json!({"cmd": "mkdir -p tree"})).await;
        assert_eq!(made.last.1["code"], 0, "{made:?}");
        assert_eq!(tree(&self.caller, id).await, hash_of(&state.files), "{:?}", state.files.keys());
        if let Some(pid) = state.process {
            let process = self.caller.get(&format!("/sandbox/{id}/processes/{pid}")).await;
            assert_eq!(process.body["state"], "running", "{process:?}");
        }
    }
}

fn copied(state: &State, memory: bool) -> State {
    State { process: state.process.filter(|_| memory), ..state.clone() }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_what_they_should_be_over_random_operations() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed = number("BERTH_TEST_SEED").unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0);
    let operations = number("BERTH_TEST_OPERATIONS").unwrap_or(OPERATIONS);
    println!("BERTH_TEST_SEED={seed} BERTH_TEST_OPERATIONS={operations}");
    let (service, caller) = service().await;
    let mut walk = Walk { service, caller, chance: Chance::new(seed), sandboxes: Vec::new(), snapshots: Vec::new() };
    for number in 0..operations {
        let began = Instant::now();
        let done = walk.step().await;
        println!("{number}: {done}, {} ms", began.elapsed().as_millis());
    }
    for at in 0..walk.sandboxes.len() {
        if walk.sandboxes[at].paused {
            walk.resume(at).await;
        }
        walk.check(at).await;
    }
    while !walk.sandboxes.is_empty() {
        walk.delete(0).await;
    }
    while !walk.snapshots.is_empty() {
        walk.forget().await;
    }
    nothing_left(&walk.service);
}
