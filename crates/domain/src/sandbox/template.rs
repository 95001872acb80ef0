//! What the worker does next for a template.
//!
//! ```text
//!   pending ─► building: make the disk ─► boot it once, keep its memory ─► ready ─► deleting ─► (gone)
//!                  └─► failed                 └─ not possible: ready without memory
//! ```

use super::{TemplateStatus, Warm};
use crate::words;

words! {
    /// One thing to do for a template.
    TemplateStep {
        /// Record that its build begins.
        Enter = "enter",
        /// Make its disk.
        MakeDisk = "make_disk",
        /// Boot it once, and keep its memory.
        Warm = "warm",
        /// Record that it is ready.
        Ready = "ready",
        /// Record that it was not built in time.
        Expire = "expire",
        /// Remove what it has, and record that it is gone.
        Remove = "remove",
    }
}

/// What is known of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Where it stands.
    pub status: TemplateStatus,
    /// Whether it is gone.
    pub gone: bool,
    /// Whether its disk is made.
    pub has_disk: bool,
    /// Whether it is to be booted once.
    pub warm: Warm,
    /// Whether the time in which it has to be built is over.
    pub too_late: bool,
}

/// The next step for a template; none where it is at rest.
pub fn next(look: &Look) -> Option<TemplateStep> {
    if look.gone {
        return None;
    }
    match look.status {
        TemplateStatus::Pending => Some(TemplateStep::Enter),
        TemplateStatus::Building if look.too_late => Some(TemplateStep::Expire),
        TemplateStatus::Building if !look.has_disk => Some(TemplateStep::MakeDisk),
        TemplateStatus::Building | TemplateStatus::Ready if look.warm == Warm::Wanted => Some(TemplateStep::Warm),
        TemplateStatus::Building => Some(TemplateStep::Ready),
        TemplateStatus::Ready | TemplateStatus::Failed => None,
        TemplateStatus::Deleting => Some(TemplateStep::Remove),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: Look =
        Look { status: TemplateStatus::Pending, gone: false, has_disk: false, warm: Warm::Wanted, too_late: false };
    const BUILDING: Look = Look { status: TemplateStatus::Building, ..NEW };
    const READY: Look = Look { status: TemplateStatus::Ready, has_disk: true, warm: Warm::Done, ..NEW };

    #[test]
    fn a_build_makes_the_disk_then_boots_it_then_is_ready() {
        assert_eq!(next(&NEW), Some(TemplateStep::Enter));
        assert_eq!(next(&BUILDING), Some(TemplateStep::MakeDisk));
        assert_eq!(next(&Look { has_disk: true, ..BUILDING }), Some(TemplateStep::Warm));
        for warm in [Warm::Done, Warm::Failed] {
            assert_eq!(next(&Look { has_disk: true, warm, ..BUILDING }), Some(TemplateStep::Ready));
            assert_eq!(next(&Look { warm, ..READY }), None);
        }
    }

    #[test]
    fn time_ends_a_build_and_nothing_else() {
        assert_eq!(next(&Look { too_late: true, ..BUILDING }), Some(TemplateStep::Expire));
        assert_eq!(next(&Look { too_late: true, ..NEW }), Some(TemplateStep::Enter), "it has its time yet to come");
        assert_eq!(next(&Look { too_late: true, ..READY }), None);
    }

    #[test]
    fn what_is_ready_is_booted_again_where_its_memory_is_wanted() {
        assert_eq!(next(&Look { warm: Warm::Wanted, too_late: true, ..READY }), Some(TemplateStep::Warm));
    }

    #[test]
    fn what_is_deleted_is_removed_once() {
        let deleting = Look { status: TemplateStatus::Deleting, ..READY };
        assert_eq!(next(&deleting), Some(TemplateStep::Remove));
        assert_eq!(next(&Look { gone: true, ..deleting }), None);
        assert_eq!(next(&Look { status: TemplateStatus::Failed, ..NEW }), None);
    }
}
