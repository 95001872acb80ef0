//! What fields of a program are called here: of a command, a process and a terminal.

use crate::typed::Words;

/// Which option of a program becomes which field.
pub const WORDS: Words = &[
    ("argv", "COMMAND"),
    ("cmd", "COMMAND"),
    ("cwd", "--cwd"),
    ("env", "--env"),
    ("user", "--user"),
    ("timeout_seconds", "--timeout"),
];
