//! Parses the typed line.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{ArgMatches, FromArgMatches};

use crate::cli::Cli;
use crate::{grammar, tips};

/// The typed command; if it is not valid, reports that and returns the exit code.
pub fn read() -> Result<Cli, ExitCode> {
    let matches = grammar::command().try_get_matches().map_err(tips::better);
    matches.and_then(|matches| of(&matches)).map_err(|error| refuse(&error))
}

fn of(matches: &ArgMatches) -> Result<Cli, clap::Error> {
    let mut cli = Cli::from_arg_matches(matches)?;
    let typed = |name: &str| matches.value_source(name) == Some(ValueSource::CommandLine);
    let global = &mut cli.global;
    (global.project_typed, global.org_typed, global.url_typed) = (typed("project"), typed("org"), typed("url"));
    // A shell gives an unset value as an empty one.
    for value in [&mut global.url, &mut global.context, &mut global.org, &mut global.project] {
        value.take_if(|value| value.is_empty());
    }
    Ok(cli)
}

/// Whether an invalid line asks for JSON.
fn ask_for_json(words: impl Iterator<Item = OsString>) -> bool {
    let words: Vec<_> = words.take_while(|word| word != "--").collect();
    let is_one = |word: &OsString, all: &[&str]| all.iter().any(|one| word == one);
    words.iter().any(|word| is_one(word, &["--json", "--output=json", "-o=json", "-ojson"]))
        || words.windows(2).any(|pair| is_one(&pair[0], &["--output", "-o"]) && pair[1] == "json")
}

/// Reports what is wrong with the line, or prints the help; returns the exit code. A program gets it as JSON.
fn refuse(error: &clap::Error) -> ExitCode {
    if error.use_stderr() && ask_for_json(std::env::args_os()) {
        let text = error.render().to_string();
        let said = text.split("\n\nUsage:").next().unwrap_or_default().trim_start_matches("error: ");
        let message = said.split_whitespace().collect::<Vec<_>>().join(" ");
        eprintln!("{}", serde_json::json!({"code": "usage", "message": message}));
        return ExitCode::from(2);
    }
    error.exit()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Format;

    fn line(words: &[&str]) -> Cli {
        of(&grammar::command().try_get_matches_from(words).unwrap()).unwrap()
    }

    #[test]
    fn one_vocabulary_says_how_to_print() {
        for (words, format) in [
            (&["berth", "vm", "list"][..], Format::Table),
            (&["berth", "vm", "list", "-o", "wide"], Format::Wide),
            (&["berth", "-o", "name", "disk", "list"], Format::Name),
            (&["berth", "sandbox", "list", "-q"], Format::Id),
            (&["berth", "sandbox", "create", "--quiet"], Format::Id),
            (&["berth", "key", "get", "ci", "--json"], Format::Json),
            (&["berth", "key", "create", "ci", "--scope", "vm", "--quiet", "--json"], Format::Json),
            (&["berth", "image", "list", "--output", "json", "-q"], Format::Json),
        ] {
            assert_eq!(line(words).global.look().format, format, "{words:?}");
        }
        assert!(!line(&["berth", "vm", "list", "--no-headers"]).global.look().headers);
    }

    #[test]
    fn a_file_to_speak_into_is_no_format() {
        let cli = line(&["berth", "speak", "hello", "-o", "hello.mp3"]);
        assert_eq!(cli.global.look().format, Format::Table);
        let crate::cli::Command::Speak(_) = cli.command else { unreachable!() };
    }

    #[test]
    fn a_service_is_told_by_flags_which_win_over_variables() {
        use crate::cli::Command::Serve;
        let words =
            ["berth", "serve", "--listen", "127.0.0.1:1", "--data-dir", "/srv/b", "--take-over", "--new-secrets-key"];
        let Serve { service, take_over, new_secrets_key } = line(&words).command else { unreachable!() };
        let config = service.read(|name| (name == "BERTH_LISTEN").then(|| "127.0.0.1:2".to_owned())).unwrap();
        assert_eq!((config.listen.port(), config.data_dir.to_str()), (1, Some("/srv/b")));
        assert!(take_over && new_secrets_key);
    }

    #[test]
    fn a_project_that_was_typed_is_known_as_such() {
        assert!(!line(&["berth", "member", "list"]).global.project_typed);
        for words in [["berth", "member", "list", "--project", "web"], ["berth", "--project", "web", "member", "list"]]
        {
            let cli = line(&words);
            assert!(cli.global.project_typed, "{words:?}");
            assert_eq!(cli.global.project.as_deref(), Some("web"), "{words:?}");
        }
    }
}
