//! A service whose database is a cluster of PostgreSQL servers, over real ones.

use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use berth_server::db::keeper::{self, Keeper};
use berth_server::db::{Db, Said, survey};
use berth_testkit::{Answer, Platform, Postgres};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// Far more than a service takes to find another leader.
const PATIENCE: Duration = Duration::from_mins(2);

/// A way to a server that can be cut, so that nothing comes through and nobody is told.
struct Way {
    port: u16,
    state: Arc<State>,
    _carries: AbortOnDropHandle<()>,
}

struct State {
    to: AtomicU16,
    /// Whether the connections that are made now are cut; those that were left behind have a sender of their own.
    cut: Mutex<watch::Sender<bool>>,
    /// How many connections were asked for.
    asked: AtomicUsize,
}

impl Way {
    async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let own = listener.local_addr().expect("an address").port();
        let (to, cut, asked) = (AtomicU16::new(port), Mutex::new(watch::Sender::new(false)), AtomicUsize::new(0));
        let state = Arc::new(State { to, cut, asked });
        let carries = AbortOnDropHandle::new(tokio::spawn(carry_all(listener, state.clone())));
        Self { port: own, state, _carries: carries }
    }

    fn cut(&self, is_cut: bool) {
        self.state.cut.lock().expect("a switch").send_replace(is_cut);
    }

    /// Leads elsewhere from now on; connections that there are hear nothing for ever.
    fn moves(&self, to: u16) {
        let mut cut = self.state.cut.lock().expect("a switch");
        cut.send_replace(true);
        self.state.to.store(to, Ordering::SeqCst);
        *cut = watch::Sender::new(false);
    }

    fn asked(&self) -> usize {
        self.state.asked.load(Ordering::SeqCst)
    }
}

async fn carry_all(listener: TcpListener, state: Arc<State>) {
    while let Ok((near, _)) = listener.accept().await {
        state.asked.fetch_add(1, Ordering::SeqCst);
        let mut cut = state.cut.lock().expect("a switch").subscribe();
        let to = state.to.load(Ordering::SeqCst);
        tokio::spawn(async move {
            passes(&mut cut).await;
            let Ok(far) = TcpStream::connect(("127.0.0.1", to)).await else { return };
            let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
            tokio::join!(carry(near_in, far_out, cut.clone()), carry(far_in, near_out, cut));
        });
    }
}

/// Returns as soon as the way is not cut.
async fn passes(cut: &mut watch::Receiver<bool>) {
    if cut.wait_for(|cut| !cut).await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn carry(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut cut: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let len = from.read(&mut buffer).await.unwrap_or(0);
        passes(&mut cut).await;
        if len == 0 || to.write_all(&buffer[..len]).await.is_err() {
            return;
        }
    }
}

async fn platform(ports: &[u16]) -> Platform {
    let members: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let url = format!("postgres://berth@{}/berth", members.join(","));
    Platform::start_with(|config| {
        config.database_url = url;
        config.database_wait_seconds = 1;
    })
    .await
}

/// Asks for a row of this name.
async fn puts(platform: &Platform, name: &str) -> Answer {
    platform.admin.post("/networks", json!({"name": name})).await
}

/// Asks for it until it is there; what was answered before said that nothing was done.
async fn put(platform: &Platform, name: &str) {
    let began = Instant::now();
    loop {
        let answer = puts(platform, name).await;
        match answer.status {
            // It was made before by a change whose outcome nobody was told of.
            201 | 409 => return,
            503 => assert!(began.elapsed() < PATIENCE, "{answer:?}"),
            _ => panic!("{answer:?}"),
        }
    }
}

async fn names(platform: &Platform) -> Vec<String> {
    let answer = platform.admin.get("/networks").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let rows = answer.body["data"].as_array().expect("a list").clone();
    let mut names: Vec<_> = rows.iter().map(|row| row["name"].as_str().expect("a name").to_owned()).collect();
    names.sort();
    names
}

fn rows(server: &Postgres) -> String {
    server.sql("berth", "SELECT string_agg(name, ' ' ORDER BY name) FROM networks")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_goes_over_to_the_follower_that_leads_after_a_death() {
    let first = Postgres::started();
    let second = first.standby();
    let platform = platform(&[second.port(), first.port()]).await;
    put(&platform, "before").await;
    first.kill();
    second.promote();
    put(&platform, "after").await;
    assert_eq!(names(&platform).await, ["after", "before"]);
    assert_eq!(rows(&second), "after before");
    assert!(!platform.app().taken_over.is_cancelled());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_cut_off_is_left_and_not_followed_again() {
    let first = Postgres::started();
    let second = first.standby();
    let (to_first, to_second) = (Way::to(first.port()).await, Way::to(second.port()).await);
    let platform = platform(&[to_first.port, to_second.port]).await;
    put(&platform, "before").await;
    // It goes on, hears nothing, and would take writes.
    first.sql("postgres", "ALTER SYSTEM RESET synchronous_standby_names");
    first.sql("postgres", "SELECT pg_reload_conf()");
    to_first.cut(true);
    second.promote();
    // One that waits at the old leader hears that it waits in vain.
    put(&platform, "after").await;

    // The old one can be reached again, and the new one cannot.
    to_second.cut(true);
    let asked = to_first.asked();
    to_first.cut(false);
    let began = Instant::now();
    while to_first.asked() < asked + 3 {
        let answer = puts(&platform, "lost").await;
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(began.elapsed() < PATIENCE, "the old leader is not asked");
    }
    to_second.cut(false);
    put(&platform, "at-last").await;
    let names = names(&platform).await;
    assert!(["after", "at-last", "before"].iter().all(|name| names.contains(&(*name).to_owned())), "{names:?}");
    assert_eq!(rows(&first), "before");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_moves_is_followed() {
    let first = Postgres::started();
    let second = first.standby();
    let way = Way::to(first.port()).await;
    let platform = platform(&[way.port]).await;
    put(&platform, "before").await;
    second.promote();
    way.moves(second.port());
    put(&platform, "after").await;
    assert_eq!((rows(&first).as_str(), rows(&second).as_str()), ("before", "after before"));
}

#[tokio::test(flavor = "multi_thread")]
async fn members_say_what_they_do_and_one_that_leads_is_waited_for() {
    let first = Postgres::started();
    let second = first.standby();
    let url = format!("postgres://berth@127.0.0.1:{},127.0.0.1:{}/berth", first.port(), second.port());
    let began = Instant::now();
    loop {
        let said: Vec<_> = survey(&url).await.expect("members").into_iter().map(|it| it.member.said).collect();
        if said == [Said::Leads(1), Said::Follows] {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{said:?}");
    }
    assert_eq!(survey("sqlite:berth.db").await.map(|members| members.len()), None);
    let alone = format!("postgres://berth@127.0.0.1:{}/berth", second.port());
    let error = Db::open(&alone).await.err().expect("an error").to_string();
    assert!(
        error.contains("is a standby, which takes no writes") && error.contains(&second.port().to_string()),
        "{error}"
    );
    // A service that begins during an election waits for its end.
    first.kill();
    let opening = tokio::spawn(async move { Db::open(&url).await.map(drop) });
    second.promote();
    opening.await.expect("no panic").expect("a leader");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_of_an_earlier_term_writes_nothing_and_what_it_reads_is_true() {
    let server = Postgres::started();
    let platform = platform(&[server.port()]).await;
    assert_eq!(puts(&platform, "before").await.status, 201);
    // As another service does, in a turn of its own.
    let in_turn = |what: &str| server.sql("berth", &format!("SELECT pg_advisory_xact_lock(422724498536); {what}"));
    in_turn("UPDATE keeper SET term = term + 1");
    let refused = puts(&platform, "after").await;
    assert_eq!(refused.status, 503, "{refused:?}");
    let names = platform.admin.get("/networks").await.body;
    let names: Vec<_> = names["data"].as_array().expect("networks").iter().map(|it| it["name"].clone()).collect();
    assert_eq!(names, ["before"]);
    in_turn("UPDATE keeper SET term = term - 1");
    assert_eq!(puts(&platform, "after").await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_stopped_in_the_middle_of_a_change_keeps_nobody_from_taking_over() {
    let server = Postgres::started();
    let url = format!("postgres://berth@127.0.0.1:{}/berth", server.port());
    let replica = |address: &str| Keeper {
        folder: uuid::Uuid::now_v7(),
        path: address.into(),
        host: address.into(),
        run: uuid::Uuid::now_v7(),
        address: Some(address.into()),
    };
    let (stopped, other) = (Db::open(&url).await.expect("a database"), Db::open(&url).await.expect("a database"));
    let now = berth_domain::Timestamp(1);
    assert!(keeper::claim(&stopped, &replica("alpha:1"), None, now).await.expect("a claim"));
    // It says nothing more, and has the lock of whoever writes.
    let _held = stopped.begin().await.expect("a transaction");
    let silent = keeper::find(&other).await.expect("a row").expect("a keeper").sign;
    let began = Instant::now();
    while !matches!(keeper::claim(&other, &replica("beta:1"), Some(silent), now).await, Ok(true)) {
        assert!(began.elapsed() < PATIENCE, "nobody takes over");
    }
}

/// The leader has what no other member has, and is about to be lost: what it kept for a retry may go with it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_answered_again_is_acknowledged_again() {
    let first = Postgres::started();
    let second = first.standby();
    let platform = platform(&[first.port()]).await;
    let admin = &platform.admin;
    let asks = async || {
        let path = format!("{}/networks", admin.project);
        let request = admin.request(reqwest::Method::POST, &path).header("idempotency-key", "once");
        request.json(&json!({"name": "once"})).send().await.expect("an answer").status().as_u16()
    };
    let began = Instant::now();
    while asks().await != 201 {
        assert!(began.elapsed() < PATIENCE, "it is not made");
    }
    assert_eq!(asks().await, 201);
    assert_eq!(rows(&first), "once");
    second.kill();
    assert_eq!(asks().await, 503);
}
