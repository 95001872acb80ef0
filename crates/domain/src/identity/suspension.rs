//! Suspensions by administrators of the platform.

use serde_json::Value;

use crate::error::Result;
use crate::fields::{Fields, sized};

/// Most characters of a reason.
const REASON: usize = 500;

/// Reads why somebody is suspended, where a reason is given.
///
/// # Errors
/// Every invalid field.
pub fn reason(body: &Value) -> Result<Option<String>> {
    let mut f = Fields::of(body);
    let reason = f.optional("reason", sized(1, REASON));
    f.finish(Some(reason))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reasons_have_two_sides() {
        let read = |length: usize| reason(&json!({"reason": "ä".repeat(length)}));
        assert!(read(1).is_ok() && read(REASON).is_ok() && read(0).is_err() && read(REASON + 1).is_err());
        assert_eq!(reason(&json!({})), Ok(None));
    }
}
