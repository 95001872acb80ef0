//! Whether the guest has its IPv6 address, as far as packets of networks tell (RFC 4861, 7.3). Pure.
//!
//! Who belongs to a network with IPv6 addresses is found at one there, but a guest whose system asks for none, or that
//! knows no IPv6, would leave everybody waiting who tries it. Whoever is heard of has it. Where nothing was heard for a while
//! the guest is asked, and packets go on meanwhile; without an answer they are refused from then on, so that others take
//! another address at once, until the guest is heard of.

use std::time::{Duration, Instant};

/// How long who was heard of is believed to be there (RFC 4861, 10).
const REACHABLE: Duration = Duration::from_secs(30);
/// How long the guest may take for an answer, and between two questions: a second try to connect comes after as long
/// (RFC 6298, 2.1).
const ANSWER: Duration = Duration::from_secs(1);

/// What is known of the guest.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    heard: Option<Instant>,
    /// Since when it is asked without an answer.
    asked: Option<Instant>,
    /// When it was asked last.
    last: Option<Instant>,
}

/// What is done with a packet for the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) passes: bool,
    /// Whether the guest is to be asked.
    pub(crate) asks: bool,
}

impl Presence {
    /// The guest has spoken from its address.
    pub(crate) const fn heard(&mut self, now: Instant) {
        *self = Self { heard: Some(now), asked: None, last: None };
    }

    /// There is a packet for it.
    pub(crate) fn packet(&mut self, now: Instant) -> Verdict {
        if self.heard.is_some_and(|heard| now.saturating_duration_since(heard) < REACHABLE) {
            return Verdict { passes: true, asks: false };
        }
        let asked = *self.asked.get_or_insert(now);
        let asks = self.last.is_none_or(|last| now.saturating_duration_since(last) >= ANSWER);
        if asks {
            self.last = Some(now);
        }
        Verdict { passes: now.saturating_duration_since(asked) < ANSWER, asks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_millis(1);
    const NEARLY_GONE: Duration = Duration::from_millis(29_999);
    const NEARLY_ANSWERED: Duration = Duration::from_millis(999);

    #[test]
    fn who_is_heard_of_is_there_for_a_while() {
        let (mut presence, start) = (Presence::default(), Instant::now());
        presence.heard(start);
        let known = Verdict { passes: true, asks: false };
        assert_eq!(presence.packet(start), known);
        assert_eq!(presence.packet(start + NEARLY_GONE), known);
        assert_eq!(presence.packet(start + REACHABLE), Verdict { passes: true, asks: true });
        presence.heard(start + REACHABLE);
        assert_eq!(presence.packet(start + REACHABLE + NEARLY_GONE), known);
    }

    #[test]
    fn who_does_not_answer_gets_nothing_and_is_asked_now_and_then() {
        let (mut presence, start) = (Presence::default(), Instant::now());
        assert_eq!(presence.packet(start), Verdict { passes: true, asks: true });
        assert_eq!(presence.packet(start + NEARLY_ANSWERED), Verdict { passes: true, asks: false });
        assert_eq!(presence.packet(start + ANSWER), Verdict { passes: false, asks: true });
        assert_eq!(presence.packet(start + ANSWER + MOMENT), Verdict { passes: false, asks: false });
        assert_eq!(presence.packet(start + ANSWER * 60), Verdict { passes: false, asks: true });
        presence.heard(start + ANSWER * 60);
        assert_eq!(presence.packet(start + ANSWER * 60), Verdict { passes: true, asks: false });
    }
}
