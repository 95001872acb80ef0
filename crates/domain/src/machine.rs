//! What a machine is, whatever it is for.

use uuid::Uuid;

use crate::ids::{MemoryId, SandboxId, TemplateId, VmId};
use crate::words::words;

words! {
    /// What kinds of things own machines.
    OwnerKind {
        /// A VM.
        Vm = "vm",
        /// A sandbox.
        Sandbox = "sandbox",
        /// A template, for a stage of its build or for its first boot.
        Template = "template",
        /// Nobody yet: it began with a memory, and waits for a sandbox that begins with the same.
        Warm = "warm",
    }
}

/// What owns a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A VM.
    Vm(VmId),
    /// A sandbox.
    Sandbox(SandboxId),
    /// A template, for a stage of its build or for its first boot.
    Template(TemplateId),
    /// Nobody yet; the memory that it began with.
    Warm(MemoryId),
}

impl Owner {
    /// What is of this kind and has this id.
    pub const fn new(kind: OwnerKind, id: Uuid) -> Self {
        match kind {
            OwnerKind::Vm => Self::Vm(VmId(id)),
            OwnerKind::Sandbox => Self::Sandbox(SandboxId(id)),
            OwnerKind::Template => Self::Template(TemplateId(id)),
            OwnerKind::Warm => Self::Warm(MemoryId(id)),
        }
    }

    /// Its kind.
    pub const fn kind(self) -> OwnerKind {
        match self {
            Self::Vm(_) => OwnerKind::Vm,
            Self::Sandbox(_) => OwnerKind::Sandbox,
            Self::Template(_) => OwnerKind::Template,
            Self::Warm(_) => OwnerKind::Warm,
        }
    }

    /// Its id.
    pub const fn id(self) -> Uuid {
        match self {
            Self::Vm(id) => id.0,
            Self::Sandbox(id) => id.0,
            Self::Template(id) => id.0,
            Self::Warm(id) => id.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_its_kind_and_its_id() {
        for kind in OwnerKind::ALL {
            let owner = Owner::new(*kind, Uuid::from_u128(7));
            assert_eq!((owner.kind(), owner.id()), (*kind, Uuid::from_u128(7)));
        }
    }
}
