//! Requests by class of route and status since the process began, for `/metrics`.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of counted statuses, from 100 on.
const STATUSES: usize = 500;

/// The class of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// `/v1`: models.
    Models,
    /// `/sandbox`: inside sandboxes.
    Runtime,
    /// `/api/v1/auth`: signing in.
    Auth,
    /// `/api/v1/admin`: administration.
    Admin,
    /// The rest of `/api`.
    Api,
    /// `/healthz`, `/readyz`, `/metrics`.
    Probes,
    /// Pages, documents and unknown paths.
    Other,
}

const CLASSES: [(Class, &str); 7] = [
    (Class::Models, "models"),
    (Class::Runtime, "runtime"),
    (Class::Auth, "auth"),
    (Class::Admin, "admin"),
    (Class::Api, "api"),
    (Class::Probes, "probes"),
    (Class::Other, "other"),
];

impl Class {
    /// The class of a path.
    pub fn of(path: &str) -> Self {
        let below = |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        match path {
            "/healthz" | "/readyz" | "/metrics" => Self::Probes,
            _ if below("/v1") => Self::Models,
            _ if below("/sandbox") || below("/e2b/inside") || path == "/files" => Self::Runtime,
            _ if below("/api/v1/auth") || below("/oauth") => Self::Auth,
            _ if below("/api/v1/admin") => Self::Admin,
            _ if below("/api") || below("/e2b") || below("/mcp") => Self::Api,
            _ => Self::Other,
        }
    }
}

/// The counts.
pub struct Traffic {
    requests: [[AtomicU64; STATUSES]; CLASSES.len()],
    micros: [AtomicU64; CLASSES.len()],
}

/// The counts of this process.
pub static TRAFFIC: Traffic = Traffic {
    requests: [const { [const { AtomicU64::new(0) }; STATUSES] }; CLASSES.len()],
    micros: [const { AtomicU64::new(0) }; CLASSES.len()],
};

impl Traffic {
    /// Counts an answered request, with the time until its answer began.
    pub fn count(&self, class: Class, status: u16, took: Duration) {
        let row = class as usize;
        if let Some(count) = self.requests[row].get(usize::from(status).wrapping_sub(100)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.micros[row].fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The counts in Prometheus' text format.
    pub fn prometheus(&self) -> String {
        let mut text = String::from(
            "# HELP berth_http_requests_total Requests answered, by class of route and status.\n\
             # TYPE berth_http_requests_total counter\n",
        );
        for ((_, class), statuses) in CLASSES.iter().zip(&self.requests) {
            for (status, count) in (100..).zip(statuses) {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    let _ =
                        writeln!(text, "berth_http_requests_total{{class=\"{class}\",status=\"{status}\"}} {count}");
                }
            }
        }
        text.push_str(
            "# HELP berth_http_seconds_total Time until answers began, by class of route.\n\
             # TYPE berth_http_seconds_total counter\n",
        );
        for ((_, class), micros) in CLASSES.iter().zip(&self.micros) {
            let seconds = Duration::from_micros(micros.load(Ordering::Relaxed)).as_secs_f64();
            let _ = writeln!(text, "berth_http_seconds_total{{class=\"{class}\"}} {seconds}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_a_class_by_its_first_parts() {
        for (path, class) in [
            ("/v1/chat/completions", Class::Models),
            ("/v1", Class::Models),
            ("/v10", Class::Other),
            ("/sandbox/x/files", Class::Runtime),
            ("/api/v1/auth/login", Class::Auth),
            ("/api/v1/authority", Class::Api),
            ("/api/v1/admin/users", Class::Admin),
            ("/api/v1/orgs", Class::Api),
            ("/healthz", Class::Probes),
            ("/", Class::Other),
        ] {
            assert_eq!(Class::of(path), class, "{path}");
        }
        for (row, (class, _)) in CLASSES.iter().enumerate() {
            assert_eq!(*class as usize, row);
        }
    }

    #[test]
    fn requests_are_counted_by_class_and_status() {
        static COUNTED: Traffic = Traffic {
            requests: [const { [const { AtomicU64::new(0) }; STATUSES] }; CLASSES.len()],
            micros: [const { AtomicU64::new(0) }; CLASSES.len()],
        };
        for status in [200, 200, 599, 99, 600] {
            COUNTED.count(Class::Api, status, Duration::from_millis(500));
        }
        let text = COUNTED.prometheus();
        assert!(text.contains("berth_http_requests_total{class=\"api\",status=\"200\"} 2\n"), "{text}");
        assert!(text.contains("{class=\"api\",status=\"599\"} 1\n") && !text.contains("status=\"600\""), "{text}");
        assert!(text.contains("berth_http_seconds_total{class=\"api\"} 2.5\n"), "{text}");
    }
}
