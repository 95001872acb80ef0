//! Codes: what a person agreed to, until the client fetches it.
//!
//! They are kept in memory for a minute, with the person's sign-in. A client that does not fetch its key, or shows something
//! wrong, leaves none: the key is revoked in the person's name, and then the sign-in ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use axum::http::Method;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use berth_domain::Timestamp;
use berth_domain::oauth::{CODE, Refusal};
use berth_host::clock::Clock;
use tokio::time::sleep;
use uuid::Uuid;

use crate::facade::api::{Api, Asker};

/// What a client gets for a code.
pub(super) struct Granted {
    /// The key.
    pub key: String,
    /// Its path in the API.
    pub path: String,
    /// What it is good for, in the protocol's form.
    pub scope: String,
    /// The seconds for which it is.
    pub seconds: i64,
    /// Who agreed, for as long as they are signed in.
    pub person: Asker,
}

/// Who gets it.
#[derive(PartialEq, Eq)]
pub(super) struct Holder {
    /// The id of the client.
    pub client: String,
    /// Where the person was sent back to.
    pub redirect: String,
}

struct Pending {
    until: Timestamp,
    granted: Granted,
    holder: Holder,
    challenge: String,
}

/// The codes that were not used yet.
pub(super) struct Codes {
    api: Api,
    clock: Clock,
    pending: Mutex<HashMap<String, Pending>>,
}

impl Codes {
    /// None.
    pub(super) fn new(api: Api, clock: Clock) -> Arc<Self> {
        Arc::new(Self { api, clock, pending: Mutex::default() })
    }

    fn take(&self, code: &str) -> Option<Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).remove(code)
    }

    /// A code for this, which its holder alone can use who knows what the challenge is the SHA-256 of.
    pub(super) fn make(self: &Arc<Self>, granted: Granted, holder: Holder, challenge: String) -> String {
        let code = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let until = self.clock.now().plus_seconds(CODE);
        let pending = Pending { until, granted, holder, challenge };
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).insert(code.clone(), pending);
        let (codes, late) = (self.clone(), code.clone());
        tokio::spawn(async move {
            sleep(Duration::from_secs(CODE.unsigned_abs() + 1)).await;
            if let Some(pending) = codes.take(&late) {
                codes.take_back(pending.granted).await;
            }
        });
        code
    }

    /// What a code is good for. Whoever tries it with something wrong has used it up.
    ///
    /// # Errors
    /// It is none, over, used, or somebody else's.
    pub(super) async fn redeem(&self, code: &str, holder: &Holder, verifier: &str) -> Result<Granted, Refusal> {
        let over = "The code is none of this service, or is over, or was used. Ask the person again.";
        let pending = self.take(code).ok_or_else(|| Refusal::new("invalid_grant", over))?;
        let shown = URL_SAFE_NO_PAD.encode(digest(&SHA256, verifier.as_bytes()));
        let wrong = if pending.until < self.clock.now() {
            over
        } else if shown != pending.challenge {
            "code_verifier does not fit the code_challenge."
        } else if pending.holder != *holder {
            "The code was given to another client_id or for another redirect_uri."
        } else {
            self.sign_out(&pending.granted.person).await;
            return Ok(pending.granted);
        };
        self.take_back(pending.granted).await;
        Err(Refusal::new("invalid_grant", wrong))
    }

    /// Revokes a key that nobody fetched.
    async fn take_back(&self, granted: Granted) {
        if let Err(error) = self.api.json(&granted.person, Method::DELETE, &granted.path, None).await {
            tracing::warn!(path = granted.path, %error, "a key that its program did not fetch could not be revoked");
        }
        self.sign_out(&granted.person).await;
    }

    /// Ends a sign-in, which was for this alone.
    pub(super) async fn sign_out(&self, person: &Asker) {
        // It ends by itself, too.
        let _ = self.api.json(person, Method::POST, "/api/v1/auth/logout", None).await;
    }
}
