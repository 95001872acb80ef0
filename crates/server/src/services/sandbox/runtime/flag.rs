//! Flags of a query.

/// Whether a query sets a flag, as the agent reads it.
pub(super) fn asks(query: Option<&str>, flag: &str) -> bool {
    let mut pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    pairs.any(|(name, value)| name == flag && ["", "1", "true"].contains(&&*value))
}
