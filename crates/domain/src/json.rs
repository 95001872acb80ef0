//! JSON without duplicate keys. What fields of it mean is [`crate::fields`]' matter.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::error::{Code, Error, Result};

/// Keys of an object that are compared one by one; every further batch of as many goes to a set.
const FEW: usize = 32;

/// Parses JSON; refuses duplicate keys, more than 128 levels and what follows the value.
///
/// # Errors
/// [`Code::InvalidRequest`], with what is wrong and where.
pub fn parse(bytes: &[u8]) -> Result<Value> {
    whole(Strict, bytes).map(|(value, _)| value)
}

/// Refuses what [`parse`] refuses, in the same words, and builds nothing; the bytes as text.
///
/// # Errors
/// [`Code::InvalidRequest`], with what is wrong and where.
pub fn check(bytes: &[u8]) -> Result<&str> {
    whole(Check(&mut Vec::new()), bytes).map(|((), text)| text)
}

/// What is said of bytes that are no JSON.
pub(crate) fn invalid(problem: impl fmt::Display) -> Error {
    Error::new(Code::InvalidRequest, format!("The body is not valid JSON: {problem}."))
}

/// Reads one value with nothing behind it; with the bytes as text.
fn whole<'de, S: DeserializeSeed<'de>>(seed: S, bytes: &'de [u8]) -> Result<(S::Value, &'de str)> {
    // Judged once for all of it, and not for each string.
    let text = std::str::from_utf8(bytes).map_err(invalid)?;
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = seed.deserialize(&mut reader).and_then(|value| reader.end().map(|()| value)).map_err(invalid)?;
    Ok((value, text))
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

/// Walks a value. The keys of all open objects share one list, in which each object has the end to itself.
struct Check<'a, 'de>(&'a mut Vec<Cow<'de, str>>);

impl<'de> DeserializeSeed<'de> for Check<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Check<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<(), A::Error> {
        while seq.next_element_seed(Check(&mut *self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        let keys = self.0;
        let start = keys.len();
        let mut many: HashSet<Cow<'de, str>> = HashSet::new();
        while let Some(key) = map.next_key_seed(Key)? {
            map.next_value_seed(Check(&mut *keys))?;
            if keys[start..].contains(&key) || many.contains(&key) {
                return Err(twice(&key));
            }
            keys.push(key);
            if keys.len() - start == FEW {
                many.extend(keys.drain(start..));
            }
        }
        keys.truncate(start);
        Ok(())
    }
}

/// A key, borrowed from the text unless it is written with escapes.
pub(crate) struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, v: &'de str) -> std::result::Result<Self::Value, E> {
        Ok(Cow::Borrowed(v))
    }

    fn visit_str<E>(self, v: &str) -> std::result::Result<Self::Value, E> {
        Ok(Cow::Owned(v.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Both ways of reading say the same of these bytes.
    fn refused(bytes: &[u8]) -> Option<Error> {
        let (parsed, checked) = (parse(bytes).err(), check(bytes).err());
        assert_eq!(parsed, checked, "{:?}", String::from_utf8_lossy(bytes));
        parsed
    }

    fn object(keys: impl IntoIterator<Item = String>) -> String {
        let members: Vec<_> = keys.into_iter().map(|key| format!("{}:[{{}}]", Value::from(key))).collect();
        format!("{{{}}}", members.join(","))
    }

    #[test]
    fn strict_json() {
        assert_eq!(parse(br#"{"a":[1,2.5,"x",null,true]}"#).unwrap()["a"][1], 2.5);
        assert_eq!(check(br#" {"a":[1,-2.5,"x\n\u00e4",null,true,false,{"a":{"a":""}}]} "#).map(drop), Ok(()));
        for bad in
            [&b"{\"a\":1,\"a\":2}"[..], b"{\"o\":{\"b\":1,\"b\":1}}", b"", b"{", b"{} x", b"\xff", b"nul", b"[1e999]"]
        {
            assert_eq!(refused(bad).unwrap().code, Code::InvalidRequest, "{bad:?}");
        }
        for bad in
            [&b"\"\xff\""[..], b"{\"\xff\":1}", br#""\ud800""#, b"[1,]", b"{1:2}", b"{\"a\":1,}", b"01", b"\"\n\""]
        {
            assert!(refused(bad).is_some(), "{bad:?}");
        }
    }

    #[test]
    fn levels_on_both_sides() {
        let lists = |n: usize| [vec![b'['; n], vec![b']'; n]].concat();
        let objects = |n: usize| format!("{}1{}", "{\"a\":".repeat(n), "}".repeat(n)).into_bytes();
        assert_eq!((refused(&lists(127)), refused(&objects(127))), (None, None));
        for deep in [lists(128), objects(128), lists(100_000)] {
            assert!(refused(&deep).is_some());
        }
    }

    #[test]
    fn keys_that_stand_twice_are_found_wherever_they_stand() {
        for count in [1, FEW - 1, FEW, FEW + 1, 2 * FEW, 200] {
            let keys = || (0..count).map(|n| format!("key {n}"));
            assert_eq!(refused(object(keys()).as_bytes()), None, "{count} keys");
            for again in [0, count / 2, count - 1] {
                let text = object(keys().chain([format!("key {again}")]));
                let error = refused(text.as_bytes()).unwrap();
                assert!(error.message.contains(&format!("the key \"key {again}\" stands twice")), "{error}");
            }
        }
        // A key is what it says, however it is written; brothers and parents do not count.
        assert!(refused(br#"{"model":1,"mod\u0065l":2}"#).is_some());
        assert!(refused(br#"[{"a":{"b":1,"b":2}}]"#).is_some());
        assert_eq!(refused(br#"[{"a":{"a":{"a":1},"b":1},"b":{"a":1}},{"a":1}]"#), None);
    }

    /// Pieces that make both good and bad JSON.
    fn soup() -> impl Strategy<Value = String> {
        let pieces =
            ["{", "}", "[", "]", ",", "\"a\":", "\"b\":", "\"\\u0061\":", "1", "-1.5e3", "\"x\"", "null", "true", " "];
        prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..16).prop_map(|pieces| pieces.concat())
    }

    /// Objects in objects whose keys are few, so that some stand twice.
    fn crowded() -> impl Strategy<Value = String> {
        let key = prop::sample::select(vec!["a", "b", "c", "\\u0061", "d", "e", "f"]);
        Just("0".to_owned()).prop_recursive(4, 40, 5, move |inner| {
            prop::collection::vec((key.clone(), inner), 0..5).prop_map(|members| {
                let members: Vec<_> = members.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
                format!("{{{}}}", members.join(","))
            })
        })
    }

    proptest! {
        #[test]
        fn check_refuses_what_parse_refuses(text in prop_oneof![soup(), crowded(), ".*"]) {
            prop_assert_eq!(check(text.as_bytes()).map(drop), parse(text.as_bytes()).map(drop));
        }

        #[test]
        fn check_refuses_what_parse_refuses_of_many_keys(keys in prop::collection::vec(0..400_u16, 0..80)) {
            let text = object(keys.iter().map(u16::to_string));
            prop_assert_eq!(check(text.as_bytes()).map(drop), parse(text.as_bytes()).map(drop));
            let mut unique = keys.clone();
            unique.sort_unstable();
            unique.dedup();
            prop_assert_eq!(check(text.as_bytes()).is_ok(), unique.len() == keys.len());
        }

        #[test]
        fn check_refuses_what_parse_refuses_of_bytes(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(check(&bytes).map(drop), parse(&bytes).map(drop));
        }
    }
}
