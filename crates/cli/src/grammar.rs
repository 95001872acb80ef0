//! What all commands share: the options that they show, and the words that they understand.
//!
//! Every command takes the global options. On a command like `berth serve`, where they have no meaning, they are
//! hidden. On a command with an option of the same name, like `berth speak -o FILE`, the command's own option wins.

use clap::{Arg, ArgAction, Command, CommandFactory};

use crate::cli::Cli;
use crate::complete::completed;

/// Commands that call no service.
const LOCAL: [&str; 6] = ["serve", "shutdown", "backup", "host", "doctor", "completions"];
/// Commands with an option of a global one's name: the command, the global option, and that option's long name there,
/// which is hidden.
const OWN: [(&[&str], &str, &str); 2] =
    [(&["speak"], "output", "print-as"), (&["template", "create"], "context", "sign-in")];
/// Nouns by their plurals.
const PLURALS: [(&str, &str); 19] = [
    ("accounts", "account"),
    ("orgs", "org"),
    ("members", "member"),
    ("invitations", "invitation"),
    ("projects", "project"),
    ("keys", "key"),
    ("vms", "vm"),
    ("disks", "disk"),
    ("networks", "network"),
    ("ssh-keys", "ssh-key"),
    ("images", "image"),
    ("sandboxes", "sandbox"),
    ("snapshots", "snapshot"),
    ("templates", "template"),
    ("models", "model"),
    ("contexts", "context"),
    ("quotas", "quota"),
    ("referrals", "referral"),
    ("hosts", "host"),
];

/// The whole command line.
pub fn command() -> Command {
    let mut command = Cli::command();
    let global: Vec<_> = command.get_arguments().filter(|arg| arg.is_global_set()).cloned().collect();
    for name in LOCAL {
        command = command.mut_subcommand(name, |local| global.iter().fold(local, |local, arg| local.arg(hidden(arg))));
    }
    for (path, name, long) in OWN {
        if let Some(arg) = global.iter().find(|arg| arg.get_id() == name) {
            command = at(command, path, &|own| own.arg(hidden(arg).short(None).long(long)));
        }
    }
    understanding(command, &[])
}

/// A global option for one command, which accepts it but does not show it.
fn hidden(arg: &Arg) -> Arg {
    arg.clone().global(false).hide(true)
}

/// Changes the command at the end of a path.
fn at(command: Command, path: &[&str], change: &dyn Fn(Command) -> Command) -> Command {
    match path.split_first() {
        Some((name, rest)) => command.mut_subcommand(*name, |sub| at(sub, rest, change)),
        None => change(command),
    }
}

/// A command that understands more words, as do the commands below it:
///
/// - `berth vms` is `berth vm`, and so for every noun.
/// - `--timeout` is `--wait-timeout`, unless the command has another option of this name.
/// - `-1` after an option is its value, so that the error names the option.
/// - A shell completes the arguments that name existing things.
fn understanding(command: Command, path: &[&str]) -> Command {
    let command = command.mut_args(|arg| match arg.get_action() {
        ArgAction::Set | ArgAction::Append if !arg.is_positional() => {
            completed(arg, path, self::command).allow_negative_numbers(true)
        }
        _ => completed(arg, path, self::command),
    });
    let has = |command: &Command, long: &str| command.get_arguments().any(|arg| arg.get_long() == Some(long));
    let command = if has(&command, "wait-timeout") && !has(&command, "timeout") {
        command.mut_arg("wait_timeout", |arg| arg.visible_alias("timeout"))
    } else {
        command
    };
    let taken: Vec<_> = command.get_subcommands().flat_map(names).map(str::to_owned).collect();
    command.mut_subcommands(|sub| {
        let name = sub.get_name().to_owned();
        let sub = understanding(sub, &[path, &[name.as_str()]].concat());
        match PLURALS.iter().find(|(plural, noun)| *noun == sub.get_name() && !taken.iter().any(|t| t == plural)) {
            Some((plural, _)) if sub.has_subcommands() => sub.alias(*plural),
            _ => sub,
        }
    })
}

/// All names of a command.
pub fn names(command: &Command) -> impl Iterator<Item = &str> {
    std::iter::once(command.get_name()).chain(command.get_all_aliases())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every command without subcommands, by its path.
    fn leaves(command: &Command, path: &str) -> Vec<String> {
        if !command.has_subcommands() {
            return vec![path.to_owned()];
        }
        let below = command.get_subcommands().filter(|sub| sub.get_name() != "help");
        below.flat_map(|sub| leaves(sub, &format!("{path} {}", sub.get_name()))).collect()
    }

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn every_command_has_one_layout_and_its_own_options_first() {
        let mut all = command();
        all.build();
        for path in leaves(&all, "berth") {
            let told = |flag| {
                let words = path.split(' ').chain([flag]);
                command().try_get_matches_from(words).unwrap_err().to_string()
            };
            let (short, long) = (told("-h"), told("--help"));
            assert_eq!(short, long, "{path}: one of its options has a longer text, or values with texts");
            let local = LOCAL.iter().any(|name| path.split(' ').nth(1) == Some(name));
            assert_eq!(short.contains("--url"), !local, "{path}");
            let Some(heading) = short.find("\nGlobal options:") else { continue };
            assert!(short.find("\nOptions:").is_some_and(|own| own < heading), "{path}");
            assert!(short.find("--url").is_some_and(|url| url > heading), "{path}");
        }
    }

    #[test]
    fn plurals_stand_for_nouns() {
        for noun in command().get_subcommands().filter(|sub| sub.has_subcommands() && sub.get_name() != "admin") {
            let known =
                PLURALS.iter().any(|(plural, of)| *of == noun.get_name() && names(noun).any(|name| name == *plural));
            assert!(known, "{} has no plural", noun.get_name());
        }
    }

    #[test]
    fn waiting_is_said_in_the_same_words_everywhere() {
        for command in [
            "vm create a",
            "vm stop a",
            "disk create a",
            "disk snapshot create a",
            "disk backup create a",
            "disk backup restore a",
            "sandbox pause a",
            "sandbox delete a",
            "sandbox fork a",
            "sandbox create",
            "sandbox restore a b",
            "sandbox snapshot create a",
            "template create a --image b",
            "model serve a",
        ] {
            for said in [&["--wait"][..], &["--no-wait"], &["--wait-timeout", "90"], &["-w", "--wait-timeout", "5m"]] {
                let words = std::iter::once("berth").chain(command.split(' ')).chain(said.iter().copied());
                let read = self::command().try_get_matches_from(words);
                assert!(read.is_ok(), "{command} {said:?}: {}", read.unwrap_err());
            }
            let wrong = format!("berth {command} --wait-timeout soon");
            let refused = self::command().try_get_matches_from(wrong.split(' ')).unwrap_err().to_string();
            assert!(refused.contains("it looks like 90, 90s"), "{refused}");
        }
        let read = self::command().try_get_matches_from(["berth", "vm", "wait", "a", "--timeout", "5m"]);
        assert!(
            read.is_ok()
                && self::command().try_get_matches_from(["berth", "vm", "stop", "a", "--timeout", "9"]).is_ok()
        );
    }

    #[test]
    fn things_are_shown_by_get_and_by_show() {
        for noun in [
            "vm",
            "disk",
            "disk snapshot",
            "disk backup",
            "disk backup schedule",
            "network",
            "image",
            "sandbox",
            "sandbox snapshot",
            "template",
            "project",
            "org",
            "key",
            "model",
        ] {
            for verb in ["get", "show"] {
                let words = format!("berth {noun} {verb} a");
                let read = command().try_get_matches_from(words.split(' '));
                assert!(read.is_ok(), "{words}: {}", read.unwrap_err());
            }
        }
    }

    #[test]
    fn a_negative_number_is_a_wrong_value_and_no_option() {
        let read = command().try_get_matches_from(["berth", "quota", "set", "web", "--vms", "-1"]);
        assert!(read.is_ok(), "{}", read.unwrap_err());
        let refused = command().try_get_matches_from(["berth", "vm", "list", "--limit", "-1"]).unwrap_err();
        assert!(refused.to_string().contains("invalid value '-1'"), "{refused}");
    }
}
