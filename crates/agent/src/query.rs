//! Parameters of a request's query; every wrong one is reported.

use berth_domain::agent::error::FieldError;

use crate::error::{Refusal, Result};

/// Parameters, with the mistakes found so far.
#[derive(Default)]
pub struct Query {
    pairs: Vec<(String, String)>,
    errors: Vec<FieldError>,
}

impl Query {
    /// Reads what follows the question mark.
    pub fn of(text: Option<&str>) -> Self {
        let pairs = form_urlencoded::parse(text.unwrap_or_default().as_bytes()).into_owned().collect();
        Self { pairs, errors: Vec::new() }
    }

    /// A parameter as text, the first of that name.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Every parameter whose name begins so: the rest of its name, and its value.
    pub fn beginning(&self, prefix: &str) -> Vec<(String, String)> {
        let named = |(name, value): &(String, String)| Some((name.strip_prefix(prefix)?.to_owned(), value.clone()));
        self.pairs.iter().filter_map(named).collect()
    }

    /// A parameter that must be there.
    pub fn required(&mut self, name: &str) -> String {
        if let Some(text) = self.text(name) {
            return text.to_owned();
        }
        self.fail(name, "is required");
        String::new()
    }

    /// A whole number within a range.
    pub fn number(&mut self, name: &str, range: std::ops::RangeInclusive<u64>, default: u64) -> u64 {
        let Some(text) = self.text(name) else { return default };
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        match text.parse() {
            Ok(number) if digits && range.contains(&number) => number,
            _ => {
                self.fail(name, &format!("must be an integer from {} to {}", range.start(), range.end()));
                default
            }
        }
    }

    /// `true` or `false`; the name alone means `true`.
    pub fn flag(&mut self, name: &str) -> bool {
        match self.text(name) {
            None | Some("false" | "0") => false,
            Some("" | "true" | "1") => true,
            Some(_) => {
                self.fail(name, "must be true or false");
                false
            }
        }
    }

    /// Permissions in octal.
    pub fn mode(&mut self, name: &str) -> Option<u32> {
        let text = self.text(name)?;
        let digits = (1..=5).contains(&text.len()) && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
        match u32::from_str_radix(text, 8) {
            Ok(mode) if digits && mode <= 0o7777 => Some(mode),
            _ => {
                self.fail(name, "must be permissions in octal, like 0644");
                None
            }
        }
    }

    /// Notes a mistake.
    pub fn fail(&mut self, name: &str, message: &str) {
        self.errors.push(FieldError { field: name.to_owned(), message: message.to_owned() });
    }

    /// Refuses if there was a mistake.
    pub fn finish(self) -> Result<()> {
        if self.errors.is_empty() {
            return Ok(());
        }
        let message = self.errors.iter().map(|e| format!("{}: {}", e.field, e.message)).collect::<Vec<_>>().join("; ");
        let refusal = Refusal::new(berth_domain::agent::error::code::INVALID_REQUEST, message);
        Err(Refusal { details: self.errors, ..refusal })
    }
}

/// A part of a path as text: without its percent signs.
pub fn decoded(part: &str) -> String {
    // Those two mean something in a query that they do not mean in a path.
    let query = part.replace('&', "%26").replace('+', "%2B");
    form_urlencoded::parse(format!("={query}").as_bytes())
        .map(|(_, value)| value.into_owned())
        .next()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_is_named() {
        let mut query = Query::of(Some("depth=0&limit=10&mode=9&recursive=maybe&n=%31"));
        assert_eq!(query.number("depth", 1..=5, 1), 1);
        assert_eq!((query.number("limit", 1..=10, 1), query.number("n", 1..=1, 7)), (10, 1));
        assert_eq!((query.mode("mode"), query.flag("recursive")), (None, false));
        query.required("path");
        let refusal = query.finish().unwrap_err();
        let fields = refusal.details.iter().map(|d| d.field.as_str()).collect::<Vec<_>>();
        assert_eq!(fields, ["depth", "mode", "recursive", "path"]);
    }

    #[test]
    fn a_part_of_a_path_is_read_as_text() {
        for (part, text) in [("7", "7"), ("a%20b%2Fc", "a b/c"), ("a+b&c=d", "a+b&c=d"), ("%e2%82%ac", "€"), ("%", "%")]
        {
            assert_eq!(decoded(part), text);
        }
    }

    #[test]
    fn parameters_of_one_kind_are_gathered() {
        let query = Query::of(Some("x.a=1&x=2&x.b.c=&y.d=3&x.a=4"));
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(query.beginning("x."), [pair("a", "1"), pair("b.c", ""), pair("a", "4")]);
    }

    #[test]
    fn limits_have_two_sides() {
        for (text, fine) in [("a=5", true), ("a=6", false), ("a=0", false), ("a=+1", false), ("a=", false)] {
            let mut query = Query::of(Some(text));
            query.number("a", 1..=5, 1);
            assert_eq!(query.finish().is_ok(), fine, "{text}");
        }
        for (text, mode) in [("m=0644", Some(0o644)), ("m=7777", Some(0o7777)), ("m=17777", None), ("m=-1", None)] {
            assert_eq!(Query::of(Some(text)).mode("m"), mode, "{text}");
        }
        assert!(Query::of(Some("e")).flag("e"));
    }
}
