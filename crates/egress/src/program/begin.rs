//! Which of its kinds the program becomes.

use std::ffi::OsString;
use std::process::ExitCode;

use super::given::Given;
use super::{SWITCH, serve, switch};

/// Becomes the program, until what it is for ends. The arguments are what follows the program's name: `switch` where it
/// is a network's, for what it is, and the user and group to become, where the service may choose.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter().peekable();
    let is_switch = arguments.next_if(|first| first == SWITCH).is_some();
    let begun = Given::take(arguments.nth(1)).and_then(if is_switch { switch::run } else { serve::run });
    match begun {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("berth-egress: {error}. The service starts it beside each machine; there is nothing to type.");
            ExitCode::FAILURE
        }
    }
}
