//! What becomes of a request to what is inside a sandbox, by where that stands (contract, section 3).
//!
//! One that comes up is waited for. One that is paused is resumed where it has `auto_resume` and whoever asks may change it: once
//! for a request, so that one for which there is no room, or that somebody pauses again, is not resumed over and over. One that is
//! paused to go to another host, and to go on there, comes up by itself: who resumed it where it is would keep it from leaving.

use super::model::Phase;
use crate::error::{Code, Error, Result};

/// Where a sandbox stands, to somebody who asks for what is inside.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'a> {
    /// Its phase.
    pub phase: Phase,
    /// The step under way, or why it stands there.
    pub message: Option<&'a str>,
    /// Whether requests resume it.
    pub auto_resume: bool,
    /// Whether it is paused to go to another host, and goes on there.
    pub moves: bool,
    /// Whether who asks may change it.
    pub may_change: bool,
    /// Whether it was being resumed since the request came.
    pub resumed: bool,
}

/// What is done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It goes in.
    Enter,
    /// It waits.
    Wait,
    /// The sandbox is resumed, and the request waits.
    Resume,
}

/// What is done with a request.
///
/// # Errors
/// Waiting would not help: 404 `sandbox_not_found`, 409 `sandbox_paused` or `sandbox_failed`.
pub fn on_request(s: Standing<'_>) -> Result<Entry> {
    match s.phase {
        Phase::Ready => Ok(Entry::Enter),
        Phase::Pending | Phase::Provisioning | Phase::Resuming | Phase::Restoring => Ok(Entry::Wait),
        Phase::Pausing | Phase::Paused => on_paused(s),
        Phase::Failed => Err(Error::new(
            Code::SandboxFailed,
            "The sandbox has failed; its message tells why. Restore a snapshot of it, or delete it.",
        )),
        Phase::Deleting | Phase::Deleted => Err(not_found()),
    }
}

fn on_paused(s: Standing<'_>) -> Result<Entry> {
    // Waiting changes nothing, so nobody needs a right for it.
    if s.moves {
        return Ok(Entry::Wait);
    }
    let message = match (s.auto_resume, s.may_change) {
        (false, _) => {
            "The sandbox is paused. POST …/sandboxes/{id}/resume wakes it; with auto_resume, requests to it do, too."
        }
        (true, false) => "The sandbox is paused. A request to it of somebody who may change it wakes it.",
        (true, true) if s.resumed => return Err(paused_again(s.message)),
        (true, true) if s.phase == Phase::Pausing => return Ok(Entry::Wait),
        (true, true) => return Ok(Entry::Resume),
    };
    Err(Error::new(Code::SandboxPaused, message))
}

fn paused_again(reason: Option<&str>) -> Error {
    let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    Error::new(Code::SandboxPaused, format!("The sandbox was resumed, and is paused again{reason}. Try again later."))
}

/// The 404 of a sandbox that no project is named for.
pub fn not_found() -> Error {
    Error::new(Code::SandboxNotFound, "There is no such sandbox. GET …/sandboxes lists those of a project.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use Phase::*;

    /// One that requests resume, to somebody who may.
    const fn open(phase: Phase) -> Standing<'static> {
        Standing { phase, message: None, auto_resume: true, moves: false, may_change: true, resumed: false }
    }

    #[track_caller]
    fn refused(standing: Standing<'_>, words: &str) {
        let error = on_request(standing).expect_err("a refusal");
        assert_eq!((error.code, error.code.status()), (Code::SandboxPaused, 409));
        assert!(error.to_string().contains(words), "{error}");
    }

    #[test]
    fn what_is_not_paused_is_never_resumed() {
        for auto_resume in [true, false] {
            for &phase in Phase::ALL {
                let standing = Standing { auto_resume, ..open(phase) };
                match phase {
                    Ready => assert_eq!(on_request(standing), Ok(Entry::Enter)),
                    Pending | Provisioning | Resuming | Restoring => assert_eq!(on_request(standing), Ok(Entry::Wait)),
                    Failed => assert_eq!(on_request(standing).unwrap_err().code, Code::SandboxFailed),
                    Deleting | Deleted => assert_eq!(on_request(standing).unwrap_err().code, Code::SandboxNotFound),
                    Pausing | Paused => {}
                }
            }
        }
    }

    #[test]
    fn one_that_is_paused_is_resumed_once_where_it_may_be() {
        assert_eq!(on_request(open(Paused)), Ok(Entry::Resume));
        assert_eq!(on_request(open(Pausing)), Ok(Entry::Wait));
        for phase in [Paused, Pausing] {
            refused(Standing { auto_resume: false, ..open(phase) }, "auto_resume");
            refused(Standing { may_change: false, ..open(phase) }, "who may change it");
            refused(Standing { may_change: false, auto_resume: false, ..open(phase) }, "/resume wakes it");
            let again = Standing { resumed: true, ..open(phase) };
            refused(again, "is paused again. Try");
            refused(Standing { message: Some("no room"), ..again }, "again: no room. Try");
        }
    }

    #[test]
    fn one_that_goes_to_another_host_is_waited_for() {
        for phase in [Paused, Pausing] {
            for resumed in [true, false] {
                for (auto_resume, may_change) in [(true, true), (false, true), (true, false), (false, false)] {
                    let standing = Standing { moves: true, resumed, auto_resume, may_change, ..open(phase) };
                    assert_eq!(on_request(standing), Ok(Entry::Wait));
                }
            }
        }
    }
}
