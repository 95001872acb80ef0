//! What a step about a machine was decided for, and when that is too late.
//!
//! A service that was taken over, or a replica that was cut off, may still have steps under way for a machine as it was
//! then. So each step says for which start of the machine it was decided, and the host keeps what it acted on last
//! ([`Noted`]): an older step is refused, and so is the start of a machine that was ended after it.

use serde::{Deserialize, Serialize};

use crate::ids::MachineId;

/// A machine, and the generation that a step about it was decided for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aim {
    /// The machine.
    pub id: MachineId,
    /// How many starts of it its row counts; none where no row does.
    pub generation: Option<i64>,
}

/// What a step does to a machine's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Starts it.
    Start,
    /// Changes it as it is.
    Change,
    /// Ends it.
    End,
}

/// What a host acted on last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noted {
    /// The latest generation.
    pub generation: i64,
    /// Whether the machine was ended since it was started.
    pub ended: bool,
}

impl Aim {
    /// A machine whose row counts its starts.
    pub const fn of(id: MachineId, generation: i64) -> Self {
        Self { id, generation: Some(generation) }
    }

    /// A machine whose starts no row counts.
    pub const fn uncounted(id: MachineId) -> Self {
        Self { id, generation: None }
    }

    /// What the host notes before it acts; none where that is noted, or nothing counts.
    ///
    /// # Errors
    /// The generation that the host acted on last, where the step was decided for an older one, or starts a machine that
    /// was ended since.
    pub fn admit(self, act: Act, noted: Option<Noted>) -> Result<Option<Noted>, i64> {
        let Some(generation) = self.generation else { return Ok(None) };
        let is_ended = noted.is_some_and(|noted| noted.ended && noted.generation == generation);
        match noted {
            Some(noted) if generation < noted.generation || is_ended && act == Act::Start => Err(noted.generation),
            _ => {
                let next = Noted { generation, ended: is_ended || act == Act::End };
                Ok(Some(next).filter(|next| Some(*next) != noted))
            }
        }
    }

    /// Whether a step calls off what is under way for the same machine: what ends it does, and what was decided for a
    /// later generation.
    pub fn calls_off(self, act: Act, under_way: Self) -> bool {
        act == Act::End || under_way.generation < self.generation
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: MachineId = MachineId(uuid::Uuid::nil());

    const fn noted(generation: i64, ended: bool) -> Noted {
        Noted { generation, ended }
    }

    #[test]
    fn an_older_step_is_refused_and_a_later_one_noted() {
        let of = |generation| Aim::of(ID, generation);
        assert_eq!(of(3).admit(Act::Start, None), Ok(Some(noted(3, false))));
        assert_eq!(of(3).admit(Act::Change, Some(noted(2, true))), Ok(Some(noted(3, false))));
        assert_eq!(of(3).admit(Act::Change, Some(noted(3, false))), Ok(None));
        assert_eq!(of(3).admit(Act::End, Some(noted(4, false))), Err(4));
        assert_eq!(Aim::uncounted(ID).admit(Act::End, Some(noted(4, false))), Ok(None));
    }

    #[test]
    fn a_start_is_refused_after_its_machine_was_ended() {
        let of = |generation| Aim::of(ID, generation);
        assert_eq!(of(3).admit(Act::End, Some(noted(3, false))), Ok(Some(noted(3, true))));
        assert_eq!(of(3).admit(Act::Start, Some(noted(3, true))), Err(3));
        assert_eq!(of(4).admit(Act::Start, Some(noted(3, true))), Ok(Some(noted(4, false))));
        // What is left of it may be changed, and ended again.
        assert_eq!(of(3).admit(Act::Change, Some(noted(3, true))), Ok(None));
        assert_eq!(of(3).admit(Act::End, Some(noted(3, true))), Ok(None));
    }

    #[test]
    fn an_end_and_a_later_generation_call_off_what_is_under_way() {
        let of = |generation| Aim::of(ID, generation);
        assert!(of(3).calls_off(Act::End, of(3)) && of(4).calls_off(Act::Change, of(3)));
        assert!(!of(3).calls_off(Act::Change, of(3)) && !of(3).calls_off(Act::Start, of(3)));
        assert!(Aim::uncounted(ID).calls_off(Act::End, of(3)));
    }

    proptest! {
        /// Whatever comes in whatever order: what the host noted never goes back, and nothing starts what was ended.
        #[test]
        fn what_was_noted_never_goes_back(steps in prop::collection::vec((0_i64..5, 0_usize..3), 0..30)) {
            let mut now: Option<Noted> = None;
            for (generation, act) in steps {
                let act = [Act::Start, Act::Change, Act::End][act];
                let Ok(next) = Aim::of(ID, generation).admit(act, now) else { continue };
                let after = next.or(now).expect("something is noted by now");
                if let Some(before) = now {
                    prop_assert!(after.generation >= before.generation);
                    prop_assert!(!before.ended || after.ended || after.generation > before.generation);
                    prop_assert!(!before.ended || act != Act::Start || generation > before.generation);
                }
                now = Some(after);
            }
        }
    }
}
