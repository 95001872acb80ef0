//! How often somebody may: who is not signed in, for the network they come from and for whom they name; who is, for the
//! mails that they have sent to others.
//!
//! All of it is kept in memory and bounded: a limit must cost less than what it keeps away. A span begins with the
//! first try that it counts, so that its end can be told to whoever came too early.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, PoisonError};

use berth_domain::ids::{OrgId, SessionId, UserId};
use berth_domain::{Code, Error, Result, Timestamp};

use super::recent::Recent;
use crate::config::Identity;
use crate::http::client_address::ClientNetwork;

const MINUTE: i64 = 60;
const HOUR: i64 = 3_600;
/// Tries with one address from all networks, for each that one network has: so a stranger's do not shut its owner out.
const EVERYWHERE: u32 = 10;

/// What anybody may ask for without being signed in.
#[derive(Clone, Copy, Debug)]
pub enum Door {
    /// Signing in.
    Login,
    /// Signing up.
    SignUp,
    /// Exchanging a refresh token.
    Refresh,
    /// Having a mail sent.
    Message,
    /// Presenting what a mail said.
    Proof,
}

#[derive(Clone, Copy, Default)]
struct Span {
    began: Timestamp,
    count: u32,
}

/// So many of something in a span of seconds, for each key.
struct Rate<K> {
    spans: Mutex<Recent<K, Span>>,
    most: u32,
    seconds: i64,
}

impl<K: Copy + Eq + Hash> Rate<K> {
    fn new(most: u32, seconds: i64) -> Self {
        Self { spans: Mutex::default(), most, seconds }
    }

    /// Counts one; the seconds to wait where there were enough.
    fn take(&self, key: K, now: Timestamp) -> Result<(), i64> {
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        let span = spans.touch(key);
        let ends = span.began.plus_seconds(self.seconds);
        if ends <= now || span.began > now {
            *span = Span { began: now, count: 0 };
        } else if span.count >= self.most {
            return Err((ends.0 - now.0 + 999_999) / Timestamp::SECOND);
        }
        span.count += 1;
        Ok(())
    }
}

/// The limits.
pub struct Limits {
    logins: Rate<ClientNetwork>,
    sign_ups: Rate<ClientNetwork>,
    refreshes: Rate<ClientNetwork>,
    messages: Rate<ClientNetwork>,
    proofs: Rate<ClientNetwork>,
    tries: Rate<(u64, ClientNetwork)>,
    tries_everywhere: Rate<u64>,
    asked: Rate<u64>,
    rotations: Rate<SessionId>,
    invitations: Rate<UserId>,
    invited: Rate<u64>,
    changes: Rate<UserId>,
    texts: Rate<UserId>,
    key_reloads: Rate<()>,
    names: RandomState,
}

impl Limits {
    /// Limits as configured.
    pub fn new(config: &Identity) -> Self {
        let minute = |most| Rate::new(most, MINUTE);
        let messages = u32::try_from(config.messages_per_hour).unwrap_or(u32::MAX);
        Self {
            logins: minute(config.logins_per_minute_per_address),
            sign_ups: minute(config.signups_per_minute()),
            refreshes: minute(config.refreshes_per_minute()),
            messages: minute(config.messages_per_minute()),
            proofs: minute(config.proofs_per_minute()),
            tries: Rate::new(config.tries_per_hour_per_recipient, HOUR),
            tries_everywhere: Rate::new(config.tries_per_hour_per_recipient.saturating_mul(EVERYWHERE), HOUR),
            asked: Rate::new(messages, HOUR),
            rotations: Rate::new(config.refreshes_per_hour_per_session, HOUR),
            invitations: Rate::new(config.invitations_per_hour, HOUR),
            invited: Rate::new(messages, HOUR),
            changes: Rate::new(messages, HOUR),
            texts: Rate::new(messages, HOUR),
            key_reloads: Rate::new(1, 1),
            names: RandomState::new(),
        }
    }

    /// Counts what comes from a network.
    pub fn network(&self, door: Door, network: ClientNetwork, now: Timestamp) -> Result<()> {
        let (rate, what) = match door {
            Door::Login => (&self.logins, "logins"),
            Door::SignUp => (&self.sign_ups, "sign-ups"),
            Door::Refresh => (&self.refreshes, "refreshes"),
            Door::Message => (&self.messages, "requests for mails"),
            Door::Proof => (&self.proofs, "tries"),
        };
        rate.take(network, now).map_err(|seconds| wait(&format!("Too many {what} from your network."), seconds))
    }

    /// Counts a sign-up with an address, or a code that is tried for it, whether it has an account or not: of a network,
    /// and of all of them together.
    pub fn recipient(&self, door: Door, address: &str, from: ClientNetwork, now: Timestamp) -> Result<()> {
        let key = self.names.hash_one((door as u8, address.to_lowercase()));
        let taken = self.tries.take((key, from), now).and_then(|()| self.tries_everywhere.take(key, now));
        taken.map_err(|seconds| wait("Too many tries with this address.", seconds))
    }

    /// Whether one more mail of a kind may be asked for by who is not signed in. The answer is for nobody outside.
    pub fn may_ask(&self, kind: &str, address: &str, now: Timestamp) -> bool {
        self.asked.take(self.names.hash_one((kind, address.to_lowercase())), now).is_ok()
    }

    /// Whether the signing keys may be read again: once a second, however many tokens name unknown ones.
    pub fn may_reload_keys(&self, now: Timestamp) -> bool {
        self.key_reloads.take((), now).is_ok()
    }

    /// Counts the exchange of a session's refresh token.
    pub fn rotation(&self, session: SessionId, now: Timestamp) -> Result<()> {
        self.rotations.take(session, now).map_err(|seconds| wait("This session is refreshed too often.", seconds))
    }

    /// Counts an invitation that a person has sent to an address: of all of theirs, and of all of the organization to it.
    pub fn invitation(&self, by: UserId, org: OrgId, address: &str, now: Timestamp) -> Result<()> {
        let to = self.names.hash_one((org, address.to_lowercase()));
        self.invited.take(to, now).map_err(|seconds| wait("This address was written to often enough.", seconds))?;
        self.invitations.take(by, now).map_err(|seconds| wait("You have sent many invitations.", seconds))
    }

    /// Counts an address that a person wants to have from now on.
    pub fn change(&self, by: UserId, now: Timestamp) -> Result<()> {
        self.changes.take(by, now).map_err(|seconds| wait("You have changed your address often enough.", seconds))
    }

    /// Counts a text message that a person asks for.
    pub fn text(&self, by: UserId, now: Timestamp) -> Result<()> {
        self.texts.take(by, now).map_err(|seconds| wait("You have asked for several codes.", seconds))
    }
}

/// The 429 of who came too early.
pub fn wait(why: &str, seconds: i64) -> Error {
    let seconds = seconds.max(1).unsigned_abs();
    Error::new(Code::RateLimited, format!("{why} Try again in {seconds} s.")).retry_after(seconds)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    fn network(last: u8) -> ClientNetwork {
        ClientNetwork::of(IpAddr::from([127, 0, 0, last]))
    }

    #[test]
    fn thirty_logins_a_minute_and_so_many_of_all_else() {
        let limits = Limits::new(&Identity::default());
        for (door, most) in
            [(Door::Login, 30), (Door::SignUp, 30), (Door::Message, 30), (Door::Proof, 30), (Door::Refresh, 300)]
        {
            for _ in 0..most {
                limits.network(door, network(1), Timestamp(0)).unwrap();
            }
            let refused = limits.network(door, network(1), Timestamp(0)).unwrap_err();
            assert_eq!((refused.code, refused.retry_after), (Code::RateLimited, Some(60)), "{door:?}");
            limits.network(door, network(2), Timestamp(0)).unwrap();
            limits.network(door, network(1), Timestamp(60 * Timestamp::SECOND)).unwrap();
        }
    }

    #[test]
    fn an_address_is_the_same_however_it_is_written_and_each_door_counts_its_own() {
        let limits = Limits::new(&Identity { tries_per_hour_per_recipient: 2, ..Identity::default() });
        for address in ["a@b.cd", "A@B.cd"] {
            limits.recipient(Door::SignUp, address, network(1), Timestamp(0)).unwrap();
        }
        let refused = limits.recipient(Door::SignUp, "a@b.CD", network(1), Timestamp(0)).unwrap_err();
        assert_eq!(refused.retry_after, Some(3600));
        limits.recipient(Door::Proof, "a@b.cd", network(1), Timestamp(0)).unwrap();
        limits.recipient(Door::SignUp, "b@b.cd", network(1), Timestamp(0)).unwrap();
    }

    #[test]
    fn a_stranger_s_tries_with_an_address_leave_its_owner_some() {
        let limits = Limits::new(&Identity { tries_per_hour_per_recipient: 2, ..Identity::default() });
        let tried = |from| limits.recipient(Door::Proof, "a@b.cd", network(from), Timestamp(0)).is_ok();
        assert_eq!([tried(1), tried(1), tried(1), tried(2)], [true, true, false, true]);
        // Together they have ten times as many; what was refused to one does not count.
        let more = (3..100).filter(|from| tried(*from)).count();
        assert_eq!(more, 17);
        limits.recipient(Door::Proof, "a@b.cd", network(1), Timestamp(HOUR * Timestamp::SECOND)).unwrap();
    }

    proptest! {
        #[test]
        fn no_span_lets_more_through(steps in prop::collection::vec(0_i64..40, 1..200)) {
            let rate = Rate::new(5, 60);
            let (mut now, mut taken) = (0, Vec::new());
            for step in steps {
                now += step;
                if rate.take(0_u8, Timestamp(now * Timestamp::SECOND)).is_ok() {
                    taken.push(now);
                }
            }
            // Where spans meet, two may be full.
            for begin in &taken {
                prop_assert!(taken.iter().filter(|at| (*begin..begin + 60).contains(*at)).count() <= 10);
            }
        }
    }
}
