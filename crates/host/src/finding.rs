//! What an engine finds of its host.

/// What an engine finds of its host, for an operator.
pub struct Finding {
    /// Whether it is as it should be.
    pub good: bool,
    /// What was looked at.
    pub what: String,
    /// What was found, and what to type where it is missing.
    pub text: String,
}
