//! Codes: what a person agreed to, on its way to the client.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use berth_domain::oauth::{CODE, Refusal};
use berth_domain::{Error, Result, Timestamp};
use berth_host::clock::Clock;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::seal::Sealer;

/// What codes are sealed for.
const CONTEXT: &str = "oauth code";

/// What a client gets for a code.
#[derive(Deserialize, Serialize)]
pub(super) struct Granted {
    /// The key.
    pub key: String,
    /// What it is good for, in the protocol's form.
    pub scope: String,
    /// The seconds for which it is.
    pub seconds: i64,
}

/// Who gets it.
#[derive(Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Holder {
    /// The id of the client.
    pub client: String,
    /// Where the person was sent back to.
    pub redirect: String,
}

#[derive(Deserialize, Serialize)]
struct Code {
    id: Uuid,
    until: i64,
    granted: Granted,
    holder: Holder,
    challenge: String,
}

/// Makes codes, and takes each once.
pub(super) struct Codes {
    sealer: Sealer,
    clock: Clock,
    /// Those that were used, and until when they would have been good.
    used: Mutex<HashMap<Uuid, Timestamp>>,
}

impl Codes {
    /// Under this seal.
    pub(super) fn new(sealer: Sealer, clock: Clock) -> Self {
        Self { sealer, clock, used: Mutex::default() }
    }

    /// A code for this, which its holder alone can use who knows what the challenge is the SHA-256 of.
    pub(super) fn make(&self, granted: Granted, holder: Holder, challenge: String) -> Result<String> {
        let until = self.clock.now().plus_seconds(CODE).0;
        let code = Code { id: Uuid::new_v4(), until, granted, holder, challenge };
        self.sealer.seal(CONTEXT, &serde_json::to_vec(&code).map_err(Error::internal)?)
    }

    /// What a code is good for. Whoever tries it with something wrong has used it up.
    ///
    /// # Errors
    /// It is none, over, used, or somebody else's.
    pub(super) fn redeem(&self, text: &str, holder: &Holder, verifier: &str) -> Result<Granted, Refusal> {
        let wrong = |what: &str| Refusal::new("invalid_grant", what);
        let opened = self.sealer.open_sealed(CONTEXT, text).ok();
        let code = opened.and_then(|text| serde_json::from_slice::<Code>(&text).ok());
        let code = code.ok_or_else(|| wrong("The code is none of this service."))?;
        let (now, until) = (self.clock.now(), Timestamp(code.until));
        if until < now || !self.use_up(code.id, until, now) {
            return Err(wrong("The code is over or was used. Ask the person again."));
        }
        let shown = URL_SAFE_NO_PAD.encode(digest(&SHA256, verifier.as_bytes()));
        if shown != code.challenge {
            return Err(wrong("code_verifier does not fit the code_challenge."));
        }
        if code.holder != *holder {
            return Err(wrong("The code was given to another client_id or for another redirect_uri."));
        }
        Ok(code.granted)
    }

    /// Whether a code was not used before; it is now.
    fn use_up(&self, id: Uuid, until: Timestamp, now: Timestamp) -> bool {
        // Nothing in there is left half changed.
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.retain(|_, until| *until >= now);
        used.insert(id, until).is_none()
    }
}
