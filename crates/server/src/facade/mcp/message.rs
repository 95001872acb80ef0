//! Messages, as far as the transport has to know them before the library reads them.
//!
//! The library builds a message several times over while it finds out what it is. So what would be built of many parts is
//! refused first, and what comes back in each answer is short.

use berth_domain::{Code, Error, Result};
use memchr::memchr2;
use rmcp::model::RequestId;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

/// The largest message, in bytes: a file to write, in base64. Larger ones are copied by `berth sandbox cp`.
pub const LARGEST: usize = 4 << 20;
/// Most names and values that a message may have.
const VALUES: usize = 20_000;
/// The longest id of a request, and the longest token of its progress, in bytes of JSON: each answer has them.
const NAME: usize = 256;

/// What of a message counts here.
#[derive(Debug, PartialEq, Eq)]
pub struct Message {
    /// The id of a request, as JSON; `null` of everything else.
    pub id: String,
    /// The request that a message gives up, if that is what it says.
    pub given_up: Option<RequestId>,
}

#[derive(Deserialize)]
struct Peeked<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(default)]
    method: Option<String>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    #[serde(borrow, default)]
    request_id: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "_meta")]
    meta: Option<Meta<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta<'a> {
    #[serde(borrow, default)]
    progress_token: Option<&'a RawValue>,
}

impl Message {
    /// A message of these bytes; none where they are no JSON. Other JSON than an object the library refuses.
    ///
    /// # Errors
    /// It has too many parts, names that are too long, or says something twice.
    pub fn read(bytes: &[u8]) -> Result<Option<Self>> {
        let refused = |what: String| Error::new(Code::InvalidRequest, what);
        if values(bytes) > VALUES {
            return Err(refused(format!(
                "A message may have at most {VALUES} names and values. Write what is long to a file."
            )));
        }
        if serde_json::from_slice::<IgnoredAny>(bytes).is_err() {
            return Ok(None);
        }
        if bytes.trim_ascii_start().first() != Some(&b'{') {
            return Ok(Some(Self { id: "null".to_owned(), given_up: None }));
        }
        let wrong = |error| refused(format!("The message makes no sense: {error}."));
        let message: Peeked<'_> = serde_json::from_slice(bytes).map_err(wrong)?;
        let params = match message.params {
            Some(params) if params.get().starts_with('{') => serde_json::from_str(params.get()).map_err(wrong)?,
            _ => Params::default(),
        };
        let token = params.meta.and_then(|meta| meta.progress_token);
        if [message.id, token].into_iter().flatten().any(|name| name.get().len() > NAME) {
            return Err(refused(format!("An id and a progressToken may have at most {NAME} bytes.")));
        }
        let is_notice = message.method.as_deref() == Some("notifications/cancelled");
        let given_up = params.request_id.filter(|_| is_notice).and_then(|id| serde_json::from_str(id.get()).ok());
        Ok(Some(Self { id: message.id.map_or("null", RawValue::get).to_owned(), given_up }))
    }
}

/// At least as many values as JSON has, if it is JSON: each but the first stands behind one of these signs.
fn values(bytes: &[u8]) -> usize {
    let (mut count, mut at) = (1, 0);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at = behind_text(bytes, at + 1),
            b',' | b'[' | b'{' | b':' => {
                count += 1;
                at += 1;
            }
            _ => at += 1,
        }
    }
    count
}

/// Where what follows a text begins, of which the first sign stands here.
fn behind_text(bytes: &[u8], mut at: usize) -> usize {
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        match bytes.get(at + found) {
            Some(b'\\') => at += found + 2,
            _ => return at + found + 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(message: &str) -> bool {
        Message::read(message.as_bytes()).is_err()
    }

    fn given_up(message: &str) -> Option<RequestId> {
        Message::read(message.as_bytes()).unwrap().unwrap().given_up
    }

    #[test]
    fn a_notification_gives_up_a_request() {
        let notice = |method: &str, id: &str| {
            format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{{"requestId":{id},"reason":"x"}}}}"#)
        };
        let cancelled = "notifications/cancelled";
        assert_eq!(given_up(&notice(cancelled, "7")), Some(RequestId::Number(7)));
        assert_eq!(given_up(&notice(cancelled, "\"a\"")), Some(RequestId::String("a".into())));
        for other in [notice("tools/call", "7"), notice(cancelled, "{}"), "[]".into()] {
            assert_eq!(given_up(&other), None, "{other}");
        }
        let id = |message: &str| Message::read(message.as_bytes()).unwrap().unwrap().id;
        assert_eq!([id(r#"{"id":"a"}"#), id(r#"{"id":7}"#), id("{}"), id("[]")], ["\"a\"", "7", "null", "null"]);
        for none in ["", "no JSON", "[", r#"{"id":"#] {
            assert_eq!(Message::read(none.as_bytes()).unwrap(), None, "{none}");
        }
    }

    #[test]
    fn what_says_something_twice_is_refused() {
        for twice in [
            r#"{"id":1,"id":2}"#,
            r#"{"params":{"requestId":{},"requestId":1}}"#,
            r#"{"params":{"_meta":{"progressToken":1,"progressToken":2}}}"#,
            r#"{"params":{"_meta":7}}"#,
        ] {
            assert!(refused(twice), "{twice}");
        }
        let hidden = format!(r#"{{"params":{{"requestId":{{}},"_meta":{{"progressToken":"{}"}}}}}}"#, "x".repeat(NAME));
        assert!(refused(&hidden));
    }

    #[test]
    fn what_each_answer_has_is_short() {
        let of = |length: usize| "x".repeat(length - 2);
        let (fine, wrong) = (of(NAME), of(NAME + 1));
        let with_id = |name: &str| format!(r#"{{"id":"{name}","method":"ping"}}"#);
        let with_token = |name: &str| format!(r#"{{"params":{{"_meta":{{"progressToken":"{name}"}}}}}}"#);
        assert!(!refused(&with_id(&fine)) && refused(&with_id(&wrong)));
        assert!(!refused(&with_token(&fine)) && refused(&with_token(&wrong)));
    }

    #[test]
    fn a_message_has_few_values_however_long_its_texts_are() {
        let list = |count: usize| format!("[{}]", vec!["0"; count].join(","));
        assert!(!refused(&list(VALUES - 1)) && refused(&list(VALUES)));
        let text = r#"{"content":"a,b,[{:\",,,\\"}"#;
        assert_eq!(values(text.as_bytes()), 3);
        assert_eq!(values(br#"["\\",1]"#), 3);
        assert_eq!(values(br#""open, \"#), 1);
    }
}
