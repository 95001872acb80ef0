//! What identity is told and what it shows. A file holds the formats of one noun; the structs named `…Body`
//! describe requests in the document, the types beside them parse.

pub mod admin;
pub mod api_key;
pub mod audit;
pub mod invitation;
pub mod member;
pub mod org;
pub mod password;
pub mod project;
pub mod quota;
pub mod referral;
pub mod session;
pub mod signing_key;
pub mod suspension;
pub mod user;
pub mod verification;

use berth_domain::Timestamp;
use berth_domain::fields::{Parsed, sized, text};
use berth_domain::names;
use serde_json::Value;

use crate::config::Secret;

fn secret(least: usize, most: usize) -> impl Fn(&Value) -> Parsed<Secret> {
    move |value| sized(least, most)(value).map(Secret)
}

/// An address: one `@`, something on both sides, a dot in the domain, no white space; at most 254 bytes.
pub fn email(value: &Value) -> Parsed<String> {
    let text = text(value)?;
    let (local, domain) = text.split_once('@').unwrap_or_default();
    let label = |l: &str| {
        !l.is_empty()
            && l.len() <= 63
            && !l.starts_with('-')
            && !l.ends_with('-')
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~.".contains(&b);
    let dots = !local.starts_with('.') && !local.ends_with('.') && !local.contains("..");
    let good = (1..=64).contains(&local.len())
        && local.bytes().all(plain)
        && dots
        && domain.contains('.')
        && domain.split('.').all(label)
        && text.len() <= 254;
    if good { Ok(text.to_owned()) } else { Err("must be an e-mail address".into()) }
}

/// A phone number in E.164: `+` and 8 to 15 digits.
pub fn phone(value: &Value) -> Parsed<String> {
    let text = text(value)?;
    let digits = text.strip_prefix('+').unwrap_or_default();
    let good =
        (8..=15).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
    if good { Ok(text.to_owned()) } else { Err("must be a phone number like +4915112345678".into()) }
}

/// A code: six digits.
fn code(value: &Value) -> Parsed<Secret> {
    let text = text(value)?;
    let good = text.len() == 6 && text.bytes().all(|b| b.is_ascii_digit());
    if good { Ok(Secret(text.to_owned())) } else { Err("must have six digits".into()) }
}

/// A name for people: 1 to 100 characters, none of them a control character, not only white space.
pub fn title(value: &Value) -> Parsed<String> {
    let text = sized(1, 100)(value)?;
    if text.trim().is_empty() || text.chars().any(char::is_control) {
        return Err("must have 1 to 100 characters, not only white space, and no control characters".into());
    }
    Ok(text)
}

/// A name that stands in mails to strangers: a title without a web address.
pub fn public_name(value: &Value) -> Parsed<String> {
    let name = title(value)?;
    if names::misleads(&name) {
        return Err("must hold no web address and no invisible characters; put a space behind a dot".into());
    }
    Ok(name)
}

/// A new password that keeps the rules.
fn chosen(value: &Value, rules: impl Fn(&str) -> Parsed<()>) -> Parsed<Secret> {
    let password = secret(1, 4096)(value)?;
    rules(&password.0).map(|()| password)
}

/// A time in RFC 3339.
pub fn time(value: &Value) -> Parsed<Timestamp> {
    Timestamp::parse(text(value)?)
}
