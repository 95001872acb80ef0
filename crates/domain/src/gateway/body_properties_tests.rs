//! Properties of every body, by comparison with a slow and plain reader.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;
use serde_json::value::RawValue;

use super::*;
use crate::error::Code;

const OPERATIONS: [Operation; 4] = [Operation::Chat, Operation::Completions, Operation::Embeddings, Operation::Speech];

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

/// The members of an object in their order, as serde finds them: slowly.
fn members(object: &str) -> Option<Vec<(String, &str)>> {
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(object).ok()?;
    let mut members: Vec<_> = members.into_iter().map(|(key, value)| (key, value.get())).collect();
    members.sort_by_key(|(_, value)| value.as_ptr());
    Some(members)
}

/// The hash of the beginning of a conversation, found the slow way.
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

/// Bytes of `old` between the common beginning and the common end of `old` and `new`.
fn changed(old: &[u8], new: &[u8]) -> usize {
    let same = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let ends = old[same..].iter().rev().zip(new[same..].iter().rev()).take_while(|(a, b)| a == b).count();
    old.len() - same - ends
}

/// The members of a body that never change, and those of its options that never change.
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
        // With its former name, the body is again what it was, except for null or false in one place.
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
        // The bound covers every field that a server may read.
        let fields = ["max_tokens", "max_completion_tokens", "n_predict"];
        let largest = fields.iter().filter_map(|field| tokens(&whole[*field])).max();
        prop_assert!(head.max_tokens.unwrap_or(LONG) >= largest.unwrap_or(0));
        prop_assert!(head.max_tokens.is_none_or(|most| Some(most) == largest || most == LONG));
        prop_assert!(tokens(&whole["max_tokens"]).is_none() || head.max_tokens.is_some());
        let content = given(operation.content());
        prop_assert_eq!((head.prompt_bytes, head.sent_bytes), (content.map_or(0, str::len), text.len()));
        prop_assert_eq!(head.conversation, beginning(operation, given("prompt_cache_key"), content));
    }

    #[test]
    fn reading_never_fails_but_in_words(text in ".*", operation in 0..4_usize) {
        if let Err(error) = Head::read(OPERATIONS[operation], text.as_bytes()) {
            prop_assert_eq!(error.code, Code::InvalidRequest);
        }
    }
}
