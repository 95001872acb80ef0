//! `[identity]`: every number of the contract's section 2.

use anyhow::{Result, ensure};
use serde::Deserialize;

/// Accounts, passwords, tokens and their limits.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Identity {
    /// Life of an access token.
    pub access_token_seconds: i64,
    /// Life of a refresh token that is not used.
    pub refresh_idle_seconds: i64,
    /// Life of a session, however often it is refreshed.
    pub refresh_absolute_seconds: i64,
    /// How long a used refresh token still returns its successor.
    pub refresh_grace_seconds: i64,
    /// Fewest characters of a password.
    pub password_min_length: usize,
    /// Most characters of a password.
    pub password_max_length: usize,
    /// Memory of a password hash, in KiB.
    pub argon2_memory_kib: u32,
    /// Passes of a password hash.
    pub argon2_passes: u32,
    /// Lanes of a password hash.
    pub argon2_lanes: u32,
    /// Hashes that may wait for a core before 429.
    pub hash_queue: usize,
    /// Wrong passwords for one account before it has to wait.
    pub login_failures_before_backoff: u32,
    /// First wait of an account.
    pub backoff_first_seconds: u64,
    /// Longest wait of an account.
    pub backoff_max_seconds: u64,
    /// Logins a minute for one client address.
    pub logins_per_minute_per_address: u32,
    /// Requests a minute for one credential; 0 is no limit.
    pub requests_per_minute_per_credential: u32,
    /// Life of a link that sets a new password.
    pub reset_token_seconds: i64,
    /// Life of a link that verifies an address.
    pub email_link_seconds: i64,
    /// Life of a code.
    pub code_seconds: i64,
    /// Wrong tries of a code before it is worth nothing.
    pub code_tries: i64,
    /// Life of an invitation.
    pub invitation_seconds: i64,
    /// Links and codes an hour for one account and purpose; more are not sent.
    pub messages_per_hour: i64,
    /// Days after which access tokens are signed with a new key.
    pub signing_key_days: i64,
    /// Whether the machines of a suspended organization are stopped.
    pub suspension_stops_machines: bool,
    /// Whether an address must be verified before signing in.
    pub require_verified_email: bool,
    /// `iss` of access tokens; the base URL when empty.
    pub issuer: String,
    /// `aud` of access tokens.
    pub audience: String,
}

impl Default for Identity {
    fn default() -> Self {
        const DAY: i64 = 86_400;
        Self {
            access_token_seconds: 3_600,
            refresh_idle_seconds: 14 * DAY,
            refresh_absolute_seconds: 30 * DAY,
            refresh_grace_seconds: 10,
            password_min_length: 12,
            password_max_length: 128,
            argon2_memory_kib: 19_456,
            argon2_passes: 2,
            argon2_lanes: 1,
            hash_queue: 64,
            login_failures_before_backoff: 5,
            backoff_first_seconds: 1,
            backoff_max_seconds: 900,
            logins_per_minute_per_address: 30,
            requests_per_minute_per_credential: 0,
            reset_token_seconds: 1_800,
            email_link_seconds: DAY,
            code_seconds: 600,
            code_tries: 5,
            invitation_seconds: 7 * DAY,
            messages_per_hour: 5,
            signing_key_days: 90,
            suspension_stops_machines: true,
            require_verified_email: false,
            issuer: String::new(),
            audience: "berth".into(),
        }
    }
}

impl Identity {
    pub(super) fn check(&self) -> Result<()> {
        ensure!(self.access_token_seconds > 0, "identity.access_token_seconds must be at least 1");
        ensure!(self.refresh_idle_seconds > 0, "identity.refresh_idle_seconds must be at least 1");
        ensure!(
            self.refresh_absolute_seconds >= self.refresh_idle_seconds,
            "identity.refresh_absolute_seconds must not be less than identity.refresh_idle_seconds"
        );
        ensure!(self.refresh_grace_seconds >= 0, "identity.refresh_grace_seconds must not be negative");
        ensure!(
            (1..=self.password_max_length).contains(&self.password_min_length),
            "identity.password_min_length must be from 1 to identity.password_max_length"
        );
        ensure!(
            self.argon2_memory_kib >= 8 * self.argon2_lanes,
            "identity.argon2_memory_kib must be at least 8 for each lane"
        );
        ensure!(
            self.argon2_passes > 0 && self.argon2_lanes > 0,
            "identity.argon2_passes and argon2_lanes must be at least 1"
        );
        ensure!(self.logins_per_minute_per_address > 0, "identity.logins_per_minute_per_address must be at least 1");
        for (name, value) in [
            ("reset_token_seconds", self.reset_token_seconds),
            ("email_link_seconds", self.email_link_seconds),
            ("code_seconds", self.code_seconds),
            ("code_tries", self.code_tries),
            ("invitation_seconds", self.invitation_seconds),
            ("messages_per_hour", self.messages_per_hour),
            ("signing_key_days", self.signing_key_days),
        ] {
            ensure!(value > 0, "identity.{name} must be at least 1");
        }
        ensure!(!self.audience.is_empty(), "identity.audience must not be empty");
        Ok(())
    }
}
