//! What a request does to a VM in each status (contract, section 1).

use super::model::Status;
use crate::error::{Code, Error, Result};

/// The operations on an existing machine. Deletion is allowed in every status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Bring it to `running`.
    Start,
    /// Bring it to `stopped`.
    Stop,
    /// Power it off and on.
    Restart,
    /// Bring it to `suspended`.
    Suspend,
    /// Bring it from there to `running`.
    Resume,
    /// Make its root disk anew, and bring it to `running` with that.
    Reinstall,
    /// Bring it to `running` with a rescue system, which has its disks beside its own.
    Rescue,
}

impl Verb {
    /// The word in paths and records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Restart => "restart",
            Self::Suspend => "suspend",
            Self::Resume => "resume",
            Self::Reinstall => "reinstall",
            Self::Rescue => "rescue",
        }
    }
}

/// The status a request leads to at once, or `None` where it changes nothing.
pub fn on_verb(verb: Verb, status: Status) -> Result<Option<Status>> {
    use Status::{Failed, Restarting, Running, Starting, Stopped, Stopping, Suspended, Suspending};
    let next = match (verb, status) {
        (Verb::Start | Verb::Resume, Running | Starting)
        | (Verb::Stop, Stopped | Stopping)
        | (Verb::Suspend, Suspended | Suspending)
        | (Verb::Restart, Restarting | Stopped | Failed) => None,
        (Verb::Start | Verb::Reinstall, Stopped | Failed | Suspended)
        | (Verb::Resume, Suspended)
        | (Verb::Rescue, Stopped | Failed) => Some(Starting),
        (Verb::Stop, Running | Starting | Restarting | Failed | Suspended) => Some(Stopping),
        (Verb::Suspend, Running) => Some(Suspending),
        (Verb::Restart | Verb::Reinstall | Verb::Rescue, Running) => Some(Restarting),
        _ => return Err(refused(verb, status)),
    };
    Ok(next)
}

/// Whether a VM may be given another size: its machine begins with it.
pub fn on_resize(status: Status) -> Result<()> {
    let advice = match status {
        Status::Stopped | Status::Failed => return Ok(()),
        Status::Deleting | Status::Deleted => "It is being deleted.",
        _ => "Stop it first, then resize it.",
    };
    Err(Error::new(Code::InvalidStatus, format!("The VM is {status}, and its size is settled while it runs. {advice}")))
}

fn refused(verb: Verb, status: Status) -> Error {
    let advice = match status {
        Status::Deleting | Status::Deleted => "It is being deleted.",
        status if !status.is_transitional() => match verb {
            Verb::Suspend | Verb::Restart => "Start it first.",
            // A memory fits the disks as they are.
            Verb::Rescue => "Resume it, or stop it, which gives its memory up; then try again.",
            _ => "Only a suspended VM is resumed: start it.",
        },
        _ => "Wait until the change under way has ended, then try again.",
    };
    Error::new(Code::InvalidStatus, format!("The VM is {status}, which does not allow {}. {advice}", verb.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Status::*;

    #[test]
    fn only_what_is_off_gets_another_size() {
        for &status in Status::ALL {
            assert_eq!(on_resize(status).is_ok(), matches!(status, Stopped | Failed), "{status}");
        }
    }

    /// Every pair of the contract's table: `Some(None)` unchanged, `Some(Some(s))` does it, `None` refused.
    #[test]
    fn the_table_of_the_contract() {
        let table = |verb, status| match verb {
            Verb::Start => match status {
                Running | Starting => Some(None),
                Stopped | Failed | Suspended => Some(Some(Starting)),
                _ => None,
            },
            Verb::Stop => match status {
                Stopped | Stopping => Some(None),
                Running | Starting | Restarting | Failed | Suspended => Some(Some(Stopping)),
                _ => None,
            },
            Verb::Restart => match status {
                Restarting | Stopped | Failed => Some(None),
                Running => Some(Some(Restarting)),
                _ => None,
            },
            Verb::Suspend => match status {
                Suspended | Suspending => Some(None),
                Running => Some(Some(Suspending)),
                _ => None,
            },
            Verb::Resume => match status {
                Running | Starting => Some(None),
                Suspended => Some(Some(Starting)),
                _ => None,
            },
            Verb::Reinstall => match status {
                Running => Some(Some(Restarting)),
                Stopped | Failed | Suspended => Some(Some(Starting)),
                _ => None,
            },
            Verb::Rescue => match status {
                Running => Some(Some(Restarting)),
                Stopped | Failed => Some(Some(Starting)),
                _ => None,
            },
        };
        for verb in [Verb::Start, Verb::Stop, Verb::Restart, Verb::Suspend, Verb::Resume, Verb::Reinstall, Verb::Rescue]
        {
            for &status in Status::ALL {
                let got = on_verb(verb, status);
                match (&got, table(verb, status)) {
                    (Ok(got), Some(want)) => assert_eq!(*got, want, "{verb:?} {status}"),
                    (Err(e), None) => assert_eq!(e.code, Code::InvalidStatus),
                    other => panic!("{verb:?} {status}: {other:?}"),
                }
            }
        }
    }
}
