//! The rules of ARCHITECTURE.md that can run.

#![expect(clippy::expect_used, reason = "a test may end with a panic")]

#[path = "architecture/circles.rs"]
mod circles;

use std::collections::BTreeSet;
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
    // What is there for tests and is no module of them stands amid the rest.
    let is_module =
        |rest: &str| rest.lines().find(|line| !line.starts_with('#')).is_some_and(|l| l.starts_with("mod "));
    let tests = text.match_indices("#[cfg(test)]\n").find(|(at, _)| is_module(&text[*at..]));
    let code = tests.map_or(text, |(at, _)| &text[..at]);
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

/// What the crate of the host is made of, of the workspace's crates.
const PARTS_OF_A_HOST: [&str; 6] =
    ["berth-bridge", "berth-domain", "berth-egress", "berth-oci", "berth-process", "berth-qemu"];

/// What a crate is made of, on every platform; what its tests use is none of it.
fn used(manifest: &toml::Table) -> Vec<&str> {
    let platforms = manifest.get("target").and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::values);
    let places = std::iter::once(manifest).chain(platforms.filter_map(toml::Value::as_table));
    let sections = places.flat_map(|place| ["dependencies", "build-dependencies"].map(|name| place.get(name)));
    sections.flatten().filter_map(toml::Value::as_table).flat_map(toml::Table::keys).map(String::as_str).collect()
}

#[test]
fn what_a_crate_uses_is_found_however_it_is_written() {
    let text = "[dependencies]\none = \"1\"\ntwo.workspace = true\n[dependencies.three]\nversion = \"1\"\n[dev-dependencies]\n\
                no = \"1\"\n[target.'cfg(unix)'.dependencies]\nfour = \"1\"\n[build-dependencies]\nfive = \"1\"\n";
    let manifest = text.parse().expect("a manifest");
    assert_eq!(used(&manifest).into_iter().collect::<BTreeSet<_>>(), ["five", "four", "one", "three", "two"].into());
}

#[test]
fn the_host_knows_no_database_no_route_and_no_service() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/Cargo.toml");
    let manifest = std::fs::read_to_string(manifest).expect("a file").parse().expect("a manifest");
    let used = used(&manifest);
    assert!(PARTS_OF_A_HOST.iter().all(|part| used.contains(part)), "{used:?}");
    for name in used {
        // The type of a body is `axum_core`'s; routes are `axum`'s.
        let is_refused = ["axum", "sqlx", "utoipa", "utoipa-axum"].contains(&name)
            || name.starts_with("berth-") && !PARTS_OF_A_HOST.contains(&name);
        assert!(!is_refused, "crates/host uses {name}; what needs it belongs in crates/server");
    }
    // Whatever its manifest calls them; tests may play an agent or a registry.
    let words = ["berth_server", "berth_client", "berth_testkit", "sqlx::", "axum::", "utoipa"];
    refuse("host/src", &words, |file| file.contains("/tests/"));
}

#[test]
fn an_engine_knows_nothing_of_who_asks_and_what_carries_bytes_nothing_of_engines() {
    for engines in ["host/src/vm", "host/src/sandbox"] {
        refuse(engines, &["crate::wire", "crate::answer", "host::ask", "host::Ask"], |_| false);
    }
    // Neither sockets nor who is on their other side.
    let words = ["::qemu", "tokio::net", "std::os::unix::net", "rustls", "TcpStream", "UnixStream"];
    refuse("host/src/wire", &words, |_| false);
    refuse("domain/src/host", &["berth_", "dyn Engine"], |_| false);
}

#[test]
fn sql_stands_only_in_stores() {
    let words = ["\"SELECT ", "\"INSERT ", "\"UPDATE ", "\"DELETE FROM ", "sql(\""];
    refuse("server/src", &words, |file| file.contains("/store") || file.contains("/db/"));
    refuse("cli/src", &words, |_| false);
    refuse("host/src", &words, |_| false);
}

#[test]
fn only_record_writes_out_the_columns_of_a_row() {
    refuse("server/src", &["INSERT "], |file| file.ends_with("db/record.rs"));
    // What compares or computes is a statement of its own; everything else that changes columns is an `overwrite`.
    let own = [" AND ", " OR ", " + ", "CASE "];
    let mut seen = 0;
    for (file, text) in sources("server/src") {
        let joined = lines(&text).collect::<Vec<_>>().join("").replace('\\', "");
        for statement in joined.split("\"UPDATE ").skip(1).filter_map(|rest| rest.split('"').next()) {
            seen += 1;
            let is_counted = statement.matches('$').count() > 2 && !own.iter().any(|word| statement.contains(word));
            assert!(!is_counted, "{file} counts placeholders that `db::record` counts: UPDATE {statement}");
        }
    }
    assert!(seen > 10, "{seen} statements change rows");
}

#[test]
fn services_know_each_other_only_by_their_front_doors() {
    let services = ["host", "identity", "network", "project", "ssh_key", "vm", "sandbox", "gateway"];
    for service in services {
        let others: Vec<_> =
            services.iter().filter(|other| **other != service).map(|other| format!("services::{other}")).collect();
        let others: Vec<_> = others.iter().map(String::as_str).collect();
        refuse(&format!("server/src/services/{service}"), &others, |_| false);
    }
    // Rooms of a service are entered by itself alone.
    let rooms = [
        "host::store",
        "identity::store",
        "identity::ops",
        "network::store",
        "network::ops",
        "project::store",
        "ssh_key::store",
        "ssh_key::ops",
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
fn rooms_of_the_gateway_use_what_their_mods_say() {
    let rooms = ["api", "ops", "wire", "store", "path", "books", "upstream", "speech", "serve"];
    let may: [(&str, &[&str]); 5] = [
        ("path", &["books", "upstream"]),
        ("books", &["store"]),
        ("upstream", &["serve"]),
        ("speech", &["upstream"]),
        ("serve", &[]),
    ];
    for (room, may) in may {
        let others = rooms.into_iter().filter(|other| *other != room && !may.contains(other));
        // The gateway itself, several rooms at once, and a way up that names none would tell nothing.
        let others = others.map(|other| format!("services::gateway::{other}"));
        let ways = ["services::gateway::Gateway", "services::gateway::{", "super::super"].map(str::to_owned);
        let words: Vec<_> = others.chain(ways).collect();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let below = format!("server/src/services/gateway/{room}");
        refuse(&below, &words, |_| false);
        refuse(&below, &["super::"], |file| !file.ends_with(&format!("gateway/{room}/mod.rs")));
    }
}

#[test]
fn requests_do_not_touch_the_host() {
    // What a request may ask the engine for: where to receive an upload and whether there is room for it, how VMs are
    // reached, which it knows without asking its host, what a console, a screen or a meter shows, and a file of a disk that stands still.
    let shown = ["console", "console_log", "screen", "picture", "usage", "export", "exported"];
    let harmless: Vec<_> = ["staging", "upload", "capacity", "ready", "network"].into_iter().chain(shown).collect();
    let asks = |line: &str| {
        let calls: Vec<_> =
            line.split("engine().").skip(1).map(|rest| rest.split('(').next().unwrap_or_default()).collect();
        calls.iter().any(|call| !harmless.contains(call))
    };
    let requests = ["network/ops", "network/api", "vm/ops", "vm/api", "sandbox/ops", "sandbox/api"];
    for below in requests.map(|room| format!("server/src/services/{room}")) {
        for (file, text) in sources(&below) {
            let joined = lines(&text).collect::<Vec<_>>().join("").replace(' ', "");
            assert!(!asks(&joined), "{file} asks the engine for more than a request may");
            let may_ask = ["api/console.rs", "api/screen.rs", "api/export.rs"].iter().any(|it| file.ends_with(it));
            assert!(may_ask || !joined.contains("engine_of("), "{file} asks a host for more than a request may");
        }
    }
}

#[test]
fn stores_are_asked_by_ops_and_reconcilers_not_by_wire() {
    for service in ["vm", "sandbox", "network", "ssh_key", "gateway"] {
        refuse(&format!("server/src/services/{service}/wire"), &["engine()", ".begin()", "Tx"], |_| false);
    }
}

#[test]
fn requests_are_parsed_by_the_domain_and_only_described_by_wire() {
    // Whatever reads a body field by field, or makes a type of a whole one.
    refuse("server/src", &["domain::fields", "Fields::of", "Fields<'", "TryFrom<&Value>"], |_| false);
    // Whatever can refuse, judges; what describes and shows cannot.
    let judges = ["FieldError", "Parsed", "Error::", "Err(", "Result<", ".fail(", "query::", "list::Params"];
    for service in ["host", "identity", "network", "project", "ssh_key", "vm", "sandbox", "gateway"] {
        refuse(&format!("server/src/services/{service}/wire"), &judges, |_| false);
    }
}

/// What acts for nobody who is signed in: it proves by other means who asks, records that somebody was refused, or is
/// the platform's own.
const FOR_NOBODY: [(&str, &[&str]); 11] = [
    ("identity/ops/audit.rs", &["forget"]),
    ("identity/ops/password.rs", &["reset", "confirm"]),
    ("identity/ops/refusal.rs", &["login", "key", "more"]),
    ("identity/ops/session.rs", &["login", "prove", "refresh"]),
    ("identity/ops/signing_key.rs", &["at_start", "keep_fresh"]),
    ("identity/ops/user.rs", &["first_administrator", "sign_up"]),
    ("identity/ops/verification.rs", &["ask", "verify_email"]),
    ("sandbox/ops/sandbox.rs", &["pause_all"]),
    ("sandbox/ops/upload.rs", &["dismiss"]),
    ("vm/ops/disk_import.rs", &["release"]),
    ("vm/ops/vm.rs", &["stop_all"]),
];

#[test]
fn who_acts_for_a_caller_asks_again_inside_the_transaction() {
    let mut seen = 0;
    for service in ["identity", "vm", "sandbox", "network", "ssh_key", "gateway"] {
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

/// What writes an audit record for who calls it, in the transaction that it is given.
const RECORDS: [(&str, &[&str]); 6] = [
    ("gateway", &["record"]),
    ("identity", &["remove", "take"]),
    ("network", &["record"]),
    ("sandbox", &["created", "write"]),
    ("ssh_key", &[]),
    ("vm", &["changed", "created", "record", "wish"]),
];

/// What changes nothing that is to be recorded by itself: it reads, or it begins what another one records when it is
/// whole.
const NOT_YET: [(&str, &[&str]); 3] = [
    ("sandbox/ops/sandbox.rs", &["begin"]),
    ("sandbox/ops/upload.rs", &["begin"]),
    ("vm/ops/disk_import.rs", &["claim"]),
];

/// The functions of a file: each with its name and its lines in one.
fn functions(text: &str) -> Vec<(String, String)> {
    let mut functions: Vec<(String, String)> = Vec::new();
    for line in lines(text) {
        if let Some(rest) = line.split("fn ").nth(1) {
            functions.push((rest.split(['(', '<']).next().unwrap_or_default().to_owned(), String::new()));
        }
        if let Some((_, body)) = functions.last_mut() {
            body.push_str(line);
        }
    }
    functions
}

/// Whether these lines write a record themselves.
fn records(body: &str) -> bool {
    let is_made = body.contains("Audit {") || body.contains(".audit(");
    is_made && (body.contains(".write(") || body.contains(".write_and_tell("))
}

/// Whether these lines hand their transaction to a function of this name.
fn hands_to(body: &str, name: &str) -> bool {
    let call = format!("{name}(");
    let is_plain = |at: usize| !body[..at].ends_with(|c: char| c.is_alphanumeric() || "_.:".contains(c));
    let gives = |at: usize| body[at..].split(';').next().is_some_and(|statement| statement.contains("&mut tx,"));
    body.match_indices(&call).any(|(at, _)| is_plain(at) && gives(at))
}

#[test]
fn who_acts_for_a_caller_records_it_in_the_transaction() {
    let mut seen = 0;
    for (service, helpers) in RECORDS {
        let mut not_there: Vec<&str> = helpers.to_vec();
        for (file, text) in sources(&format!("server/src/services/{service}/ops")) {
            let excused = NOT_YET.iter().find(|(known, _)| file.ends_with(known)).map_or(&[][..], |(_, names)| names);
            for (function, body) in functions(&text) {
                not_there.retain(|name| *name != function || !records(&body));
                if !body.contains(".begin_as(") || excused.contains(&function.as_str()) {
                    continue;
                }
                seen += 1;
                let is_recorded = records(&body) || helpers.iter().any(|name| hands_to(&body, name));
                assert!(
                    is_recorded,
                    "{file}: {function} changes something for a caller and writes no audit record in that transaction. \
                     What does it for others is listed in RECORDS, what changes nothing in NOT_YET"
                );
            }
        }
        assert!(not_there.is_empty(), "{not_there:?} of {service} writes no audit record");
    }
    assert!(seen > 40, "{seen} operations act for a caller");
}

#[test]
fn no_two_schemas_of_the_document_have_one_name() {
    let mut names = std::collections::BTreeMap::new();
    for (file, text) in sources("server/src") {
        for named in text.split("schema(as = ").skip(1) {
            let name = named.split([')', ',']).next().unwrap_or_default().to_owned();
            let before = names.insert(name.clone(), file.clone());
            assert_eq!(
                before, None,
                "{file} and another file name a schema {name}; the document would hold one of them"
            );
        }
    }
    assert!(names.len() > 40, "{} schemas are named", names.len());
}
