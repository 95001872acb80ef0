//! The scopes of which an API key needs one for what a service holds of a project.

use berth_domain::identity::{KeyScope, KeyScopes};

/// Scopes of which an API key needs one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnyOf {
    /// The scopes.
    pub scopes: &'static [KeyScope],
    /// Whether a key without one counts for none at all, as the specification says of operations on VMs.
    pub is_unauthorized: bool,
}

impl AnyOf {
    /// Scopes whose lack is told as such.
    pub const fn of(scopes: &'static [KeyScope]) -> Self {
        Self { scopes, is_unauthorized: false }
    }

    /// The scope of VMs.
    pub const fn of_vms() -> Self {
        Self { scopes: &[KeyScope::Vm], is_unauthorized: true }
    }

    /// Whether a key with some scopes has one of these.
    pub fn is_among(self, held: KeyScopes) -> bool {
        self.scopes.iter().any(|scope| held.contains(*scope))
    }
}
