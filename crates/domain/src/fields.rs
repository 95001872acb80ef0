//! Reading a JSON object field by field, so that one answer names every mistake.
//!
//! `serde` stops at the first error. Here each field is parsed by its own rule, the mistakes are
//! collected under the path of their field, and [`Fields::finish`] hands over all of them at once.
//! The rules of the contract for every body live here and nowhere else: `null` means absent, `20.0` is an
//! integer, and a field that nobody asks for is refused, because a slip must not open what was to be closed.
//! Which fields there are nobody has to list: those that are asked for are.

mod meant;

use std::cell::RefCell;
use std::str::FromStr;

use serde_json::{Map, Value};

use crate::Timestamp;
use crate::error::{Error, FieldError, Result};
use crate::secret::Secret;

/// The outcome of one field's rule: the value, or the rule it broke as a sentence.
pub type Parsed<T> = std::result::Result<T, String>;

/// Most unknown names of one object that are told one by one; of more, the last tells how many.
const TOLD: usize = 32;

/// Every one of these names that nobody asked for, with what may be meant. `kind` is what they would be.
pub fn unasked<'n>(kind: &str, names: impl Iterator<Item = &'n str>, asked: &[String]) -> Vec<FieldError> {
    let unknown: Vec<&str> = names.filter(|name| asked.iter().all(|known| known != name)).collect();
    let mistake = |(index, name): (usize, &&str)| FieldError {
        field: meant::shown(name),
        message: match unknown.len() - index {
            more @ 2.. if index + 1 == TOLD => format!("no such {kind}, and {} more that do not exist", more - 1),
            _ => meant::unknown(kind, name, asked),
        },
    };
    unknown.iter().enumerate().take(TOLD).map(mistake).collect()
}

/// A JSON object being read, with the mistakes found so far.
pub struct Fields<'a> {
    object: Option<&'a Map<String, Value>>,
    path: String,
    errors: Vec<FieldError>,
    /// The fields that were asked for; `None` where others may stand beside them.
    asked: Option<RefCell<Vec<String>>>,
}

impl<'a> Fields<'a> {
    /// Reads the body of a request, which must be an object and have no other fields than those asked for.
    pub fn of(value: &'a Value) -> Self {
        Self { asked: Some(RefCell::default()), ..Self::among_others(value) }
    }

    /// The same, and other fields may stand beside those asked for: they are for somebody else to judge.
    pub fn among_others(value: &'a Value) -> Self {
        let mut fields = Self { object: value.as_object(), path: String::new(), errors: Vec::new(), asked: None };
        if fields.object.is_none() {
            fields.fail("body", "must be a JSON object");
        }
        fields
    }

    /// An optional field: absent and `null` are `None`.
    pub fn optional<T>(&mut self, name: &str, rule: impl FnOnce(&'a Value) -> Parsed<T>) -> Option<T> {
        let value = self.raw(name)?;
        match rule(value) {
            Ok(parsed) => Some(parsed),
            Err(message) => {
                self.fail(name, message);
                None
            }
        }
    }

    /// A required field; `None` means that an error was noted.
    pub fn required<T>(&mut self, name: &str, rule: impl FnOnce(&'a Value) -> Parsed<T>) -> Option<T> {
        if self.object.is_some() && self.raw(name).is_none() {
            self.fail(name, "is required");
            return None;
        }
        self.optional(name, rule)
    }

    /// An optional object, read by `rule` with paths below `name`.
    pub fn object<T>(&mut self, name: &str, rule: impl FnOnce(&mut Fields<'a>) -> Option<T>) -> Option<T> {
        let value = self.raw(name)?;
        self.nested(name.to_owned(), value, rule)
    }

    /// A list of at most `max` items, each read by `rule`; absent is `None`.
    /// Items that fail are left out, their errors are noted.
    pub fn list<T>(&mut self, name: &str, max: usize, mut rule: impl FnMut(&'a Value) -> Parsed<T>) -> Option<Vec<T>> {
        let items = self.array(name, max)?;
        let mut parsed = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            match rule(item) {
                Ok(value) => parsed.push(value),
                Err(message) => self.fail(&format!("{name}[{index}]"), message),
            }
        }
        Some(parsed)
    }

    /// A list of at most `max` objects, each read by `rule`.
    pub fn objects<T>(
        &mut self,
        name: &str,
        max: usize,
        mut rule: impl FnMut(&mut Fields<'a>) -> Option<T>,
    ) -> Option<Vec<T>> {
        let items = self.array(name, max)?;
        let mut parsed = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            parsed.extend(self.nested(format!("{name}[{index}]"), item, &mut rule));
        }
        Some(parsed)
    }

    /// Whether the field is there and not `null`.
    pub fn has(&self, name: &str) -> bool {
        self.raw(name).is_some()
    }

    /// Notes a mistake of a field.
    pub fn fail(&mut self, name: &str, message: impl Into<String>) {
        let field = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        self.errors.push(FieldError { field, message: message.into() });
    }

    /// Whether any mistake was noted so far.
    pub fn failed(&self) -> bool {
        !self.errors.is_empty()
    }

    /// Hands over what was read, or every mistake: unknown fields are the last.
    pub fn finish<T>(mut self, value: Option<T>) -> Result<T> {
        self.refuse_unasked();
        match value {
            Some(value) if self.errors.is_empty() => Ok(value),
            _ => Err(Error::invalid(self.errors)),
        }
    }

    fn refuse_unasked(&mut self) {
        let (Some(object), Some(asked)) = (self.object, self.asked.take()) else { return };
        for FieldError { field, message } in unasked("field", object.keys().map(String::as_str), &asked.into_inner()) {
            self.fail(&field, message);
        }
    }

    fn raw(&self, name: &str) -> Option<&'a Value> {
        if let Some(asked) = &self.asked
            && asked.borrow().iter().all(|known| known != name)
        {
            asked.borrow_mut().push(name.to_owned());
        }
        self.object?.get(name).filter(|v| !v.is_null())
    }

    fn array(&mut self, name: &str, max: usize) -> Option<&'a Vec<Value>> {
        let Some(items) = self.raw(name)?.as_array() else {
            self.fail(name, "must be a list");
            return None;
        };
        if items.len() > max {
            self.fail(name, format!("must have at most {max} items"));
            return None;
        }
        Some(items)
    }

    fn nested<T>(
        &mut self,
        name: String,
        value: &'a Value,
        rule: impl FnOnce(&mut Fields<'a>) -> Option<T>,
    ) -> Option<T> {
        let Some(object) = value.as_object() else {
            self.fail(&name, "must be an object");
            return None;
        };
        let path = if self.path.is_empty() { name } else { format!("{}.{name}", self.path) };
        let asked = self.asked.as_ref().map(|_| RefCell::default());
        let mut inner = Fields { object: Some(object), path, errors: Vec::new(), asked };
        let parsed = rule(&mut inner);
        inner.refuse_unasked();
        self.errors.append(&mut inner.errors);
        parsed
    }
}

/// Rule: a string. NUL is refused, because not every database keeps it.
pub fn text(value: &Value) -> Parsed<&str> {
    match value.as_str() {
        Some(text) if text.contains('\0') => Err("must not contain the character NUL".into()),
        Some(text) => Ok(text),
        None => Err("must be a string".into()),
    }
}

/// Rule: a string of `min..=max` characters.
pub fn sized(min: usize, max: usize) -> impl Fn(&Value) -> Parsed<String> {
    move |value| {
        let text = text(value)?;
        if (min..=max).contains(&text.chars().count()) {
            Ok(text.to_owned())
        } else {
            Err(format!("must have {min} to {max} characters"))
        }
    }
}

/// Rule: a secret of `min..=max` characters.
pub fn secret(min: usize, max: usize) -> impl Fn(&Value) -> Parsed<Secret> {
    move |value| sized(min, max)(value).map(Secret)
}

/// Rule: an id, as [`crate::ids`] spells it.
pub fn id<T: FromStr>(value: &Value) -> Parsed<T> {
    text(value)?.parse().map_err(|_| "must be a UUID".into())
}

/// Rule: a time in RFC 3339.
pub fn time(value: &Value) -> Parsed<Timestamp> {
    Timestamp::parse(text(value)?)
}

/// Rule: `true` or `false`.
pub fn boolean(value: &Value) -> Parsed<bool> {
    value.as_bool().ok_or_else(|| "must be true or false".into())
}

/// Rule: an integer in `min..=max`; `20.0` is one.
pub fn integer(min: i64, max: i64) -> impl Fn(&Value) -> Parsed<i64> {
    move |value| {
        let out = || format!("must be an integer from {min} to {max}");
        let number = value.as_i64().or_else(|| value.as_f64().and_then(integral)).ok_or_else(out)?;
        if (min..=max).contains(&number) { Ok(number) } else { Err(out()) }
    }
}

/// The integer a float stands for, within the range where every integer is exact.
fn integral(float: f64) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    #[expect(clippy::cast_possible_truncation, reason = "the range was checked")]
    (float.fract() == 0.0 && float.abs() <= EXACT).then_some(float as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_mistake_is_named() {
        let body = json!({"a": 1, "b": null, "list": ["x", 2], "o": {"n": 5}, "os": [{"n": 1}, 7]});
        let mut f = Fields::of(&body);
        f.required("a", text);
        f.required("b", text);
        f.list("list", 5, text);
        f.object("o", |o| o.required("n", integer(1, 4)));
        f.objects("os", 5, |o| o.required("n", integer(1, 4)));
        let error = f.finish(Some(())).unwrap_err();
        let fields: Vec<_> = error.details.iter().map(|d| d.field.as_str()).collect();
        assert_eq!(fields, ["a", "b", "list[1]", "o.n", "os[1]"]);
    }

    fn mistakes(error: &Error) -> Vec<(&str, &str)> {
        error.details.iter().map(|d| (d.field.as_str(), d.message.as_str())).collect()
    }

    #[test]
    fn what_nobody_asks_for_is_refused_at_every_depth_beside_every_other_mistake() {
        let body = json!({"a": 1, "aa": null, "o": {"n": 5, "m": 1}, "os": [{"n": 1}, {"nn": 1}], "free": {"x": 1}});
        let read = |mut f: Fields<'_>| {
            f.required("a", text);
            f.object("o", |o| o.required("n", integer(1, 4)));
            f.objects("os", 5, |o| o.optional("n", integer(1, 4)));
            f.optional("free", |_| Ok(()));
            f.finish(Some(())).unwrap_err()
        };
        let strict = read(Fields::of(&body));
        assert_eq!(
            mistakes(&strict),
            [
                ("a", "must be a string"),
                ("o.n", "must be an integer from 1 to 4"),
                ("o.m", "no such field; there are: n"),
                ("os[1].nn", "no such field; there are: n"),
                ("aa", "no such field; there are: a, o, os, free"),
            ]
        );
        let lenient = read(Fields::among_others(&body));
        assert_eq!(lenient.details.len(), 2);
    }

    #[test]
    fn a_field_that_was_looked_for_is_known() {
        let body = json!({"a": 1, "b": 2});
        let mut f = Fields::of(&body);
        assert!(f.has("a") && f.optional("b", integer(1, 2)).is_some());
        assert!(f.finish(Some(())).is_ok());
    }

    #[test]
    fn many_unknown_fields_are_counted() {
        let of = |count: usize| {
            let body = Value::Object((0..count).map(|n| (format!("field{n:03}"), Value::Null)).collect());
            Fields::of(&body).finish(Some(())).unwrap_err().details
        };
        let exactly = of(TOLD);
        assert_eq!(exactly.len(), TOLD);
        assert_eq!(exactly[TOLD - 1].message, "no such field; there are none here");
        let more = of(TOLD + 9);
        assert_eq!(more.len(), TOLD);
        assert_eq!(more[TOLD - 1].message, "no such field, and 9 more that do not exist");
    }

    #[test]
    fn integers_and_floats() {
        assert_eq!(integer(1, 20)(&json!(20.0)), Ok(20));
        assert_eq!(integer(1, 20)(&json!(1)), Ok(1));
        for bad in [json!(20.5), json!(21), json!(0), json!("5"), json!(true), json!(1e300)] {
            assert!(integer(1, 20)(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_body_that_is_no_object() {
        let body = json!([1]);
        let mut f = Fields::of(&body);
        f.required("name", text);
        let error = f.finish(None::<()>).unwrap_err();
        assert_eq!(error.details.len(), 1);
        assert_eq!(error.details[0].field, "body");
    }
}
