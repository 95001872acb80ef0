//! What a warm request needs, without the database: verified tokens, live sessions, resolved scopes.
//!
//! Each table is bounded; when it is full it is emptied, which costs one look at the database for each
//! of its users. A service that shares its database believes nothing here for longer than a second.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{PoisonError, RwLock};

use berth_domain::Timestamp;
use berth_domain::ids::{SessionId, UserId};

use super::store::SessionRow;
use super::token::Claims;
use crate::http::auth::{Caller, Scope};

/// Entries of each table.
const ENTRIES: usize = 50_000;
/// Seconds for which an entry is believed where others write to the database, too.
const SHARED_SECONDS: i64 = 1;

/// A session as it is remembered.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// Whose.
    pub user: UserId,
    /// Whether that person administers the platform.
    pub is_admin: bool,
    expires_at: Timestamp,
    revoked: bool,
    seen: Timestamp,
}

impl Session {
    /// Whether it counts.
    pub fn lives(&self, now: Timestamp) -> bool {
        !self.revoked && self.expires_at > now
    }
}

type ScopeKey = (UserId, String, String);

/// The tables.
pub struct Memory {
    shared: bool,
    hasher: RandomState,
    claims: RwLock<HashMap<(u64, u64), (String, Claims)>>,
    sessions: RwLock<HashMap<SessionId, Session>>,
    scopes: RwLock<HashMap<ScopeKey, (Scope, Timestamp)>>,
}

fn put<K: Eq + std::hash::Hash, V>(table: &RwLock<HashMap<K, V>>, key: K, value: V) {
    let mut table = table.write().unwrap_or_else(PoisonError::into_inner);
    if table.len() >= ENTRIES {
        table.clear();
    }
    table.insert(key, value);
}

impl Memory {
    /// Empty tables.
    pub fn new(shared: bool) -> Self {
        Self {
            shared,
            hasher: RandomState::new(),
            claims: RwLock::default(),
            sessions: RwLock::default(),
            scopes: RwLock::default(),
        }
    }

    fn believed(&self, seen: Timestamp, now: Timestamp) -> bool {
        !self.shared || seen.plus_seconds(SHARED_SECONDS) > now
    }

    fn token_key(&self, token: &str) -> (u64, u64) {
        (self.hasher.hash_one(token), token.len() as u64)
    }

    /// What a token says that was verified before and has not ended.
    pub fn claims(&self, token: &str, now: Timestamp) -> Option<Claims> {
        let table = self.claims.read().unwrap_or_else(PoisonError::into_inner);
        let (text, claims) = table.get(&self.token_key(token))?;
        (text == token && claims.exp > now.seconds()).then(|| claims.clone())
    }

    /// Remembers a token that was verified.
    pub fn remember_claims(&self, token: &str, claims: &Claims) {
        put(&self.claims, self.token_key(token), (token.to_owned(), claims.clone()));
    }

    /// A session, if it is known well enough.
    pub fn session(&self, id: SessionId, now: Timestamp) -> Option<Session> {
        let table = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        table.get(&id).copied().filter(|session| self.believed(session.seen, now))
    }

    /// Remembers a session. One that was ended here stays ended, whatever an older read says.
    pub fn remember_session(&self, row: &SessionRow, now: Timestamp) -> Session {
        let known = self.sessions.read().unwrap_or_else(PoisonError::into_inner).get(&row.id).copied();
        let session = Session {
            user: row.user,
            is_admin: row.is_admin,
            expires_at: row.expires_at,
            revoked: row.revoked_at.is_some() || known.is_some_and(|s| s.revoked),
            seen: now,
        };
        put(&self.sessions, row.id, session);
        session
    }

    /// Ends a session at once. It is remembered as ended even if it was not known.
    pub fn revoke(&self, id: SessionId, user: UserId, now: Timestamp) {
        let session = Session { user, is_admin: false, expires_at: now, revoked: true, seen: now };
        put(&self.sessions, id, session);
    }

    /// A scope that was resolved before.
    pub fn scope(&self, caller: &Caller, org: &str, project: &str, now: Timestamp) -> Option<Scope> {
        let table = self.scopes.read().unwrap_or_else(PoisonError::into_inner);
        let (scope, seen) = table.get(&(caller.user, org.to_owned(), project.to_owned()))?;
        self.believed(*seen, now).then(|| Scope { caller: caller.clone(), ..scope.clone() })
    }

    /// Remembers a scope.
    pub fn remember_scope(&self, org: &str, project: &str, scope: &Scope, now: Timestamp) {
        put(&self.scopes, (scope.caller.user, org.to_owned(), project.to_owned()), (scope.clone(), now));
    }

    /// Forgets every scope: memberships or projects changed.
    pub fn forget_scopes(&self) {
        self.scopes.write().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
