//! Statuses and phases as people type them: in any case, and only existing ones.

use berth_domain::sandbox::Phase;
use berth_domain::vm::Status;
use clap::builder::{PossibleValuesParser, TypedValueParser};

/// Reads the status of a VM, beside `ignore_case`.
pub fn of_vm() -> impl TypedValueParser<Value = String> {
    one_of(Status::WORDS)
}

/// Reads the phase of a sandbox, beside `ignore_case`.
pub fn of_sandbox() -> impl TypedValueParser<Value = String> {
    one_of(Phase::WORDS)
}

/// Parses one of these words into the API's spelling.
fn one_of(words: &'static [&'static str]) -> impl TypedValueParser<Value = String> {
    let as_written = move |typed: String| {
        let word = words.iter().find(|word| word.eq_ignore_ascii_case(&typed));
        word.map_or(typed, |word| (*word).to_owned())
    };
    PossibleValuesParser::new(words.iter().copied()).map(as_written)
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command};

    use super::*;

    fn read(parser: impl TypedValueParser<Value = String>, typed: &str) -> Result<String, String> {
        let command = Command::new("x")
            .arg(Arg::new("word").value_parser(clap::builder::ValueParser::new(parser)).ignore_case(true));
        let matches = command.try_get_matches_from(["x", typed]).map_err(|error| error.to_string())?;
        Ok(matches.get_one::<String>("word").unwrap().clone())
    }

    #[test]
    fn words_are_read_as_they_are_written_and_others_refused_with_those_there_are() {
        for typed in ["running", "Running", "RUNNING"] {
            assert_eq!(read(of_vm(), typed).unwrap(), "running");
        }
        assert_eq!(read(of_sandbox(), "ready").unwrap(), "Ready");
        let refused = read(of_vm(), "runing").unwrap_err();
        assert!(Status::WORDS.iter().all(|word| refused.contains(word)), "{refused}");
        assert!(read(of_sandbox(), "running").is_err() && read(of_vm(), "").is_err());
    }
}
