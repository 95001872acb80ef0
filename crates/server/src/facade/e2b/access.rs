//! Who may work inside a sandbox: tokens that its SDK was given, and addresses that were signed with them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use berth_domain::e2b::signature::{EXPIRED, Operation, Signed};
use berth_domain::e2b::token::{self, Purpose};
use berth_domain::ids::{KeyId, SandboxId};
use berth_domain::{Code, Error, Result};
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::http::auth::{Gate, Right};
use crate::seal::Sealer;
use crate::services::sandbox::Sandboxes;

/// How long the tokens of all sandboxes are believed to be all there are: who looks for the sandbox of an address that names
/// none needs them all, and needs no credential to ask.
const BELIEVED: Duration = Duration::from_millis(500);
/// How long somebody waits for others who look for theirs.
const PATIENCE: Duration = Duration::from_secs(5);
/// Tokens that are tried before others get their turn: a few milliseconds.
const TURN: usize = 2000;

/// A token, and whose it is.
struct Issued {
    sandbox: SandboxId,
    key: KeyId,
    token: String,
}

/// Makes and judges tokens.
pub struct Access {
    sealer: Sealer,
    gate: Arc<dyn Gate>,
    sandboxes: Sandboxes,
    /// The tokens of all sandboxes, and since when.
    all: Mutex<Option<(Instant, Arc<Vec<Issued>>)>>,
}

impl Access {
    /// Over the keys of the database's secrets, the keys of projects, and the sandboxes.
    pub fn new(sealer: Sealer, gate: Arc<dyn Gate>, sandboxes: Sandboxes) -> Self {
        Self { sealer, gate, sandboxes, all: Mutex::default() }
    }

    /// The token of a key for a sandbox.
    pub fn token(&self, sandbox: SandboxId, key: KeyId, purpose: Purpose) -> Result<String> {
        Ok(token::written(key, &self.sealer.mac(token::subject(sandbox, key, purpose).as_bytes())?))
    }

    /// The key that a token for a sandbox was given to; none where it is no such token.
    pub fn key(&self, sandbox: SandboxId, text: &str, purpose: Purpose) -> Option<KeyId> {
        let (key, mac) = token::read(text)?;
        self.sealer.is_mac(token::subject(sandbox, key, purpose).as_bytes(), mac).then_some(key)
    }

    /// Whose token a signature was made with: of this sandbox, or of any that lives.
    ///
    /// # Errors
    /// 401 where it was made with none, or is over; 429 where too many look for theirs.
    pub async fn signer(
        &self,
        sandbox: Option<SandboxId>,
        operation: Operation,
        signed: &Signed,
    ) -> Result<(SandboxId, KeyId)> {
        // Who comes too late is told so without a look.
        if signed.is_over(self.sandboxes.clock().now()) {
            return Err(Error::new(Code::Unauthorized, EXPIRED));
        }
        let issued = match sandbox {
            Some(_) => Arc::new(self.issued(sandbox).await?),
            None => self.all().await?,
        };
        let (before, behind) = signed.around(operation);
        let before = Sha256::new_with_prefix(before);
        let is_signer = |one: &&Issued| {
            let digest = before.clone().chain_update(&one.token).chain_update(&behind).finalize();
            is_same(&STANDARD_NO_PAD.encode(digest), &signed.digest)
        };
        for turn in issued.chunks(TURN) {
            if let Some(found) = turn.iter().find(is_signer) {
                return Ok((found.sandbox, found.key));
            }
            tokio::task::yield_now().await;
        }
        Err(Error::new(Code::Unauthorized, "invalid signature"))
    }

    /// The tokens of all sandboxes, made anew at most twice a second.
    async fn all(&self) -> Result<Arc<Vec<Issued>>> {
        let busy =
            || Error::new(Code::TooMany, "Too many files are asked for by their addresses alone.").retry_after(1);
        let mut all = timeout(PATIENCE, self.all.lock()).await.map_err(|_| busy())?;
        if let Some((_, issued)) = all.as_ref().filter(|(since, _)| since.elapsed() < BELIEVED) {
            return Ok(issued.clone());
        }
        let issued = Arc::new(self.issued(None).await?);
        *all = Some((Instant::now(), issued.clone()));
        Ok(issued)
    }

    /// The tokens of a sandbox, or of all that live.
    async fn issued(&self, only: Option<SandboxId>) -> Result<Vec<Issued>> {
        let mut issued = Vec::new();
        let mut keys = HashMap::new();
        for (sandbox, project) in self.sandboxes.living(only).await? {
            if let Entry::Vacant(entry) = keys.entry(project) {
                entry.insert(self.gate.keys_of(project, Sandboxes::SCOPES).await?);
            }
            for key in keys.get(&project).into_iter().flatten() {
                let subject = token::subject(sandbox, *key, Purpose::Inside);
                let tokens = self.sealer.macs(subject.as_bytes()).into_iter().map(|mac| token::written(*key, &mac));
                issued.extend(tokens.map(|token| Issued { sandbox, key: *key, token }));
            }
            if issued.len() % TURN == 0 {
                tokio::task::yield_now().await;
            }
        }
        Ok(issued)
    }
}

/// Compares without telling by the time it takes how much is the same.
fn is_same(own: &str, given: &str) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(own.as_bytes(), given.as_bytes()).is_ok()
}
