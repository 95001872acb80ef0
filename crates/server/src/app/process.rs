//! The process that holds machines: its log, its signals, and the end of its workers.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;

use crate::config::{Config, LogFormat};
use crate::http::seats;

/// How long workers may take to finish a step once they are told to stop.
pub(super) const ENDING: Duration = Duration::from_secs(30);

/// What a process that is to hold machines does before anything else.
pub(super) fn begin(config: &Config) {
    init_log(config);
    // Only the service's user may read the files that the service and its machines write.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    seats::raise_descriptors();
}

/// Waits until tasks have ended, and aborts those that are late; returns whether all ended in time.
pub(super) async fn ended(tasks: &mut JoinSet<()>, patience: Duration) -> bool {
    let all = async { while tasks.join_next().await.is_some() {} };
    let in_time = tokio::time::timeout(patience, all).await.is_ok();
    tasks.abort_all();
    in_time
}

/// What libraries tell of each connection that a lost leader refuses, where that it is lost is told once, and of each message
/// of the Model Context Protocol, which the facade tells with the request that it came in. An operator may want them.
const QUIET: [(&str, &str); 2] = [("sqlx_core", "sqlx_core::pool=off"), ("rmcp", "rmcp=off")];

fn init_log(config: &Config) {
    let filter = tracing_subscriber::EnvFilter::try_new(&config.log).unwrap_or_else(|_| "info".into());
    let quiet = QUIET.iter().filter(|(library, _)| !config.log.contains(library));
    let quiet = quiet.filter_map(|(_, quiet)| quiet.parse().ok());
    let filter = quiet.fold(filter, tracing_subscriber::EnvFilter::add_directive);
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let is_terminal = std::io::stderr().is_terminal();
    let for_people = is_for_people(config.log_format, is_terminal);
    // In tests, a second initialisation leaves the first in place.
    let _ = if for_people { log.with_ansi(is_terminal).try_init() } else { log.json().try_init() };
}

/// Whether the log is text for people; else it is JSON for programs.
const fn is_for_people(format: LogFormat, is_terminal: bool) -> bool {
    match format {
        LogFormat::Auto => is_terminal,
        LogFormat::Json => false,
        LogFormat::Text => true,
    }
}

/// The signals that end a service.
pub(super) struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    pub(super) fn new() -> Result<Self> {
        let cannot = "signals cannot be received";
        let (term, int) = (SignalKind::terminate(), SignalKind::interrupt());
        Ok(Self { term: signal(term).context(cannot)?, int: signal(int).context(cannot)? })
    }

    /// Returns at the next signal.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_for_people_where_they_say_so_or_look_at_it() {
        let read = |word: &str| serde_json::from_value(word.into()).expect("one of the words");
        for (word, at_a_terminal, elsewhere) in [("auto", true, false), ("json", false, false), ("text", true, true)] {
            let format: LogFormat = read(word);
            assert_eq!(
                (is_for_people(format, true), is_for_people(format, false)),
                (at_a_terminal, elsewhere),
                "{word}"
            );
        }
    }

    #[tokio::test]
    async fn a_worker_that_does_not_end_is_called_off() {
        let mut tasks = JoinSet::new();
        tasks.spawn(async {});
        assert!(ended(&mut tasks, Duration::from_mins(1)).await);
        tasks.spawn(std::future::pending());
        assert!(!ended(&mut tasks, Duration::ZERO).await);
        assert!(tasks.join_next().await.is_some_and(|ended| ended.is_err_and(|error| error.is_cancelled())));
    }
}
