use std::sync::atomic::{AtomicUsize, Ordering};

use berth_domain::gateway::Usage;
use berth_domain::ids::{OrgId, ProjectId, SessionId, UserId};
use uuid::Uuid;

use super::*;
use crate::db::Db;
use crate::http::auth::{Caller, Limits, Who};
use crate::services::gateway::books::record::Record;
use crate::services::gateway::books::totals::Counts;

const PARTS: i64 = 1_000_000_000;
const UNIT: Nano = Nano(PARTS);

/// A service on a database, with a journal of its own.
struct Place {
    dir: tempfile::TempDir,
    db: Db,
    clock: Clock,
}

impl Place {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.unwrap();
        let clock = Clock::default();
        // In the middle of a month, so that none ends by chance.
        let next = Month::of(clock.now()).end.plus_seconds(10 * 86_400);
        clock.advance(next.seconds() - clock.now().seconds());
        Self { dir, db, clock }
    }

    fn meter(&self, folder: &str) -> Meter {
        Meter::open(&self.dir.path().join(folder), self.db.clone()).unwrap()
    }

    fn allowances(&self, meter: &Meter, shared: bool) -> Allowances {
        let all = Allowances::new(meter.clone(), self.clock.clone());
        let mut inner = Arc::into_inner(all.inner).unwrap();
        inner.shared = shared;
        Allowances { inner: Arc::new(inner) }
    }

    fn record(&self, project: ProjectId, cost: Nano) -> Record {
        Record {
            at: self.clock.now(),
            org: OrgId(Uuid::nil()),
            project,
            key: None,
            model: "tiny".into(),
            usage: Usage::default(),
            cost,
            estimated: false,
            written: Counts::default(),
        }
    }
}

fn scope(tokens_per_minute: Option<i64>, spend_per_month: Option<i64>) -> Scope {
    let who = Who::Person { user: UserId(Uuid::nil()), session: SessionId(Uuid::nil()), is_admin: false };
    Scope {
        caller: Caller { who, request_id: String::new(), from: None, granted: None },
        org: OrgId(Uuid::now_v7()),
        project: ProjectId(Uuid::now_v7()),
        org_role: None,
        project_role: None,
        limits: Limits { tokens_per_minute, spend_per_month, ..Limits::default() },
        org_limits: Limits::default(),
    }
}

fn check(tokens: &mut Tokens, limit: i64, wanted: u64, alone: bool, now: Timestamp) -> Result<()> {
    tokens.check(("project", limit), wanted, alone, now)
}

fn refusal(outcome: Result<Reservation>) -> Error {
    outcome.err().unwrap()
}

#[test]
fn a_minute_s_tokens_and_no_more_until_they_are_filled_up() {
    let at = |seconds: i64| Timestamp(seconds * Timestamp::SECOND);
    let mut tokens = Tokens { used: 0, limit: 0, at: at(0) };
    check(&mut tokens, 120, 120, true, at(0)).unwrap();
    tokens.add(120);
    assert_eq!(check(&mut tokens, 120, 1, false, at(0)).unwrap_err().retry_after, Some(1));
    assert_eq!(check(&mut tokens, 120, 5, false, at(0)).unwrap_err().retry_after, Some(3));
    // Two tokens a second; a clock that goes back fills nothing up.
    check(&mut tokens, 120, 20, false, at(10)).unwrap();
    let error = check(&mut tokens, 120, 21, false, at(10)).unwrap_err();
    assert_eq!((error.code, error.retry_after), (Code::RateLimited, Some(1)));
    check(&mut tokens, 120, 21, false, at(5)).unwrap_err();
    // More than the whole limit waits until nothing is used.
    assert_eq!(check(&mut tokens, 120, 500, true, at(5)).unwrap_err().retry_after, Some(50));
    check(&mut tokens, 120, 500, false, at(70)).unwrap_err();
    check(&mut tokens, 120, 500, true, at(70)).unwrap();
    tokens.add(500);
    // It took 620: the bucket is below zero, and fills up from there.
    tokens.settle(500, 620, at(70));
    assert_eq!(check(&mut tokens, 120, 120, true, at(70)).unwrap_err().retry_after, Some(310));
    check(&mut tokens, 120, 120, true, at(379)).unwrap_err();
    check(&mut tokens, 120, 120, true, at(380)).unwrap();
    // The tokens that were not taken come back, but no more than there is room for.
    tokens.add(120);
    tokens.settle(120, 20, at(380));
    check(&mut tokens, 120, 100, true, at(380)).unwrap();
    check(&mut tokens, 120, 101, true, at(380)).unwrap_err();
    tokens.settle(100, 0, at(380));
    check(&mut tokens, 120, 121, false, at(380)).unwrap_err();
    check(&mut tokens, 120, 120, false, at(380)).unwrap();
}

#[test]
fn a_limit_of_tokens_can_change_and_be_nothing() {
    let now = Timestamp(0);
    let mut tokens = Tokens { used: 0, limit: 0, at: now };
    check(&mut tokens, 100, 100, true, now).unwrap();
    tokens.add(100);
    check(&mut tokens, 200, 100, false, now).unwrap();
    check(&mut tokens, 200, 101, false, now).unwrap_err();
    check(&mut tokens, 50, 1, false, now).unwrap_err();
    let mut fresh = Tokens { used: 0, limit: 0, at: now };
    let error = check(&mut fresh, 0, 1, true, now).unwrap_err();
    assert_eq!((error.code, error.retry_after), (Code::RateLimited, Some(60)));
    check(&mut fresh, 1_000_000_000, u64::MAX, true, now).unwrap();
    fresh.add(u64::MAX);
    assert!(check(&mut fresh, 1_000_000_000, 1, true, now).unwrap_err().retry_after > Some(60));
}

#[tokio::test]
async fn money_on_both_sides_of_the_limit() {
    let place = Place::new().await;
    let all = place.allowances(&place.meter("usage"), false);
    let scope = scope(None, Some(10));
    let mut first = all.reserve(&scope, 1, Nano(7 * PARTS)).await.unwrap();
    let second = all.reserve(&scope, 1, Nano(3 * PARTS)).await.unwrap();
    assert_eq!(refusal(all.reserve(&scope, 1, Nano(1)).await).code, Code::QuotaExceeded);
    assert!(all.reserve(&scope, 1, Nano(0)).await.is_ok());
    // One is dropped, one takes less; a second settlement changes nothing.
    drop(second);
    first.settle(1, Nano(2 * PARTS));
    first.settle(1, Nano(9 * PARTS));
    drop(first);
    let mut third = all.reserve(&scope, 1, Nano(8 * PARTS)).await.unwrap();
    assert!(all.reserve(&scope, 1, Nano(1)).await.is_err());
    // It took more than was set aside.
    third.settle(1, Nano(9 * PARTS));
    assert!(all.reserve(&scope, 1, Nano(0)).await.is_err());
    let more = Scope { limits: Limits { spend_per_month: Some(12), ..Limits::default() }, ..scope.clone() };
    assert!(all.reserve(&more, 1, UNIT).await.is_ok());
    assert!(all.reserve(&more, 1, Nano(PARTS + 1)).await.is_err());
    let free = Scope { limits: Limits::default(), ..scope };
    assert!(all.reserve(&free, u64::MAX, Nano(i64::MAX)).await.is_ok());
}

#[tokio::test]
async fn more_than_a_whole_limit_goes_alone_and_nothing_is_nothing() {
    let place = Place::new().await;
    let all = place.allowances(&place.meter("usage"), false);
    let small = scope(Some(10), Some(1));
    let large = all.reserve(&small, 100, Nano(5 * PARTS)).await.unwrap();
    assert_eq!(refusal(all.reserve(&small, 100, Nano(5 * PARTS)).await).code, Code::QuotaExceeded);
    assert_eq!(refusal(all.reserve(&small, 1, Nano(0)).await).code, Code::QuotaExceeded);
    drop(large);
    let one = all.reserve(&small, 1, Nano(1)).await.unwrap();
    assert!(all.reserve(&small, 1, Nano(5 * PARTS)).await.is_err());
    drop(one);
    assert!(all.reserve(&small, 100, Nano(5 * PARTS)).await.is_ok());
    let nothing = scope(None, Some(0));
    assert_eq!(refusal(all.reserve(&nothing, 1, Nano(1)).await).code, Code::QuotaExceeded);
    assert!(all.reserve(&nothing, 1, Nano(0)).await.is_ok());
    let mute = scope(Some(0), None);
    assert_eq!(refusal(all.reserve(&mute, 1, Nano(0)).await).code, Code::RateLimited);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_requests_share_nothing() {
    let place = Place::new().await;
    let all = Arc::new(place.allowances(&place.meter("usage"), false));
    for (scope, let_in) in [(scope(None, Some(7)), 7), (scope(Some(9), None), 9)] {
        let admitted = Arc::new(AtomicUsize::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let (all, scope, admitted) = (all.clone(), scope.clone(), admitted.clone());
            tasks.spawn(async move {
                let held = all.reserve(&scope, 1, UNIT).await.ok();
                admitted.fetch_add(usize::from(held.is_some()), Ordering::Relaxed);
                held
            });
        }
        let held = tasks.join_all().await;
        assert_eq!(admitted.load(Ordering::Relaxed), let_in);
        drop(held);
        assert!(all.reserve(&scope, 7, Nano(7 * PARTS)).await.is_ok(), "everything came back");
    }
}

#[tokio::test]
async fn what_was_spent_before_counts_and_a_new_month_begins_at_nothing() {
    let place = Place::new().await;
    let scope = scope(None, Some(10));
    // A service that died: its records are only in its journal.
    let dead = place.meter("usage");
    dead.write(&mut place.record(scope.project, Nano(8 * PARTS)));
    let mut last_month = Record {
        at: Month::of(place.clock.now()).begin.plus_seconds(-1),
        ..place.record(scope.project, Nano(100 * PARTS))
    };
    dead.write(&mut last_month);
    drop(dead);
    let meter = place.meter("usage");
    let all = place.allowances(&meter, false);
    assert!(all.reserve(&scope, 1, Nano(2 * PARTS + 1)).await.is_err());
    let mut over = all.reserve(&scope, 1, Nano(2 * PARTS)).await.unwrap();
    let left = Month::of(place.clock.now()).end.seconds() - place.clock.now().seconds();
    place.clock.advance(left + 1);
    let whole = all.reserve(&scope, 1, Nano(10 * PARTS)).await.unwrap();
    // A request that began last month is paid from last month's money.
    over.settle(1, Nano(2 * PARTS));
    drop(whole);
    assert!(all.reserve(&scope, 1, Nano(10 * PARTS)).await.is_ok());
}

#[tokio::test]
async fn where_others_serve_their_rows_count_after_a_second_and_own_ones_once() {
    let place = Place::new().await;
    let scope = scope(None, Some(10));
    let (meter, other) = (place.meter("own"), place.meter("other"));
    let all = place.allowances(&meter, true);
    let mut own = all.reserve(&scope, 1, Nano(3 * PARTS)).await.unwrap();
    // It is in the database before it is settled here.
    meter.write(&mut place.record(scope.project, Nano(3 * PARTS)));
    meter.flush().await.unwrap();
    other.write(&mut place.record(scope.project, Nano(2 * PARTS)));
    other.flush().await.unwrap();
    place.clock.advance(3600);
    assert!(all.reserve(&scope, 1, Nano(5 * PARTS + 1)).await.is_err());
    own.settle(1, Nano(3 * PARTS));
    place.clock.advance(3600);
    assert!(all.reserve(&scope, 1, Nano(5 * PARTS + 1)).await.is_err());
    assert!(all.reserve(&scope, 1, Nano(5 * PARTS)).await.is_ok());
}

#[tokio::test]
async fn what_is_taken_without_a_limit_counts_when_there_is_one() {
    let place = Place::new().await;
    let meter = place.meter("usage");
    let all = place.allowances(&meter, false);
    let free = scope(None, None);
    let mut ended = all.reserve(&free, 1, UNIT).await.unwrap();
    meter.write(&mut place.record(free.project, UNIT));
    ended.settle(1, UNIT);
    let under_way = all.reserve(&free, 1, UNIT).await.unwrap();
    let limited = Scope { limits: Limits { spend_per_month: Some(3), ..Limits::default() }, ..free };
    assert!(all.reserve(&limited, 1, Nano(PARTS + 1)).await.is_err());
    assert!(all.reserve(&limited, 1, UNIT).await.is_ok());
    drop(under_way);
    assert!(all.reserve(&limited, 1, Nano(2 * PARTS)).await.is_ok());
}

#[tokio::test]
async fn idle_projects_are_forgotten_and_nothing_with_them() {
    let place = Place::new().await;
    let meter = place.meter("usage");
    let all = place.allowances(&meter, false);
    let spender = scope(None, Some(10));
    let mut paid = all.reserve(&spender, 1, Nano(4 * PARTS)).await.unwrap();
    meter.write(&mut place.record(spender.project, Nano(4 * PARTS)));
    paid.settle(1, Nano(4 * PARTS));
    let busy = scope(Some(10), None);
    let held = all.reserve(&busy, 10, Nano(0)).await.unwrap();
    for _ in 0..ENTRIES {
        drop(all.reserve(&scope(None, None), 1, Nano(0)).await.unwrap());
    }
    place.clock.advance(IDLE + 60);
    all.inner.entries().most = ENTRIES;
    drop(all.reserve(&scope(None, None), 1, Nano(0)).await.unwrap());
    // Each with its organization.
    assert_eq!(all.inner.entries().all.len(), 4);
    assert!(all.inner.entries().all.contains_key(&Whose::Project(busy.project)));
    drop(held);
    assert!(all.reserve(&spender, 1, Nano(6 * PARTS + 1)).await.is_err());
    assert!(all.reserve(&spender, 1, Nano(6 * PARTS)).await.is_ok());
}

/// Two projects of one organization, which has limits.
fn siblings(org_limits: Limits) -> (Scope, Scope) {
    let one = Scope { org_limits, ..scope(None, None) };
    let other = Scope { project: ProjectId(Uuid::now_v7()), ..one.clone() };
    (one, other)
}

#[tokio::test]
async fn an_organization_s_projects_share_its_tokens() {
    let place = Place::new().await;
    let all = place.allowances(&place.meter("usage"), false);
    let (one, other) = siblings(Limits { tokens_per_minute: Some(10), ..Limits::default() });
    let held = all.reserve(&one, 10, Nano(0)).await.unwrap();
    let error = refusal(all.reserve(&other, 5, Nano(0)).await);
    assert_eq!((error.code, error.message.contains("this organization")), (Code::RateLimited, true), "{error}");
    drop(held);
    assert!(all.reserve(&other, 5, Nano(0)).await.is_ok());
}

#[tokio::test]
async fn an_organization_s_projects_share_its_money() {
    let place = Place::new().await;
    let all = place.allowances(&place.meter("usage"), false);
    let (one, other) = siblings(Limits { spend_per_month: Some(3), ..Limits::default() });
    let held = all.reserve(&one, 1, UNIT).await.unwrap();
    let error = refusal(all.reserve(&other, 1, Nano(2 * PARTS + 1)).await);
    assert_eq!(
        (error.code, error.message.contains("organization may spend 3")),
        (Code::QuotaExceeded, true),
        "{error}"
    );
    let mut more = all.reserve(&other, 1, Nano(2 * PARTS)).await.unwrap();
    more.settle(1, Nano(2 * PARTS));
    drop(held);
    // The other project may take what the first gave back, and no more.
    assert!(all.reserve(&one, 1, Nano(PARTS + 1)).await.is_err());
    assert!(all.reserve(&one, 1, UNIT).await.is_ok());
    // A refusal of the organization leaves nothing of the project set aside.
    let narrow = Scope { limits: Limits { spend_per_month: Some(2), ..Limits::default() }, ..one };
    assert!(all.reserve(&narrow, 1, Nano(2 * PARTS)).await.is_err());
    assert!(all.reserve(&narrow, 1, UNIT).await.is_ok());
}

#[tokio::test]
async fn what_an_organization_s_projects_spent_before_counts() {
    let place = Place::new().await;
    let (one, other) = siblings(Limits { spend_per_month: Some(10), ..Limits::default() });
    let dead = place.meter("usage");
    for project in [one.project, other.project] {
        dead.write(&mut Record { org: one.org, ..place.record(project, Nano(4 * PARTS)) });
    }
    drop(dead);
    let all = place.allowances(&place.meter("usage"), false);
    assert!(all.reserve(&one, 1, Nano(2 * PARTS + 1)).await.is_err());
    assert!(all.reserve(&other, 1, Nano(2 * PARTS)).await.is_ok());
}
