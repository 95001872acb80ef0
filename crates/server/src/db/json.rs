//! Pairs stored as JSON in a `TEXT`, in a form in which a query can find one pair as plain text.

use serde::Serialize;

use super::Value;

/// A value in its stored form: keys in the order of their map, no white space.
pub fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// A condition: the object in `column` has this key, and this value where one is given. Its arguments are added
/// to `args`.
pub fn has_pair(column: &str, key: &str, value: Option<&str>, args: &mut Vec<Value>) -> String {
    let pair = value.map_or_else(|| format!("{}:", text(&key)), |value| format!("{}:{}", text(&key), text(&value)));
    // JSON escapes quotes within texts, so this text matches only a pair.
    let ends: &[&str] = if value.is_some() { &["}", ","] } else { &[""] };
    let mut clauses = Vec::new();
    for begin in ["{", ","] {
        for end in ends {
            args.push(format!("{begin}{pair}{end}").into());
            // Unlike LIKE, this is case-sensitive on both databases.
            clauses.push(format!("REPLACE({column}, ${}, '') <> {column}", args.len()));
        }
    }
    format!("({})", clauses.join(" OR "))
}
