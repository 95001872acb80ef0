//! Calls of an engine that are refused.

use std::collections::HashMap;

use berth_host::{EngineError, Result};

/// Which calls are refused, by their names.
#[derive(Default)]
pub struct Refusals(HashMap<String, EngineError>);

impl Refusals {
    /// From now on a call of this name is refused.
    pub fn refuse(&mut self, call: &str, error: EngineError) {
        self.0.insert(call.to_owned(), error);
    }

    /// From now on a call of this name works again.
    pub fn allow(&mut self, call: &str) {
        self.0.remove(call);
    }

    /// Whether a call of this name works.
    ///
    /// # Errors
    /// The refusal.
    pub fn check(&self, call: &str) -> Result<()> {
        self.0.get(call).map_or(Ok(()), |error| Err(error.clone()))
    }
}
