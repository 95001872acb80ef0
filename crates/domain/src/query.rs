//! Reading a query parameter by parameter, so that one answer names every mistake: what [`Fields`] is to a body,
//! [`Params`] is to an address.
//!
//! A parameter that nobody asks for is refused as an unknown field is: a filter that is passed over lists everything,
//! and `?delete_root_disk=false` that is passed over deletes.
//!
//! [`Fields`]: crate::fields::Fields

use std::cell::RefCell;

use crate::error::{Error, FieldError, Result};
use crate::fields::{Parsed, unasked};
use crate::page::Page;

/// The query of a request: decoded pairs, read by name, mistakes collected. A name that nobody asks for is one.
pub struct Params {
    pairs: Vec<(String, String)>,
    errors: Vec<FieldError>,
    asked: RefCell<Vec<String>>,
}

/// A text that every database takes: NUL, which nothing is called by, becomes a character of the same kind.
pub fn storable(text: String) -> String {
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text }
}

/// What ends the name of a parameter in the document that stands for all whose names begin so.
const ANY: &str = "{name}";

/// Refuses every parameter of a query that is none of these. One like `attribute.{name}` stands for any such name.
///
/// # Errors
/// All of them, with what may be meant.
pub fn refuse_unknown(query: &str, known: &[String]) -> Result<()> {
    let pairs: Vec<_> = form_urlencoded::parse(query.as_bytes()).collect();
    let prefixes: Vec<_> = known.iter().filter_map(|name| name.strip_suffix(ANY)).collect();
    let names = pairs.iter().map(|(name, _)| name.as_ref());
    let names = names.filter(|name: &&str| !prefixes.iter().any(|prefix| name.starts_with(prefix)));
    let unknown = unasked("parameter", names, known);
    if unknown.is_empty() { Ok(()) } else { Err(Error::invalid(unknown)) }
}

/// Rule: a text of 1 to so many bytes.
pub fn short(most: usize) -> impl Fn(&str) -> Parsed<String> {
    move |text| {
        if (1..=most).contains(&text.len()) { Ok(text.to_owned()) } else { Err(format!("must have 1 to {most} bytes")) }
    }
}

impl Params {
    /// Decodes a query. What is no UTF-8 in it becomes a character that stands for that.
    pub fn parse(query: &str) -> Self {
        let decoded = form_urlencoded::parse(query.as_bytes()).into_owned();
        let pairs = decoded.map(|(name, value)| (name, storable(value))).collect();
        Self { pairs, errors: Vec::new(), asked: RefCell::default() }
    }

    /// The value of a parameter; the last one where it stands several times.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.know(name);
        self.pairs.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Every value of a parameter, in order.
    pub fn all(&self, name: &str) -> Vec<String> {
        self.know(name);
        self.pairs.iter().filter(|(key, _)| key == name).map(|(_, value)| value.clone()).collect()
    }

    /// The parameters whose name begins with a prefix, without it.
    pub fn below(&self, prefix: &str) -> Vec<(String, String)> {
        let named = self.pairs.iter().filter_map(|(name, value)| Some((name.strip_prefix(prefix)?, value)));
        named
            .map(|(name, value)| {
                self.know(&format!("{prefix}{name}"));
                (name.to_owned(), value.clone())
            })
            .collect()
    }

    fn know(&self, name: &str) {
        let mut asked = self.asked.borrow_mut();
        if asked.iter().all(|known| known != name) {
            asked.push(name.to_owned());
        }
    }

    /// Notes a mistake.
    pub fn fail(&mut self, name: &str, message: impl Into<String>) {
        self.errors.push(FieldError { field: name.to_owned(), message: message.into() });
    }

    /// A parameter read by a rule; a mistake is noted.
    pub fn read<T>(&mut self, name: &str, rule: impl FnOnce(&str) -> Parsed<T>) -> Option<T> {
        let parsed = rule(self.get(name)?);
        parsed.map_err(|message| self.fail(name, message)).ok()
    }

    /// A whole number within bounds.
    pub fn integer(&mut self, name: &str, max: i64) -> Option<i64> {
        self.read(name, |text| Page::bound(text, max))
    }

    /// The page asked for.
    pub fn page(&mut self) -> Page {
        let default = Page::default();
        Page {
            number: self.integer("page", Page::MAX_NUMBER).unwrap_or(default.number),
            limit: self.integer("limit", Page::MAX_LIMIT).unwrap_or(default.limit),
        }
    }

    /// Refuses with every mistake that was noted, and passes over what nobody asked for: the words are another protocol's.
    ///
    /// # Errors
    /// All of them.
    pub fn finish_known(self) -> Result<()> {
        if self.errors.is_empty() { Ok(()) } else { Err(Error::invalid(self.errors)) }
    }

    /// Refuses with every mistake that was noted, and every parameter that nobody asked for.
    ///
    /// # Errors
    /// All of them.
    pub fn finish(mut self) -> Result<()> {
        let names = self.pairs.iter().map(|(name, _)| name.as_str());
        self.errors.extend(unasked("parameter", names, &self.asked.into_inner()));
        if self.errors.is_empty() { Ok(()) } else { Err(Error::invalid(self.errors)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mistakes(params: Params) -> Vec<(String, String)> {
        let details = params.finish().unwrap_err().details;
        details.into_iter().map(|d| (d.field, d.message)).collect()
    }

    #[test]
    fn the_last_of_several_counts_and_what_nobody_asks_for_is_refused() {
        let mut params = Params::parse("name=a&name=b%20c&limit=0&x=1");
        assert_eq!(params.get("name"), Some("b c"));
        assert_eq!((params.page().limit, params.get("absent")), (Page::DEFAULT_LIMIT, None));
        let told = [
            ("limit", "must be an integer from 1 to 100"),
            ("x", "no such parameter; there are: name, page, limit, absent"),
        ];
        assert_eq!(mistakes(params), told.map(|(field, message)| (field.to_owned(), message.to_owned())));
    }

    #[test]
    fn what_begins_with_a_prefix_is_known() {
        let params = Params::parse("metadata.a=1&metadata.b=2");
        assert_eq!(params.below("metadata."), [("a".into(), "1".into()), ("b".into(), "2".into())]);
        assert!(params.finish().is_ok());
    }

    #[test]
    fn short_texts_have_two_sides() {
        let rule = short(4);
        for (text, good) in [("", false), ("a", true), ("abcd", true), ("abcde", false), ("ää", true), ("äää", false)]
        {
            assert_eq!(rule(text).is_ok(), good, "{text}");
        }
    }

    #[test]
    fn a_route_without_parameters_takes_none() {
        assert!(refuse_unknown("", &[]).is_ok() && refuse_unknown("a=1&a=2", &["a".into()]).is_ok());
        assert_eq!(refuse_unknown("a=1&b", &["a".into()]).unwrap_err().details[0].field, "b");
        let any = ["attribute.{name}".to_owned()];
        assert!(refuse_unknown("attribute.a=1&attribute.b.c=2", &any).is_ok());
        assert_eq!(refuse_unknown("attributes.a=1", &any).unwrap_err().details[0].field, "attributes.a");
    }

    proptest! {
        #[test]
        fn every_query_is_read_and_nul_is_nowhere(query in "[ -~]{0,60}|(%[0-9a-f]{2}|[&=+a-c]){0,30}") {
            let params = Params::parse(&query);
            let all = params.below("");
            prop_assert!(all.iter().all(|(_, value)| !value.contains('\0')));
            prop_assert!(params.finish().is_ok());
        }

        #[test]
        fn what_is_written_is_read(name in "[a-z_.]{1,9}", value in "[^\0]{0,20}") {
            let query: String = form_urlencoded::Serializer::new(String::new()).append_pair(&name, &value).finish();
            let params = Params::parse(&query);
            prop_assert_eq!(params.get(&name), Some(value.as_str()));
        }
    }
}
