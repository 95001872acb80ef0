//! Messages, as far as the transport has to know them before the library reads them.
//!
//! The library builds a message several times over while it finds out what it is. So what would be built of many parts is
//! refused first, and what comes back in each answer is short.

use berth_domain::{Code, Error, Result};
use memchr::memchr2;
use rmcp::model::RequestId;
use serde::Deserialize;
use serde_json::value::RawValue;

/// The largest message, in bytes: a file to write, in base64. Larger ones are copied by `berth sandbox cp`.
pub const LARGEST: usize = 4 << 20;
/// Most values that a message may have.
const VALUES: usize = 20_000;
/// The longest id of a request, and the longest token of its progress, in bytes of JSON: each answer has them.
const NAME: usize = 256;

/// What of a message counts here.
#[derive(Default, Deserialize)]
struct Peeked<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(default)]
    method: String,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    #[serde(default)]
    request_id: Option<RequestId>,
    #[serde(borrow, default, rename = "_meta")]
    meta: Option<Meta<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta<'a> {
    #[serde(borrow, default)]
    progress_token: Option<&'a RawValue>,
}

/// The request that a message gives up, if that is what it says.
///
/// # Errors
/// It has too many parts, or names that are too long. What is no message at all the library refuses.
pub fn given_up(bytes: &[u8]) -> Result<Option<RequestId>> {
    let refused = |what: String| Err(Error::new(Code::InvalidRequest, what));
    if values(bytes) > VALUES {
        return refused(format!("A message may have at most {VALUES} values. Write what is long to a file."));
    }
    let Ok(message) = serde_json::from_slice::<Peeked<'_>>(bytes) else { return Ok(None) };
    let params = message.params.and_then(|params| serde_json::from_str::<Params<'_>>(params.get()).ok());
    let params = params.unwrap_or_default();
    let token = params.meta.and_then(|meta| meta.progress_token);
    if [message.id, token].into_iter().flatten().any(|name| name.get().len() > NAME) {
        return refused(format!("An id and a progressToken may have at most {NAME} bytes."));
    }
    Ok(params.request_id.filter(|_| message.method == "notifications/cancelled"))
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
        given_up(message.as_bytes()).is_err()
    }

    #[test]
    fn a_notification_gives_up_a_request() {
        let notice = |method: &str, id: &str| {
            format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{{"requestId":{id},"reason":"x"}}}}"#)
        };
        let cancelled = "notifications/cancelled";
        assert_eq!(given_up(notice(cancelled, "7").as_bytes()).unwrap(), Some(RequestId::Number(7)));
        assert_eq!(given_up(notice(cancelled, "\"a\"").as_bytes()).unwrap(), Some(RequestId::String("a".into())));
        for other in [notice("tools/call", "7"), notice(cancelled, "{}"), "[]".into(), "no JSON".into()] {
            assert_eq!(given_up(other.as_bytes()).unwrap(), None, "{other}");
        }
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
