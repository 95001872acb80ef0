//! An upstream's refusal, in the form that OpenAI's clients read.
//!
//! Servers of models have many forms of errors, and their sentences may reveal what clients must not see: the server's
//! address, its key, a page of the proxy before it. The gateway does not mend a sentence that could reveal such a
//! thing, but replaces it, because no rule finds every trace of an address in free text.

use core::net::{Ipv4Addr, Ipv6Addr};

use serde::Serialize;
use serde_json::Value;

use crate::json;

/// Longest message, in characters.
const LONGEST: usize = 1000;
/// Longest parameter, type and code, in characters.
const WORD: usize = 200;

/// Characters that a word with an address may contain, or end with.
const PUNCTUATION: [char; 4] = [':', '.', '_', '-'];

/// An error of an upstream as OpenAI's clients read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// A sentence for people.
    pub message: String,
    /// The kind of error.
    #[serde(rename = "type")]
    pub kind: String,
    /// The parameter that is wrong.
    pub param: Option<String>,
    /// The code for programs.
    pub code: Option<String>,
}

/// Reads an upstream's answer of an error status. The result contains none of the `secrets` (host, host with port, URL,
/// key), no URL, no IP address and no markup.
pub fn read(status: u16, body: &[u8], secrets: &[&str]) -> Refusal {
    let found = Found::of(&serde_json::from_slice::<Value>(body).unwrap_or_default());
    let clean = |text: &String| !text.trim().is_empty() && !leaks(text, secrets);
    let short = |text: &String| clean(text) && text.chars().count() <= WORD;
    let word = |text: &String| short(text) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
    Refusal {
        message: found.message.filter(clean).map_or_else(|| general(status).to_owned(), bounded),
        kind: found.kind.filter(word).unwrap_or_else(|| kind_of(status).to_owned()),
        param: found.param.filter(short),
        code: found.code.filter(word),
    }
}

/// Whether an upstream's body may pass byte for byte: it is exactly OpenAI's envelope, and reveals nothing that
/// [`read`] hides.
pub fn passes(body: &[u8], secrets: &[&str]) -> bool {
    let Ok(Value::Object(envelope)) = json::parse(body) else { return false };
    let Some(error @ Value::Object(fields)) = envelope.get("error") else { return false };
    envelope.len() == 1 && fields.get("message").is_some_and(Value::is_string) && silent(error, secrets)
}

/// The type of error for a status.
pub const fn kind_of(status: u16) -> &'static str {
    match status {
        400 | 404 | 405 | 408 | 409 | 413 | 415 | 422 => "invalid_request_error",
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_error",
        _ => "api_error",
    }
}

/// OpenAI's envelope around a refusal, on one line.
pub fn envelope(refusal: &Refusal) -> String {
    #[derive(Serialize)]
    struct Envelope<'a> {
        error: &'a Refusal,
    }
    // Only texts: writing them cannot fail.
    serde_json::to_string(&Envelope { error: refusal }).unwrap_or_default()
}

/// The sentence for an error whose own sentence must not be shown.
const fn general(status: u16) -> &'static str {
    match status {
        408 | 504 => "The model's server took too long. Try again.",
        413 => "The request is too large for the model's server.",
        429 => "The model's server has too much to do. Try again later.",
        500.. => "The model's server failed. Try again.",
        _ => "The model's server refused the request.",
    }
}

/// What an upstream's body says, in whatever form.
#[derive(Default)]
struct Found {
    message: Option<String>,
    kind: Option<String>,
    param: Option<String>,
    code: Option<String>,
}

impl Found {
    fn of(body: &Value) -> Self {
        // Google's servers put their errors into a list.
        let body = body.get(0).unwrap_or(body);
        let error = body.get("error");
        if let Some(error @ Value::Object(_)) = error {
            return Self::fields(error);
        }
        let mut found = Self::fields(body);
        if found.message.is_none() {
            found.message = error.and_then(Value::as_str).map(str::to_owned);
        }
        if found.message.is_none() {
            found.detail(body.get("detail"));
        }
        found
    }

    fn fields(object: &Value) -> Self {
        let text = |name: &str| object.get(name).and_then(Value::as_str).map(str::to_owned);
        let number = |name: &str| object.get(name).filter(|code| code.is_number()).map(Value::to_string);
        Self {
            message: text("message"),
            kind: text("type"),
            param: text("param"),
            code: text("code").or_else(|| number("code")),
        }
    }

    /// FastAPI's form: a text, or a list of mistakes with their places.
    fn detail(&mut self, detail: Option<&Value>) {
        match detail {
            Some(Value::String(text)) => self.message = Some(text.clone()),
            Some(Value::Array(mistakes)) => {
                let sentences: Vec<_> = mistakes.iter().filter_map(mistake).collect();
                self.message = (!sentences.is_empty()).then(|| sentences.join("; "));
                self.param = mistakes.iter().find_map(place);
            }
            _ => {}
        }
    }
}

/// A mistake as a sentence.
fn mistake(item: &Value) -> Option<String> {
    let sentence = item.get("msg")?.as_str()?;
    Some(place(item).map_or_else(|| sentence.to_owned(), |place| format!("{place}: {sentence}")))
}

/// The path of a mistake's field in the body.
fn place(item: &Value) -> Option<String> {
    let steps = item.get("loc")?.as_array()?;
    let steps = steps.iter().enumerate().filter_map(|(index, step)| match step {
        Value::String(name) if index == 0 && name == "body" => None,
        Value::String(name) => Some(name.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    });
    Some(steps.collect::<Vec<_>>().join(".")).filter(|path| !path.is_empty())
}

fn bounded(message: String) -> String {
    if message.chars().count() <= LONGEST {
        return message;
    }
    message.chars().take(LONGEST - 1).chain(['…']).collect()
}

/// Whether no text of a value, keys included, reveals anything.
fn silent(value: &Value, secrets: &[&str]) -> bool {
    match value {
        Value::String(text) => !leaks(text, secrets),
        Value::Array(items) => items.iter().all(|item| silent(item, secrets)),
        Value::Object(members) => members.iter().all(|(key, item)| !leaks(key, secrets) && silent(item, secrets)),
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
    }
}

/// Whether a text contains one of the secrets, a URL, an IP address or markup.
fn leaks(text: &str, secrets: &[&str]) -> bool {
    let lower = text.to_ascii_lowercase();
    let tells = |secret: &&str| !secret.is_empty() && lower.contains(&secret.to_ascii_lowercase());
    secrets.iter().any(tells) || text.contains("://") || address(text) || markup(text)
}

/// Whether a text contains an IP address, with a port or without.
fn address(text: &str) -> bool {
    let four = |word: &str| word.trim_matches('.').parse::<Ipv4Addr>().is_ok();
    // An address may end with two colons; other punctuation after it belongs to the sentence. Without a digit it may be
    // a name in a program, like `std::bad_alloc`.
    let six = |word: &str| {
        let bare = word.trim_end_matches(PUNCTUATION);
        let whole = word.get(..bare.len() + 2).filter(|whole| whole.ends_with("::"));
        let parses = bare.parse::<Ipv6Addr>().is_ok() || whole.is_some_and(|whole| whole.parse::<Ipv6Addr>().is_ok());
        parses && bare.contains(|c: char| c.is_ascii_digit())
    };
    text.split(|c: char| !c.is_ascii_digit() && c != '.').any(four)
        || text.split(|c: char| !c.is_ascii_alphanumeric() && !PUNCTUATION.contains(&c)).any(six)
}

/// Whether something in a text looks like the beginning of a tag.
fn markup(text: &str) -> bool {
    text.as_bytes()
        .windows(2)
        .any(|pair| pair[0] == b'<' && (pair[1].is_ascii_alphabetic() || b"/!?".contains(&pair[1])))
}

#[cfg(test)]
#[path = "refusal_tests.rs"]
mod tests;
