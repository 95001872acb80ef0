//! The rules of ARCHITECTURE.md that can run.

#![expect(clippy::expect_used, reason = "a test may end with a panic")]

use std::path::{Path, PathBuf};

/// Every Rust file below a folder of the workspace's crates, with its text.
fn sources(below: &str) -> Vec<(String, String)> {
    fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                collect(&path, files);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    collect(&crates.join(below), &mut files);
    assert!(!files.is_empty(), "{below} has sources");
    let named = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("a file");
        (path.strip_prefix(&crates).expect("below").to_string_lossy().into_owned(), text)
    };
    files.into_iter().map(named).collect()
}

/// Lines that are neither comments nor tests.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    code.lines().map(str::trim).filter(|line| !line.starts_with("//"))
}

fn refuse(below: &str, words: &[&str], except: impl Fn(&str) -> bool) {
    for (file, text) in sources(below) {
        if except(&file) {
            continue;
        }
        for line in lines(&text) {
            let found = words.iter().find(|word| line.contains(*word));
            assert!(found.is_none(), "{file} has {found:?}: {line}");
        }
    }
}

#[test]
fn the_domain_does_no_io_and_asks_no_clock() {
    let words = [
        "tokio::",
        "sqlx::",
        "axum::",
        "reqwest::",
        "hyper::",
        "std::fs",
        "std::net",
        "std::process",
        "std::env",
        "SystemTime",
        "Instant::now",
        "now_utc",
        "now_v7",
        "new_v4",
        "println!",
        "tracing::",
    ];
    refuse("domain/src", &words, |_| false);
}

#[test]
fn sql_stands_only_in_stores() {
    let words = ["\"SELECT ", "\"INSERT ", "\"UPDATE ", "\"DELETE FROM ", "sql(\""];
    refuse("server/src", &words, |file| file.contains("/store") || file.contains("/db/"));
    refuse("cli/src", &words, |_| false);
}

#[test]
fn services_know_each_other_only_by_their_front_doors() {
    // An engine's error is the same for all that run machines.
    let apart = [
        ("identity", ["services::vm", "services::sandbox", "services::gateway"]),
        ("vm", ["services::identity", "services::sandbox", "services::gateway"]),
        ("sandbox", ["services::identity", "services::vm::store", "services::gateway"]),
        ("gateway", ["services::identity", "services::vm", "services::sandbox"]),
        ("resource_usage", ["services::vm", "services::sandbox", "services::gateway"]),
    ];
    for (service, others) in apart {
        refuse(&format!("server/src/services/{service}"), &others, |_| false);
    }
    // Rooms of a service are entered by itself and, for the engine, by the composition root.
    let rooms = [
        "identity::store",
        "identity::ops",
        "vm::store",
        "vm::ops",
        "vm::reconcile",
        "sandbox::store",
        "sandbox::ops",
        "sandbox::reconcile",
        "gateway::store",
        "gateway::ops",
    ];
    refuse("server/src", &rooms, |file| file.contains("/services/"));
}

#[test]
fn requests_do_not_touch_the_host() {
    // What a request may ask the engine for: where to receive an upload and whether there is room for it, what a
    // console or a meter shows, and the id of what was set aside.
    let harmless = ["staging", "upload", "capacity", "console", "console_log", "usage", "ready", "spare"];
    let asks = |line: &str| {
        let calls: Vec<_> =
            line.split("engine().").skip(1).map(|rest| rest.split('(').next().unwrap_or_default()).collect();
        calls.iter().any(|call| !harmless.contains(call))
    };
    let requests = ["vm/ops", "vm/api", "sandbox/ops", "sandbox/api"];
    for below in requests.map(|room| format!("server/src/services/{room}")) {
        for (file, text) in sources(&below) {
            let joined = lines(&text).collect::<Vec<_>>().join("").replace(' ', "");
            assert!(!asks(&joined), "{file} asks the engine for more than a request may");
        }
    }
}

#[test]
fn stores_are_asked_by_ops_and_reconcilers_not_by_wire() {
    for service in ["vm", "sandbox", "gateway"] {
        refuse(&format!("server/src/services/{service}/wire"), &["engine()", ".begin()", "Tx"], |_| false);
    }
}

/// What acts for nobody who is signed in: it proves by other means who asks, records that somebody was refused, or is
/// the platform's own.
const FOR_NOBODY: [(&str, &[&str]); 10] = [
    ("identity/ops/audit.rs", &["forget"]),
    ("identity/ops/password.rs", &["reset", "confirm"]),
    ("identity/ops/refusal.rs", &["login", "key", "more"]),
    ("identity/ops/session.rs", &["login", "prove", "refresh"]),
    ("identity/ops/signing_key.rs", &["at_start", "keep_fresh"]),
    ("identity/ops/user.rs", &["first_administrator", "sign_up"]),
    ("identity/ops/verification.rs", &["ask", "verify_email"]),
    ("sandbox/ops/sandbox.rs", &["pause_all"]),
    ("sandbox/ops/upload.rs", &["dismiss"]),
    ("vm/ops/vm.rs", &["stop_all"]),
];

#[test]
fn who_acts_for_a_caller_asks_again_inside_the_transaction() {
    let mut seen = 0;
    for service in ["identity", "vm", "sandbox", "gateway"] {
        for (file, text) in sources(&format!("server/src/services/{service}/ops")) {
            let listed = FOR_NOBODY.iter().find(|(known, _)| file.ends_with(known)).map_or(&[][..], |(_, names)| names);
            let mut function = String::new();
            for line in lines(&text) {
                if let Some(rest) = line.split("fn ").nth(1) {
                    function = rest.split(['(', '<']).next().unwrap_or_default().to_owned();
                }
                seen += usize::from(line.contains(".begin_as("));
                let alone = line.contains(".begin()") && !listed.contains(&function.as_str());
                assert!(
                    !alone,
                    "{file}: {function} begins a transaction without asking whether its caller still may. Begin it \
                     with `begin_as(scope)`, the scope or person of the extractor; what acts for nobody who is signed \
                     in is listed in FOR_NOBODY"
                );
            }
        }
    }
    assert!(seen > 40, "{seen} operations act for a caller");
}
