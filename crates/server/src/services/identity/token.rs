//! Tokens: signed access tokens, opaque refresh tokens.
//!
//! Access tokens are JWTs of one algorithm, EdDSA, and one type, `at+jwt`; everything else is refused
//! before it is looked at further (RFC 8725). Refresh tokens are random; at rest there is only their
//! hash, and the successor of a used one sealed with a key that only the used one yields.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::rand;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use berth_domain::hex;
use berth_domain::identity::api_key;
use berth_domain::ids::{SessionId, UserId};
use berth_domain::{Error, Result, Secret, Timestamp};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::store::signing_key::SigningKeyRow;
use crate::http::auth::unauthorized;

/// The type of access tokens (RFC 9068).
const TYPE: &str = "at+jwt";

/// What an access token says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Claims {
    /// Who issued it.
    pub iss: String,
    /// Whom it is for.
    pub aud: String,
    /// The person.
    pub sub: UserId,
    /// The session.
    pub sid: SessionId,
    /// Its own number.
    pub jti: String,
    /// When it was issued, in seconds.
    pub iat: i64,
    /// When it ends, in seconds.
    pub exp: i64,
}

/// Signs and verifies access tokens.
pub struct Signer {
    kid: String,
    encoding: EncodingKey,
    verifying: Vec<(String, DecodingKey)>,
    issuer: Issuer,
    audience: String,
    jwks: String,
}

/// Who issues access tokens.
#[derive(Clone, Debug)]
pub struct Issuer {
    /// In whose name this service does.
    pub name: String,
    /// Whether others do, over the same database: replicas, each by the address that it is configured with. Nobody else has its keys.
    pub is_one_of_several: bool,
}

/// Makes a new signing key. Its secret is in clear: it is sealed before it is written.
pub fn new_key(now: Timestamp) -> Result<SigningKeyRow> {
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&rand::SystemRandom::new()).map_err(Error::internal)?;
    let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).map_err(Error::internal)?;
    let public = pair.public_key().as_ref();
    Ok(SigningKeyRow {
        kid: hex::encode(&Sha256::digest(public)[..8]),
        secret: STANDARD.encode(pkcs8.as_ref()),
        public: URL_SAFE_NO_PAD.encode(public),
        created_at: now,
    })
}

impl Signer {
    /// A signer over the keys, newest first: the newest signs, by its secret, and all of them verify.
    pub fn new(keys: &[SigningKeyRow], secret: &Secret, issuer: &Issuer, audience: &str) -> Result<Self> {
        let newest = keys.first().ok_or_else(|| Error::internal("no signing key"))?;
        let secret = STANDARD.decode(&secret.0).map_err(Error::internal)?;
        let verifying = keys.iter().map(|key| {
            let decoding = DecodingKey::from_ed_components(&key.public).map_err(Error::internal)?;
            Ok((key.kid.clone(), decoding))
        });
        let jwks = serde_json::json!({"keys": keys.iter().map(|key| serde_json::json!({
            "kty": "OKP", "crv": "Ed25519", "use": "sig", "alg": "EdDSA", "kid": key.kid, "x": key.public,
        })).collect::<Vec<_>>()});
        Ok(Self {
            kid: newest.kid.clone(),
            encoding: EncodingKey::from_ed_der(&secret),
            verifying: verifying.collect::<Result<_>>()?,
            issuer: issuer.clone(),
            audience: audience.to_owned(),
            jwks: jwks.to_string(),
        })
    }

    /// Whether a token names a key that is not among these.
    pub fn misses_key_of(&self, token: &str) -> bool {
        admissible(token).is_some_and(|kid| !self.verifying.iter().any(|(known, _)| *known == kid))
    }

    /// The public keys as a JSON Web Key Set.
    pub fn jwks(&self) -> &str {
        &self.jwks
    }

    /// An access token.
    pub fn sign(&self, user: UserId, session: SessionId, now: Timestamp, seconds: i64) -> Result<String> {
        let mut header = Header::new(Algorithm::EdDSA);
        header.typ = Some(TYPE.into());
        header.kid = Some(self.kid.clone());
        let claims = Claims {
            iss: self.issuer.name.clone(),
            aud: self.audience.clone(),
            sub: user,
            sid: session,
            jti: uuid::Uuid::now_v7().to_string(),
            iat: now.seconds(),
            exp: now.seconds() + seconds,
        };
        jsonwebtoken::encode(&header, &claims, &self.encoding).map_err(Error::internal)
    }

    /// What a token says, if it is one of ours and has not ended.
    pub fn verify(&self, token: &str, now: Timestamp) -> Result<Claims> {
        let kid = admissible(token).ok_or_else(unauthorized)?;
        let (_, key) = self.verifying.iter().find(|(known, _)| *known == kid).ok_or_else(unauthorized)?;
        let mut rules = Validation::new(Algorithm::EdDSA);
        rules.set_audience(&[&self.audience]);
        if !self.issuer.is_one_of_several {
            rules.set_issuer(&[&self.issuer.name]);
        }
        rules.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        // The end is compared with our own clock below.
        rules.validate_exp = false;
        let claims = jsonwebtoken::decode::<Claims>(token, key, &rules).map_err(|_| unauthorized())?.claims;
        if claims.exp <= now.seconds() { Err(unauthorized()) } else { Ok(claims) }
    }
}

/// The key's name of a token whose header is exactly what ours are.
fn admissible(token: &str) -> Option<String> {
    let header = URL_SAFE_NO_PAD.decode(token.split('.').next()?).ok()?;
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&header).ok()?;
    let text = |name: &str| header.get(name)?.as_str();
    let known = header.keys().all(|name| matches!(name.as_str(), "alg" | "typ" | "kid"));
    (known && text("alg") == Some("EdDSA") && text("typ") == Some(TYPE)).then(|| text("kid").map(str::to_owned))?
}

/// A new API key: its public part, and the whole.
pub fn new_api_key() -> Result<(String, String)> {
    // Of 256 values 248 serve, so twice as many as needed suffice but for once in many ages.
    let mut bytes = [0; 128];
    rand::fill(&mut bytes).map_err(Error::internal)?;
    let mut random = bytes.into_iter();
    let public = api_key::characters(&mut random, api_key::PUBLIC);
    let secret = api_key::characters(&mut random, api_key::SECRET);
    let (public, secret) = public.zip(secret).ok_or_else(|| Error::internal("not enough randomness"))?;
    let key = api_key::compose(&public, &secret);
    Ok((public, key))
}

/// A new referral code: eight characters.
pub fn new_referral_code() -> Result<String> {
    let mut bytes = [0; 64];
    rand::fill(&mut bytes).map_err(Error::internal)?;
    api_key::characters(&mut bytes.into_iter(), 8).ok_or_else(|| Error::internal("not enough randomness"))
}

/// A new code of six digits.
pub fn new_code() -> Result<String> {
    let mut bytes = [0; 8];
    rand::fill(&mut bytes).map_err(Error::internal)?;
    // The bias of 2^64 modulo 10^6 is below 10^-13.
    Ok(format!("{:06}", u64::from_le_bytes(bytes) % 1_000_000))
}

/// What of a code is at rest: bound to its row, so that equal codes differ.
pub fn hash_code(row: &str, code: &str) -> String {
    hash(&format!("{row}:{code}"))
}

/// A new token of 256 bits: for refreshing, and for links in mails.
pub fn new_opaque() -> Result<String> {
    let mut bytes = [0; 32];
    rand::fill(&mut bytes).map_err(Error::internal)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// What of a token, a link or a key is at rest.
pub fn hash(token: &str) -> String {
    hex::encode(&Sha256::digest(token.as_bytes()))
}

/// The key that a used token yields for sealing its successor.
fn sealing(token: &str) -> Result<LessSafeKey> {
    let key = Sha256::new().chain_update(b"berth refresh successor").chain_update(token.as_bytes()).finalize();
    Ok(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).map_err(Error::internal)?))
}

/// Seals a successor. The key serves once, so its nonce may be fixed.
pub fn seal(token: &str, successor: &str) -> Result<String> {
    let mut text = successor.as_bytes().to_vec();
    let nonce = Nonce::assume_unique_for_key([0; NONCE_LEN]);
    sealing(token)?.seal_in_place_append_tag(nonce, Aad::empty(), &mut text).map_err(Error::internal)?;
    Ok(URL_SAFE_NO_PAD.encode(text))
}

/// Opens a sealed successor.
pub fn open(token: &str, sealed: &str) -> Result<String> {
    let mut text = URL_SAFE_NO_PAD.decode(sealed).map_err(Error::internal)?;
    let nonce = Nonce::assume_unique_for_key([0; NONCE_LEN]);
    let plain = sealing(token)?.open_in_place(nonce, Aad::empty(), &mut text).map_err(Error::internal)?;
    String::from_utf8(plain.to_vec()).map_err(Error::internal)
}

/// A password for the first administrator.
pub fn new_password() -> Result<String> {
    let mut bytes = [0; 15];
    rand::fill(&mut bytes).map_err(Error::internal)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_take_what_each_other_issued_and_a_service_alone_what_it_did() {
        let key = new_key(Timestamp(0)).expect("a key");
        let secret = Secret(key.secret.clone());
        let signer = |name: &str, is_one_of_several| {
            let issuer = Issuer { name: name.into(), is_one_of_several };
            Signer::new(std::slice::from_ref(&key), &secret, &issuer, "berth").expect("a signer")
        };
        let token = |signer: &Signer| {
            let ids = (UserId(uuid::Uuid::now_v7()), SessionId(uuid::Uuid::now_v7()));
            signer.sign(ids.0, ids.1, Timestamp(0), 60).expect("a token")
        };
        let (alpha, beta) = (signer("http://10.77.0.1", true), signer("http://10.77.0.2", true));
        let alone = signer("http://10.77.0.3", false);
        assert_eq!(beta.verify(&token(&alpha), Timestamp(0)).expect("a replica's").iss, "http://10.77.0.1");
        assert!(beta.verify(&token(&alone), Timestamp(0)).is_ok(), "of what it was before it was one of several");
        assert!(alone.verify(&token(&alone), Timestamp(0)).is_ok());
        assert!(alone.verify(&token(&alpha), Timestamp(0)).is_err());
    }
}
