//! Passwords: what is allowed, and hashing that cannot be used to exhaust the machine.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use argon2::password_hash::phc::{Output, ParamsString, PasswordHash, Salt};
use argon2::{ARGON2ID_IDENT, Algorithm, Argon2, Block, Params, Version};
use berth_domain::{Code, Error, Result};
use tokio::sync::Semaphore;

use crate::config::Identity;

/// Common passwords, one a line, in lower case.
const COMMON: &str = include_str!("common_passwords.txt");

static COMMON_SET: LazyLock<HashSet<&'static str>> = LazyLock::new(|| COMMON.lines().collect());

/// Above 32 MiB the C library gives memory back to the system as soon as it is free; below, it may keep it.
const GIVEN_BACK: usize = (33 << 20) / Block::SIZE;

/// The rule a password breaks, if it breaks one.
pub fn check(password: &str, email: &str, config: &Identity) -> Result<(), String> {
    let (least, most) = (config.password_min_length, config.password_max_length);
    if !(least..=most).contains(&password.chars().count()) {
        return Err(format!("must have {least} to {most} characters"));
    }
    let lower = password.to_lowercase();
    if lower == email.to_lowercase() {
        return Err("must not be the address".into());
    }
    if COMMON_SET.contains(lower.as_str()) {
        return Err("is one of the most common passwords; choose another".into());
    }
    Ok(())
}

/// Hashes and verifies, one for each core at a time; the rest queue, and then are turned away.
#[derive(Clone)]
pub struct Hasher {
    params: Params,
    cores: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
    queue: usize,
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
            waiting: Arc::default(),
            queue: config.hash_queue + cores,
            dummy: dummy.into(),
        })
    }

    /// The hash of a password, in PHC form.
    pub async fn hash(&self, password: String) -> Result<String> {
        let params = self.params.clone();
        self.run(move || digest(&params, &password, Salt::generate()).map(|hash| hash.to_string())).await?
    }

    /// Whether a password has this hash. Without a hash, the same work is done for nothing, so that the
    /// time tells nothing.
    pub async fn verify(&self, password: String, hash: Option<String>) -> Result<bool> {
        let known = hash.is_some();
        let hash = hash.unwrap_or_else(|| self.dummy.to_string());
        let matches = self.run(move || is_of(&hash, &password)).await?;
        Ok(matches && known)
    }

    async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let place = Place(self.waiting.clone());
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.queue {
            return Err(
                Error::new(Code::RateLimited, "Too many people are signing in. Try again shortly.").retry_after(1)
            );
        }
        let core = self.cores.clone().acquire_owned().await.map_err(Error::internal)?;
        let done = tokio::task::spawn_blocking(move || {
            let (_core, _place) = (core, place);
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

    #[test]
    fn rules_on_both_sides() {
        let config = Identity::default();
        let check = |p: &str| check(p, "someone.long@example.org", &config);
        assert!(check(&"ä1b2".repeat(3)).is_ok());
        assert!(check("a1b2c3d4e5f").is_err());
        assert!(check(&"ab3x".repeat(32)).is_ok());
        assert!(check(&format!("{}y", "ab3x".repeat(32))).is_err());
        assert!(check("Someone.Long@example.org").is_err());
        assert!(check("Password1234").is_err());
        assert!(COMMON_SET.len() >= 3000, "{}", COMMON_SET.len());
        assert!(COMMON_SET.iter().all(|p| !p.chars().any(char::is_uppercase)));
    }
}
