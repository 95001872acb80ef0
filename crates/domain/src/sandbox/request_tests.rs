//! Every bound on both sides.

use super::*;
use crate::sandbox::dockerfile::MAX_TEXT;
use proptest::prelude::*;
use serde_json::json;

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T>, field: &str) {
    let error = outcome.expect_err("a refusal");
    assert!(error.details.iter().any(|d| d.field == field), "{field}: {error}");
}

fn create(field: &str, value: Value) -> Result<CreateSandbox> {
    CreateSandbox::try_from(&json!({ field: value }))
}

#[test]
fn nothing_asked_is_a_sandbox_of_base() {
    let made = CreateSandbox::try_from(&json!({})).unwrap();
    assert_eq!(made.origin, Origin::Template("base".into()));
    assert_eq!(
        (made.on_timeout, made.timeout_seconds, made.network),
        (OnTimeout::Pause, None, NetworkPolicy::default())
    );
    let id = "01939f2e-7c00-7abc-8def-0123456789ab";
    refused(CreateSandbox::try_from(&json!({"template_id": "base", "snapshot_id": id})), "snapshot_id");
    refused(create("snapshot_id", json!("x")), "snapshot_id");
}

#[test]
fn nobody_resumes_it_unless_that_is_asked() {
    assert!(!CreateSandbox::try_from(&json!({})).unwrap().auto_resume);
    let update = |value: Value| UpdateSandbox::try_from(&json!({"auto_resume": value}));
    for wanted in [true, false] {
        assert_eq!(create("auto_resume", json!(wanted)).unwrap().auto_resume, wanted);
        assert_eq!(update(json!(wanted)).unwrap().auto_resume, Some(wanted));
    }
    assert_eq!(UpdateSandbox::try_from(&json!({})).unwrap().auto_resume, None);
    for wrong in [json!("true"), json!(1), json!([])] {
        refused(create("auto_resume", wrong.clone()), "auto_resume");
        refused(update(wrong), "auto_resume");
    }
}

#[test]
fn bounds_of_numbers() {
    for field in ["timeout_seconds", "idle_timeout_seconds"] {
        for (n, good) in [(4, false), (5, true), (2_592_000, true), (2_592_001, false)] {
            assert_eq!(create(field, json!(n)).is_ok(), good, "{field} {n}");
        }
    }
    for (n, good) in [(0, false), (1, true), (100, true), (101, false)] {
        assert_eq!(Fork::try_from(&json!({"count": n})).is_ok(), good, "{n}");
    }
    let template = |field: &str, n: i64| {
        let mut body = json!({"name": "t", "image": "debian:12", "vcpu": 1, "memory_mb": 128, "disk_gb": 1});
        body[field] = json!(n);
        CreateTemplate::try_from(&body)
    };
    for (field, least, most) in [("vcpu", 1, 8), ("memory_mb", 128, 16_384), ("disk_gb", 1, 100)] {
        assert!(template(field, least).is_ok() && template(field, most).is_ok(), "{field}");
        refused(template(field, least - 1), field);
        refused(template(field, most + 1), field);
    }
}

#[test]
fn bounds_of_metadata_and_environment() {
    let metadata = |key: &str, value: &str| create("metadata", json!({ key: value }));
    assert!(metadata(&"k".repeat(64), &"ä".repeat(1024)).is_ok());
    for (key, value) in [("", "v"), (&*"k".repeat(65), "v"), ("k k", "v"), ("k", &*"ä".repeat(1025)), ("k", "\0")] {
        refused(metadata(key, value), "metadata");
    }
    let many = |n: usize| create("metadata", (0..n).map(|i| (format!("k{i}"), json!("v"))).collect());
    assert!(many(64).is_ok());
    refused(many(65), "metadata");
    let env = |name: &str, value: String| create("env", json!({ name: value }));
    assert!(env("_A1", "x".repeat(MAX_PAIRS - 5)).is_ok());
    refused(env("_A1", "x".repeat(MAX_PAIRS - 4)), "env");
    // 32 values of 1,021 bytes below keys of one fill it.
    let metadata = |last: usize| {
        let keys = "abcdefghijklmnopqrstuvwxyzABCDEF".chars();
        let pair = |key: char| (key.to_string(), json!("x".repeat(if key == 'a' { last } else { 1021 })));
        let pairs: serde_json::Map<_, _> = keys.map(pair).collect();
        CreateSandbox::try_from(&json!({"metadata": pairs}))
    };
    assert!(metadata(1021).is_ok());
    refused(metadata(1022), "metadata");
    for name in ["", "1A", "A-B", "A=B", "Ä"] {
        refused(env(name, String::new()), "env");
    }
    refused(create("env", json!({"A": 1})), "env");
    refused(create("metadata", json!([])), "metadata");
}

#[test]
fn names_of_forks_leave_room_for_their_number() {
    let fork = |length: usize, count: i64| Fork::try_from(&json!({"name": "a".repeat(length), "count": count}));
    assert!(fork(63, 1).is_ok() && fork(61, 9).is_ok() && fork(59, 100).is_ok());
    refused(fork(64, 1), "name");
    refused(fork(62, 9), "name");
    refused(fork(60, 100), "name");
}

#[test]
fn a_template_has_one_source() {
    let id = "01939f2e-7c00-7abc-8def-0123456789ab";
    let sizes = json!({"name": "t", "vcpu": 1, "memory_mb": 128, "disk_gb": 1});
    refused(CreateTemplate::try_from(&sizes), "image");
    let mut both = sizes.clone();
    (both["image"], both["dockerfile"]) = (json!("a"), json!("FROM a"));
    refused(CreateTemplate::try_from(&both), "image");
    assert!(CreateTemplate::try_from(&json!({"name": "t", "from_snapshot": id})).is_ok());
    refused(CreateTemplate::try_from(&json!({"name": "t", "image": "a"})), "memory_mb");
    refused(CreateTemplate::try_from(&json!({"name": id, "from_snapshot": id})), "name");
    for (length, good) in [(MAX_TEXT, true), (MAX_TEXT + 1, false)] {
        let mut body = sizes.clone();
        let comment = "#".repeat(length - "FROM a\n".len());
        body["dockerfile"] = json!(format!("FROM a\n{comment}"));
        assert_eq!(CreateTemplate::try_from(&body).is_ok(), good);
    }
}

#[test]
fn a_dockerfile_is_read_with_the_request() {
    let id = "01939f2e-7c00-7abc-8def-0123456789ab";
    let body = |fields: Value| {
        let mut body = json!({"name": "t", "vcpu": 1, "memory_mb": 128, "disk_gb": 1});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        CreateTemplate::try_from(&body)
    };
    for (text, what) in [
        ("FROM a\nRUNN b", "line 2:"),
        ("FROM a\nCOPY b c", "line 2: there are no files to copy from"),
        ("FROM a AS b\nRUN c\nFROM b\nCOPY --from=a /d /d\nADD e /", "line 5: there are no files"),
        ("FROM scratch\nWORKDIR $B", "line 2:"),
        ("FROM a\nENV B=\nWORKDIR $B", "line 3:"),
        ("FROM a\nENV B=$C\nCOPY --chmod=x d /e", "line 3:"),
        ("", "needs a FROM"),
    ] {
        let refused = body(json!({"dockerfile": text})).unwrap_err();
        assert!(refused.details[0].field == "dockerfile" && refused.details[0].message.contains(what), "{refused:?}");
    }
    let made = body(json!({"dockerfile": "FROM a\nCOPY b c", "context_id": id})).unwrap();
    assert_eq!(made.context, Some(id.parse().unwrap()));
    for fine in ["FROM a\nCOPY --from=b /c /c", "FROM a\nCOPY <<E /f\ntext\nE\n", "FROM scratch"] {
        assert!(body(json!({"dockerfile": fine})).is_ok(), "{fine}");
    }
    // What an image sets is known when it is there.
    for text in ["FROM a\nWORKDIR $B", "FROM a\nCOPY c.py ${B}", "FROM a\nUSER ${B:?}", "FROM a AS c\nFROM c\nUSER $B"]
    {
        assert!(body(json!({"dockerfile": text, "context_id": id})).is_ok(), "{text}");
    }
    refused(body(json!({"image": "a", "context_id": id})), "context_id");
    refused(body(json!({"dockerfile": "FROM a", "context_id": "b"})), "context_id");
    for (image, good) in [
        ("debian:12", true),
        ("ghcr.io/a/b@sha256:00", true),
        ("upload:x", true),
        (&*"a".repeat(512), true),
        (&*"a".repeat(513), false),
        ("", false),
        ("-a", false),
        ("a b", false),
        ("a\nRUN b", false),
        ("$A", false),
    ] {
        assert_eq!(body(json!({"image": image})).is_ok(), good, "{image}");
    }
}

#[test]
fn snapshots_and_pauses() {
    for (name, good) in [("x", true), (&*"ä".repeat(64), true), ("", false), (&*"x".repeat(65), false), ("a\n", false)]
    {
        assert_eq!(NewSnapshot::try_from(&json!({"name": name})).is_ok(), good, "{name:?}");
    }
    assert_eq!(NewSnapshot::try_from(&json!({})).unwrap(), NewSnapshot::default());
    let snapshot = NewSnapshot { include_memory: true, durable: true, name: None };
    assert_eq!(NewSnapshot::try_from(&json!({"include_memory": true, "durable": true})).unwrap(), snapshot);
    let pause = |include_memory, durable| Pause { include_memory, durable };
    for (body, wanted) in [
        (json!({}), pause(None, None)),
        (json!({"include_memory": false}), pause(Some(false), None)),
        (json!({"durable": true}), pause(None, Some(true))),
        (json!({"durable": false, "include_memory": true}), pause(Some(true), Some(false))),
    ] {
        assert_eq!(Pause::try_from(&body).unwrap(), wanted);
    }
    refused(Pause::try_from(&json!({"durable": 1})).map(drop), "durable");
    refused(restore(&json!({})), "snapshot_id");
}

proptest! {
    #[test]
    fn no_body_panics(text in "[\\PC]{0,40}", number in any::<f64>()) {
        let fields = ["template_id", "snapshot_id", "name", "metadata", "env", "network", "count", "image", "vcpu"];
        for field in fields {
            for value in [json!(text), json!(number), json!([text]), json!({"egress": number, &text: text})] {
                let body = json!({ field: value });
                let _ = CreateSandbox::try_from(&body);
                let _ = UpdateSandbox::try_from(&body);
                let _ = Fork::try_from(&body);
                let _ = CreateTemplate::try_from(&body);
                let _ = NewSnapshot::try_from(&body);
            }
        }
    }
}
