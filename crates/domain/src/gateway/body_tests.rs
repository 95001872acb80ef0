//! Tests of what is read from bodies, and of what changes in them.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;
use serde_json::value::RawValue;

use super::*;
use crate::error::Code;

const OPERATIONS: [Operation; 4] = [Operation::Chat, Operation::Completions, Operation::Embeddings, Operation::Speech];

fn chat(body: &str) -> Result<Head> {
    Head::read(Operation::Chat, body.as_bytes())
}

/// A good conversation with more members.
fn with(members: &str) -> Head {
    chat(&format!(r#"{{"model":"m","messages":[{{}}]{members}}}"#)).unwrap()
}

fn fields(operation: Operation, body: &Value) -> Vec<String> {
    let error = Head::read(operation, body.to_string().as_bytes()).unwrap_err();
    assert_eq!(error.code, Code::InvalidRequest);
    error.details.into_iter().map(|detail| detail.field).collect()
}

/// What an upstream that knows the model as `model` gets.
fn sent(body: &str, model: &str) -> String {
    let new = chat(body).unwrap().rewritten(body.as_bytes(), model);
    new.map_or_else(|| "as it is".into(), |new| String::from_utf8(new).unwrap())
}

#[test]
fn what_matters_is_read() {
    let body = r#" {"model":"acme/tiny","messages":[{"role":"user","content":"hi"}],"stream":true,
        "stream_options":{"include_usage":true},"max_tokens":5,"max_completion_tokens":7,"tools":[1]} "#;
    let head = chat(body).unwrap();
    assert_eq!(
        (head.model.as_str(), head.stream, head.asks_usage, head.max_tokens),
        ("acme/tiny", true, true, Some(7))
    );
    assert_eq!(head.prompt_bytes, r#"[{"role":"user","content":"hi"}]"#.len());
    let head = chat(r#"{"model":"m","messages":[0],"stream":null,"stream_options":null}"#).unwrap();
    assert_eq!((head.stream, head.asks_usage, head.max_tokens, head.prompt_bytes), (false, false, None, 3));
    let head = Head::read(Operation::Completions, br#"{"model":"m","prompt":["a","b"]}"#).unwrap();
    assert_eq!(head.prompt_bytes, 9);
    let head = Head::read(Operation::Embeddings, br#"{"model":"m","input":""}"#).unwrap();
    assert_eq!(head.prompt_bytes, 2);
    assert_eq!(Head::read(Operation::Speech, br#"{"model":"m"}"#).unwrap().prompt_bytes, 0);
}

#[test]
fn every_mistake_is_named() {
    let body = json!({"model": 1, "stream": "yes", "stream_options": [], "messages": {}});
    assert_eq!(fields(Operation::Chat, &body), ["model", "stream", "stream_options", "messages"]);
    assert_eq!(fields(Operation::Chat, &json!({})), ["model", "messages"]);
    assert_eq!(fields(Operation::Completions, &json!({"model": null})), ["model", "prompt"]);
    assert_eq!(fields(Operation::Embeddings, &json!({"model": "", "input": null})), ["model", "input"]);
    assert_eq!(fields(Operation::Speech, &json!({"model": "\0"})), ["model"]);
    for messages in [json!([]), json!("hi"), json!(null), json!(1)] {
        assert_eq!(fields(Operation::Chat, &json!({"model": "m", "messages": messages})), ["messages"]);
    }
    assert_eq!(chat("{\"model\":\"m\",\"messages\":[ \n]}").unwrap_err().details[0].field, "messages");
    for body in ["[]", "1", "\"x\"", " null "] {
        assert_eq!(chat(body).unwrap_err().details[0].field, "body", "{body}");
    }
}

#[test]
fn what_is_no_json_is_refused() {
    let deep = |n: usize| format!(r#"{{"model":"m","messages":[{}{}]}}"#, "[".repeat(n), "]".repeat(n));
    assert!(chat(&deep(125)).is_ok());
    for bad in ["", "{", "{} x", r#"{"model":"m","model":"m"}"#, r#"{"messages":[{"a":1,"a":1}]}"#, &deep(126)] {
        let error = chat(bad).unwrap_err();
        assert_eq!((error.code, error.details.len()), (Code::InvalidRequest, 0), "{bad}");
        assert_eq!(error, json::parse(bad.as_bytes()).unwrap_err());
    }
    assert!(chat(r#"{"model":"m","messages":[1],"mod\u0065l":"n"}"#).is_err());
    assert!(Head::read(Operation::Chat, b"{\"model\":\"\xff\",\"messages\":[1]}").is_err());
}

#[test]
fn names_on_both_sides() {
    for good in ["m", "ä", &"ä".repeat(200), "a b", "\"\\\n"] {
        assert_eq!(chat(&json!({"model": good, "messages": [1]}).to_string()).unwrap().model, good);
    }
    for bad in ["", "a\0", &"x".repeat(201)] {
        assert_eq!(fields(Operation::Chat, &json!({"model": bad, "messages": [1]})), ["model"]);
    }
}

#[test]
fn token_limits() {
    for (members, most) in [
        ("", None),
        (r#","max_tokens":1"#, Some(1)),
        (r#","max_tokens":20.0"#, Some(20)),
        (r#","max_tokens":18446744073709551615"#, Some(u64::MAX)),
        (r#","max_tokens":0"#, None),
        (r#","max_tokens":-1"#, None),
        (r#","max_tokens":1.5"#, None),
        (r#","max_tokens":"9""#, None),
        (r#","max_tokens":{"a":1}"#, None),
        (r#","max_tokens":9,"max_completion_tokens":null"#, Some(9)),
        (r#","max_tokens":9,"max_completion_tokens":0"#, Some(9)),
        (r#","max_tokens":9,"max_completion_tokens":3"#, Some(3)),
    ] {
        assert_eq!(with(members).max_tokens, most, "{members}");
    }
}

#[test]
fn the_name_changes_where_it_differs() {
    let body = "\r\n{ \"a\" : {\"model\":\"m\"} ,\t\"model\" :  \"m\" , \"messages\":[ 1.0 ] }\n";
    assert_eq!(sent(body, "m"), "as it is");
    assert_eq!(
        sent(body, "acme/\"tiny\""),
        "\r\n{ \"a\" : {\"model\":\"m\"} ,\t\"model\" :  \"acme/\\\"tiny\\\"\" , \"messages\":[ 1.0 ] }\n"
    );
    // A key and a name with escapes are what they say.
    let body = r#"{"messages":[1],"mod\u0065l":"\u006d"}"#;
    assert_eq!(sent(body, "m"), "as it is");
    assert_eq!(sent(body, "n"), r#"{"messages":[1],"mod\u0065l":"n"}"#);
    let plain = r#"{"model":"m","messages":[1],"stream_options":{"include_usage":false}}"#;
    assert_eq!(sent(plain, "m"), "as it is");
}

#[test]
fn streams_are_asked_for_their_usage() {
    let rest = r#""model":"m","stream":true,"messages":[1]"#;
    for (options, asked) in [
        ("null", r#"{"include_usage":true}"#),
        ("{}", r#"{"include_usage":true}"#),
        ("{ \n}", "{\"include_usage\":true \n}"),
        (r#"{"include_usage":false}"#, r#"{"include_usage":true}"#),
        (r#"{ "include_usage" : null , "x":1 }"#, r#"{ "include_usage" : true , "x":1 }"#),
        (r#"{"x":{"include_usage":true}}"#, r#"{"include_usage":true,"x":{"include_usage":true}}"#),
        (r#"{"include\u005fusage":0}"#, r#"{"include\u005fusage":true}"#),
    ] {
        for key in ["stream_options", r"stream\u005foptions"] {
            let body = |options: &str| format!(r#"{{"{key}" : {options} , {rest}}}"#);
            assert_eq!(sent(&body(options), "m"), body(asked));
            let body = |options: &str| format!(r#"{{{rest},"{key}":{options}}}"#);
            assert_eq!(sent(&body(options), "m"), body(asked));
            assert_eq!(sent(&body(options), "n"), body(asked).replacen(r#""m""#, r#""n""#, 1));
        }
    }
    assert_eq!(
        sent(&format!(" {{ {rest}}}"), "m"),
        format!(r#" {{"stream_options":{{"include_usage":true}}, {rest}}}"#)
    );
    assert_eq!(sent(&format!(r#"{{{rest},"stream_options":{{"include_usage":true}}}}"#), "m"), "as it is");
}

#[test]
fn only_operations_with_streams_of_tokens_are_asked() {
    let body = br#"{"model":"m","stream":true,"prompt":"a","input":"a"}"#;
    assert!(Head::read(Operation::Completions, body).unwrap().rewritten(body, "m").is_some());
    for operation in [Operation::Embeddings, Operation::Speech] {
        assert_eq!(Head::read(operation, body).unwrap().rewritten(body, "m"), None);
    }
}

#[test]
fn conversations_are_told_by_their_beginning() {
    let hash = |members: &str| chat(&format!(r#"{{"model":"m",{members}}}"#)).unwrap().conversation;
    let system = r#"{"role":"system","content":"be brief"}"#;
    let user = r#"{"role":"user","content":"hi"}"#;
    let first = hash(&format!(r#""messages":[{system},{user}]"#));
    let later = format!(r#""messages": [ {system}, {user}, {{"role":"assistant","content":"ho"}}, {user}]"#);
    assert_eq!(hash(&later), first);
    for other in [
        format!(r#""messages":[{user}]"#),
        format!(r#""messages":[{system}]"#),
        format!(r#""messages":[{system},{{"role":"user","content":"hi!"}}]"#),
        format!(r#""messages":[{system},{{"role":"user","content":["hi"]}}]"#),
        format!(r#""messages":[{system},{user}],"prompt_cache_key":"a""#),
        r#""messages":[1]"#.into(),
    ] {
        assert_ne!(hash(&other), first, "{other}");
    }
    let keyed = |key: &str, text: &str| hash(&format!(r#""messages":["{text}"],"prompt_cache_key":{key}"#));
    assert_eq!(keyed("\"a\"", "x"), keyed("\"a\"", "y"));
    assert_ne!(keyed("\"a\"", "x"), keyed("\"b\"", "x"));
    assert_eq!(hash(&format!(r#""messages":[{system},{user}],"prompt_cache_key":7"#)), first);
    assert_eq!(hash(&format!(r#""prompt_cache_key":null,"messages":[{system},{user}]"#)), first);
    assert_eq!(hash(r#""prompt_cache_key":"a","messages":["x"]"#), keyed("\"a\"", "y"));
}

#[test]
fn what_is_no_message_ends_the_beginning() {
    let hash = |messages: &str| chat(&format!(r#"{{"model":"m","messages":[{messages}]}}"#)).unwrap().conversation;
    let system = r#"{"role":"system"}"#;
    for other in ["null", "1", "\"x\"", "[]", r#"[{"role":"user"}]"#] {
        assert_eq!(hash(&format!("{system},{other},{system}")), hash(system), "{other}");
        assert_eq!(hash(other), 0, "{other}");
    }
    assert_ne!(hash(&format!("{system},{{}},{system}")), hash(system));
    // A message counts to its end, and only what is written as the user's is the user's.
    assert_ne!(hash(r#"{"role":"user","content":"a"}"#), hash(r#"{"role":"user","content":"b"}"#));
    for role in [r#""rol\u0065":"user""#, r#""role": "user""#] {
        assert_eq!(hash(&format!("{{{role}}},{system}")), hash(r#"{"role":"user"}"#), "{role}");
    }
    for role in [r#""role":"us\u0065r""#, r#""role":["user"]"#, r#""Role":"user""#] {
        assert_ne!(hash(&format!("{{{role}}},{system}")), hash(&format!("{{{role}}}")), "{role}");
    }
}

#[test]
fn prompts_are_told_by_their_first_kibibyte() {
    let hash = |prompt: &str| {
        let body = json!({"model": "m", "prompt": prompt, "input": prompt}).to_string();
        let of = |operation| Head::read(operation, body.as_bytes()).unwrap().conversation;
        assert_eq!(of(Operation::Completions), of(Operation::Embeddings));
        of(Operation::Completions)
    };
    // The quotation mark is the first byte.
    let (last, next) = ("a".repeat(BEGINNING - 2), "a".repeat(BEGINNING - 1));
    assert_ne!(hash(&format!("{last}b")), hash(&format!("{last}c")));
    assert_eq!(hash(&format!("{next}b")), hash(&format!("{next}c")));
    assert_ne!(hash("a"), hash("b"));
    assert_ne!(hash("a"), hash(""));
}

#[test]
fn hashes_are_the_same_on_every_machine() {
    let of = |parts: &[&str]| {
        let mut hash = Hash::default();
        for part in parts {
            hash.add(part.as_bytes());
        }
        hash.0
    };
    assert_eq!(of(&["berth", "a longer text"]), 0x4742_23da_a66f_aa22);
    assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
    assert_ne!(of(&["a"]), of(&["a\0"]));
}

#[test]
fn operations_have_their_paths() {
    for (operation, path, word) in [
        (Operation::Chat, "/chat/completions", "chat"),
        (Operation::Completions, "/completions", "completions"),
        (Operation::Embeddings, "/embeddings", "embeddings"),
        (Operation::Speech, "/audio/speech", "speech"),
    ] {
        assert_eq!((operation.path(), operation.as_str()), (path, word));
    }
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        let key = prop_oneof!["[a-z]{1,4}", "model|stream|stream_options|include_usage"];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// A body with a model of that name: members in any order, white space anywhere, keys with and without escapes.
fn body() -> impl Strategy<Value = (String, String)> {
    let options = prop::sample::select(vec![
        "",
        "null",
        "{}",
        "{ }",
        r#"{"include_usage":true}"#,
        r#"{"include_usage":false}"#,
        r#"{"a":[1], "include_usage" : null , "b":{}}"#,
        r#"{ "a":{"include_usage":true}}"#,
        r#"{"include\u005fusage":false,"a":"}"}"#,
    ]);
    let others = prop::collection::btree_map("x[a-z]{0,3}", value(), 0..4);
    let space = prop::sample::select(vec!["", " ", "\n\t ", "\r\n"]);
    let known = ("\\PC{1,30}", options, any::<bool>());
    (known, others, space, any::<bool>()).prop_flat_map(|((model, options, stream), others, space, escaped)| {
        let mut members = vec![
            ("model".to_owned(), Value::from(model.as_str()).to_string()),
            ("stream".to_owned(), stream.to_string()),
            ("messages".to_owned(), r#"[{"role":"user"}]"#.to_owned()),
        ];
        if !options.is_empty() {
            members.push(("stream_options".to_owned(), options.to_owned()));
        }
        members.extend(others.into_iter().map(|(key, value)| (key, value.to_string())));
        Just(members).prop_shuffle().prop_map(move |members| {
            let members: Vec<_> = members.iter().map(|(key, value)| member(key, value, space, escaped)).collect();
            (format!("{space}{{{}}}{space}", members.join(",")), model.clone())
        })
    })
}

fn member(key: &str, value: &str, space: &str, escaped: bool) -> String {
    let (first, rest) = key.split_at(1);
    let first = if escaped { format!("\\u{:04x}", first.as_bytes()[0]) } else { first.to_owned() };
    format!("{space}\"{first}{rest}\"{space}:{space}{value}{space}")
}

/// The members of an object in the order in which they stand, as serde finds them: slowly.
fn members(object: &str) -> Option<Vec<(String, &str)>> {
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(object).ok()?;
    let mut members: Vec<_> = members.into_iter().map(|(key, value)| (key, value.get())).collect();
    members.sort_by_key(|(_, value)| value.as_ptr());
    Some(members)
}

/// The hash of what begins a conversation, found the slow way.
fn beginning(operation: Operation, key: Option<&str>, content: Option<&str>) -> u64 {
    let mut hash = Hash::default();
    match (key.filter(|key| key.starts_with('"')), content) {
        (Some(key), _) => {
            hash.add(b"prompt_cache_key");
            hash.add(key.as_bytes());
        }
        (None, Some(content)) if operation == Operation::Chat => {
            for message in serde_json::from_str::<Vec<&RawValue>>(content).unwrap() {
                let Some(members) = members(message.get()) else { break };
                for (key, value) in &members {
                    hash.add(key.as_bytes());
                    hash.add(value.as_bytes());
                }
                if members.iter().any(|(key, value)| key == "role" && *value == r#""user""#) {
                    break;
                }
            }
        }
        (None, Some(content)) => hash.add(&content.as_bytes()[..content.len().min(BEGINNING)]),
        (None, None) => {}
    }
    hash.0
}

/// The fields of a body that break a rule.
fn broken(operation: Operation, body: &Value) -> Vec<&'static str> {
    let absent = |field: &str| body[field].is_null();
    let content = match operation {
        Operation::Chat => body["messages"].as_array().is_some_and(|messages| !messages.is_empty()),
        Operation::Completions => !absent("prompt"),
        Operation::Embeddings => !absent("input"),
        Operation::Speech => true,
    };
    let rules = [
        ("model", body["model"].is_string()),
        ("stream", absent("stream") || body["stream"].is_boolean()),
        ("stream_options", absent("stream_options") || body["stream_options"].is_object()),
        (operation.content(), content),
    ];
    rules.into_iter().filter(|(_, kept)| !kept).map(|(field, _)| field).collect()
}

fn tokens(value: &Value) -> Option<u64> {
    let whole = value.as_u64().or_else(|| integer(1, i64::MAX)(value).ok().map(i64::unsigned_abs));
    whole.filter(|tokens| *tokens > 0)
}

fn one_of(texts: &[&str]) -> BoxedStrategy<String> {
    prop::sample::select(texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()).boxed()
}

fn any_value() -> BoxedStrategy<String> {
    value().prop_map(|value| value.to_string()).boxed()
}

/// A message, or something in its place.
fn message() -> impl Strategy<Value = String> {
    let key = one_of(&["role", "rol\\u0065", "ROLE"]);
    let role = one_of(&["\"user\"", "\"us\\u0065r\"", "\"system\"", "\"assistant\"", "null", "[\"user\"]"]);
    let written = (key, role, any_value(), any::<bool>()).prop_map(|(key, role, content, first)| {
        let (role, content) = (format!(" \"{key}\" : {role}\n"), format!("\"content\":{content}"));
        if first { format!("{{{role},{content}}}") } else { format!("{{{content},{role}}}") }
    });
    prop_oneof![8 => written, 1 => any_value()]
}

/// A body of any operation, mostly a good one.
fn request() -> impl Strategy<Value = String> {
    let messages = prop::collection::vec(message(), 0..5).prop_map(|items| format!("[{}]", items.join(" ,\n")));
    let limit = || one_of(&["1", "20.0", "0", "-1", "1.5", "null", "\"9\"", "{}", "18446744073709551615", "2e1"]);
    let options = ["null", "{}", r#"{"include_usage":true}"#, r#"{"a":{"include_usage":true}}"#, "[]"];
    let members = [
        ("messages", prop_oneof![9 => messages, 1 => any_value()].boxed()),
        ("model", one_of(&["\"m\"", "\"\\u006d\"", "\"a/b\"", "\"c\"", "7"])),
        ("prompt", any_value()),
        ("input", any_value()),
        ("prompt_cache_key", one_of(&["null", "\"a\"", "7", "[\"a\"]"])),
        ("stream", one_of(&["true", "false", "true", "null", "\"true\""])),
        ("stream_options", one_of(&options)),
        ("max_tokens", limit()),
        ("max_completion_tokens", limit()),
        ("xyz", any_value()),
    ];
    let members: Vec<_> = members
        .into_iter()
        .map(|(key, text)| prop::option::weighted(0.8, text).prop_map(move |text| text.map(|text| (key, text))))
        .collect();
    let space = prop::sample::select(vec!["", " ", "\r\n"]);
    (members, space, any::<bool>()).prop_flat_map(|(members, space, escaped)| {
        let members = members.iter().flatten().map(|(key, text)| member(key, text, space, escaped));
        let members = Just(members.collect::<Vec<_>>()).prop_shuffle();
        members.prop_map(move |members| format!("{space}{{{}}}{space}", members.join(",")))
    })
}

/// How many bytes of `old` stand between what `old` and `new` begin with and what they end with.
fn changed(old: &[u8], new: &[u8]) -> usize {
    let same = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let ends = old[same..].iter().rev().zip(new[same..].iter().rev()).take_while(|(a, b)| a == b).count();
    old.len() - same - ends
}

/// A body's members that never change, and those of its options that never change.
fn kept(body: &[u8]) -> (Value, Value) {
    let mut body = json::parse(body).unwrap();
    let members = body.as_object_mut().unwrap();
    members.remove("model");
    let mut options = members.remove("stream_options").filter(Value::is_object).unwrap_or_else(|| json!({}));
    options.as_object_mut().unwrap().remove("include_usage");
    (body, options)
}

proptest! {
    #[test]
    fn only_what_must_change_changes((text, model) in body(), other in "\\PC{1,30}") {
        let old = text.as_bytes();
        let head = Head::read(Operation::Chat, old).unwrap();
        prop_assert_eq!(&head.model, &model);
        let asked = head.stream && !head.asks_usage;
        let Some(new) = head.rewritten(old, &other) else {
            prop_assert!(other == model && !asked);
            return Ok(());
        };
        prop_assert!(other != model || asked);
        prop_assert_eq!(kept(&new), kept(old));
        let read = json::parse(&new).unwrap();
        prop_assert_eq!(&read["model"], &Value::from(other.as_str()));
        let again = Head::read(Operation::Chat, &new).unwrap();
        prop_assert_eq!(again.asks_usage, head.asks_usage || asked);
        prop_assert_eq!(again.conversation, head.conversation);
        // With the name it had, it is the body it was, but for null or false in one place.
        let back = again.rewritten(&new, &model).unwrap_or(new);
        prop_assert!(changed(old, &back) <= "false".len());
        prop_assert!(asked || back == old);
    }

    #[test]
    fn what_is_found_is_what_a_slow_reader_finds(text in request(), operation in 0..4_usize) {
        let operation = OPERATIONS[operation];
        let whole = json::parse(text.as_bytes()).unwrap();
        let head = match Head::read(operation, text.as_bytes()) {
            Ok(head) => head,
            Err(error) => {
                let fields: Vec<_> = error.details.iter().map(|detail| detail.field.as_str()).collect();
                prop_assert!(!fields.is_empty());
                prop_assert_eq!(fields, broken(operation, &whole));
                return Ok(());
            }
        };
        prop_assert!(broken(operation, &whole).is_empty());
        let slow = members(&text).unwrap();
        let raw = |key: &str| slow.iter().find(|(name, _)| name == key).map_or("null", |(_, value)| *value);
        let given = |key: &str| Some(raw(key)).filter(|value| *value != "null");
        prop_assert_eq!(&Value::from(head.model.as_str()), &whole["model"]);
        prop_assert_eq!(&text[head.model_at.clone()], raw("model"));
        prop_assert_eq!(head.stream, whole["stream"] == true);
        prop_assert_eq!(head.asks_usage, whole["stream_options"]["include_usage"] == true);
        let most = tokens(&whole["max_completion_tokens"]).or_else(|| tokens(&whole["max_tokens"]));
        prop_assert_eq!(head.max_tokens, most);
        let content = given(operation.content());
        prop_assert_eq!(head.prompt_bytes, content.map_or(0, str::len));
        prop_assert_eq!(head.conversation, beginning(operation, given("prompt_cache_key"), content));
    }

    #[test]
    fn reading_never_fails_but_in_words(text in ".*", operation in 0..4_usize) {
        if let Err(error) = Head::read(OPERATIONS[operation], text.as_bytes()) {
            prop_assert_eq!(error.code, Code::InvalidRequest);
        }
    }
}
