//! What a request's body tells the gateway, and the few bytes of it that may change.
//!
//! Nobody is served by a body that was read, understood and written again: fields that the gateway does not know
//! would suffer. So a body is checked once, the values of a handful of keys are found as spans of its bytes, and
//! a change replaces spans. All other bytes go on as the client wrote them.

use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Number, Value};

use crate::error::{Error, FieldError, Result};
use crate::fields::{Parsed, integer, sized};
use crate::json::{self, Key};

/// Bytes of a prompt that tell conversations apart, where there are no messages.
const BEGINNING: usize = 1024;

/// The member that asks for usage, for an object without `stream_options`.
const MEMBER: &str = r#""stream_options":{"include_usage":true},"#;
/// The value of `stream_options` in place of null.
const OPTIONS: &str = r#"{"include_usage":true}"#;
/// The only member of `stream_options`.
const ONLY: &str = r#""include_usage":true"#;
/// The first of several members of `stream_options`.
const FIRST: &str = r#""include_usage":true,"#;

/// What is asked of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// An answer in a conversation.
    Chat,
    /// The continuation of a text.
    Completions,
    /// Vectors of texts.
    Embeddings,
    /// Speech of a text.
    Speech,
}

impl Operation {
    /// The path below the base URL of a server that speaks OpenAI's protocol.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/chat/completions",
            Self::Completions => "/completions",
            Self::Embeddings => "/embeddings",
            Self::Speech => "/audio/speech",
        }
    }

    /// The word of metrics and of usage.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Embeddings => "embeddings",
            Self::Speech => "speech",
        }
    }

    /// The field that the model works on.
    const fn content(self) -> &'static str {
        match self {
            Self::Chat => "messages",
            Self::Completions => "prompt",
            Self::Embeddings | Self::Speech => "input",
        }
    }

    /// Whether answers come with tokens that a stream tells only when asked.
    const fn streams_usage(self) -> bool {
        matches!(self, Self::Chat | Self::Completions)
    }
}

/// What the gateway needs of a request's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The model as the client wrote it.
    pub model: String,
    /// Whether the answer shall be a stream.
    pub stream: bool,
    /// Whether the client asked for a chunk with the usage: `stream_options.include_usage` is true.
    pub asks_usage: bool,
    /// Most tokens of the answer: `max_completion_tokens`, else `max_tokens`, where it is a positive integer.
    pub max_tokens: Option<u64>,
    /// Bytes of the messages, the prompt or the input as they stand in the body: for estimates.
    pub prompt_bytes: usize,
    /// A hash of what begins the conversation: `prompt_cache_key` if it is a string, else the messages up to and with
    /// the first of the user, else the first KiB of the prompt or the input. The same on every machine.
    pub conversation: u64,
    /// Where the model's value stands.
    model_at: Range<usize>,
    /// What makes a stream tell its usage, where it would not.
    usage: Option<Patch>,
}

/// A text that takes the place of a span.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Patch {
    at: Range<usize>,
    text: &'static str,
}

impl Head {
    /// Reads a request's body; fields that are not the gateway's matter are left to the upstream.
    ///
    /// # Errors
    /// [`crate::Code::InvalidRequest`] for what is no JSON object without duplicate keys, and with every field that
    /// breaks a rule.
    pub fn read(operation: Operation, body: &[u8]) -> Result<Self> {
        let text = json::check(body)?;
        if !text.trim_start().starts_with('{') {
            return Err(Error::field("body", "must be a JSON object"));
        }
        let top: Top<'_> = serde_json::from_str(text).map_err(json::invalid)?;
        let mut faults = Vec::new();
        let model = noted(&mut faults, "model", model(top.model));
        let stream = noted(&mut faults, "stream", flag(top.stream));
        let usage = noted(&mut faults, "stream_options", usage(top.stream_options, text));
        let content = noted(&mut faults, operation.content(), content(operation, &top));
        let (Some((model, raw)), Some(stream), Some((asks_usage, patch)), Some(content)) =
            (model, stream, usage, content)
        else {
            return Err(Error::invalid(faults));
        };
        Ok(Self {
            model,
            stream,
            asks_usage,
            max_tokens: top.max_completion_tokens.and_then(positive).or_else(|| top.max_tokens.and_then(positive)),
            prompt_bytes: content.map_or(0, |content| content.get().len()),
            conversation: conversation(operation, top.prompt_cache_key, content),
            model_at: span(text, raw),
            usage: (stream && !asks_usage && operation.streams_usage()).then_some(patch),
        })
    }

    /// The body for an upstream that knows the model as `model`; `None` is the client's bytes as they are. `body` is
    /// the one that was read. The model's value changes where it differs, and a stream that would not tell its usage
    /// is asked for it; every other byte stays, and so does the order.
    pub fn rewritten(&self, body: &[u8], model: &str) -> Option<Vec<u8>> {
        let name = (model != self.model).then(|| Value::from(model).to_string());
        let name = name.as_deref().map(|text| (&self.model_at, text));
        let usage = self.usage.as_ref().map(|patch| (&patch.at, patch.text));
        if name.is_none() && usage.is_none() {
            return None;
        }
        let mut changes = [name, usage];
        changes.sort_by_key(|change| change.map(|(at, _)| at.start));
        let longer: usize = changes.iter().flatten().map(|(_, text)| text.len()).sum();
        let mut whole = Vec::with_capacity(body.len() + longer);
        let mut from = 0;
        for (at, text) in changes.into_iter().flatten() {
            whole.extend_from_slice(body.get(from..at.start).unwrap_or_default());
            whole.extend_from_slice(text.as_bytes());
            from = at.end;
        }
        whole.extend_from_slice(body.get(from..).unwrap_or_default());
        Some(whole)
    }
}

/// The values of the keys that matter, as they stand in the body. Null is as if absent.
#[derive(Deserialize)]
struct Top<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    stream: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "even_null")]
    stream_options: Option<&'a RawValue>,
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    max_completion_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    max_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt_cache_key: Option<&'a RawValue>,
}

/// What matters of `stream_options`.
#[derive(Deserialize)]
struct Options<'a> {
    #[serde(borrow, default, deserialize_with = "even_null")]
    include_usage: Option<&'a RawValue>,
}

/// A value that is there, even if it is null: its place matters.
fn even_null<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<&'de RawValue>, D::Error> {
    <&'de RawValue>::deserialize(deserializer).map(Some)
}

/// Where a value stands in the text that it was borrowed from.
fn span(text: &str, raw: &RawValue) -> Range<usize> {
    let start = raw.get().as_ptr().addr() - text.as_ptr().addr();
    start..start + raw.get().len()
}

/// The outcome of a field's rule; a broken rule is noted.
fn noted<T>(faults: &mut Vec<FieldError>, field: &str, parsed: Parsed<T>) -> Option<T> {
    parsed.map_err(|message| faults.push(FieldError { field: field.to_owned(), message })).ok()
}

/// Rule: the name of a model.
fn model(raw: Option<&RawValue>) -> Parsed<(String, &RawValue)> {
    let raw = raw.ok_or("is required")?;
    let name: String = serde_json::from_str(raw.get()).map_err(|_| "must be a string")?;
    Ok((sized(1, 200)(&Value::String(name))?, raw))
}

/// Rule: true or false; absent is false.
fn flag(raw: Option<&RawValue>) -> Parsed<bool> {
    match raw.map(RawValue::get) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err("must be true or false".into()),
    }
}

/// Rule: options of a stream. Whether they ask for usage, and the change that makes them.
fn usage(raw: Option<&RawValue>, text: &str) -> Parsed<(bool, Patch)> {
    let Some(raw) = raw else {
        let start = text.len() - text.trim_start().len() + 1;
        return Ok((false, Patch { at: start..start, text: MEMBER }));
    };
    let (object, at) = (raw.get(), span(text, raw));
    if object == "null" {
        return Ok((false, Patch { at, text: OPTIONS }));
    }
    let Some(members) = object.strip_prefix('{') else {
        return Err("must be an object".into());
    };
    let options: Options<'_> = serde_json::from_str(object).map_err(|e| format!("must be an object: {e}"))?;
    if let Some(value) = options.include_usage {
        return Ok((value.get() == "true", Patch { at: span(text, value), text: "true" }));
    }
    let start = at.start + 1;
    let member = if members.trim_start().starts_with('}') { ONLY } else { FIRST };
    Ok((false, Patch { at: start..start, text: member }))
}

/// Rule: what the model works on. What else is wrong with it, the upstream knows better.
fn content<'a>(operation: Operation, top: &Top<'a>) -> Parsed<Option<&'a RawValue>> {
    let given = match operation {
        Operation::Chat => top.messages,
        Operation::Completions => top.prompt,
        Operation::Embeddings => top.input,
        Operation::Speech => return Ok(top.input),
    };
    let raw = given.ok_or("is required")?;
    if operation == Operation::Chat {
        let items = raw.get().strip_prefix('[').ok_or("must be a list")?;
        if items.trim_start().starts_with(']') {
            return Err("must have at least one item".into());
        }
    }
    Ok(Some(raw))
}

/// A positive integer; `20.0` is one.
fn positive(raw: &RawValue) -> Option<u64> {
    let number: Number = serde_json::from_str(raw.get()).ok()?;
    let exact = number.as_u64();
    let whole = exact.or_else(|| integer(1, i64::MAX)(&Value::Number(number)).ok().map(i64::unsigned_abs));
    whole.filter(|tokens| *tokens > 0)
}

/// The hash of what begins a conversation.
fn conversation(operation: Operation, key: Option<&RawValue>, content: Option<&RawValue>) -> u64 {
    let mut hash = Hash::default();
    if let Some(key) = key.filter(|key| key.get().starts_with('"')) {
        hash.add(b"prompt_cache_key");
        hash.add(key.get().as_bytes());
    } else if let Some(content) = content {
        if operation == Operation::Chat {
            let mut reader = serde_json::Deserializer::from_str(content.get());
            // What follows the user's first message stays unread, which the reader takes for an error.
            let _ = reader.deserialize_seq(Messages(&mut hash));
        } else {
            let bytes = content.get().as_bytes();
            hash.add(&bytes[..bytes.len().min(BEGINNING)]);
        }
    }
    hash.0
}

/// Hashes messages up to and with the first of the user.
struct Messages<'a>(&'a mut Hash);

impl<'de> Visitor<'de> for Messages<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<(), A::Error> {
        while let Some(user) = seq.next_element_seed(Message(&mut *self.0))? {
            if user {
                break;
            }
        }
        Ok(())
    }
}

/// Hashes a message and tells whether it is the user's.
struct Message<'a>(&'a mut Hash);

impl<'de> DeserializeSeed<'de> for Message<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<bool, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Message<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<bool, A::Error> {
        let mut user = false;
        while let Some(key) = map.next_key_seed(Key)? {
            let value: &'de RawValue = map.next_value()?;
            self.0.add(key.as_bytes());
            self.0.add(value.get().as_bytes());
            user |= key == "role" && value.get() == r#""user""#;
        }
        Ok(user)
    }
}

/// A hash of eight bytes a step. It spreads conversations and protects nothing.
#[derive(Default)]
struct Hash(u64);

impl Hash {
    fn add(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.mix(u64::from_le_bytes(last));
        self.mix(bytes.len() as u64);
    }

    /// A step that loses nothing: the factor is odd (2^64 divided by the golden ratio).
    const fn mix(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

#[cfg(test)]
#[path = "body_tests.rs"]
mod tests;
