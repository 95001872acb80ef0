//! Ids as people type and read them: whole, or a part that distinguishes them.

/// Fewest characters of an id that may stand for it.
const FEWEST: usize = 4;
/// Where the part of an id begins that tables show.
const SHORT: usize = 24;

/// Whether a text has the form of an id.
pub fn is_id(text: &str) -> bool {
    text.len() == 36 && has_digits(text)
}

/// Whether a text can be a part of an id.
pub fn is_part(text: &str) -> bool {
    (FEWEST..36).contains(&text.len()) && has_digits(text)
}

fn has_digits(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

/// Whether an id begins or ends with a text.
pub fn belongs(id: &str, text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    is_part(&text) && (id.starts_with(&text) || id.ends_with(&text))
}

/// The part of an id that tables show; any other text unchanged.
pub fn short(text: &str) -> &str {
    if is_id(text) { &text[SHORT..] } else { text }
}
