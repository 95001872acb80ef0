//! Metrics of models and their upstreams. An upstream is identified by its position in the model's list: `/metrics`
//! needs no credential, so it shows no address, and no name of a model that is restricted to some projects.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use berth_domain::gateway::breaker::State;

use super::books::meter::Meter;
use super::upstream::slot::{Counts, Upstream};
use super::upstream::table::{Entry, Table};

type Figure = (&'static str, &'static str, &'static str, fn(&Upstream) -> f64);

fn seconds(micros: &AtomicU64) -> f64 {
    count(micros) / 1e6
}

#[expect(clippy::cast_precision_loss, reason = "a metric may be rounded")]
fn count(counter: &AtomicU64) -> f64 {
    counter.load(Ordering::Relaxed) as f64
}

const fn counts(upstream: &Upstream) -> &Counts {
    &upstream.counts
}

const FIGURES: [Figure; 9] = [
    ("berth_upstream_requests_total", "counter", "Requests sent to an upstream.", |u| count(&counts(u).requests)),
    ("berth_upstream_failures_total", "counter", "Requests that it failed.", |u| count(&counts(u).failures)),
    ("berth_upstream_in_flight", "gauge", "Requests under way.", |u| f64::from(u.busy())),
    ("berth_upstream_first_byte_seconds_count", "counter", "First bytes of answers.", |u| {
        count(&counts(u).first_bytes)
    }),
    ("berth_upstream_first_byte_seconds_sum", "counter", "Seconds until them, summed.", |u| {
        seconds(&counts(u).first_byte_micros)
    }),
    ("berth_upstream_tokens_total", "counter", "Tokens of streamed answers.", |u| count(&counts(u).tokens)),
    ("berth_upstream_token_seconds_total", "counter", "Seconds that they took.", |u| seconds(&counts(u).token_micros)),
    ("berth_upstream_breaker_open", "gauge", "1 where the breaker is open, 0.5 half open, 0 closed.", |u| {
        match u.breaker() {
            State::Closed => 0.0,
            State::HalfOpen => 0.5,
            State::Open => 1.0,
        }
    }),
    ("berth_upstream_ready", "gauge", "Whether its address is known.", |u| f64::from(u8::from(u.address().is_some()))),
];

/// A name as the value of a label; no model's name has a backslash or a line break.
fn label(name: &str) -> String {
    name.replace('"', "\\\"")
}

/// The label of each model of a table: a restricted model has its number among the restricted ones.
fn labels(table: &Table) -> Vec<String> {
    let mut restricted = 0;
    let mut name = |entry: &Entry| {
        if entry.model.projects.is_empty() {
            return label(&entry.name);
        }
        restricted += 1;
        format!("restricted-{restricted}")
    };
    table.models.iter().map(|entry| name(entry)).collect()
}

/// Everything in Prometheus' text format.
pub fn text(table: &Table, meter: &Meter) -> String {
    let mut text = String::new();
    let labels = labels(table);
    for (name, kind, help, figure) in FIGURES {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (entry, model) in table.models.iter().zip(&labels) {
            for (index, upstream) in entry.upstreams.iter().enumerate() {
                let _ = writeln!(text, "{name}{{model=\"{model}\",upstream=\"{index}\"}} {}", figure(upstream));
            }
        }
    }
    let _ = writeln!(text, "# HELP berth_model_queue Requests that wait.\n# TYPE berth_model_queue gauge");
    for (entry, model) in table.models.iter().zip(&labels) {
        let _ = writeln!(text, "berth_model_queue{{model=\"{model}\"}} {}", entry.queue.len());
    }
    for (name, help, value) in [
        ("berth_usage_journal_failures_total", "Records that could not be appended to the journal.", meter.failures()),
        ("berth_usage_lost_total", "Records of requests that were lost.", meter.lost()),
    ] {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}");
    }
    text
}
