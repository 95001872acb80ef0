//! From a request to a good answer: which upstream is asked, who is asked next, and what is told when nobody is left.
//!
//! Every upstream that admits is asked once, in the order of the model's strategy; then one of those that may do
//! better a moment later, once more; then the fallback models. All this happens before anything of an answer goes to
//! the client. Where every breaker is open, a doubtful upstream is better than none.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use berth_domain::gateway::body::{Head, Operation};
use berth_domain::gateway::route::{self, Lack, Standing};
use berth_domain::ids::ProjectId;
use berth_domain::{Code, Error, Result};
use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use super::Gateway;
use super::account::Account;
use super::attempt::{Answer, Failure, Patience, Question, ask};
use super::queue::{Priority, Ticket};
use super::table::Entry;
use super::upstream::Slot;

/// Before an upstream is asked again: this, and up to as much again by chance.
const PAUSE: Duration = Duration::from_millis(50);
/// How long who waits in a queue trusts that it is called: nobody calls where an upstream fell ill or got well.
const LOOK: Duration = Duration::from_secs(1);

/// A request on its way.
pub struct Job {
    /// What for.
    pub operation: Operation,
    /// What its body says.
    pub head: Head,
    /// Its body, as the client sent it.
    pub body: Bytes,
    /// Whose.
    pub project: ProjectId,
    /// The conversation, told from those of other projects.
    pub conversation: u64,
    /// What goes first.
    pub priority: Priority,
    /// Its id.
    pub request_id: String,
    /// When it ends, whatever was reached.
    pub deadline: Instant,
}

/// A good answer, and who gives it.
pub struct Found {
    /// The place at the upstream, held until the answer's end.
    pub slot: Slot,
    /// The answer.
    pub answer: Answer,
    /// How long the rest may take.
    pub patience: Patience,
}

/// What went wrong so far.
#[derive(Default)]
struct Failures {
    count: u32,
    limited: u32,
    retry_after: Option<u64>,
    last: Option<Failure>,
}

impl Failures {
    fn note(&mut self, failure: Failure) {
        self.count += 1;
        if let Failure::Status(429, after) = failure {
            self.limited += 1;
            self.retry_after = after.into_iter().chain(self.retry_after).min();
        }
        self.last = Some(failure);
    }

    /// What the client is told.
    fn verdict(&self, model: &str) -> Error {
        match self.last {
            Some(_) if self.limited == self.count => Error::new(
                Code::RateLimited,
                format!("Every server of '{model}' asks for fewer requests. Try again later."),
            )
            .retry_after(self.retry_after.unwrap_or(1)),
            Some(Failure::Timeout) => {
                Error::new(Code::UpstreamTimeout, format!("No server of '{model}' answered in time. Try again."))
            }
            Some(_) => Error::new(
                Code::UpstreamError,
                format!("No server of '{model}' gave an answer. Try again; if it stays, tell the operator."),
            ),
            None => Error::new(Code::UpstreamError, format!("No server of '{model}' can be reached at the moment."))
                .retry_after(1),
        }
    }
}

/// What stands in the way of an upstream in this request.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Past {
    #[default]
    Untried,
    /// It failed once, and may do better.
    Doubtful,
    Done,
}

/// Finds a good answer.
pub async fn find(gateway: &Gateway, job: &Job, first: &Arc<Entry>, account: &mut Account) -> Result<Found> {
    let table = gateway.table();
    let fallbacks = first.model.fallbacks.iter().filter_map(|id| table.find(id.as_str()));
    let chain: Vec<_> = std::iter::once(first).chain(fallbacks.filter(|entry| entry.admits(job.project))).collect();
    let mut failures = Failures::default();
    gateway.budget().deposit(gateway.millis());
    for heeds_breakers in [true, false] {
        for entry in &chain {
            if let Some(found) = of_model(gateway, job, entry, heeds_breakers, &mut failures, account).await? {
                return Ok(found);
            }
        }
        if failures.count > 0 {
            break;
        }
    }
    Err(failures.verdict(&job.head.model))
}

async fn of_model(
    gateway: &Gateway,
    job: &Job,
    entry: &Arc<Entry>,
    heeds_breakers: bool,
    failures: &mut Failures,
    account: &mut Account,
) -> Result<Option<Found>> {
    let timeouts = entry.model.timeouts;
    let patience = Patience { first_byte: timeouts.first_byte, idle: timeouts.idle, deadline: job.deadline };
    let mut past = vec![Past::Untried; entry.upstreams.len()];
    let mut asks_again = true;
    loop {
        let Some((index, mut slot)) = take(job, entry, &past, heeds_breakers, failures).await? else {
            if std::mem::take(&mut asks_again) && again(&mut past).await {
                continue;
            }
            return Ok(None);
        };
        if failures.count > 0 && !gateway.budget().withdraw(gateway.millis()) {
            return Ok(None);
        }
        account.asks(entry);
        let asked = ask_at(gateway, job, &slot, patience, account.traceparent()).await;
        match asked {
            Ok(answer) => {
                slot.answered();
                return Ok(Some(Found { slot, answer, patience }));
            }
            Err(failure) => {
                tracing::info!(model = %entry.name, upstream = index, ?failure, "an upstream gave no answer");
                slot.failed();
                failures.note(failure);
                drop(slot);
                past[index] = match past[index] {
                    Past::Untried if failure.may_pass() => Past::Doubtful,
                    _ => Past::Done,
                };
            }
        }
        if Instant::now() >= job.deadline {
            return Ok(None);
        }
    }
}

/// Lets one of those that may do better be asked once more, after a pause; false where there is none.
async fn again(past: &mut [Past]) -> bool {
    let Some(index) = past.iter().position(|past| *past == Past::Doubtful) else { return false };
    past.fill(Past::Done);
    past[index] = Past::Untried;
    tokio::time::sleep(PAUSE + PAUSE.mul_f64(chance_of_one())).await;
    true
}

async fn ask_at(
    gateway: &Gateway,
    job: &Job,
    slot: &Slot,
    patience: Patience,
    traceparent: Option<String>,
) -> Result<Answer, Failure> {
    let address = slot.upstream.address().ok_or(Failure::Unreachable)?;
    let rewritten = job.head.rewritten(&job.body, &slot.upstream.spec.model);
    let body = rewritten.map_or_else(|| job.body.clone(), Bytes::from);
    let streams = job.head.stream;
    let question = Question { operation: job.operation, streams, body, request_id: &job.request_id, traceparent };
    ask(gateway.http(), &address, &question, patience).await
}

/// Takes a place at an upstream, waiting for one where all are busy; `None` where none is to be had.
async fn take(
    job: &Job,
    entry: &Arc<Entry>,
    past: &[Past],
    heeds_breakers: bool,
    failures: &mut Failures,
) -> Result<Option<(usize, Slot)>> {
    let mut ticket: Option<Ticket<'_>> = None;
    loop {
        // Who comes later does not overtake who waits.
        let turn = ticket.as_ref().map_or_else(|| entry.queue.len() == 0, Ticket::turn);
        match (choose(job, entry, past, heeds_breakers, turn), &ticket) {
            (Ok(taken), _) => return Ok(Some(taken)),
            (Err(Lack::Down), _) => return Ok(None),
            (Err(Lack::Spare), Some(ticket)) if turn => ticket.pass_on(),
            (Err(Lack::Spare), Some(_)) => entry.queue.call(),
            (Err(Lack::Spare), None) | (Err(Lack::Busy), _) => {}
        }
        if Instant::now() >= job.deadline {
            failures.note(Failure::Timeout);
            return Ok(None);
        }
        match &ticket {
            None => {
                let joined = entry.queue.join(job.priority, entry.model.max_queue);
                ticket = Some(joined.ok_or_else(|| queue_full(&entry.name))?);
            }
            Some(waiting) => {
                let _ = timeout_at(job.deadline.min(Instant::now() + LOOK), waiting.called()).await;
            }
        }
    }
}

/// Chooses an upstream and takes a place at it, if it is the request's turn.
fn choose(
    job: &Job,
    entry: &Arc<Entry>,
    past: &[Past],
    heeds_breakers: bool,
    turn: bool,
) -> Result<(usize, Slot), Lack> {
    let _alone = entry.choosing.lock().unwrap_or_else(PoisonError::into_inner);
    let standings: Vec<_> = std::iter::zip(&entry.upstreams, past)
        .map(|(upstream, past)| Standing { tried: *past != Past::Untried, ..upstream.standing(heeds_breakers) })
        .collect();
    let chosen = turn.then(|| route::choose(entry.model.strategy, &standings, chance(), job.conversation)).flatten();
    let index = chosen.ok_or_else(|| route::lack(&standings))?;
    Ok((index, entry.upstreams[index].begin(entry)))
}

fn queue_full(model: &str) -> Error {
    Error::new(Code::RateLimited, format!("All servers of '{model}' are busy, and many requests wait. Try again."))
        .retry_after(1)
}

/// 64 bits that nobody can foresee without trying: good enough to spread load.
fn chance() -> u64 {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    route::mix(COUNTER.fetch_add(1, Ordering::Relaxed))
}

/// A number from 0 to 1.
fn chance_of_one() -> f64 {
    f64::from(u32::try_from(chance() >> 32).unwrap_or_default()) / f64::from(u32::MAX)
}
