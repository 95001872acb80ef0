//! What a warm request needs, without the database: verified tokens, live sessions, resolved scopes.
//!
//! Each table is bounded; when it is full it is emptied, which costs one look at the database for each
//! of its users. A service that shares its database believes nothing here for longer than a second.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use berth_domain::Timestamp;
use berth_domain::identity::KeyScopes;
use berth_domain::ids::{KeyId, ProjectId, SessionId, UserId};
use uuid::Uuid;

use super::store::api_key::KeyRow;
use super::store::session::SessionRow;
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
    /// Whether that person is suspended.
    pub suspended: bool,
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

/// A key as it is remembered.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Which.
    pub id: KeyId,
    /// Its project.
    pub project: ProjectId,
    /// What it is good for.
    pub scopes: KeyScopes,
    expires_at: Option<Timestamp>,
    revoked: bool,
    seen: Timestamp,
}

impl Key {
    /// Whether it counts.
    pub fn lives(&self, now: Timestamp) -> bool {
        !self.revoked && self.expires_at.is_none_or(|at| at > now)
    }
}

/// SHA-256 of a key.
pub type KeyHash = [u8; 32];

type ScopeKey = (Uuid, String, String);

/// The tables.
pub struct Memory {
    shared: bool,
    generation: AtomicU64,
    hasher: RandomState,
    claims: RwLock<HashMap<(u64, u64), (String, Claims)>>,
    sessions: RwLock<HashMap<SessionId, Session>>,
    scopes: RwLock<HashMap<ScopeKey, (Scope, Timestamp)>>,
    keys: RwLock<HashMap<KeyHash, Key>>,
    used: Mutex<HashMap<KeyId, Timestamp>>,
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
            generation: AtomicU64::new(0),
            hasher: RandomState::new(),
            claims: RwLock::default(),
            sessions: RwLock::default(),
            scopes: RwLock::default(),
            keys: RwLock::default(),
            used: Mutex::default(),
        }
    }

    fn believed(&self, seen: Timestamp, now: Timestamp) -> bool {
        !self.shared || seen.plus_seconds(SHARED_SECONDS) > now
    }

    /// Changes whenever something is forgotten. What was read before that is not remembered after it.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
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
    pub fn remember_session(&self, row: &SessionRow, read_at: u64, now: Timestamp) -> Session {
        let known = self.sessions.read().unwrap_or_else(PoisonError::into_inner).get(&row.id).copied();
        let session = Session {
            user: row.user,
            is_admin: row.is_admin,
            suspended: row.suspended,
            expires_at: row.expires_at,
            revoked: row.revoked_at.is_some() || known.is_some_and(|s| s.revoked),
            seen: now,
        };
        if read_at == self.generation() {
            put(&self.sessions, row.id, session);
        }
        session
    }

    /// Ends a session at once. It is remembered as ended even if it was not known.
    pub fn revoke(&self, id: SessionId, user: UserId, now: Timestamp) {
        let session = Session { user, is_admin: false, suspended: false, expires_at: now, revoked: true, seen: now };
        put(&self.sessions, id, session);
    }

    /// A scope that was resolved before.
    pub fn scope(&self, caller: &Caller, org: &str, project: &str, now: Timestamp) -> Option<Scope> {
        let table = self.scopes.read().unwrap_or_else(PoisonError::into_inner);
        let (scope, seen) = table.get(&(caller.id(), org.to_owned(), project.to_owned()))?;
        self.believed(*seen, now).then(|| Scope { caller: caller.clone(), ..scope.clone() })
    }

    /// Remembers a scope.
    pub fn remember_scope(&self, org: &str, project: &str, scope: &Scope, read_at: u64, now: Timestamp) {
        if read_at != self.generation() {
            return;
        }
        put(&self.scopes, (scope.caller.id(), org.to_owned(), project.to_owned()), (scope.clone(), now));
    }

    /// Forgets every scope: memberships, projects or quotas changed.
    pub fn forget_scopes(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.scopes.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Forgets everything but what was ended: somebody was suspended, or is not any more.
    pub fn forget_people(&self) {
        self.forget_scopes();
        self.sessions.write().unwrap_or_else(PoisonError::into_inner).retain(|_, session| session.revoked);
        self.keys.write().unwrap_or_else(PoisonError::into_inner).retain(|_, key| key.revoked);
    }

    /// A key, if it is known well enough.
    pub fn key(&self, hash: &KeyHash, now: Timestamp) -> Option<Key> {
        let table = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        table.get(hash).copied().filter(|key| self.believed(key.seen, now))
    }

    /// Remembers a key. One that was revoked here stays revoked, whatever an older read says.
    pub fn remember_key(&self, hash: KeyHash, row: &KeyRow, now: Timestamp) -> Key {
        let known = self.keys.read().unwrap_or_else(PoisonError::into_inner).get(&hash).copied();
        let key = Key {
            id: row.id,
            project: row.project,
            scopes: row.scopes,
            expires_at: row.expires_at,
            revoked: row.revoked_at.is_some() || known.is_some_and(|k| k.revoked),
            seen: now,
        };
        put(&self.keys, hash, key);
        key
    }

    /// Takes over what was changed of a key, at once.
    pub fn change_key(&self, hash: KeyHash, row: &KeyRow, now: Timestamp) {
        self.keys.write().unwrap_or_else(PoisonError::into_inner).remove(&hash);
        self.remember_key(hash, row, now);
    }

    /// Notes that a key was used.
    pub fn key_used(&self, id: KeyId, now: Timestamp) {
        let minute = Timestamp(now.0 - now.0.rem_euclid(60 * Timestamp::SECOND));
        self.used.lock().unwrap_or_else(PoisonError::into_inner).insert(id, minute);
    }

    /// Which keys were used since the last call, and in which minute.
    pub fn take_used(&self) -> HashMap<KeyId, Timestamp> {
        std::mem::take(&mut *self.used.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
