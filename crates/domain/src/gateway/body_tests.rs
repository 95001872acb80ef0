//! Tests of what the gateway reads in bodies, and of what it changes in them.

use serde_json::json;

use super::*;
use crate::error::Code;

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
    assert_eq!((head.prompt_bytes, head.sent_bytes), (r#"[{"role":"user","content":"hi"}]"#.len(), body.len()));
    let head = chat(r#"{"model":"m","messages":[0],"stream":null,"stream_options":null}"#).unwrap();
    assert_eq!((head.stream, head.asks_usage, head.max_tokens, head.prompt_bytes), (false, false, None, 3));
    let head = Head::read(Operation::Completions, br#"{"model":"m","prompt":["a","b"]}"#).unwrap();
    assert_eq!(head.prompt_bytes, 9);
    let head = Head::read(Operation::Embeddings, br#"{"model":"m","input":""}"#).unwrap();
    assert_eq!(head.prompt_bytes, 2);
    assert_eq!(Head::read(Operation::Speech, br#"{"model":"m"}"#).unwrap().prompt_bytes, 0);
}

/// A conversation of two messages, the second with this content, and something beside it.
fn seen(content: &str, beside: &str) -> (usize, usize) {
    let messages = format!(r#"[{{"role":"user","content":"hi"}},{{"role":"user","content":{content}}}]"#);
    let body = format!(r#"{{"model":"m","messages":{messages}{beside}}}"#);
    let head = chat(&body).unwrap();
    (messages.len() - head.prompt_bytes, body.len() - head.sent_bytes)
}

#[test]
fn an_image_is_no_text() {
    let image = |bytes: usize| {
        let url = r#""data:image/png;base64,""#;
        url.replace(',', &format!(",{}", "A".repeat(bytes - url.len())))
    };
    let part = |url: &str| format!(r#"{{"type":"image_url","image_url":{{"detail":"high","url":{url}}}}}"#);
    for (bytes, spare) in [(image::MOST, 0), (image::MOST + 1, 1), (1 << 20, (1 << 20) - image::MOST)] {
        let found = part(&image(bytes));
        assert_eq!(seen(&format!("[{found}]"), ""), (spare, spare), "{bytes}");
        assert_eq!(seen(&format!(r#"[{found}, {{"text":"x"}}, {found}]"#), ""), (2 * spare, 2 * spare), "{bytes}");
        let escaped = seen(&format!("[{}]", found.replace("image/", r"image\/")), "");
        assert_eq!(escaped, (spare + 1, spare + 1), "{bytes}");
    }
    let (large, text) = (image(1 << 20), format!("\"{}\"", "a".repeat(1 << 20)));
    // In other places a server may read it, and then it counts as text.
    for content in [
        text.clone(),
        large.clone(),
        part(&large),
        format!("[{large}]"),
        format!("[[{}]]", part(&large)),
        format!("[{}]", part(&text)),
        format!("[{}]", part(&large).replace("image/", "imagery")),
        format!("[{}]", part(&large).replace("data:", "text:")),
        format!(r#"[{{"image_url":{large}}}]"#),
        format!(r#"[{{"type":"text","text":{large}}}]"#),
        format!(r#"[{{"type":"text","x":{}}}]"#, part(&large)),
    ] {
        assert_eq!(seen(&content, ""), (0, 0), "{}", &content[..60]);
    }
    assert_eq!(seen("1", &format!(r#","tools":[{}]"#, part(&large))), (0, 0));
    // Outside of conversations, messages mean nothing.
    let body = format!(r#"{{"model":"m","prompt":"hi","messages":[{{"content":[{}]}}]}}"#, part(&large));
    let head = Head::read(Operation::Completions, body.as_bytes()).unwrap();
    assert_eq!((head.prompt_bytes, head.sent_bytes), (4, body.len()));
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
        (r#","max_tokens":9,"max_completion_tokens":3"#, Some(9)),
        (r#","max_tokens":3,"max_completion_tokens":9"#, Some(9)),
        (r#","max_completion_tokens":9"#, Some(9)),
        // Some servers take this for no bound at all.
        (r#","max_tokens":9,"max_completion_tokens":0"#, Some(LONG)),
        (r#","max_tokens":5000,"max_completion_tokens":-1"#, Some(5000)),
    ] {
        assert_eq!(with(members).max_tokens, most, "{members}");
    }
}

/// Most tokens of the continuation of a text.
fn of_text(members: &str) -> Option<u64> {
    let body = format!(r#"{{"model":"m","prompt":""{members}}}"#);
    Head::read(Operation::Completions, body.as_bytes()).unwrap().max_tokens
}

#[test]
fn what_a_server_may_not_read_never_lowers_the_limit() {
    for (members, most) in [
        (r#","max_tokens":8192,"max_completion_tokens":1"#, Some(8192)),
        (r#","max_tokens":8,"max_completion_tokens":1"#, Some(8)),
        (r#","max_tokens":1,"max_completion_tokens":8"#, Some(8)),
        (r#","max_completion_tokens":1"#, None),
        (r#","max_completion_tokens":8192"#, Some(8192)),
    ] {
        assert_eq!(of_text(members), most, "{members}");
    }
    for (members, most) in [
        (r#","max_tokens":1,"n_predict":8192"#, Some(8192)),
        (r#","max_tokens":1,"n_predict":-1"#, Some(LONG)),
        (r#","max_tokens":8,"n_predict":1"#, Some(8)),
        (r#","n_predict":1"#, None),
        (r#","n_predict":8192"#, Some(8192)),
        (r#","n_predict":null"#, None),
    ] {
        assert_eq!((of_text(members), with(members).max_tokens), (most, most), "{members}");
    }
    let misspelt = chat(r#"{"model":"m","messages":[1],"N_Predict":1}"#).unwrap_err();
    assert_eq!(misspelt.details[0].field, "N_Predict");
}

#[test]
fn answers_asked_for() {
    for (members, answers) in [
        ("", 1),
        (r#","n":3"#, 3),
        (r#","n":null"#, 1),
        (r#","n":0"#, 1),
        (r#","n":18446744073709551615"#, u64::MAX),
        (r#","best_of":7"#, 1),
    ] {
        assert_eq!(with(members).answers, answers, "{members}");
    }
    for (members, answers) in [
        (r#""prompt":"a""#, 1),
        (r#""prompt":"a","n":2,"best_of":5"#, 5),
        (r#""prompt":["a","b","c"],"n":2"#, 6),
        (r#""prompt":[1,2,3],"n":2"#, 2),
        (r#""prompt":[[1,2],[3]]"#, 2),
        (r#""prompt":["a","b"],"n":18446744073709551615"#, u64::MAX),
    ] {
        let body = format!(r#"{{"model":"m",{members}}}"#);
        assert_eq!(Head::read(Operation::Completions, body.as_bytes()).unwrap().answers, answers, "{members}");
    }
    let embeddings = Head::read(Operation::Embeddings, br#"{"model":"m","input":["a","b"]}"#).unwrap();
    assert_eq!(embeddings.answers, 0);
}

#[test]
fn a_name_that_matters_has_one_spelling() {
    for (members, field, name) in [
        (r#","MODEL":"big""#, "MODEL", "model"),
        (r#","mod\u0045l":"big""#, "modEl", "model"),
        (r#","me\u017f\u017fages":[]"#, "me\u{17f}\u{17f}ages", "messages"),
        (r#","max_to\u212Aens":9"#, "max_to\u{212a}ens", "max_tokens"),
        (r#","Max_Tokens":9"#, "Max_Tokens", "max_tokens"),
        (r#","N":9"#, "N", "n"),
        (r#","stream_options":{"Include_usage":false}"#, "stream_options.Include_usage", "include_usage"),
    ] {
        let body = format!(r#"{{"model":"m","messages":[1]{members}}}"#);
        let error = chat(&body).unwrap_err();
        assert_eq!((error.code, error.details.len()), (Code::InvalidRequest, 1), "{members}");
        assert_eq!(error.details[0].field, field);
        assert!(error.details[0].message.contains(&format!("'{name}'")), "{}", error.details[0].message);
    }
    // Names without a meaning here are for the upstream, and so are deeper ones.
    for members in [r#","Temperature":1"#, r#","models":[]"#, r#","modél":1"#, r#","x":{"MODEL":1}"#, r#","":1"#] {
        assert!(chat(&format!(r#"{{"model":"m","messages":[1]{members}}}"#)).is_ok(), "{members}");
    }
    assert_eq!(fields(Operation::Chat, &json!({"MODEL": 1, "messages": 1})), ["MODEL", "model", "messages"]);
}

#[test]
fn the_name_changes_where_it_differs() {
    let body = "\r\n{ \"a\" : {\"model\":\"m\"} ,\t\"model\" :  \"m\" , \"messages\":[ 1.0 ] }\n";
    assert_eq!(sent(body, "m"), "as it is");
    assert_eq!(
        sent(body, "acme/\"tiny\""),
        "\r\n{ \"a\" : {\"model\":\"m\"} ,\t\"model\" :  \"acme/\\\"tiny\\\"\" , \"messages\":[ 1.0 ] }\n"
    );
    // Escapes in keys and names do not matter.
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
    // A message counts to its end, and only one with the role of the user is the user's.
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
