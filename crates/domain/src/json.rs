//! JSON without duplicate keys. [`crate::fields`] says what its fields mean.
//!
//! [`parse`] builds the whole value, and says what is wrong with malformed bytes. [`scan`] accepts the same bytes and
//! builds nothing: it serves readers that need a few values of many bytes, fast.

pub mod scan;

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::error::{Code, Error, Result};

/// Parses JSON; refuses duplicate keys, 128 levels or more, and bytes after the value.
///
/// # Errors
/// [`Code::InvalidRequest`], with what is wrong and where.
pub fn parse(bytes: &[u8]) -> Result<Value> {
    strictly(bytes)
}

/// The error of [`parse`] for bytes that a scan has refused. It builds nothing either: a client that sends malformed
/// JSON must not make a service allocate many times as much.
pub(crate) fn refusal(bytes: &[u8]) -> Error {
    let refused = strictly::<()>(bytes).err();
    refused.unwrap_or_else(|| Error::internal("the scan refused JSON that the parser takes"))
}

fn strictly<T: Built>(bytes: &[u8]) -> Result<T> {
    // Checks UTF-8 once for all bytes, and not for each string.
    let text = std::str::from_utf8(bytes).map_err(invalid)?;
    let mut reader = serde_json::Deserializer::from_str(text);
    let built = Strict(PhantomData).deserialize(&mut reader);
    built.and_then(|value| reader.end().map(|()| value)).map_err(invalid)
}

/// The error for malformed JSON.
fn invalid(problem: impl fmt::Display) -> Error {
    Error::new(Code::InvalidRequest, format!("The body is not valid JSON: {problem}."))
}

/// What the parser builds from a text: its value, or nothing.
trait Built: Sized {
    /// The members of an object, as far as they are known.
    type Members: Default;

    fn scalar(value: impl Into<Value>) -> Self;
    fn list(items: Vec<Self>) -> Self;
    /// Whether the key is new.
    fn add(members: &mut Self::Members, key: &str, value: Self) -> bool;
    fn object(members: Self::Members) -> Self;
}

impl Built for Value {
    type Members = Map<String, Self>;

    fn scalar(value: impl Into<Value>) -> Self {
        value.into()
    }

    fn list(items: Vec<Self>) -> Self {
        Self::Array(items)
    }

    fn add(members: &mut Self::Members, key: &str, value: Self) -> bool {
        !members.contains_key(key) && members.insert(key.to_owned(), value).is_none()
    }

    fn object(members: Self::Members) -> Self {
        Self::Object(members)
    }
}

impl Built for () {
    type Members = HashSet<String>;

    fn scalar(_: impl Into<Value>) -> Self {}

    fn list(_: Vec<Self>) -> Self {}

    fn add(members: &mut Self::Members, key: &str, (): Self) -> bool {
        members.insert(key.to_owned())
    }

    fn object(_: Self::Members) -> Self {}
}

/// Parses like serde_json's own, but refuses a duplicate key.
struct Strict<T>(PhantomData<T>);

impl<'de, T: Built> DeserializeSeed<'de> for Strict<T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<T, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Built> Visitor<'de> for Strict<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, v: bool) -> std::result::Result<T, E> {
        Ok(T::scalar(v))
    }

    fn visit_i64<E>(self, v: i64) -> std::result::Result<T, E> {
        Ok(T::scalar(v))
    }

    fn visit_u64<E>(self, v: u64) -> std::result::Result<T, E> {
        Ok(T::scalar(v))
    }

    fn visit_f64<E>(self, v: f64) -> std::result::Result<T, E> {
        Ok(T::scalar(v))
    }

    fn visit_str<E>(self, v: &str) -> std::result::Result<T, E> {
        Ok(T::scalar(v))
    }

    fn visit_unit<E>(self) -> std::result::Result<T, E> {
        Ok(T::scalar(()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<T, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(Self(PhantomData))? {
            items.push(item);
        }
        Ok(T::list(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<T, A::Error> {
        let mut members = T::Members::default();
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(Self(PhantomData))?;
            if !T::add(&mut members, &key, value) {
                return Err(serde::de::Error::custom(format_args!("the key {key:?} stands twice")));
            }
        }
        Ok(T::object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict_json() {
        assert_eq!(parse(br#"{"a":[1,2.5,"x",null,true]}"#).unwrap()["a"][1], 2.5);
        for bad in
            [&b"{\"a\":1,\"a\":2}"[..], b"{\"o\":{\"b\":1,\"b\":1}}", b"", b"{", b"{} x", b"\xff", b"nul", b"[1e999]"]
        {
            let error = parse(bad).unwrap_err();
            assert_eq!(error.code, Code::InvalidRequest, "{bad:?}");
            assert!(error.message.starts_with("The body is not valid JSON: "), "{error}");
            assert_eq!(refusal(bad), error);
        }
    }

    #[test]
    fn keys_that_stand_twice_are_named() {
        for count in [1, 32, 33, 200] {
            let keys: Vec<_> = (0..count).map(|n| format!("\"key {n}\":[{{}}]")).collect();
            assert!(parse(format!("{{{}}}", keys.join(",")).as_bytes()).is_ok(), "{count} keys");
            for again in [0, count / 2, count - 1] {
                let text = format!("[{{{},\"k\\u0065y {again}\":0}}]", keys.join(","));
                let error = parse(text.as_bytes()).unwrap_err();
                assert!(error.message.contains(&format!("the key \"key {again}\" stands twice")), "{error}");
            }
        }
    }

    #[test]
    fn what_only_the_scan_refuses_is_a_fault_of_ours() {
        assert_eq!(refusal(b"{}").code, Code::Internal);
    }
}
