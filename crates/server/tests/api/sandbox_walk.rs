//! Two hundred random requests, deaths and failures: at the end everything is at rest, nothing that was written is
//! lost, and when all is deleted nothing is left but the template.

use berth_host::EngineError;
use berth_testkit::Platform;
use serde_json::{Value, json};

/// A small generator, so that a walk is named by its seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % n
    }
}

async fn ids(platform: &Platform, path: &str) -> Vec<String> {
    let data = platform.admin.get(&format!("{path}?limit=100")).await.body["data"].clone();
    data.as_array().expect("a list").iter().map(|s| s["id"].as_str().expect("an id").to_owned()).collect()
}

async fn step(platform: &Platform, dice: &mut Dice) {
    let (caller, engine) = (&platform.admin, &platform.sandboxes);
    let (sandboxes, snapshots) = (ids(platform, "/sandboxes").await, ids(platform, "/snapshots").await);
    let Some(id) = (!sandboxes.is_empty()).then(|| sandboxes[dice.below(sandboxes.len())].clone()) else {
        caller.create_sandbox(json!({})).await;
        return;
    };
    let snapshot = (!snapshots.is_empty()).then(|| snapshots[dice.below(snapshots.len())].clone());
    let memory = dice.below(2) == 0;
    let path = |verb: &str| format!("/sandboxes/{id}/{verb}");
    let answer = match (dice.below(13), snapshot) {
        (0, _) if sandboxes.len() < 8 => caller.post("/sandboxes", json!({})).await,
        (1, Some(snapshot)) if sandboxes.len() < 8 => caller.post("/sandboxes", json!({"snapshot_id": snapshot})).await,
        (2, _) if sandboxes.len() < 8 => {
            caller.post(&path("fork"), json!({"count": 2, "include_memory": memory})).await
        }
        (3, Some(snapshot)) => caller.post(&path("restore"), json!({"snapshot_id": snapshot})).await,
        (4, Some(snapshot)) => caller.delete(&format!("/snapshots/{snapshot}")).await,
        (5, _) => caller.delete(&format!("/sandboxes/{id}")).await,
        (6 | 7, _) => caller.post(&path("snapshots"), json!({"include_memory": memory})).await,
        (8, _) => caller.post(&path("pause"), json!({"include_memory": memory})).await,
        (9, _) => caller.act(&path("resume")).await,
        (10, _) => {
            engine.kill(&id);
            return;
        }
        (11, _) => {
            let call =
                ["checkpoint", "checkpoint_cold", "start", "pause", "make_layer", "end", "remove_layer"][dice.below(7)];
            engine.refuse(call, EngineError::Transient("not now".into()));
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            engine.allow(call);
            return;
        }
        _ => {
            platform.advance(20);
            return;
        }
    };
    assert!([201, 202, 404, 409].contains(&answer.status), "{answer:?}");
}

async fn walk(seed: u64) {
    let platform = Platform::start_with(|config| {
        // Snapshots are asked for faster than they are made, and each counts as its disk until it is.
        config.sandbox.project_stored_gb = 1 << 20;
        config.sandbox.organization_stored_gb = 1 << 20;
    })
    .await;
    let mut dice = Dice(seed);
    for _ in 0..200 {
        step(&platform, &mut dice).await;
    }
    let caller = &platform.admin;
    caller
        .until("rest", |c| {
            platform.advance(5);
            async move {
                let data = c.get("/sandboxes?limit=100").await.body["data"].clone();
                let resting = |s: &Value| ["Ready", "Paused", "Failed"].iter().any(|phase| s["phase"] == *phase);
                let pending = c.get("/snapshots?limit=100").await.body["data"].clone();
                data.as_array().expect("a list").iter().all(resting)
                    && pending.as_array().expect("a list").iter().all(|s| s["status"] != "Pending")
            }
        })
        .await;
    caller
        .until("the end of all", |c| {
            platform.advance(5);
            let platform = &platform;
            async move {
                for (path, ids) in
                    [("sandboxes", ids(platform, "/sandboxes").await), ("snapshots", ids(platform, "/snapshots").await)]
                {
                    for id in ids {
                        c.delete(&format!("/{path}/{id}")).await;
                    }
                }
                let (machines, layers, memories, _) = platform.sandboxes.counts();
                (machines, layers, memories) == (0, 2, 1)
            }
        })
        .await;
    assert_eq!(platform.sandboxes.violations(), Vec::<String>::new(), "seed {seed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn random_requests_leave_nothing_behind() {
    for seed in 1..=3 {
        walk(seed).await;
    }
}
