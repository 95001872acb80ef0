use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
/// What a plan says, and how its step ends.
#[derive(Clone, Debug)]
enum Script {
    /// A step that succeeds.
    Done,
    /// A step that fails, but may succeed later.
    Passing,
    /// A step that never succeeds.
    Final,
    /// A plan that fails.
    Blind,
    /// Nothing to do.
    Rest(Option<Timestamp>),
}

/// The life of one row that follows a script.
#[derive(Default)]
struct Written {
    script: Mutex<VecDeque<Script>>,
    /// What was done to the row, in order.
    done: Mutex<Vec<String>>,
    given_up: bool,
    gone: bool,
    stop: CancellationToken,
    /// After how many steps the service stops.
    stops_after: Option<usize>,
    steps: AtomicUsize,
}

impl Written {
    fn of(script: impl IntoIterator<Item = Script>) -> Self {
        Self { script: Mutex::new(script.into_iter().collect()), given_up: true, ..Self::default() }
    }

    fn note(&self, what: impl Into<String>) {
        self.done.lock().unwrap().push(what.into());
    }
}

impl Life for Written {
    type Key = u32;
    type Seen = u32;
    type Step = Script;
    const TABLE: &'static str = "written";
    const KIND: &'static str = "written";

    async fn due(&self, _: Timestamp, _: usize) -> Result<Due<u32>> {
        Ok(Due { now: vec![(1, None)], next: None })
    }

    async fn look(&self, key: &u32) -> Result<Option<u32>, StepError> {
        Ok((!self.gone).then_some(*key))
    }

    async fn plan(&self, _: &u32) -> Result<Next<Script>, StepError> {
        match self.script.lock().unwrap().pop_front().unwrap_or(Script::Rest(None)) {
            Script::Blind => Err(EngineError::Transient("the host says nothing".into()).into()),
            Script::Rest(until) => Ok(Next::Rest(until)),
            step => Ok(Next::Take(step)),
        }
    }

    fn name(_: &Script) -> &'static str {
        "step"
    }

    async fn take(&self, _: &u32, step: Script) -> Result<(), StepError> {
        if self.stops_after == Some(self.steps.fetch_add(1, Ordering::Relaxed) + 1) {
            self.stop.cancel();
        }
        match step {
            Script::Passing => Err(EngineError::Transient("not now".into()).into()),
            Script::Final => Err(EngineError::Permanent("never".into()).into()),
            _ => {
                self.note("step");
                Ok(())
            }
        }
    }

    async fn rest(&self, _: &u32, until: Option<Timestamp>) -> Result<(), StepError> {
        self.note(until.map_or_else(|| "rest".into(), |at| format!("rest until {}", at.0)));
        Ok(())
    }

    async fn postpone(&self, _: &u32, until: Timestamp) -> Result<(), StepError> {
        // Rounded to seconds: some microseconds have passed since the decision.
        let pause = until.0 - Clock::default().now().0;
        self.note(format!("wait {}", (pause + Timestamp::SECOND / 2) / Timestamp::SECOND));
        Ok(())
    }

    async fn give_up(&self, _: &u32, error: &EngineError) -> Result<bool, StepError> {
        self.note(format!("give up: {error}"));
        Ok(self.given_up)
    }
}

/// What was done in so many runs.
async fn after_runs(life: Written, runs: usize) -> Vec<String> {
    let stop = life.stop.clone();
    let lives = Lifecycle::new(life, Clock::default(), stop);
    for _ in 0..runs {
        lives.reconcile(1).await;
    }
    lives.life.done.into_inner().unwrap()
}

#[tokio::test]
async fn steps_are_taken_until_there_is_none_to_take() {
    let rest = Script::Rest(Some(Timestamp(7)));
    assert_eq!(after_runs(Written::of([Script::Done, Script::Done, rest]), 1).await, ["step", "step", "rest until 7"]);
    assert_eq!(after_runs(Written { gone: true, ..Written::of([Script::Done]) }, 1).await, Vec::<String>::new());
}

#[tokio::test]
async fn what_fails_waits_ever_longer_until_it_works() {
    let failures = std::iter::repeat_n(Script::Passing, 6);
    let life = Written::of(failures.chain([Script::Done, Script::Rest(None), Script::Passing]));
    let done = after_runs(life, 8).await;
    assert_eq!(done, ["wait 1", "wait 2", "wait 4", "wait 8", "wait 15", "wait 15", "step", "rest", "wait 1"]);
}

#[tokio::test]
async fn a_host_that_says_nothing_is_asked_later() {
    assert_eq!(after_runs(Written::of([Script::Blind, Script::Blind]), 2).await, ["wait 1", "wait 2"]);
}

#[tokio::test]
async fn what_will_not_pass_is_given_up_once_or_tried_again_where_it_must_not_be() {
    assert_eq!(after_runs(Written::of([Script::Final]), 2).await, ["give up: never", "rest"]);
    let stays = Written { given_up: false, ..Written::of([Script::Final, Script::Done]) };
    assert_eq!(after_runs(stays, 2).await, ["give up: never", "wait 1", "step", "rest"]);
}

#[tokio::test]
async fn a_plan_without_an_end_waits_like_a_failure() {
    let done = after_runs(Written::of(std::iter::repeat_n(Script::Done, MAX_STEPS + 1)), 1).await;
    assert_eq!(done.len(), MAX_STEPS + 1);
    assert_eq!(done.last().map(String::as_str), Some("wait 1"));
}

#[tokio::test]
async fn a_service_that_stops_ends_between_two_steps() {
    let life = Written { stops_after: Some(2), ..Written::of(std::iter::repeat_n(Script::Done, 5)) };
    assert_eq!(after_runs(life, 2).await, ["step", "step"]);
}

#[tokio::test]
async fn rows_that_are_due_are_worked_on_until_the_service_stops() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.unwrap();
    let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
    let life =
        Written { stops_after: Some(3), stop: stop.clone(), ..Written::of(std::iter::repeat_n(Script::Done, 9)) };
    let lives = Lifecycle::new(life, Clock::default(), stop.clone());
    let _poke = lives.spawn(&mut tasks, &db, 1);
    tasks.join_next().await.expect("one").expect("no panic");
    assert!(stop.is_cancelled());
}
