//! What a request does to a sandbox in each phase (contract, section 3).

use super::model::Phase;
use crate::error::{Code, Error, Result};

/// The operations on an existing sandbox. Deletion is allowed in every phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Put the machine away.
    Pause,
    /// Bring it back.
    Resume,
    /// Make others of the live state.
    Fork,
    /// Keep the live state.
    Snapshot,
    /// Go back to a snapshot.
    Restore,
}

impl Verb {
    /// Every verb.
    pub const ALL: &'static [Self] = &[Self::Pause, Self::Resume, Self::Fork, Self::Snapshot, Self::Restore];

    /// The word in paths and records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Fork => "fork",
            Self::Snapshot => "snapshot",
            Self::Restore => "restore",
        }
    }

    /// The phases that allow it, as a sentence names them.
    const fn allowed(self) -> &'static str {
        match self {
            Self::Pause => "Ready",
            Self::Resume => "Paused",
            Self::Fork | Self::Snapshot => "Ready or Paused",
            Self::Restore => "Ready, Paused or Failed",
        }
    }
}

/// The phase a request leads to at once, or `None` where it changes no phase.
pub fn on_verb(verb: Verb, phase: Phase) -> Result<Option<Phase>> {
    use Phase::{Failed, Paused, Pausing, Ready, Restoring, Resuming};
    match (verb, phase) {
        (Verb::Pause, Pausing | Paused)
        | (Verb::Resume, Resuming | Ready)
        | (Verb::Fork | Verb::Snapshot, Ready | Paused) => Ok(None),
        (Verb::Pause, Ready) => Ok(Some(Pausing)),
        (Verb::Resume, Paused) => Ok(Some(Resuming)),
        (Verb::Restore, Ready | Paused | Failed) => Ok(Some(Restoring)),
        _ => Err(refused(verb, phase)),
    }
}

fn refused(verb: Verb, phase: Phase) -> Error {
    let advice = match phase {
        Phase::Deleting | Phase::Deleted => "It is being deleted.".to_owned(),
        _ => format!("It has to be {}.", verb.allowed()),
    };
    Error::new(Code::InvalidPhase, format!("The sandbox is {phase}, which does not allow {}. {advice}", verb.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Phase::*;

    /// Every pair of the contract's table: `Some(None)` unchanged, `Some(Some(p))` does it, `None` refused.
    #[test]
    fn the_table_of_the_contract() {
        let table = |verb, phase| match verb {
            Verb::Pause => match phase {
                Ready => Some(Some(Pausing)),
                Pausing | Paused => Some(None),
                _ => None,
            },
            Verb::Resume => match phase {
                Paused => Some(Some(Resuming)),
                Resuming | Ready => Some(None),
                _ => None,
            },
            Verb::Fork | Verb::Snapshot => matches!(phase, Ready | Paused).then_some(None),
            Verb::Restore => matches!(phase, Ready | Paused | Failed).then_some(Some(Restoring)),
        };
        for &verb in Verb::ALL {
            for &phase in Phase::ALL {
                match (on_verb(verb, phase), table(verb, phase)) {
                    (Ok(got), Some(want)) => assert_eq!(got, want, "{verb:?} {phase}"),
                    (Err(e), None) => assert_eq!((e.code, e.code.status()), (Code::InvalidPhase, 409)),
                    other => panic!("{verb:?} {phase}: {other:?}"),
                }
            }
        }
    }
}
