//! One verb on several things: all are found before one is touched, and each is named in what comes of it.

use anyhow::{Error, Result};

use crate::failure::{self, Failure};
use crate::output::Look;
use crate::typed;

/// Finds everything that was named. Where one is missing, nothing is done, and each missing one is named.
pub async fn find_all<T>(texts: &[String], find: impl AsyncFn(&str) -> Result<T>) -> Result<Vec<T>> {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for text in texts {
        match find(text).await {
            Ok(thing) => found.push(thing),
            Err(error) => missing.push(error),
        }
    }
    match missing.pop() {
        None => Ok(found),
        Some(only) if texts.len() == 1 => Err(only),
        Some(last) => {
            let code = failure::code(&last);
            let texts: Vec<_> = missing.iter().chain([&last]).map(|error| format!("{error:#}")).collect();
            Err(Failure::of(code, format!("{} Nothing was done.", texts.join(" "))))
        }
    }
}

/// What came of a verb on several things.
pub struct Outcome {
    all: usize,
    look: Look,
    failed: Vec<Error>,
}

impl Outcome {
    /// Of a verb on so many things.
    pub const fn of(all: usize, look: Look) -> Self {
        Self { all, look, failed: Vec::new() }
    }

    /// What came of one. A failure is told with its name, and the others go on.
    pub fn of_one<T>(&mut self, name: &str, outcome: Result<T>) -> Option<T> {
        let error = match outcome {
            Ok(done) => return Some(done),
            Err(error) => error,
        };
        if self.all > 1 && self.look.is_json() {
            let mut told = failure::for_programs(&error);
            told["name"] = name.into();
            eprintln!("{told}");
        } else if self.all > 1 {
            eprintln!("berth: {name}: {}", typed::sentence(&format!("{error:#}")));
        }
        self.failed.push(error);
        None
    }

    /// What the program ends with.
    pub fn end(mut self) -> Result<()> {
        let count = self.failed.len();
        match self.failed.pop() {
            None => Ok(()),
            Some(only) if self.all == 1 => Err(only),
            Some(last) => Err(Failure::of(failure::code(&last), format!("{count} of {} failed", self.all))),
        }
    }
}
