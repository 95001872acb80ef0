//! How people are reached: e-mail addresses and phone numbers.

use serde_json::Value;

use crate::fields::{Parsed, text};
use crate::names::misleads;

/// Most bytes of an address (RFC 5321, 4.5.3.1.3, without the angle brackets).
const ADDRESS: usize = 254;
/// Most bytes before the `@` (RFC 5321, 4.5.3.1.1).
const LOCAL: usize = 64;
/// Most bytes of a label of a host name (RFC 1035, 2.3.4).
const LABEL: usize = 63;

/// Rule: an address: one `@`, something on both sides, a dot in the domain, no white space; at most 254 bytes.
pub fn email(value: &Value) -> Parsed<String> {
    let text = text(value)?;
    if is_email(text) { Ok(text.to_owned()) } else { Err("must be an e-mail address".into()) }
}

fn is_email(text: &str) -> bool {
    let (local, domain) = text.split_once('@').unwrap_or_default();
    let label = |l: &str| {
        !l.is_empty()
            && l.len() <= LABEL
            && !l.starts_with('-')
            && !l.ends_with('-')
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~.".contains(&b);
    let dots = !local.starts_with('.') && !local.ends_with('.') && !local.contains("..");
    (1..=LOCAL).contains(&local.len())
        && local.bytes().all(plain)
        && dots
        && domain.contains('.')
        && domain.split('.').all(label)
        && text.len() <= ADDRESS
}

/// Rule: a phone number in E.164: `+` and 8 to 15 digits, the first of them not 0.
pub fn phone(value: &Value) -> Parsed<String> {
    let text = text(value)?;
    let digits = text.strip_prefix('+').unwrap_or_default();
    let good =
        (8..=15).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
    if good { Ok(text.to_owned()) } else { Err("must be a phone number like +4915112345678".into()) }
}

/// An address as far as somebody else may see it: `a***@example.com`.
pub fn masked(email: &str) -> String {
    let (local, domain) = email.split_once('@').unwrap_or((email, ""));
    format!("{}***@{domain}", local.chars().take(1).collect::<String>())
}

/// A title made of an address: what stands before its `@`, without what would lead somewhere in a mail.
pub fn title_of(email: &str) -> String {
    let local = email.split('@').next().unwrap_or_default();
    if misleads(local) { local.replace('.', " ") } else { local.to_owned() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_on_both_sides() {
        let of = |local: usize, domain: &str| format!("{}@{domain}", "a".repeat(local));
        let longest = format!("{}.{}.{}.org", "b".repeat(63), "c".repeat(63), "d".repeat(57));
        for good in ["a@b.c", "A.b+c@x-y.example.org", "o'neil@example.org", &of(64, "b.c"), &of(64, &longest)] {
            assert!(email(&json!(good)).is_ok(), "{good}");
        }
        assert_eq!(of(64, &longest).len(), ADDRESS);
        for bad in [
            "",
            "a",
            "@b.c",
            "a@",
            "a@b",
            "a@b..c",
            "a@-b.c",
            "a@b-.c",
            "a@b.c.",
            ".a@b.c",
            "a.@b.c",
            "a..b@c.d",
            "a b@c.d",
            "a@b@c.d",
            "ä@b.c",
            "a@ä.c",
            "a@b.c\n",
            &of(65, "b.c"),
            &of(1, &format!("{}.org", "b".repeat(64))),
            &of(64, &format!("e{longest}")),
        ] {
            assert_eq!(email(&json!(bad)), Err("must be an e-mail address".into()), "{bad}");
        }
        assert_eq!(email(&json!(1)), Err("must be a string".into()));
    }

    #[test]
    fn numbers_on_both_sides() {
        for (number, good) in [
            ("+12345678", true),
            ("+1234567", false),
            ("+123456789012345", true),
            ("+1234567890123456", false),
            ("+02345678", false),
            ("12345678", false),
            ("+1234567a", false),
            ("+1234 5678", false),
        ] {
            assert_eq!(phone(&json!(number)).is_ok(), good, "{number}");
        }
    }

    #[test]
    fn others_see_the_first_letter() {
        assert_eq!((masked("ada@example.org").as_str(), masked("").as_str()), ("a***@example.org", "***@"));
    }

    proptest! {
        #[test]
        fn what_is_an_address_has_two_sides_and_a_title_that_leads_nowhere(
            text in "[a-z.+@-]{0,20}|[a-z]([a-z.]{0,7}[a-z])?@[a-z]{1,5}\\.[a-z]{1,5}|\\PC{0,20}",
        ) {
            if let Ok(address) = email(&json!(text)) {
                let (local, domain) = address.split_once('@').unwrap();
                prop_assert!(!local.is_empty() && domain.contains('.') && !domain.contains('@'));
                prop_assert!(!address.contains(char::is_whitespace));
                prop_assert!(!misleads(&title_of(&address)));
                prop_assert!(masked(&address).ends_with(domain));
            }
        }
    }
}
