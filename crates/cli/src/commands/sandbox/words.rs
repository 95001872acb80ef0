//! The options for the fields of a command, a process and a terminal.

use crate::typed::Words;

/// The option for each field of a program.
pub const WORDS: Words = &[
    ("argv", "COMMAND"),
    ("cmd", "COMMAND"),
    ("cwd", "--cwd"),
    ("env", "--env"),
    ("user", "--user"),
    ("timeout_seconds", "--timeout"),
];
