//! Suggests what to type instead of an unknown word.
//!
//! The parser compares a word with the words of its own place, names every similar one, and believes that an unknown
//! word may be a value. Here only the most similar one is named, and a word that belongs to another command is shown
//! with its place.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

use crate::grammar::{self, names};

/// Most places to name.
const MOST: usize = 3;

/// The same error with a better suggestion.
pub fn better(mut error: Error) -> Error {
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let typed = word(&error, ContextKind::InvalidSubcommand);
            let places = typed.map(|typed| homes(&grammar::command(), &typed)).unwrap_or_default();
            let tips = match error.get(ContextKind::SuggestedSubcommand) {
                _ if !places.is_empty() => places,
                // The most similar one comes last.
                Some(ContextValue::Strings(similar)) => similar.last().into_iter().cloned().collect(),
                _ => Vec::new(),
            };
            error.remove(ContextKind::Suggested);
            error.remove(ContextKind::SuggestedSubcommand);
            if !tips.is_empty() {
                error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(tips));
            }
        }
        ErrorKind::UnknownArgument if is_option(&error) => {
            error.remove(ContextKind::Suggested);
        }
        _ => {}
    }
    error
}

fn word(error: &Error, kind: ContextKind) -> Option<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    }
}

/// Whether the unknown word looks like an option.
fn is_option(error: &Error) -> bool {
    word(error, ContextKind::InvalidArg).is_some_and(|text| text.starts_with('-'))
}

/// The places of a word, as one types them: a verb or a noun of another noun. A verb that nearly every noun has gets
/// none.
fn homes(command: &Command, word: &str) -> Vec<String> {
    let mut found = Vec::new();
    for noun in command.get_subcommands() {
        for below in noun.get_subcommands() {
            if names(below).any(|name| name == word || name.trim_end_matches('s') == word) {
                found.push(format!("{} {}", noun.get_name(), below.get_name()));
            }
        }
    }
    if found.len() > MOST { Vec::new() } else { found }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(words: &[&str]) -> String {
        better(grammar::command().try_get_matches_from(words).unwrap_err()).to_string()
    }

    #[test]
    fn the_most_similar_word_is_told_alone() {
        let told = told(&["berth", "vm", "lst"]);
        assert!(told.contains("'list'") && !told.contains("stop"), "{told}");
    }

    #[test]
    fn a_word_is_told_with_its_place() {
        for (typed, place) in [
            ("users", "'admin users'"),
            ("ssh", "'vm ssh'"),
            ("exec", "'sandbox exec'"),
            ("snapshot", "'sandbox snapshot'"),
            ("password", "'account password'"),
        ] {
            let told = told(&["berth", typed]);
            assert!(told.contains(place) && !told.contains("'serve'"), "{typed}: {told}");
        }
        let told = told(&["berth", "list"]);
        assert!(!told.contains(" list'"), "{told}");
    }

    #[test]
    fn a_word_that_is_like_none_has_no_tip() {
        let told = told(&["berth", "nope"]);
        assert!(told.contains("'nope'") && !told.contains("tip:"), "{told}");
    }

    #[test]
    fn a_wrong_option_is_no_value() {
        let told = told(&["berth", "vm", "update", "web", "--sizes", "big"]);
        assert!(told.contains("'--sizes'") && !told.contains("as a value"), "{told}");
    }
}
