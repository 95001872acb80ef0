//! Pairs as people type them: `KEY=VALUE`.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::failure::Failure;

/// Parses pairs; errors call one a `noun`.
pub fn pairs(texts: &[String], noun: &str) -> Result<BTreeMap<String, String>> {
    let pair = |text: &String| match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(Failure::usage(format!("'{text}' is no {noun}; it looks like KEY=VALUE"))),
    };
    texts.iter().map(pair).collect()
}

/// Parses variables: `KEY=VALUE`, or `KEY` for a variable of this environment, which `own` looks up.
pub fn variables(texts: &[String], own: impl Fn(&str) -> Option<String>) -> Result<BTreeMap<String, String>> {
    let pair = |text: &String| {
        if text.contains('=') {
            return pairs(std::slice::from_ref(text), "variable").map(|found| found.into_iter().next());
        }
        let value = own(text);
        let missing = || Failure::usage(format!("There is no variable '{text}' here; give it a value: {text}=VALUE"));
        Ok(Some((text.clone(), value.ok_or_else(missing)?)))
    };
    texts.iter().filter_map(|text| pair(text).transpose()).collect()
}

/// A variable of this environment.
pub fn own(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn pairs_as_typed() {
        let found = pairs(&texts(&["a=1", "b=", "c=x=y"]), "label").unwrap();
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            [("a", "1"), ("b", ""), ("c", "x=y")].map(|(k, v)| (k.to_owned(), v.to_owned()))
        );
        for bad in ["", "a", "=1"] {
            let error = pairs(&texts(&[bad]), "label").unwrap_err().to_string();
            assert!(error.contains("no label") && error.contains("KEY=VALUE"), "{error}");
        }
    }

    #[test]
    fn variables_without_a_value_are_this_environments() {
        let own = |name: &str| (name == "HOME").then(|| "/home/ana".to_owned());
        let found = variables(&texts(&["A=1", "HOME"]), own).unwrap();
        assert_eq!((found["A"].as_str(), found["HOME"].as_str()), ("1", "/home/ana"));
        assert!(variables(&texts(&["NOPE"]), own).unwrap_err().to_string().contains("NOPE=VALUE"));
        assert!(variables(&texts(&["=1"]), own).is_err());
    }
}
