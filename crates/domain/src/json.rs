//! JSON without duplicate keys. What fields of it mean is [`crate::fields`]' matter.
//!
//! [`parse`] builds all of a value and says what is wrong with bytes that are none. [`scan`] takes the same bytes and
//! builds nothing: it is for those who need a few values of many bytes, and need them fast.

pub mod scan;

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::error::{Code, Error, Result};

/// Parses JSON; refuses duplicate keys, 128 levels or more, and what follows the value.
///
/// # Errors
/// [`Code::InvalidRequest`], with what is wrong and where.
pub fn parse(bytes: &[u8]) -> Result<Value> {
    // Judged once for all of it, and not for each string.
    let text = std::str::from_utf8(bytes).map_err(invalid)?;
    let mut reader = serde_json::Deserializer::from_str(text);
    Strict.deserialize(&mut reader).and_then(|value| reader.end().map(|()| value)).map_err(invalid)
}

/// What [`parse`] says of bytes that a scan has refused.
pub(crate) fn refusal(bytes: &[u8]) -> Error {
    parse(bytes).err().unwrap_or_else(|| Error::internal("the scan refused JSON that the parser takes"))
}

/// What is said of bytes that are no JSON.
fn invalid(problem: impl fmt::Display) -> Error {
    Error::new(Code::InvalidRequest, format!("The body is not valid JSON: {problem}."))
}

fn twice<E: serde::de::Error>(key: &str) -> E {
    E::custom(format_args!("the key {key:?} stands twice"))
}

/// Builds a [`Value`] like serde_json's own, but refuses a key that stands twice.
struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, v: bool) -> std::result::Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> std::result::Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_u64<E>(self, v: u64) -> std::result::Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_f64<E>(self, v: f64) -> std::result::Result<Value, E> {
        Ok(Number::from_f64(v).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, v: &str) -> std::result::Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_string<E>(self, v: String) -> std::result::Result<Value, E> {
        Ok(Value::String(v))
    }

    fn visit_unit<E>(self) -> std::result::Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(Self)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(Self)?;
            if object.contains_key(&key) {
                return Err(twice(&key));
            }
            object.insert(key, value);
        }
        Ok(Value::Object(object))
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
