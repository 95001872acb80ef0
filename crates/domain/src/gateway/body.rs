//! What the gateway reads in a request's body, and the few bytes of it that it may change.
//!
//! Parsing a body and writing it again would serve nobody: fields that the gateway does not know could change. So the
//! gateway scans a body once. The scan checks all of it, finds the values of a handful of keys as spans of its bytes,
//! and on the way hashes the beginning of the conversation. A change replaces spans. All other bytes go on as the
//! client wrote them.

use std::ops::Range;

use serde_json::{Number, Value};

use crate::error::{Error, FieldError, Result};
use crate::fields::{Parsed, integer, sized};
use crate::gateway::hash::Hash;
use crate::gateway::image;
use crate::gateway::name::folds_to;
use crate::json;
use crate::json::scan::{self, Scan};

/// Bytes of a prompt that distinguish conversations, where there are no messages.
const BEGINNING: usize = 1024;

/// Tokens that stand for an answer whose length no one limits.
pub const LONG: u64 = 4096;

/// The member that asks for usage, for a body without `stream_options`.
const MEMBER: &str = r#""stream_options":{"include_usage":true},"#;
/// The value of `stream_options` in place of null.
const OPTIONS: &str = r#"{"include_usage":true}"#;
/// The only member of `stream_options`.
const ONLY: &str = r#""include_usage":true"#;
/// The first of several members of `stream_options`.
const FIRST: &str = r#""include_usage":true,"#;

/// The names that the gateway reads. Some servers ignore case in names (Go's `encoding/json` does, and takes the last
/// match). So the gateway refuses a name that differs from one of these only in case: such a server would else take
/// another model, or more of it, than the gateway has seen.
const KNOWN: [&str; 12] = [
    "model",
    "stream",
    "stream_options",
    "messages",
    "prompt",
    "input",
    "max_completion_tokens",
    "max_tokens",
    "n_predict",
    "n",
    "best_of",
    "prompt_cache_key",
];
/// The member of `stream_options` that the gateway reads.
const USAGE: &str = "include_usage";

/// The kind of request to a model.
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

    /// Its name in spans.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Embeddings => "embeddings",
            Self::Speech => "speech",
        }
    }

    /// The field with the model's input.
    const fn content(self) -> &'static str {
        match self {
            Self::Chat => "messages",
            Self::Completions => "prompt",
            Self::Embeddings | Self::Speech => "input",
        }
    }

    /// Whether a stream of its answer reports its tokens only if asked.
    const fn streams_usage(self) -> bool {
        matches!(self, Self::Chat | Self::Completions)
    }
}

/// What the gateway needs of a request's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The model as the client wrote it.
    pub model: String,
    /// Whether the answer is to be a stream.
    pub stream: bool,
    /// Whether the client asked for a chunk with the usage: `stream_options.include_usage` is true.
    pub asks_usage: bool,
    /// Most tokens of the answer, whichever field a server reads: the largest of `max_tokens`, `max_completion_tokens`
    /// and `n_predict`. The last is llama.cpp's own, and servers of completions know only `max_tokens`; a field that
    /// only some servers read bounds nothing by itself. A value that is no positive integer may mean no bound, and
    /// counts as [`LONG`] beside others.
    pub max_tokens: Option<u64>,
    /// How many answers the client asks for, each with its own tokens: `n` or, if more, `best_of`, for each prompt; 0
    /// where answers are not texts.
    pub answers: u64,
    /// Bytes of the messages, the prompt or the input in the body, for estimates where the upstream counts no tokens.
    /// Each image counts at most as much as the largest that a model makes of one.
    pub prompt_bytes: usize,
    /// The same for the whole body: a server may read anything in it, such as tools, formats or documents.
    pub sent_bytes: usize,
    /// A hash of the conversation's beginning: `prompt_cache_key` if it is a string, else the messages up to and with
    /// the user's first, else the first KiB of the prompt or the input. The same on every machine.
    pub conversation: u64,
    /// Position of the model's value.
    model_at: Range<usize>,
    /// The change that makes a stream report its usage, if it would not.
    usage: Option<Patch>,
}

/// A text that replaces a span.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Patch {
    at: Range<usize>,
    text: &'static str,
}

impl Head {
    /// Reads a request's body; the upstream checks the fields that the gateway does not use.
    ///
    /// # Errors
    /// [`crate::Code::InvalidRequest`] if it is not a JSON object without duplicate keys, and with every field that
    /// breaks a rule.
    pub fn read(operation: Operation, body: &[u8]) -> Result<Self> {
        let top = std::str::from_utf8(body).ok().and_then(Top::read).ok_or_else(|| json::refusal(body))?;
        let Some(first) = top.first else {
            return Err(Error::field("body", "must be a JSON object"));
        };
        let mut faults: Vec<_> = top.misspelt.iter().map(|(key, name)| misspelt(key, name)).collect();
        let model = noted(&mut faults, "model", model(top.model));
        let stream = noted(&mut faults, "stream", flag(top.stream));
        let usage = noted(&mut faults, "stream_options", usage(&top, first));
        let content = noted(&mut faults, operation.content(), content(operation, &top));
        let (Some((model, model_at)), Some(stream), Some((asks_usage, patch)), Some(content)) =
            (model, stream, usage, content)
        else {
            return Err(Error::invalid(faults));
        };
        if !faults.is_empty() {
            return Err(Error::invalid(faults));
        }
        let spare = if operation == Operation::Chat { top.spare } else { 0 };
        Ok(Self {
            model,
            stream,
            asks_usage,
            max_tokens: most(operation, &top),
            answers: answers(operation, &top),
            prompt_bytes: content.map_or(0, |content| content.text.len().saturating_sub(spare)),
            sent_bytes: body.len().saturating_sub(spare),
            conversation: conversation(operation, &top, content),
            model_at,
            usage: (stream && !asks_usage && operation.streams_usage()).then_some(patch),
        })
    }

    /// The body for an upstream that knows the model as `model`; `None` means the client's bytes unchanged. `body` must
    /// be the one that was read. The model's value changes if it differs, and the body asks for the usage if the stream
    /// would not report it; every other byte stays, in its order.
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

/// A value with its position in the body.
#[derive(Clone, Copy)]
struct Raw<'a> {
    start: usize,
    text: &'a str,
}

impl<'a> Raw<'a> {
    fn new(body: &'a str, at: Range<usize>) -> Option<Self> {
        Some(Self { start: at.start, text: body.get(at)? })
    }

    /// Its position.
    const fn at(self) -> Range<usize> {
        self.start..self.start + self.text.len()
    }
}

/// The values of the keys that the gateway reads. Null counts as absent, except for `stream_options` and
/// `include_usage`: the position of a value to replace matters.
#[derive(Default)]
struct Top<'a> {
    body: &'a str,
    /// Where a first member could be inserted; `None` for a body that is no object.
    first: Option<usize>,
    model: Option<Raw<'a>>,
    stream: Option<Raw<'a>>,
    stream_options: Option<Raw<'a>>,
    /// The member of `stream_options`.
    include_usage: Option<Raw<'a>>,
    messages: Option<Raw<'a>>,
    prompt: Option<Raw<'a>>,
    input: Option<Raw<'a>>,
    max_completion_tokens: Option<Raw<'a>>,
    max_tokens: Option<Raw<'a>>,
    n_predict: Option<Raw<'a>>,
    prompt_cache_key: Option<Raw<'a>>,
    n: Option<Raw<'a>>,
    best_of: Option<Raw<'a>>,
    /// Number of prompts in a list; 0 if there is no list.
    prompts: u64,
    /// The first name that almost equals one that the gateway reads, and that one.
    misspelt: Option<(String, &'static str)>,
    /// The hash of the messages up to and with the user's first.
    beginning: Hash,
    /// Bytes of images in the messages that do not count as text.
    spare: usize,
}

impl<'a> Top<'a> {
    /// Scans a body; `None` if it is not JSON without duplicate keys.
    fn read(body: &'a str) -> Option<Self> {
        let mut top = Self { body, ..Self::default() };
        let read = scan::whole(body, |scan| {
            if scan.peek()? != b'{' {
                return scan.value();
            }
            let object = scan.object(|scan, key| top.member(scan, key))?;
            top.first = Some(object.start + 1);
            Some(object)
        });
        read.map(|_| top)
    }

    fn member(&mut self, scan: &mut Scan<'a>, key: &str) -> Option<()> {
        let at = match key {
            "messages" => self.scan_messages(scan)?,
            "stream_options" => self.scan_options(scan)?,
            "prompt" => self.scan_prompts(scan)?,
            _ => scan.value()?,
        };
        let place = match key {
            "model" => &mut self.model,
            "stream" => &mut self.stream,
            "stream_options" => &mut self.stream_options,
            "messages" => &mut self.messages,
            "prompt" => &mut self.prompt,
            "input" => &mut self.input,
            "max_completion_tokens" => &mut self.max_completion_tokens,
            "max_tokens" => &mut self.max_tokens,
            "n_predict" => &mut self.n_predict,
            "prompt_cache_key" => &mut self.prompt_cache_key,
            "n" => &mut self.n,
            "best_of" => &mut self.best_of,
            _ => {
                self.look(key, &KNOWN);
                return Some(());
            }
        };
        let raw = Raw::new(self.body, at)?;
        *place = (raw.text != "null" || key == "stream_options").then_some(raw);
        Some(())
    }

    /// Notes a name that differs from one of these only in case.
    fn look(&mut self, key: &str, known: &[&'static str]) {
        if self.misspelt.is_none()
            && let Some(name) = known.iter().find(|name| folds_to(key, name))
        {
            self.misspelt = Some((key.to_owned(), *name));
        }
    }

    /// Counts prompts: a list of numbers is one prompt, given as tokens.
    fn scan_prompts(&mut self, scan: &mut Scan<'a>) -> Option<Range<usize>> {
        if scan.peek()? != b'[' {
            return scan.value();
        }
        scan.list(|scan| {
            self.prompts += u64::from(matches!(scan.peek()?, b'"' | b'['));
            scan.value().map(|_| ())
        })
    }

    /// Hashes the messages up to and with the user's first; an item that is no message ends this, too. Finds images in
    /// all messages.
    fn scan_messages(&mut self, scan: &mut Scan<'a>) -> Option<Range<usize>> {
        if scan.peek()? != b'[' {
            return scan.value();
        }
        let mut over = false;
        scan.list(|scan| {
            if scan.peek()? != b'{' {
                over = true;
                return scan.value().map(|_| ());
            }
            let begins = !over;
            let message = scan.object(|scan, key| {
                let at = match key {
                    "content" => image::content(scan, self.body, &mut self.spare)?,
                    _ => scan.value()?,
                };
                if begins {
                    let value = self.body.get(at)?;
                    self.beginning.add(key.as_bytes());
                    self.beginning.add(value.as_bytes());
                    over |= key == "role" && value == r#""user""#;
                }
                Some(())
            });
            message.map(|_| ())
        })
    }

    fn scan_options(&mut self, scan: &mut Scan<'a>) -> Option<Range<usize>> {
        if scan.peek()? != b'{' {
            return scan.value();
        }
        scan.object(|scan, key| {
            let at = scan.value()?;
            if key == USAGE {
                self.include_usage = Raw::new(self.body, at);
            } else {
                self.look(key, &[USAGE]);
            }
            Some(())
        })
    }
}

fn misspelt(key: &str, name: &str) -> FieldError {
    let field = if name == USAGE { format!("stream_options.{key}") } else { key.to_owned() };
    FieldError { field, message: format!("must be written '{name}': some servers read names without regard to case") }
}

/// Most tokens of an answer, whichever field its server reads.
fn most(operation: Operation, top: &Top<'_>) -> Option<u64> {
    let read = top.max_completion_tokens.filter(|_| operation == Operation::Chat);
    let stated = [top.max_tokens, read].into_iter().flatten().any(|raw| positive(raw).is_some());
    let given = [top.max_tokens, top.max_completion_tokens, top.n_predict].into_iter().flatten();
    let largest = given.map(|raw| positive(raw).unwrap_or(LONG)).max();
    largest.filter(|most| stated || *most > LONG)
}

/// How many answers the client asks for.
fn answers(operation: Operation, top: &Top<'_>) -> u64 {
    let number = |raw: Option<Raw<'_>>| raw.and_then(positive).unwrap_or(1);
    match operation {
        Operation::Chat => number(top.n),
        Operation::Completions => number(top.n).max(number(top.best_of)).saturating_mul(top.prompts.max(1)),
        Operation::Embeddings | Operation::Speech => 0,
    }
}

/// The value of a field's rule; notes a broken rule.
fn noted<T>(faults: &mut Vec<FieldError>, field: &str, parsed: Parsed<T>) -> Option<T> {
    parsed.map_err(|message| faults.push(FieldError { field: field.to_owned(), message })).ok()
}

/// Rule: the name of a model; with its position.
fn model(raw: Option<Raw<'_>>) -> Parsed<(String, Range<usize>)> {
    let raw = raw.ok_or("is required")?;
    let name: String = serde_json::from_str(raw.text).map_err(|_| "must be a string")?;
    Ok((sized(1, 200)(&Value::String(name))?, raw.at()))
}

/// Rule: true or false; absent is false.
fn flag(raw: Option<Raw<'_>>) -> Parsed<bool> {
    match raw.map(|raw| raw.text) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err("must be true or false".into()),
    }
}

/// Rule: options of a stream. Whether they ask for usage, and the change that makes them ask. `first` is where the
/// body's first member could be inserted.
fn usage(top: &Top<'_>, first: usize) -> Parsed<(bool, Patch)> {
    let Some(options) = top.stream_options else {
        return Ok((false, Patch { at: first..first, text: MEMBER }));
    };
    if options.text == "null" {
        return Ok((false, Patch { at: options.at(), text: OPTIONS }));
    }
    let Some(members) = options.text.strip_prefix('{') else {
        return Err("must be an object".into());
    };
    if let Some(value) = top.include_usage {
        return Ok((value.text == "true", Patch { at: value.at(), text: "true" }));
    }
    let start = options.start + 1;
    let member = if members.trim_start().starts_with('}') { ONLY } else { FIRST };
    Ok((false, Patch { at: start..start, text: member }))
}

/// Rule: the model's input. The upstream checks it further.
fn content<'a>(operation: Operation, top: &Top<'a>) -> Parsed<Option<Raw<'a>>> {
    let given = match operation {
        Operation::Chat => top.messages,
        Operation::Completions => top.prompt,
        Operation::Embeddings => top.input,
        Operation::Speech => return Ok(top.input),
    };
    let raw = given.ok_or("is required")?;
    if operation == Operation::Chat {
        let items = raw.text.strip_prefix('[').ok_or("must be a list")?;
        if items.trim_start().starts_with(']') {
            return Err("must have at least one item".into());
        }
    }
    Ok(Some(raw))
}

/// A positive integer; `20.0` is one.
fn positive(raw: Raw<'_>) -> Option<u64> {
    let number: Number = serde_json::from_str(raw.text).ok()?;
    let exact = number.as_u64();
    let whole = exact.or_else(|| integer(1, i64::MAX)(&Value::Number(number)).ok().map(i64::unsigned_abs));
    whole.filter(|tokens| *tokens > 0)
}

/// The hash of the beginning of a conversation.
fn conversation(operation: Operation, top: &Top<'_>, content: Option<Raw<'_>>) -> u64 {
    let mut hash = Hash::default();
    if let Some(key) = top.prompt_cache_key.filter(|key| key.text.starts_with('"')) {
        hash.add(b"prompt_cache_key");
        hash.add(key.text.as_bytes());
    } else if operation == Operation::Chat {
        return top.beginning.0;
    } else if let Some(content) = content {
        let bytes = content.text.as_bytes();
        hash.add(&bytes[..bytes.len().min(BEGINNING)]);
    }
    hash.0
}

#[cfg(test)]
#[path = "body_properties_tests.rs"]
mod properties;
#[cfg(test)]
#[path = "body_tests.rs"]
mod tests;
