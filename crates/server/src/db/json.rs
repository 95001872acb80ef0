//! Pairs kept as JSON in a `TEXT`: written so that one pair is a plain text in it, and found by that.

use serde::Serialize;

use super::Value;

/// A value as it is kept: keys sorted by their map, no white space.
pub fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// A condition: the object in `column` has this key, and this value where one is given. Its arguments are added
/// to `args`.
pub fn has_pair(column: &str, key: &str, value: Option<&str>, args: &mut Vec<Value>) -> String {
    let pair = value.map_or_else(|| format!("{}:", text(&key)), |value| format!("{}:{}", text(&key), text(&value)));
    // Quotes within a text are escaped, so a pair between these is nothing else.
    let ends: &[&str] = if value.is_some() { &["}", ","] } else { &[""] };
    let mut clauses = Vec::new();
    for begin in ["{", ","] {
        for end in ends {
            args.push(format!("{begin}{pair}{end}").into());
            // Unlike LIKE, this tells upper from lower case on both databases.
            clauses.push(format!("REPLACE({column}, ${}, '') <> {column}", args.len()));
        }
    }
    format!("({})", clauses.join(" OR "))
}
