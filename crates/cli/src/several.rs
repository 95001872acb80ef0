//! Applies one verb to several things: finds all before it touches one, and names each in the output.

use anyhow::{Error, Result};

use crate::context::Context;
use crate::failure::{self, Failure};
use crate::output::{self, Look};
use crate::progress::wait_gone;
use crate::typed;
use crate::wait::WaitArgs;

/// Finds everything that was named. If any is missing, fails without doing anything, and names every missing one.
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

/// A thing to delete.
pub struct Doomed {
    /// What it is called.
    pub name: String,
    /// Its id.
    pub id: String,
}

/// Deletes several things, which are gone only some time after the answer. Asks for all first, then waits for all if
/// the person wants that, by default so many seconds for each. `look` returns the state of the thing with an id.
pub async fn delete(
    context: &Context,
    all: Vec<Doomed>,
    (waiting, seconds): (WaitArgs, u64),
    ask: impl AsyncFn(&str) -> berth_client::Result<()>,
    look: impl AsyncFn(&str) -> berth_client::Result<String>,
) -> Result<()> {
    let (mut outcome, mut asked) = (Outcome::of(all.len(), context.look), Vec::new());
    for one in all {
        let answer = ask(&one.id).await.map_err(Into::into);
        asked.extend(outcome.of_one(&one.name, answer).map(|()| one));
    }
    let (wait, longest) = (waiting.wanted(false), waiting.longest(seconds));
    for Doomed { name, id } in asked {
        let look = async || look(&id).await;
        let gone = if wait { wait_gone(&name, longest, context.is_quiet(), look).await } else { Ok(()) };
        if outcome.of_one(&name, gone).is_some() {
            let how = if wait { "deleted" } else { "is being deleted" };
            output::done(context.look, &name, &id, &format!("{name} {how}"));
        }
    }
    outcome.end()
}

/// The outcome of a verb on several things.
pub struct Outcome {
    all: usize,
    look: Look,
    failed: Vec<Error>,
}

impl Outcome {
    /// For a verb on so many things.
    pub const fn of(all: usize, look: Look) -> Self {
        Self { all, look, failed: Vec::new() }
    }

    /// Adds the outcome for one. A failure is reported with its name, and the others go on.
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

    /// The exit of the program.
    pub fn end(mut self) -> Result<()> {
        let count = self.failed.len();
        match self.failed.pop() {
            None => Ok(()),
            Some(only) if self.all == 1 => Err(only),
            Some(last) => Err(Failure::of(failure::code(&last), format!("{count} of {} failed", self.all))),
        }
    }
}
