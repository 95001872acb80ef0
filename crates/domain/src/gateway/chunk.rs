//! What the gateway reads of a chunk of a stream, or of a whole answer: whether it failed or finished, what it used,
//! and how much text it has.
//!
//! A chunk goes on to the client as it came, so the gateway reads it without building anything, in one pass, and never
//! decodes strings that it only counts. It reads leniently, because upstreams differ: a field of an unexpected type
//! counts as absent, unknown fields are skipped, and of a duplicate field the last one counts, as in JavaScript and
//! Python.

use std::fmt;
use std::marker::PhantomData;
use std::ops::AddAssign;

use memchr::memchr;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::gateway::money::Usage;

/// The data of a stream's last event, which is no chunk.
pub const DONE: &str = "[DONE]";

/// What the gateway reads of a chunk of a stream or of a whole answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// It has an `error` (an object or a string) or is vLLM's form of one, and has no choices.
    pub failed: bool,
    /// Tokens that the upstream counted, in the fields of chat completions or in those of responses and speech.
    pub usage: Option<Usage>,
    /// It has usage, and no choices.
    pub only_usage: bool,
    /// How many choices it has.
    pub choices: usize,
    /// How many of them have a finish reason. An empty one does not count: some upstreams write "" until the end.
    pub finished: usize,
    /// The choices in it, a bit for each index; from the 64th on they share the last bit.
    pub begun: u64,
    /// Which of them have finished.
    pub ended: u64,
    /// Bytes that the model wrote: content, reasoning, refusals, legacy text, and names and arguments of calls.
    pub text_bytes: usize,
}

/// Reads a chunk. `None` where it is no JSON object in UTF-8.
pub fn read(data: &[u8]) -> Option<Chunk> {
    let text = std::str::from_utf8(data).ok()?;
    let whole = serde_json::from_str::<Object<Whole>>(text).ok()?.0?;
    let choices = whole.choices.length;
    Some(Chunk {
        failed: (whole.error || whole.is_error) && choices == 0,
        usage: whole.usage,
        only_usage: whole.usage.is_some() && choices == 0,
        choices,
        finished: whole.choices.sum.finished,
        begun: whole.choices.sum.begun,
        ended: whole.choices.sum.ended,
        text_bytes: whole.choices.sum.bytes,
    })
}

/// Every key that is read, at any level.
#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum Key {
    Error,
    Object,
    Usage,
    Choices,
    Index,
    PromptTokens,
    InputTokens,
    CompletionTokens,
    OutputTokens,
    Delta,
    Message,
    FinishReason,
    Text,
    Content,
    Reasoning,
    ReasoningContent,
    Refusal,
    ToolCalls,
    FunctionCall,
    Function,
    Custom,
    Name,
    Arguments,
    Input,
    #[serde(other)]
    Other,
}

/// A part of a chunk that is an object.
trait Part: Default {
    /// Reads the value of a field, or skips it.
    fn field<'de, A: MapAccess<'de>>(&mut self, key: Key, map: &mut A) -> Result<(), A::Error>;
}

fn skip<'de, A: MapAccess<'de>>(map: &mut A) -> Result<(), A::Error> {
    map.next_value::<IgnoredAny>().map(|_| ())
}

#[derive(Default)]
struct Whole {
    error: bool,
    /// vLLM's form: `{"object": "error", "message": …}`.
    is_error: bool,
    usage: Option<Usage>,
    choices: List<Choice>,
}

impl Part for Whole {
    fn field<'de, A: MapAccess<'de>>(&mut self, key: Key, map: &mut A) -> Result<(), A::Error> {
        match key {
            Key::Error => self.error = map.next_value::<&'de RawValue>()?.get().starts_with(['{', '"']),
            Key::Object => self.is_error = map.next_value::<&'de RawValue>()?.get() == "\"error\"",
            Key::Usage => self.usage = map.next_value::<Object<Tokens>>()?.0.and_then(Tokens::usage),
            Key::Choices => self.choices = map.next_value()?,
            _ => skip(map)?,
        }
        Ok(())
    }
}

#[derive(Default)]
struct Tokens {
    prompt: Option<u64>,
    input: Option<u64>,
    completion: Option<u64>,
    output: Option<u64>,
}

impl Part for Tokens {
    fn field<'de, A: MapAccess<'de>>(&mut self, key: Key, map: &mut A) -> Result<(), A::Error> {
        let place = match key {
            Key::PromptTokens => &mut self.prompt,
            Key::InputTokens => &mut self.input,
            Key::CompletionTokens => &mut self.completion,
            Key::OutputTokens => &mut self.output,
            _ => return skip(map),
        };
        *place = number(map.next_value::<&'de RawValue>()?.get());
        Ok(())
    }
}

impl Tokens {
    /// One of the numbers is enough: embeddings have no completion tokens.
    fn usage(self) -> Option<Usage> {
        let (prompt, completion) = (self.prompt.or(self.input), self.completion.or(self.output));
        (prompt.is_some() || completion.is_some())
            .then(|| Usage { prompt: prompt.unwrap_or_default(), completion: completion.unwrap_or_default() })
    }
}

/// A number of tokens; `7.0` is one.
fn number(text: &str) -> Option<u64> {
    let whole = text.split_once('.').filter(|(_, rest)| rest.bytes().all(|b| b == b'0'));
    whole.map_or(text, |(whole, _)| whole).parse().ok()
}

#[derive(Default)]
struct Choice {
    index: u64,
    finished: usize,
    begun: u64,
    ended: u64,
    bytes: usize,
}

impl Part for Choice {
    fn field<'de, A: MapAccess<'de>>(&mut self, key: Key, map: &mut A) -> Result<(), A::Error> {
        match key {
            Key::Delta | Key::Message => {
                self.bytes += map.next_value::<Object<Said>>()?.0.map_or(0, Said::bytes);
            }
            Key::Text => self.bytes += string(map.next_value()?),
            Key::Index => self.index = number(map.next_value::<&'de RawValue>()?.get()).unwrap_or_default(),
            Key::FinishReason => {
                let reason = map.next_value::<&'de RawValue>()?.get();
                self.finished = usize::from(reason.len() > 2 && reason.starts_with('"'));
            }
            _ => skip(map)?,
        }
        Ok(())
    }
}

impl AddAssign for Choice {
    fn add_assign(&mut self, other: Self) {
        let bit = 1 << other.index.min(63);
        self.begun |= bit;
        self.ended |= if other.finished > 0 { bit } else { 0 };
        self.finished += other.finished;
        self.bytes += other.bytes;
    }
}

/// A message, or a piece of one: bytes of its text.
#[derive(Default)]
struct Said {
    content: usize,
    reasoning: usize,
    reasoning_content: usize,
    refusal: usize,
    calls: usize,
}

impl Part for Said {
    fn field<'de, A: MapAccess<'de>>(&mut self, key: Key, map: &mut A) -> Result<(), A::Error> {
        match key {
            Key::Content => self.content = content(map.next_value()?),
            Key::Reasoning => self.reasoning = string(map.next_value()?),
            Key::ReasoningContent => self.reasoning_content = string(map.next_value()?),
            Key::Refusal => self.refusal = string(map.next_value()?),
            Key::ToolCalls => self.calls += map.next_value::<List<Call>>()?.sum.0,
            Key::FunctionCall => self.calls += map.next_value::<Object<Call>>()?.0.unwrap_or_default().0,
            _ => skip(map)?,
        }
        Ok(())
    }
}

impl Said {
    /// Servers that know both names of reasoning write the same text under each.
    fn bytes(self) -> usize {
        self.content + self.reasoning.max(self.reasoning_content) + self.refusal + self.calls
    }
}

/// A call of a tool, or the function in it: bytes of names and arguments.
#[derive(Default)]
struct Call(usize);

impl Part for Call {
    fn field<'de, A: MapAccess<'de>>(&mut self, key: Key, map: &mut A) -> Result<(), A::Error> {
        match key {
            Key::Function | Key::Custom => self.0 += map.next_value::<Object<Call>>()?.0.unwrap_or_default().0,
            Key::Name | Key::Arguments | Key::Input => self.0 += string(map.next_value()?),
            _ => skip(map)?,
        }
        Ok(())
    }
}

impl AddAssign for Call {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

/// A part of a content that is a list: bytes of its text.
#[derive(Default)]
struct Words(usize);

impl Part for Words {
    fn field<'de, A: MapAccess<'de>>(&mut self, key: Key, map: &mut A) -> Result<(), A::Error> {
        match key {
            Key::Text => self.0 = string(map.next_value()?),
            _ => skip(map)?,
        }
        Ok(())
    }
}

impl AddAssign for Words {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

/// Bytes of a content: a string, or a list of parts with text.
fn content(raw: &RawValue) -> usize {
    if raw.get().starts_with('[') {
        return serde_json::from_str::<List<Words>>(raw.get()).map_or(0, |list| list.sum.0);
    }
    string(raw)
}

/// Bytes of a string in UTF-8 after decoding its escapes; 0 if it is no string.
fn string(raw: &RawValue) -> usize {
    let quoted = raw.get().strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let mut rest = quoted.unwrap_or_default().as_bytes();
    let mut bytes = 0;
    while let Some(at) = memchr(b'\\', rest) {
        let (length, stands_for) = escape(&rest[at..]);
        bytes += at + stands_for;
        rest = rest.get(at + length..).unwrap_or_default();
    }
    bytes + rest.len()
}

/// Length of the escape at the front, and the number of bytes it stands for.
fn escape(text: &[u8]) -> (usize, usize) {
    let [_, b'u', digits @ ..] = text else { return (2, 1) };
    let digits = digits.get(..4).and_then(|digits| std::str::from_utf8(digits).ok());
    let unit = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or_default();
    let bytes = match unit {
        0..0x80 => 1,
        // A surrogate is half of a character of four bytes.
        0x80..0x800 | 0xD800..0xE000 => 2,
        _ => 3,
    };
    (6, bytes)
}

/// The part of an object, or `None` for any other value.
#[derive(Default)]
struct Object<T>(Option<T>);

/// How many objects a list has, and the sum of their parts. Any other value counts as an empty list.
#[derive(Default)]
struct List<T> {
    length: usize,
    sum: T,
}

impl<'de, T: Part> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ObjectVisitor(PhantomData))
    }
}

impl<'de, T: Part + AddAssign> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ListVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);
struct ListVisitor<T>(PhantomData<T>);

/// Treats everything that is neither an object nor a list as absent.
macro_rules! nothing_else {
    () => {
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("any JSON value")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(<Self::Value>::default())
        }

        fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
            Ok(<Self::Value>::default())
        }

        fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
            Ok(<Self::Value>::default())
        }

        fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
            Ok(<Self::Value>::default())
        }

        fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
            Ok(<Self::Value>::default())
        }

        fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
            Ok(<Self::Value>::default())
        }
    };
}

impl<'de, T: Part> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    nothing_else!();

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Object<T>, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Object(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<T>, A::Error> {
        let mut part = T::default();
        while let Some(key) = map.next_key::<Key>()? {
            part.field(key, &mut map)?;
        }
        Ok(Object(Some(part)))
    }
}

impl<'de, T: Part + AddAssign> Visitor<'de> for ListVisitor<T> {
    type Value = List<T>;

    nothing_else!();

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<List<T>, A::Error> {
        let mut list = List::default();
        while let Some(Object(part)) = seq.next_element::<Object<T>>()? {
            if let Some(part) = part {
                list.length += 1;
                list.sum += part;
            }
        }
        Ok(list)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<List<T>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(List::default())
    }
}

#[cfg(test)]
#[path = "chunk_tests.rs"]
mod tests;
