//! What a warm request needs, without the database: verified tokens, live sessions, resolved scopes.
//!
//! Each table is bounded; when it is full it is emptied, which costs one look at the database for each
//! of its users. Where another service may have taken over the database, nothing here is believed for longer than a second.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use berth_domain::Timestamp;
use berth_domain::identity::{KeyScopes, SourceNetworks};
use berth_domain::ids::{KeyId, OrgId, ProjectId, SessionId, UserId};
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
#[derive(Clone, Debug)]
pub struct Key {
    /// Which.
    pub id: KeyId,
    /// Its project.
    pub project: ProjectId,
    /// What it is good for.
    pub scopes: KeyScopes,
    /// Where it may be used from.
    pub networks: SourceNetworks,
    /// Whether who made it is suspended.
    pub suspended: bool,
    org: OrgId,
    maker: UserId,
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
pub struct AuthCache {
    shared: bool,
    generation: AtomicU64,
    /// Held alone while something is forgotten: who remembers does it before or after, never meanwhile.
    changing: RwLock<()>,
    hasher: RandomState,
    claims: RwLock<HashMap<(u64, u64), (String, Claims)>>,
    sessions: RwLock<HashMap<SessionId, Session>>,
    scopes: RwLock<HashMap<ScopeKey, (Scope, Timestamp)>>,
    keys: RwLock<HashMap<KeyHash, Key>>,
    /// The hashes of keys, which never change.
    hashes: RwLock<HashMap<KeyId, KeyHash>>,
    used: Mutex<HashMap<KeyId, (Timestamp, Option<IpAddr>)>>,
}

fn put<K: Eq + std::hash::Hash, V>(table: &RwLock<HashMap<K, V>>, key: K, value: V) {
    let mut table = table.write().unwrap_or_else(PoisonError::into_inner);
    if table.len() >= ENTRIES {
        table.clear();
    }
    table.insert(key, value);
}

impl AuthCache {
    /// Empty tables.
    pub fn new(shared: bool) -> Self {
        Self {
            shared,
            generation: AtomicU64::new(0),
            changing: RwLock::default(),
            hasher: RandomState::new(),
            claims: RwLock::default(),
            sessions: RwLock::default(),
            scopes: RwLock::default(),
            keys: RwLock::default(),
            hashes: RwLock::default(),
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
        self.unless_changed(read_at, || put(&self.sessions, row.id, session));
        session
    }

    /// Ends sessions of a person at once. They are remembered as ended even if they were not known.
    pub fn revoke(&self, ids: impl IntoIterator<Item = SessionId>, user: UserId, now: Timestamp) {
        let session = Session { user, is_admin: false, suspended: false, expires_at: now, revoked: true, seen: now };
        let _alone = self.changing.write().unwrap_or_else(PoisonError::into_inner);
        self.generation.fetch_add(1, Ordering::SeqCst);
        for id in ids {
            put(&self.sessions, id, session);
        }
    }

    /// A scope that was resolved before.
    pub fn scope(&self, caller: &Caller, org: &str, project: &str, now: Timestamp) -> Option<Scope> {
        let table = self.scopes.read().unwrap_or_else(PoisonError::into_inner);
        let (scope, seen) = table.get(&(caller.id(), org.to_owned(), project.to_owned()))?;
        self.believed(*seen, now).then(|| Scope { caller: caller.clone(), ..scope.clone() })
    }

    /// Remembers a scope, without what was granted to its caller.
    pub fn remember_scope(&self, org: &str, project: &str, scope: &Scope, read_at: u64, now: Timestamp) {
        let caller = Caller { granted: None, ..scope.caller.clone() };
        let (name, scope) = ((caller.id(), org.to_owned(), project.to_owned()), Scope { caller, ..scope.clone() });
        self.unless_changed(read_at, || put(&self.scopes, name, (scope, now)));
    }

    /// Remembers what was read, unless something was forgotten since.
    fn unless_changed(&self, read_at: u64, remember: impl FnOnce()) {
        let _held = self.changing.read().unwrap_or_else(PoisonError::into_inner);
        if read_at == self.generation() {
            remember();
        }
    }

    /// Forgets scopes and keys that are not spared, and keeps from being remembered what is being read.
    fn forget(&self, scope: impl Fn(&ScopeKey, &Scope) -> bool, key: impl Fn(&KeyHash, &Key) -> bool) {
        let _alone = self.changing.write().unwrap_or_else(PoisonError::into_inner);
        self.generation.fetch_add(1, Ordering::SeqCst);
        let mut scopes = self.scopes.write().unwrap_or_else(PoisonError::into_inner);
        scopes.retain(|name, (known, _)| !scope(name, known));
        self.keys.write().unwrap_or_else(PoisonError::into_inner).retain(|hash, known| !key(hash, known));
    }

    /// Forgets everything but what was ended: somebody was suspended, or is not any more.
    pub fn forget_people(&self) {
        self.forget(|_, _| true, |_, _| true);
        self.sessions.write().unwrap_or_else(PoisonError::into_inner).retain(|_, session| session.revoked);
    }

    /// Forgets an organization: its members, roles, projects, keys or quotas changed. A project that was named by its
    /// slug alone may be another's from now on.
    pub fn forget_org(&self, org: OrgId) {
        let by_slug = |name: &ScopeKey| name.1.is_empty() && !name.2.is_empty() && Uuid::try_parse(&name.2).is_err();
        self.forget(|name, scope| scope.org == org || by_slug(name), |_, key| key.org == org);
    }

    /// Forgets what a person sees and may, and the keys that the person made. A session that was ended stays ended.
    pub fn forget_person(&self, user: UserId) {
        self.forget(|name, _| name.0 == user.0, |_, key| key.maker == user);
        let mut sessions = self.sessions.write().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|_, session| session.revoked || session.user != user);
    }

    /// Forgets a key that was changed.
    pub fn forget_key(&self, changed: &KeyHash) {
        self.forget(|_, _| false, |hash, _| hash == changed);
    }

    /// A key, if it is known well enough.
    pub fn key(&self, hash: &KeyHash, now: Timestamp) -> Option<Key> {
        let table = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        table.get(hash).filter(|key| self.believed(key.seen, now)).cloned()
    }

    /// Remembers a key.
    pub fn remember_key(&self, hash: KeyHash, row: &KeyRow, read_at: u64, now: Timestamp) -> Key {
        let key = Key {
            id: row.id,
            project: row.project,
            scopes: row.scopes,
            networks: row.networks.clone(),
            suspended: row.suspended,
            org: row.org,
            maker: row.created_by,
            expires_at: row.expires_at,
            revoked: row.revoked_at.is_some(),
            seen: now,
        };
        put(&self.hashes, row.id, hash);
        self.unless_changed(read_at, || put(&self.keys, hash, key.clone()));
        key
    }

    /// A key by its id.
    pub fn key_of_id(&self, id: KeyId, now: Timestamp) -> Option<Key> {
        let hash = self.hashes.read().unwrap_or_else(PoisonError::into_inner).get(&id).copied()?;
        self.key(&hash, now)
    }

    /// Notes that a key was used, and where.
    pub fn key_used(&self, id: KeyId, from: Option<IpAddr>, now: Timestamp) {
        let minute = Timestamp(now.0 - now.0.rem_euclid(60 * Timestamp::SECOND));
        self.used.lock().unwrap_or_else(PoisonError::into_inner).insert(id, (minute, from));
    }

    /// Which keys were used since the last call, in which minute, and where last.
    pub fn take_used(&self) -> HashMap<KeyId, (Timestamp, Option<IpAddr>)> {
        std::mem::take(&mut *self.used.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use berth_domain::identity::KeyScope;

    use super::*;
    use crate::http::auth::{Limits, Who};

    const HASH: KeyHash = [7; 32];

    fn row(scope: KeyScope) -> KeyRow {
        KeyRow {
            id: KeyId(Uuid::from_u128(1)),
            org: OrgId(Uuid::from_u128(2)),
            project: ProjectId(Uuid::from_u128(3)),
            name: "key".into(),
            public_id: String::new(),
            hash: String::new(),
            scopes: KeyScopes::new([scope]).unwrap(),
            created_by: UserId(Uuid::from_u128(4)),
            created_at: Timestamp(0),
            updated_at: Timestamp(0),
            expires_at: None,
            revoked_at: None,
            last_used_at: None,
            last_used_address: None,
            networks: SourceNetworks::default(),
            suspended: false,
            maker_email: None,
            longest: None,
        }
    }

    #[test]
    fn a_key_that_was_read_before_it_changed_is_not_remembered_after() {
        let (now, old) = (Timestamp(0), row(KeyScope::Vm));
        let changes: [fn(&AuthCache); 4] = [
            |cache| cache.forget_key(&HASH),
            |cache| cache.forget_org(OrgId(Uuid::from_u128(2))),
            |cache| cache.forget_person(UserId(Uuid::from_u128(4))),
            AuthCache::forget_people,
        ];
        for change in changes {
            let cache = AuthCache::new(false);
            // Its row is read, it changes, and only then what was read is remembered.
            let read_at = cache.generation();
            change(&cache);
            cache.remember_key(HASH, &old, read_at, now);
            assert!(cache.key(&HASH, now).is_none());
            let read_at = cache.generation();
            cache.remember_key(HASH, &row(KeyScope::Inference), read_at, now);
            assert!(cache.key(&HASH, now).is_some_and(|key| key.scopes.contains(KeyScope::Inference)));
            change(&cache);
            assert!(cache.key(&HASH, now).is_none());
        }
    }

    fn scope(org: u128) -> Scope {
        let person = UserId(Uuid::from_u128(4));
        let who = Who::Person { user: person, session: SessionId(Uuid::from_u128(5)), is_admin: false };
        Scope {
            caller: Caller { who, request_id: String::new(), granted: None, from: None },
            org: OrgId(Uuid::from_u128(org)),
            project: ProjectId(Uuid::from_u128(org + 1)),
            org_role: None,
            project_role: None,
            limits: Limits::default(),
            org_limits: Limits::default(),
        }
    }

    #[test]
    fn a_scope_that_was_read_before_it_changed_is_not_remembered_after() {
        let (now, old) = (Timestamp(0), scope(2));
        let changes: [fn(&AuthCache); 3] = [
            |cache| cache.forget_org(OrgId(Uuid::from_u128(2))),
            |cache| cache.forget_person(UserId(Uuid::from_u128(4))),
            AuthCache::forget_people,
        ];
        for change in changes {
            let cache = AuthCache::new(false);
            let read_at = cache.generation();
            change(&cache);
            cache.remember_scope("org", "web", &old, read_at, now);
            assert!(cache.scope(&old.caller, "org", "web", now).is_none());
            cache.remember_scope("org", "web", &old, cache.generation(), now);
            assert!(cache.scope(&old.caller, "org", "web", now).is_some());
            change(&cache);
            assert!(cache.scope(&old.caller, "org", "web", now).is_none());
        }
    }

    #[test]
    fn a_change_of_an_organization_leaves_what_can_be_no_other_s() {
        let (cache, now, other) = (AuthCache::new(false), Timestamp(0), scope(7));
        let id = other.project.to_string();
        for name in ["web", &id] {
            cache.remember_scope("", name, &other, cache.generation(), now);
        }
        cache.forget_org(OrgId(Uuid::from_u128(2)));
        assert!(cache.scope(&other.caller, "", &id, now).is_some());
        assert!(cache.scope(&other.caller, "", "web", now).is_none(), "another project may be called so now");
    }

    #[test]
    fn a_session_that_was_ended_stays_ended_whatever_was_read_before() {
        let (cache, now) = (AuthCache::new(false), Timestamp(0));
        let (id, user) = (SessionId(Uuid::from_u128(1)), UserId(Uuid::from_u128(4)));
        let read = SessionRow {
            id,
            user,
            is_admin: false,
            suspended: false,
            client: None,
            address: None,
            created_at: now,
            last_used_at: now,
            expires_at: Timestamp(i64::MAX),
            revoked_at: None,
        };
        let read_at = cache.generation();
        cache.revoke([id], user, now);
        assert!(!cache.remember_session(&read, read_at, now).lives(now));
        assert!(!cache.remember_session(&read, cache.generation(), now).lives(now));
    }
}
