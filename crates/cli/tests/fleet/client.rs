//! Clients that write and read all the time, and what they were told.
//!
//! A writer makes one project after the other, each with an `Idempotency-Key` of its own, and asks again until it is told that
//! it is made. The reader looks at the newest ones: what it has seen once, of a writer, it never sees taken back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use berth_testkit::{Answer, Caller};
use reqwest::Method;
use serde_json::{Value, json};

const WRITERS: usize = 3;
/// How long a client waits for an answer before it asks again.
const PATIENCE: Duration = Duration::from_secs(2);
/// For how long it may be that the service has no leader.
const OUTAGE: Duration = Duration::from_mins(1);
/// Between two requests of one client.
const PAUSE: Duration = Duration::from_millis(50);

/// What was acknowledged: the name, the id, and when.
#[derive(Clone, Debug)]
pub struct Told {
    pub name: String,
    pub id: String,
    pub at: Instant,
}

/// What all of them saw.
#[derive(Default)]
struct Seen {
    written: Vec<Told>,
    /// Answers that took something back.
    taken_back: Vec<String>,
    reads: usize,
    again: usize,
}

/// Clients in threads of their own.
pub struct Clients {
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    /// Has them begin. They know the service by these callers, of its replicas one each, and turn to the next where one says
    /// nothing. One reads, too, where it is to.
    pub fn start(callers: &[Caller], reads: bool) -> Self {
        let (seen, stop) = (Arc::default(), Arc::default());
        let mut clients = Self { seen, stop, threads: Vec::new() };
        for writer in 0..WRITERS {
            let (doors, seen, stop) = (Doors::new(callers), clients.seen.clone(), clients.stop.clone());
            clients.threads.push(thread::spawn(move || alone(write(doors, writer, &seen, &stop))));
        }
        if reads {
            let (doors, seen, stop) = (Doors::new(callers), clients.seen.clone(), clients.stop.clone());
            clients.threads.push(thread::spawn(move || alone(read(doors, &seen, &stop))));
        }
        clients
    }

    /// What was acknowledged so far.
    pub fn written(&self) -> Vec<Told> {
        self.seen.lock().expect("no panic").written.clone()
    }

    /// When the last of each writer was acknowledged; none where one has written nothing yet.
    pub fn latest(&self) -> Option<Instant> {
        let seen = self.seen.lock().expect("no panic");
        let of = |writer: usize| {
            let mine = seen.written.iter().rev().find(|told| told.name.starts_with(&format!("w{writer}-")));
            mine.map(|told| told.at)
        };
        (0..WRITERS).map(of).collect::<Option<Vec<_>>>()?.into_iter().min()
    }

    /// The longest time since then in which nothing was acknowledged.
    pub fn longest_silence(&self, since: Instant) -> Duration {
        let seen = self.seen.lock().expect("no panic");
        let later = seen.written.iter().map(|told| told.at).filter(|at| *at >= since);
        let times: Vec<_> = std::iter::once(since).chain(later).collect();
        times.windows(2).map(|two| two[1].saturating_duration_since(two[0])).max().unwrap_or_default()
    }

    /// Ends them, and says how much was acknowledged.
    pub fn stop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.join().expect("a client that did not panic");
        }
        let seen = self.seen.lock().expect("no panic");
        let (written, again, reads) = (seen.written.len(), seen.again, seen.reads);
        println!("{written} writes were acknowledged, {again} requests were sent again, {reads} reads were answered");
    }

    /// What the service took back so far: what a client saw before, and later no more.
    pub fn taken_back(&self) -> Vec<String> {
        self.seen.lock().expect("no panic").taken_back.clone()
    }

    /// Asserts that everything that was acknowledged is there, once.
    pub async fn are_served(&self, caller: &Caller) {
        // What is acknowledged from here on may come after the list.
        let written = self.written();
        let all = Self::all(caller).await;
        for told in &written {
            let there = all.get(&told.name).map(|ids| ids.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(there, Some(vec![told.id.as_str()]), "{} was acknowledged", told.name);
        }
        let twice: Vec<_> = all.iter().filter(|(_, ids)| ids.len() > 1).collect();
        assert!(twice.is_empty(), "there twice: {twice:?}");
    }

    /// All projects of the organization that the service has now: ids by name.
    async fn all(caller: &Caller) -> BTreeMap<String, BTreeSet<String>> {
        let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for page in 1.. {
            let answer = served(caller, &format!("{}/projects?limit=100&page={page}", caller.org())).await;
            let data = answer.body["data"].as_array().expect("a list").clone();
            if data.is_empty() {
                break;
            }
            for project in data {
                let text = |key: &str| project[key].as_str().expect("a text").to_owned();
                found.entry(text("name")).or_default().insert(text("id"));
            }
        }
        found
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

fn alone(client: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(client);
}

/// What the service answers once it has a leader.
async fn served(caller: &Caller, path: &str) -> Answer {
    let began = Instant::now();
    loop {
        let answer = caller.get(path).await;
        if answer.status != 503 || began.elapsed() > OUTAGE {
            assert_eq!(answer.status, 200, "{answer:?}");
            return answer;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The replicas as one client knows them.
pub struct Doors {
    callers: Vec<Caller>,
    turn: usize,
}

impl Doors {
    /// Those of these callers.
    pub fn new(callers: &[Caller]) -> Self {
        Self { callers: callers.to_vec(), turn: 0 }
    }

    /// The caller at the one whose turn it is.
    pub fn now(&self) -> &Caller {
        &self.callers[self.turn]
    }

    /// An answer within the client's patience; its status and its body. Where there is none, the next has its turn.
    pub async fn ask(&mut self, request: impl FnOnce(&Caller) -> reqwest::RequestBuilder) -> Option<(u16, Value)> {
        let told = answer(request(self.now())).await;
        if told.as_ref().is_none_or(|(status, _)| *status == 503) {
            self.turn = (self.turn + 1) % self.callers.len();
        }
        told
    }
}

async fn answer(request: reqwest::RequestBuilder) -> Option<(u16, Value)> {
    let answer = request.timeout(PATIENCE).send().await.ok()?;
    Some((answer.status().as_u16(), answer.json().await.ok()?))
}

async fn write(mut doors: Doors, writer: usize, seen: &Mutex<Seen>, stop: &AtomicBool) {
    let path = format!("{}/projects", doors.now().org());
    for number in 0_u32.. {
        let name = format!("w{writer}-{number:06}");
        let id = loop {
            if stop.load(Ordering::SeqCst) {
                return;
            }
            let make = |caller: &Caller| {
                let request = caller.request(Method::POST, &path).header("idempotency-key", &name);
                request.json(&json!({"name": name}))
            };
            match doors.ask(make).await {
                Some((201, body)) => break body["id"].as_str().expect("an id").to_owned(),
                Some((status @ (400..=408 | 410..), body)) if status < 500 => panic!("{name}: {status} {body}"),
                _ => seen.lock().expect("no panic").again += 1,
            }
            tokio::time::sleep(PAUSE).await;
        };
        seen.lock().expect("no panic").written.push(Told { name, id, at: Instant::now() });
        tokio::time::sleep(PAUSE).await;
    }
}

async fn read(mut doors: Doors, seen: &Mutex<Seen>, stop: &AtomicBool) {
    let org = doors.now().org().to_owned();
    let mut newest = [String::new(), String::new(), String::new()];
    while !stop.load(Ordering::SeqCst) {
        // What was acknowledged before the question is in its answer.
        let latest = seen.lock().expect("no panic").written.last().cloned();
        if let Some(told) = latest {
            let path = format!("{org}/projects/{}", told.id);
            match doors.ask(|caller| caller.request(Method::GET, &path)).await {
                Some((200, _)) => seen.lock().expect("no panic").reads += 1,
                Some((404, _)) => seen.lock().expect("no panic").taken_back.push(format!("{} is missing", told.name)),
                _ => {}
            }
        }
        let path = format!("{org}/projects?limit=20");
        if let Some((200, body)) = doors.ask(|caller| caller.request(Method::GET, &path)).await {
            let names = body["data"].as_array().expect("a list").iter().filter_map(|it| it["name"].as_str());
            let names: Vec<_> = names.collect();
            for (writer, before) in newest.iter_mut().enumerate() {
                let mine = names.iter().filter(|name| name.starts_with(&format!("w{writer}-"))).max();
                let Some(now) = mine else { continue };
                if *now < before.as_str() {
                    let text = format!("{now} is the newest after {before}");
                    seen.lock().expect("no panic").taken_back.push(text);
                }
                (*now).clone_into(before);
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
