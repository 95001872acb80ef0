//! Bodies: content type, size, JSON without duplicate keys.

use std::fmt;

use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use berth_domain::{Code, Error, Result};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::BODY_LIMIT;
use super::envelope::ApiError;

/// A JSON body: any value, its fields not yet looked at.
pub struct Json(pub Value);

impl<S: Send + Sync> FromRequest<S> for Json {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        require_json(request.headers())?;
        let bytes = read(request, BODY_LIMIT).await?;
        Ok(Self(parse(&bytes)?))
    }
}

/// A JSON body that may be absent or null.
pub struct OptionalJson(pub Option<Value>);

impl<S: Send + Sync> FromRequest<S> for OptionalJson {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let declared = request.headers().get(header::CONTENT_TYPE).is_some().then(|| require_json(request.headers()));
        let bytes = read(request, BODY_LIMIT).await?;
        // Many clients declare JSON and send nothing.
        if bytes.is_empty() {
            return Ok(Self(None));
        }
        declared.transpose()?;
        Ok(Self(Some(parse(&bytes)?).filter(|body| !body.is_null())))
    }
}

impl OptionalJson {
    /// The body; an empty object where there is none.
    pub fn or_empty(self) -> Value {
        self.0.unwrap_or_else(|| Value::Object(Map::new()))
    }
}

fn require_json(headers: &HeaderMap) -> Result<()> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json")) {
        return Ok(());
    }
    Err(Error::new(Code::UnsupportedMediaType, "Send the body as JSON, with 'Content-Type: application/json'."))
}

/// Reads a whole body of at most `limit` bytes.
pub async fn read(request: Request, limit: usize) -> Result<bytes::Bytes> {
    let too_large = || Error::new(Code::PayloadTooLarge, format!("The body may have at most {limit} bytes."));
    let declared = request.headers().get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|n| n > limit as u64) {
        return Err(too_large());
    }
    match Limited::new(request.into_body(), limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(e) if e.is::<LengthLimitError>() => Err(too_large()),
        Err(e) => Err(Error::new(Code::InvalidRequest, format!("The body could not be read: {e}."))),
    }
}

/// Parses JSON; refuses duplicate keys, more than 128 levels and what follows the value.
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

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Number::from_f64(v).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(Self)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
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
