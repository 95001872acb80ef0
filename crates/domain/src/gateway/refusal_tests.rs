//! Tests of what the gateway shows of an upstream's error, and of what it hides.

use proptest::prelude::*;
use serde_json::json;

use super::*;

const SECRETS: [&str; 5] = ["", "llm.internal", "llm.internal:8000", "http://llm.internal:8000/v1", "sk-Upstream1"];
const REFUSED: &str = "The model's server refused the request.";

fn refusal(body: &Value) -> Refusal {
    read(400, body.to_string().as_bytes(), &SECRETS)
}

fn made(message: &str, kind: &str, param: Option<&str>, code: Option<&str>) -> Refusal {
    Refusal {
        message: message.into(),
        kind: kind.into(),
        param: param.map(str::to_owned),
        code: code.map(str::to_owned),
    }
}

/// Texts that reveal too much.
const TELLING: [&str; 22] = [
    "Cannot connect to host llm.internal",
    "LLM.Internal did not answer",
    "Incorrect API key provided: sk-upstream1.",
    "see https://example.com/errors",
    "see unix:///run/model.sock",
    "connect to 10.0.0.5:8000 refused",
    "connect to 10.0.0.5 refused.",
    "HTTPConnectionPool(host='127.0.0.1', port=8000)",
    "connect to [::1]:8000 refused",
    "no route to fe80::1%eth0",
    "2001:db8::7: refused",
    "at 2001:db8::.",
    "at 2001:db8::.: no",
    "at 2001:db8::1:",
    "<html><body>502</body></html>",
    "<!DOCTYPE html>",
    "text with <b>markup</b>",
    "</p>",
    "<?xml version=\"1.0\"?>",
    "half a tag <img src",
    "::ffff:10.0.0.5",
    "ip=192.168.1.20/24",
];

/// Texts that reveal nothing.
const SILENT: [&str; 10] = [
    "max_tokens must be at most 4096",
    "version 1.2.3 and 1.2.3.4.5 and 999.1.1.1 are no addresses",
    "at 12:30:45, a:b, std::bad_alloc, ::, a::b",
    "1 < 2 and 3 <4, <|im_start|>, <",
    "messages[0].role: must be one of 'user', 'system'",
    "Zeichen wie äöü – ok",
    "100%: done",
    "ratio 3:4 (0.75)",
    "llm. internal",
    "http:/x",
];

#[test]
fn every_shape_is_read() {
    let inner = json!({"message": "no", "type": "bad_thing", "param": "n", "code": "c", "more": 1});
    let mut flat = inner.clone();
    flat["object"] = json!("error");
    for body in [json!({"error": inner}), json!([{"error": inner}]), flat] {
        assert_eq!(refusal(&body), made("no", "bad_thing", Some("n"), Some("c")), "{body}");
    }
    let plain = made("no", "invalid_request_error", None, None);
    for body in [
        json!({"error": "no"}),
        json!({"message": "no"}),
        json!({"error": "Bad Request", "message": "no"}),
        json!({"error": null, "message": "no"}),
        json!({"detail": "no"}),
        json!({"detail": [{"msg": "no"}]}),
        json!({"detail": [{"msg": "no", "loc": ["body"]}]}),
        json!({"error": {"message": "no", "type": null, "param": null, "code": null}}),
    ] {
        assert_eq!(refusal(&body), plain, "{body}");
    }
    let body = json!({"detail": [
        {"loc": ["body", "messages", 0, "role"], "msg": "Field required", "input": {}},
        {"loc": ["query", "n"], "msg": "too large"},
        {"loc": ["x"]},
    ]});
    let message = "messages.0.role: Field required; query.n: too large";
    assert_eq!(refusal(&body), made(message, "invalid_request_error", Some("messages.0.role"), None));
    let body = json!({"object": "error", "message": "no", "type": "BadRequestError", "param": null, "code": 400});
    assert_eq!(refusal(&body), made("no", "BadRequestError", None, Some("400")));
}

#[test]
fn what_says_nothing_gets_a_general_sentence() {
    let general = made(REFUSED, "invalid_request_error", None, None);
    for body in ["", "   ", "Bad Request", "<html>no</html>", "{", "[]", "{}", "null", "\"no\"", "7", "\u{feff}{}"] {
        assert_eq!(read(400, body.as_bytes(), &SECRETS), general, "{body}");
    }
    assert_eq!(read(400, b"\xff\xfe", &SECRETS), general);
    for body in [
        json!({"error": {}}),
        json!({"error": ""}),
        json!({"error": {"message": " \n"}}),
        json!({"error": {"message": {"a": 1}}}),
        json!({"error": 1}),
        json!({"detail": []}),
        json!({"detail": [1, {"msg": 2}]}),
        json!({"detail": {"a": 1}}),
    ] {
        assert_eq!(refusal(&body), general, "{body}");
    }
    let coded = refusal(&json!({"error": {"type": "t", "code": "c"}}));
    assert_eq!(coded, made(REFUSED, "t", None, Some("c")));
}

#[test]
fn statuses_have_their_types_and_sentences() {
    for status in [400, 404, 405, 408, 409, 413, 415, 422] {
        assert_eq!(kind_of(status), "invalid_request_error");
    }
    for (status, kind) in [
        (401, "authentication_error"),
        (403, "permission_error"),
        (429, "rate_limit_error"),
        (402, "api_error"),
        (499, "api_error"),
        (500, "api_error"),
        (503, "api_error"),
    ] {
        assert_eq!(read(status, b"", &[]).kind, kind);
    }
    for (status, words) in [
        (399, "refused"),
        (404, "refused"),
        (408, "too long"),
        (413, "too large"),
        (429, "too much"),
        (499, "refused"),
        (500, "failed"),
        (504, "too long"),
        (u16::MAX, "failed"),
    ] {
        assert!(read(status, b"", &[]).message.contains(words), "{status}");
    }
}

#[test]
fn what_tells_too_much_is_replaced() {
    for text in TELLING {
        let body = json!({"error": {"message": text, "type": text, "param": text, "code": text}});
        assert_eq!(refusal(&body), made(REFUSED, "invalid_request_error", None, None), "{text}");
        for body in [json!({"error": text}), json!({"detail": text}), json!({"detail": [{"msg": "no", "loc": [text]}]})]
        {
            assert_eq!(refusal(&body).message, REFUSED, "{body}");
        }
    }
    for text in SILENT {
        let body = json!({"error": {"message": text, "param": text}});
        assert_eq!(refusal(&body), made(text, "invalid_request_error", Some(text), None), "{text}");
    }
    let body = json!({"error": {"message": "no", "type": "about:blank", "code": "a b"}});
    assert_eq!(refusal(&body), made("no", "invalid_request_error", None, None));
}

#[test]
fn lengths_on_both_sides() {
    let message = |length: usize| refusal(&json!({"error": "ä".repeat(length)})).message;
    assert_eq!(message(LONGEST), "ä".repeat(LONGEST));
    assert_eq!(message(LONGEST + 1), format!("{}…", "ä".repeat(LONGEST - 1)));
    let body = json!({"error": format!("{} llm.internal", "x".repeat(2 * LONGEST))});
    assert_eq!(refusal(&body).message, REFUSED);
    let param = |length: usize| refusal(&json!({"error": {"message": "no", "param": "x".repeat(length)}})).param;
    assert_eq!((param(WORD), param(WORD + 1)), (Some("x".repeat(WORD)), None));
}

#[test]
fn only_a_clean_envelope_passes() {
    for body in [
        r#"{"error":{"message":"no"}}"#,
        r#" { "error" : { "message" : "" , "type":"t","param":null,"code":400,"inner":{"a":["b"]} } } "#,
    ] {
        assert!(passes(body.as_bytes(), &SECRETS), "{body}");
    }
    for body in [
        "",
        "no",
        "[]",
        "{}",
        r#"[{"error":{"message":"no"}}]"#,
        r#"{"error":"no"}"#,
        r#"{"error":{}}"#,
        r#"{"error":{"message":null}}"#,
        r#"{"error":{"message":"no"},"host":"h"}"#,
        r#"{"error":{"message":"no"}} x"#,
        r#"{"error":{"message":"at llm.internal","message":"no"}}"#,
        r#"{"error":{"message":"at http:\/\/10.0.0.5"}}"#,
        r#"{"error":{"message":"at llm\u002einternal"}}"#,
        r#"{"error":{"message":"no","inner":[{"a":"LLM.internal"}]}}"#,
        r#"{"error":{"message":"no","inner":{"llm.internal":1}}}"#,
    ] {
        assert!(!passes(body.as_bytes(), &SECRETS), "{body}");
    }
    for text in TELLING {
        assert!(!passes(json!({"error": {"message": text}}).to_string().as_bytes(), &SECRETS), "{text}");
        assert!(!passes(json!({"error": {"message": "no", "x": [text]}}).to_string().as_bytes(), &SECRETS), "{text}");
    }
    for text in SILENT {
        assert!(passes(json!({"error": {"message": text}}).to_string().as_bytes(), &SECRETS), "{text}");
    }
}

#[test]
fn the_envelope_is_one_line() {
    let text = envelope(&made("a \"b\"\nc", "t", None, Some("c")));
    assert_eq!(text, r#"{"error":{"message":"a \"b\"\nc","type":"t","param":null,"code":"c"}}"#);
}

/// A body of any of the shapes with these texts in it.
fn body() -> impl Strategy<Value = String> {
    let text = prop_oneof![
        ".{0,40}",
        prop::sample::select([TELLING.as_slice(), SILENT.as_slice()].concat()).prop_map(str::to_owned),
    ];
    (0..7, text.clone(), text).prop_map(|(shape, a, b)| match shape {
        0 => json!({"error": {"message": a, "type": b, "param": a, "code": b}}).to_string(),
        1 => json!({"error": a, "code": b}).to_string(),
        2 => json!({"message": a, "type": b}).to_string(),
        3 => json!({"detail": [{"msg": a, "loc": [b, 1]}, {"msg": b}]}).to_string(),
        4 => json!({"error": {"message": a, b: 1}}).to_string(),
        5 => format!("{a}{b}"),
        _ => json!({"object": "error", "message": a, "param": b, "detail": a}).to_string(),
    })
}

proptest! {
    #[test]
    fn nothing_is_told(body in body(), status in 0..1000_u16) {
        let refusal = read(status, body.as_bytes(), &SECRETS);
        prop_assert!(!refusal.message.trim().is_empty() && refusal.message.chars().count() <= LONGEST);
        let text = envelope(&refusal);
        prop_assert!(!text.contains('\n'));
        prop_assert!(passes(text.as_bytes(), &SECRETS), "{}", text);
        // Reading a clean refusal again does not change it.
        prop_assert_eq!(read(status, text.as_bytes(), &SECRETS), refusal);
        if passes(body.as_bytes(), &SECRETS) {
            prop_assert!(!body.to_lowercase().contains("llm.internal") && !body.contains("://"));
        }
    }

    #[test]
    fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        prop_assert!(passes(envelope(&read(500, &bytes, &[])).as_bytes(), &[]));
    }
}
