//! Servers of model files: llama.cpp's own server as a child, kept running.
//!
//! A child listens on this machine only, at a port of its own, and lives as long as a pipe that the service holds: it
//! ends with the service, however the service ends. The keeper starts a dead child again, each time after a longer
//! pause, and publishes its address only while it answers.
//!
//! This room uses no other: the caller names the file to serve, and this room tells the address.

mod child;
mod engine;
mod log;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use child::Child;

/// Pause before a dead child is started again; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause between two starts.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Longest pause between two tries to find or install an engine: an installation costs more than a start.
const LONGEST_LACK: Duration = Duration::from_mins(1);
/// A child that lived this long was well: its end counts as a first failure.
const WELL: Duration = Duration::from_mins(1);

/// Keeps a server of a model file running until told to stop. Publishes its base URL (".../v1") while it answers, and
/// None while it does not.
///
/// `BERTH_LLAMA_SERVER` names llama.cpp's server where it is not on `PATH`. Without one, the Python package
/// `xllamacpp` serves; it is installed below `data_dir` where it is missing.
pub async fn keep(file: PathBuf, data_dir: PathBuf, address: watch::Sender<Option<String>>, stop: CancellationToken) {
    let named = std::env::var_os("BERTH_LLAMA_SERVER").map(PathBuf::from);
    // A name alone is looked up on PATH.
    let named = named.map(|path| if path.components().count() > 1 { whole(path) } else { path });
    Keeper { file: whole(file), data_dir: whole(data_dir), named }.run(&address, &stop).await;
}

/// The path from the root: a child works in a folder of its own.
fn whole(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

/// What keeps one file's server.
struct Keeper {
    file: PathBuf,
    data_dir: PathBuf,
    /// llama.cpp's server, where the operator named one.
    named: Option<PathBuf>,
}

/// How one try ended.
enum Ended {
    /// The keeper was told to stop.
    Stopped,
    /// The file or an engine is missing.
    Lacking(anyhow::Error),
    /// A child started and died, for this reason.
    Died(String),
}

impl Keeper {
    async fn run(&self, address: &watch::Sender<Option<String>>, stop: &CancellationToken) {
        let mut pause = FIRST_PAUSE;
        loop {
            let began = Instant::now();
            let (why, lived, longest) = match self.once(address, stop).await {
                Ended::Stopped => return,
                Ended::Lacking(error) => (format!("{error:#}"), Duration::ZERO, LONGEST_LACK),
                Ended::Died(why) => (self.died(&why), began.elapsed(), LONGEST_PAUSE),
            };
            let (now, later) = pauses(pause, lived, longest);
            let (file, again) = (self.file.display(), now.as_secs());
            tracing::warn!(%file, "a model file is not served, the next try is in {again} s: {why}");
            if stop.run_until_cancelled(tokio::time::sleep(now)).await.is_none() {
                return;
            }
            pause = later;
        }
    }

    fn died(&self, why: &str) -> String {
        format!("its server ended ({why}); what it said is in {}", log::path(&self.data_dir, &self.file).display())
    }

    /// Runs one child from its start to its end.
    async fn once(&self, address: &watch::Sender<Option<String>>, stop: &CancellationToken) -> Ended {
        let mut child = match stop.run_until_cancelled(self.start()).await {
            None => return Ended::Stopped,
            Some(Err(error)) => return Ended::Lacking(error),
            Some(Ok(child)) => child,
        };
        let died = stop.run_until_cancelled(child.life(address)).await;
        address.send_replace(None);
        child.end().await;
        died.map_or(Ended::Stopped, Ended::Died)
    }

    async fn start(&self) -> Result<Child> {
        let found = tokio::fs::metadata(&self.file).await;
        anyhow::ensure!(found.is_ok_and(|m| m.is_file()), "there is no such file, or the service cannot read it");
        let engine = engine::find(&self.data_dir, self.named.as_deref()).await?;
        Child::start(&engine, &self.file, &self.data_dir)
    }
}

/// How long to wait now, and after the next failure: the pause grows with each failure, and starts anew after a child
/// that lived long enough.
fn pauses(pause: Duration, lived: Duration, longest: Duration) -> (Duration, Duration) {
    let now = if lived >= WELL { FIRST_PAUSE } else { pause.min(longest) };
    (now, (now * 2).min(longest))
}

/// A file's name without its folder and ending.
fn stem(file: &Path) -> String {
    file.file_stem().map_or_else(|| "model".into(), |stem| stem.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, Signal, kill_process, test_kill_process};
    use tokio::task::JoinHandle;

    use super::*;

    /// A server that writes its process id beside the model, and reports that it is healthy.
    const SERVER: &str = r#"#!/usr/bin/env python3
import http.server, os, sys
argument = lambda name: sys.argv[sys.argv.index(name) + 1]
assert argument("--host") == "127.0.0.1" and "CARGO_MANIFEST_DIR" not in os.environ
class Well(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", int(argument("--port"))), Well)
pid = argument("-m") + ".pid"
with open(pid + ".new", "w") as file:
    file.write(str(os.getpid()))
os.rename(pid + ".new", pid)
server.serve_forever()
"#;

    /// Makes a program. Another process writes it: a fork of this one could hold the file open for writing at its
    /// start.
    pub fn program(dir: &Path, name: &str, text: &str) -> PathBuf {
        let (source, program) = (dir.join("source"), dir.join(name));
        std::fs::write(&source, text).unwrap();
        let installed = std::process::Command::new("install").args(["-m", "755"]).arg(source).arg(&program).status();
        assert!(installed.unwrap().success());
        program
    }

    struct World {
        dir: tempfile::TempDir,
        told: watch::Receiver<Option<String>>,
        stop: CancellationToken,
        keeper: JoinHandle<()>,
    }

    impl World {
        fn new(server: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let named = program(dir.path(), "llama-server", server);
            let file = dir.path().join("tiny.gguf");
            std::fs::write(&file, "weights").unwrap();
            let (address, told) = watch::channel(None);
            let stop = CancellationToken::new();
            let keeper = Keeper { file, data_dir: dir.path().join("data"), named: Some(named) };
            let stopped = stop.clone();
            let keeper = tokio::spawn(async move { keeper.run(&address, &stopped).await });
            Self { dir, told, stop, keeper }
        }

        async fn answers(&mut self) -> String {
            let told = self.told.wait_for(Option::is_some).await.unwrap();
            told.clone().unwrap()
        }

        fn server(&self) -> Pid {
            let text = std::fs::read_to_string(self.dir.path().join("tiny.gguf.pid")).unwrap();
            Pid::from_raw(text.parse().unwrap()).unwrap()
        }
    }

    #[tokio::test]
    async fn a_server_is_told_of_started_again_and_ended() {
        let mut world = World::new(SERVER);
        let address = world.answers().await;
        assert!(address.starts_with("http://127.0.0.1:") && address.ends_with("/v1"), "{address}");
        let first = world.server();
        kill_process(first, Signal::KILL).unwrap();
        world.told.wait_for(Option::is_none).await.unwrap();
        world.answers().await;
        let second = world.server();
        assert_ne!(first, second);
        world.stop.cancel();
        world.keeper.await.unwrap();
        assert!(world.told.borrow().is_none());
        assert!(test_kill_process(second).is_err(), "the server was awaited");
    }

    #[tokio::test]
    async fn a_stop_ends_a_server_that_never_answers() {
        let world = World::new("#!/bin/sh\necho loading >&2\nexec sleep 1000\n");
        let log = world.dir.path().join("data/models/tiny.log");
        while !std::fs::read_to_string(&log).is_ok_and(|text| text.contains("loading")) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        world.stop.cancel();
        world.keeper.await.unwrap();
        assert!(world.told.borrow().is_none());
    }

    #[test]
    fn pauses_grow_to_their_limit_and_begin_anew() {
        let seconds = Duration::from_secs;
        let mut pause = FIRST_PAUSE;
        let mut waited = Vec::new();
        for _ in 0..7 {
            let (now, later) = pauses(pause, seconds(59), LONGEST_PAUSE);
            waited.push(now.as_secs());
            pause = later;
        }
        assert_eq!(waited, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(pauses(pause, WELL, LONGEST_PAUSE), (seconds(1), seconds(2)));
        assert_eq!(pauses(LONGEST_LACK, seconds(0), LONGEST_PAUSE).0, LONGEST_PAUSE);
    }
}
