//! Choosing one thing by what a person typed.

use anyhow::Result;

use crate::failure::Failure;

/// Whether a text has the form of an id.
pub fn is_id(text: &str) -> bool {
    text.len() == 36 && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

/// The only one that was found under a name; `list` is what to type to see all.
pub fn only<T>(mut found: Vec<T>, noun: &str, text: &str, list: &str) -> Result<T> {
    match (found.pop(), found.is_empty()) {
        (Some(one), true) => Ok(one),
        (None, _) => Err(Failure::not_found(format!("There is no {noun} called '{text}'. List them: {list}"))),
        (Some(_), false) => Err(Failure::usage(format!("Several {noun}s are called '{text}'; use an id: {list}"))),
    }
}

/// The token of a mail's link, or the token itself.
pub fn token(text: &str) -> &str {
    let after = text.split_once("token=").map_or(text, |(_, after)| after);
    after.split(['&', '#']).next().unwrap_or(after).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_links() {
        assert_eq!(token("http://127.0.0.1:8080/account/verify?token=a-B_1"), "a-B_1");
        assert_eq!(token("https://example.org/?token=ab&x=1#top"), "ab");
        assert_eq!(token(" a-B_1\n"), "a-B_1");
    }

    #[test]
    fn one_of_several() {
        assert_eq!(only(vec![1], "key", "ci", "berth key list").unwrap(), 1);
        assert!(only(vec![1, 2], "key", "ci", "berth key list").unwrap_err().to_string().contains("use an id"));
        assert!(only::<i32>(Vec::new(), "key", "ci", "berth key list").unwrap_err().to_string().contains("no key"));
    }
}
