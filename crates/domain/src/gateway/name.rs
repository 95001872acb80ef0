//! Names of a request's fields, as servers read them that ignore case.

use crate::json::scan;

/// The first top-level name of a body that the model does not take. Compares without case, as some servers do. `body`
/// must be one that was read.
pub fn denied(body: &[u8], names: &[String]) -> Option<String> {
    let body = std::str::from_utf8(body).ok()?;
    let mut found = None;
    scan::whole(body, |scan| {
        scan.object(|scan, key| {
            if found.is_none() && names.iter().any(|name| folds_to(key, name)) {
                found = Some(key.to_owned());
            }
            scan.value().map(|_| ())
        })
    });
    found
}

/// Whether two names are equal without case. Two characters beyond ASCII fold to letters of ASCII (Unicode's
/// `CaseFolding.txt`): the long s and the sign of Kelvin.
pub(super) fn folds_to(key: &str, name: &str) -> bool {
    let plain = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c,
    };
    let fold = |text: &str| text.chars().map(plain).flat_map(char::to_lowercase).collect::<String>();
    // No character has more than three times the bytes of its folded form.
    key.len() <= 3 * name.len() && (key.eq_ignore_ascii_case(name) || (!key.is_ascii() && fold(key) == fold(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_counts_for_nothing() {
        for (key, name) in
            [("model", "model"), ("MoDeL", "model"), ("to\u{212a}en\u{17f}", "tokens"), ("\u{c4}", "\u{e4}"), ("", "")]
        {
            assert!(folds_to(key, name), "{key} {name}");
        }
        for (key, name) in [("models", "model"), ("mod\u{e9}l", "model"), ("", "n"), ("\u{131}", "i"), ("a", "\u{e4}")]
        {
            assert!(!folds_to(key, name), "{key} {name}");
        }
    }

    #[test]
    fn names_that_a_model_does_not_take() {
        let names = ["models".to_owned(), "plugins".to_owned()];
        let found = |members: &str| denied(format!(r#"{{"model":"m"{members}}}"#).as_bytes(), &names);
        for (members, name) in [
            (r#","models":[]"#, "models"),
            (r#","Plugins":null,"models":1"#, "Plugins"),
            (r#","model\u0073":1"#, "models"),
            (r#","plugin\u017f":1"#, "plugin\u{17f}"),
        ] {
            assert_eq!(found(members).as_deref(), Some(name), "{members}");
        }
        for members in ["", r#","plugin":1"#, r#","x":{"models":1}"#, r#","x":"models""#] {
            assert_eq!(found(members), None, "{members}");
        }
        assert_eq!(denied(br#"{"models":1}"#, &[]), None);
    }
}
