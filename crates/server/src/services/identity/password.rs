//! Passwords: hashing that cannot be used to exhaust the machine. Which are taken,
//! [`berth_domain::identity::password`] says.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use argon2::password_hash::phc::{Output, ParamsString, PasswordHash, Salt};
use argon2::{ARGON2ID_IDENT, Algorithm, Argon2, Block, Params, Version};
use berth_domain::{Code, Error, Result};
use tokio::sync::Semaphore;

use crate::config::Identity;

/// Above 32 MiB the C library gives memory back to the system as soon as it is free; below, it may keep it.
const GIVEN_BACK: usize = (33 << 20) / Block::SIZE;

/// For whom a password is hashed: each has a queue, so that strangers who sign up keep nobody from signing in.
#[derive(Clone, Copy, Debug)]
pub enum Asker {
    /// Somebody's who has an account, or says so.
    Account,
    /// Somebody's who signs up. At most half of the cores are theirs at a time, and one.
    Newcomer,
}

struct Queue {
    waiting: Arc<AtomicUsize>,
    places: usize,
    turns: Arc<Semaphore>,
}

impl Queue {
    fn new(turns: usize, waiting: usize) -> Self {
        Self { waiting: Arc::default(), places: waiting + turns, turns: Arc::new(Semaphore::new(turns)) }
    }
}

/// Hashes and verifies, one for each core at a time; the rest queue, and then are turned away.
pub struct Hasher {
    params: Params,
    cores: Arc<Semaphore>,
    accounts: Queue,
    newcomers: Queue,
    dummy: Arc<str>,
}

/// One place in the queue.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Hasher {
    /// A hasher with the configured cost.
    pub fn new(config: &Identity) -> Result<Self> {
        let params = Params::new(config.argon2_memory_kib, config.argon2_passes, config.argon2_lanes, None)
            .map_err(Error::internal)?;
        let dummy = digest(&params, "nobody has this password", Salt::generate())?.to_string();
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Ok(Self {
            params,
            cores: Arc::new(Semaphore::new(cores)),
            accounts: Queue::new(cores, config.hash_queue),
            newcomers: Queue::new((cores / 2).max(1), config.signup_hash_queue),
            dummy: dummy.into(),
        })
    }

    /// The hash of a password, in PHC form.
    pub async fn hash(&self, asker: Asker, password: String) -> Result<String> {
        let params = self.params.clone();
        self.run(asker, move || digest(&params, &password, Salt::generate()).map(|hash| hash.to_string())).await?
    }

    /// Whether a password has this hash. Without a hash, the same work is done for nothing, so that the
    /// time tells nothing.
    pub async fn verify(&self, password: String, hash: Option<String>) -> Result<bool> {
        let known = hash.is_some();
        let hash = hash.unwrap_or_else(|| self.dummy.to_string());
        let matches = self.run(Asker::Account, move || is_of(&hash, &password)).await?;
        Ok(matches && known)
    }

    /// Whether a hash was made at another cost than hashes are made at now.
    pub fn is_outdated(&self, hash: &str) -> bool {
        let params = PasswordHash::new(hash).ok().and_then(|known| Params::try_from(&known).ok());
        let cost = |p: &Params| (p.m_cost(), p.t_cost(), p.p_cost());
        params.is_some_and(|params| cost(&params) != cost(&self.params))
    }

    async fn run<T: Send + 'static>(&self, asker: Asker, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let (queue, what) = match asker {
            Asker::Account => (&self.accounts, "in"),
            Asker::Newcomer => (&self.newcomers, "up"),
        };
        let place = Place(queue.waiting.clone());
        if queue.waiting.fetch_add(1, Ordering::Relaxed) >= queue.places {
            let message = format!("Too many people are signing {what}. Try again shortly.");
            return Err(Error::new(Code::RateLimited, message).retry_after(1));
        }
        let turn = queue.turns.clone().acquire_owned().await.map_err(Error::internal)?;
        let core = self.cores.clone().acquire_owned().await.map_err(Error::internal)?;
        let done = tokio::task::spawn_blocking(move || {
            let (_core, _turn, _place) = (core, turn, place);
            work()
        });
        done.await.map_err(Error::internal)
    }
}

/// The hash of a password with these costs and this salt.
fn digest(params: &Params, password: &str, salt: Salt) -> Result<PasswordHash> {
    let mut memory = Vec::with_capacity(params.block_count().max(GIVEN_BACK));
    memory.resize(params.block_count(), Block::new());
    let mut out = [0; Params::DEFAULT_OUTPUT_LEN];
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params.clone())
        .hash_password_into_with_memory(password.as_bytes(), salt.as_ref(), &mut out, &mut memory)
        .map_err(Error::internal)?;
    Ok(PasswordHash {
        algorithm: ARGON2ID_IDENT,
        version: Some(Version::V0x13.into()),
        params: ParamsString::try_from(params).map_err(Error::internal)?,
        salt: Some(salt),
        hash: Some(Output::new(&out).map_err(Error::internal)?),
    })
}

/// Whether a password has this hash, at the cost that the hash itself names. The comparison takes the same
/// time wherever they differ.
fn is_of(hash: &str, password: &str) -> bool {
    let Ok(known) = PasswordHash::new(hash) else { return false };
    let (Ok(params), Some(salt)) = (Params::try_from(&known), known.salt) else { return false };
    digest(&params, password, salt).is_ok_and(|found| found.hash == known.hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_signs_up_keeps_nobody_from_signing_in() {
        let config = Identity { argon2_memory_kib: 8, argon2_passes: 1, signup_hash_queue: 2, ..Identity::default() };
        let hasher = Hasher::new(&config).unwrap();
        let cores = u32::try_from(std::thread::available_parallelism().unwrap().get()).unwrap();
        // No core is free, so everybody waits.
        let busy = hasher.cores.acquire_many(cores).await.unwrap();
        let mut newcomers: Vec<_> =
            (0..hasher.newcomers.places).map(|_| Box::pin(hasher.hash(Asker::Newcomer, "x".into()))).collect();
        for newcomer in &mut newcomers {
            assert!(futures::poll!(newcomer).is_pending());
        }
        let refused = hasher.hash(Asker::Newcomer, "x".into()).await.unwrap_err();
        assert_eq!((refused.code, refused.retry_after), (Code::RateLimited, Some(1)));
        let mut account = Box::pin(hasher.verify("x".into(), None));
        assert!(futures::poll!(&mut account).is_pending(), "waits in a queue of its own");
        drop(busy);
        assert!(!account.await.unwrap());
        assert!(futures::future::join_all(newcomers).await.iter().all(Result::is_ok));
    }
}
