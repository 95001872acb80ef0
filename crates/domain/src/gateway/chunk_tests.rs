//! Tests of chunks: forms that servers really send, and a slow reader beside the fast one.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;

fn chunk(value: &Value) -> Chunk {
    read(value.to_string().as_bytes()).unwrap()
}

#[expect(clippy::unnecessary_wraps, reason = "it is compared with what a chunk has")]
fn usage(prompt: u64, completion: u64) -> Option<Usage> {
    Some(Usage { prompt, completion })
}

#[test]
fn a_piece_of_a_stream() {
    let text = r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,
        "delta":{"role":"assistant","content":"Hi \u00e4\ud83d\ude00\n"},"logprobs":null,"finish_reason":null}],
        "usage":null}"#;
    let expected = Chunk { choices: 1, begun: 1, text_bytes: "Hi ä😀\n".len(), ..Chunk::default() };
    assert_eq!(read(text.as_bytes()), Some(expected));
}

#[test]
fn the_end_of_a_stream() {
    let end = chunk(&json!({"choices": [{"delta": {}, "finish_reason": "stop"}]}));
    assert_eq!(end, Chunk { choices: 1, finished: 1, begun: 1, ended: 1, ..Chunk::default() });
    let end = chunk(&json!({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16}}));
    assert_eq!(end, Chunk { usage: usage(7, 9), only_usage: true, ..Chunk::default() });
    let both = chunk(&json!({"choices": [{"finish_reason": "length"}], "usage": {"completion_tokens": 2}}));
    assert_eq!(both, Chunk { usage: usage(0, 2), choices: 1, finished: 1, begun: 1, ended: 1, ..Chunk::default() });
    let some = chunk(&json!({"choices": [{"finish_reason": ""}, {"finish_reason": "stop"}, {}]}));
    assert_eq!((some.choices, some.finished), (3, 1));
    let of = |index: u64| json!({"index": index, "finish_reason": if index == 1 { "stop" } else { "" }});
    let several = chunk(&json!({"choices": [of(0), of(1), of(63), of(64), of(u64::MAX)]}));
    assert_eq!((several.begun, several.ended), (1 | 2 | 1 << 63, 2));
}

#[test]
fn usage_by_every_name() {
    let usage_of = |usage: Value| chunk(&json!({"usage": usage})).usage;
    assert_eq!(usage_of(json!({"prompt_tokens": 8, "total_tokens": 8})), usage(8, 0));
    assert_eq!(usage_of(json!({"input_tokens": 1, "output_tokens": 2})), usage(1, 2));
    assert_eq!(
        usage_of(json!({"input_tokens": 1, "prompt_tokens": 3.0, "output_tokens": u64::MAX})),
        usage(3, u64::MAX)
    );
    assert_eq!(usage_of(json!({"prompt_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}})), usage(4, 0));
    for none in [json!(null), json!({}), json!([1]), json!(7), json!({"prompt_tokens": "7"})] {
        assert_eq!(usage_of(none.clone()), None, "{none}");
    }
    for none in [json!(-1), json!(1.5), json!(1e30), json!(null), json!({"n": 1})] {
        assert_eq!(usage_of(json!({"prompt_tokens": none})), None);
    }
    assert!(chunk(&json!({"usage": {"prompt_tokens": 1}})).only_usage);
}

#[test]
fn failures() {
    for error in [json!({"message": "no"}), json!("no"), json!({})] {
        assert!(chunk(&json!({"error": error})).failed, "{error}");
        assert!(chunk(&json!({"error": error, "choices": []})).failed, "{error}");
        assert!(!chunk(&json!({"error": error, "choices": [{}]})).failed, "{error}");
    }
    for none in [json!(null), json!(false), json!(0), json!([])] {
        assert!(!chunk(&json!({"error": none})).failed, "{none}");
    }
}

#[test]
fn everything_a_model_writes_is_counted() {
    let bytes = |message: Value| {
        let streamed = chunk(&json!({"choices": [{"delta": message}]})).text_bytes;
        assert_eq!(streamed, chunk(&json!({"choices": [{"message": message}]})).text_bytes);
        streamed
    };
    assert_eq!(bytes(json!({"role": "assistant", "content": "four"})), 4);
    assert_eq!(bytes(json!({"content": null, "refusal": "no"})), 2);
    assert_eq!(bytes(json!({"reasoning_content": "hmm", "content": "a"})), 4);
    assert_eq!(bytes(json!({"reasoning_content": "hmm", "reasoning": "hmm"})), 3);
    assert_eq!(bytes(json!({"content": [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}, 7]})), 3);
    let calls = json!([
        {"index": 0, "id": "x", "type": "function", "function": {"name": "go", "arguments": "{\"a\":1}"}},
        {"index": 1, "type": "custom", "custom": {"name": "run", "input": "ls"}},
    ]);
    assert_eq!(bytes(json!({"tool_calls": calls})), 2 + 7 + 3 + 2);
    assert_eq!(bytes(json!({"function_call": {"name": "go", "arguments": "{}"}})), 4);
    assert_eq!(bytes(json!({"content": 5, "tool_calls": {"function": 1}, "function_call": [1]})), 0);
    assert_eq!(chunk(&json!({"choices": [{"text": "abc"}, {"text": "de"}]})).text_bytes, 5);
}

#[test]
fn escapes_are_counted_as_what_they_stand_for() {
    for (escaped, bytes) in [
        (r"\n\t\\\/\u0041", 5),
        (r"\u00e4\u07ff", 4),
        (r"\u0800\uffff\ud7ff\ue000", 12),
        (r"\ud83d\ude00", 4),
        // Half of a character: some servers cut there.
        (r"x\ud83d", 3),
        (r#"\"ä"#, 3),
    ] {
        let text = format!("{{\"choices\":[{{\"text\": \"{escaped}\" }}]}}");
        assert_eq!(read(text.as_bytes()).unwrap().text_bytes, bytes, "{escaped}");
    }
}

#[test]
fn what_is_no_object() {
    for none in ["", "[DONE]", "null", "5", "\"x\"", "[]", "{", "{}}", "{} x", "{\"a\":}", "<html>"] {
        assert_eq!(read(none.as_bytes()), None, "{none}");
    }
    assert_eq!(read(b"{\"a\": \"\xff\"}"), None);
    assert_eq!(read(b" {} \r\n"), Some(Chunk::default()));
    assert_eq!(read(br#"{"choices":[{}],"choices":[{},{}]}"#).unwrap().choices, 2);
}

/// Every known key, and one that is not.
const KEYS: &str = "error usage choices prompt_tokens input_tokens completion_tokens output_tokens delta message \
    finish_reason text content reasoning reasoning_content refusal tool_calls function_call function custom name \
    arguments input total_tokens \u{c4}\"";

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u32>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<i32>().prop_map(|number| Value::from(f64::from(number) + 0.5)),
        any::<String>().prop_map(Value::from),
    ]
}

/// JSON with known fields at any place.
fn tree() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(6, 64, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            fields(inner).prop_map(Value::Object),
        ]
    })
}

fn fields(inner: impl Strategy<Value = Value>) -> impl Strategy<Value = Map<String, Value>> {
    let key = prop::sample::select(KEYS.split(' ').collect::<Vec<_>>()).prop_map(str::to_owned);
    prop::collection::vec((key, inner), 0..6).prop_map(Map::from_iter)
}

/// A list of objects, or nothing.
fn objects(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten().filter(|item| item.is_object())
}

fn length(value: &Value) -> usize {
    value.as_str().map_or(0, str::len)
}

fn call(value: &Value) -> usize {
    let own: usize = ["name", "arguments", "input"].iter().map(|key| length(&value[*key])).sum();
    own + ["function", "custom"].iter().map(|key| &value[*key]).filter(|v| v.is_object()).map(call).sum::<usize>()
}

fn said(value: &Value) -> usize {
    let parts: usize = objects(&value["content"]).map(|part| length(&part["text"])).sum();
    let reasoning = length(&value["reasoning"]).max(length(&value["reasoning_content"]));
    let calls = objects(&value["tool_calls"]).map(call).sum::<usize>() + call(&value["function_call"]);
    length(&value["content"]) + parts + reasoning + length(&value["refusal"]) + calls
}

/// Reads the same from a tree of values.
fn slowly(value: &Value) -> Chunk {
    let tokens = |names: [&str; 2]| names.iter().find_map(|name| value["usage"][*name].as_u64());
    let prompt = tokens(["prompt_tokens", "input_tokens"]);
    let completion = tokens(["completion_tokens", "output_tokens"]);
    let usage = (prompt.is_some() || completion.is_some())
        .then(|| Usage { prompt: prompt.unwrap_or(0), completion: completion.unwrap_or(0) });
    let choices: Vec<_> = objects(&value["choices"]).collect();
    let error = &value["error"];
    let bit = |choice: &&Value| 1 << choice["index"].as_u64().unwrap_or_default().min(63);
    let has_ended = |choice: &&Value| length(&choice["finish_reason"]) > 0;
    Chunk {
        failed: (error.is_object() || error.is_string()) && choices.is_empty(),
        usage,
        only_usage: usage.is_some() && choices.is_empty(),
        choices: choices.len(),
        finished: choices.iter().copied().filter(has_ended).count(),
        begun: choices.iter().map(bit).fold(0, |all, bit: u64| all | bit),
        ended: choices.iter().copied().filter(has_ended).map(|choice| bit(&choice)).fold(0, |all, bit: u64| all | bit),
        text_bytes: choices.iter().map(|c| said(&c["delta"]) + said(&c["message"]) + length(&c["text"])).sum(),
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_no_trouble(bytes: Vec<u8>, text in "[{}\\[\\]\":,a\\\\u0-9 ]{0,60}") {
        let _ = read(&bytes);
        let text = format!("{{\"choices\":[{{\"text\":\"{text}\"}}]}}");
        let valid = serde_json::from_str::<Value>(&text).is_ok();
        prop_assert!(!valid || read(text.as_bytes()).is_some());
    }

    #[test]
    fn any_cut_of_a_chunk_is_no_chunk(chunk in fields(tree()), cut: prop::sample::Index) {
        let text = Value::Object(chunk).to_string();
        let cut = cut.index(text.len());
        prop_assert_eq!(read(&text.as_bytes()[..cut]), None);
    }

    #[test]
    fn it_reads_as_a_slow_reader_does(
        chunk in fields(tree()), choices in prop::collection::vec(fields(tree()), 0..3), with: bool,
    ) {
        let mut chunk = Value::Object(chunk);
        if with {
            chunk["choices"] = choices.into_iter().map(Value::Object).collect();
        }
        prop_assert_eq!(read(chunk.to_string().as_bytes()), Some(slowly(&chunk)));
    }

    #[test]
    fn what_is_no_object_is_no_chunk(value in tree()) {
        prop_assert_eq!(read(value.to_string().as_bytes()).is_some(), value.is_object());
    }
}
