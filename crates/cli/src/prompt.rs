//! Asks a person for addresses, and for passwords without echo.

use std::io::{BufRead, IsTerminal, Write};

use anyhow::{Context as _, Result};

use crate::failure::Failure;

/// The variable of the password of an account.
pub const PASSWORD: &str = "BERTH_PASSWORD";
/// The variable of a password to set.
pub const NEW_PASSWORD: &str = "BERTH_NEW_PASSWORD";

/// A line of standard input.
pub fn line() -> std::io::Result<String> {
    let mut text = String::new();
    std::io::stdin().lock().read_line(&mut text)?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Asks a question, if there is a terminal.
pub fn ask(question: &str) -> Result<Option<String>> {
    if !std::io::stdin().is_terminal() {
        return Ok(None);
    }
    eprint!("{question}");
    std::io::stderr().flush()?;
    Ok(Some(line()?))
}

/// A password: from a variable, or from the person.
pub fn password(variable: &str, question: &str) -> Result<String> {
    if let Some(password) = given(variable) {
        return Ok(password);
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(format!("There is no terminal to ask for the password on: set {variable}")));
    }
    rpassword::prompt_password(question).context("the password cannot be read")
}

/// A password to set: from its variable, or typed twice.
pub fn new_password() -> Result<String> {
    let first = password(NEW_PASSWORD, "New password (12 to 128 characters): ")?;
    if given(NEW_PASSWORD).is_none() && password(NEW_PASSWORD, "The same again: ")? != first {
        return Err(Failure::usage("The two are not the same. Nothing was changed."));
    }
    Ok(first)
}

fn given(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|value| !value.is_empty())
}
