//! JSON without duplicate keys. What fields of it mean is [`crate::fields`]' matter.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::error::{Code, Error, Result};

/// Parses JSON; refuses duplicate keys, more than 128 levels and what follows the value.
///
/// # Errors
/// [`Code::InvalidRequest`], with what is wrong and where.
pub fn parse(bytes: &[u8]) -> Result<Value> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    Strict
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value))
        .map_err(|e| Error::new(Code::InvalidRequest, format!("The body is not valid JSON: {e}.")))
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
                return Err(serde::de::Error::custom(format_args!("the key {key:?} stands twice")));
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
            assert_eq!(parse(bad).unwrap_err().code, Code::InvalidRequest, "{bad:?}");
        }
        let deep = |n: usize| [vec![b'['; n], vec![b']'; n]].concat();
        assert!(parse(&deep(100)).is_ok());
        assert!(parse(&deep(200)).is_err());
    }
}
