//! `[identity]`: every number of the contract's section 2.

use anyhow::{Result, ensure};
use berth_domain::identity::password::Rules;
use serde::Deserialize;

/// What a person needs a verified address for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Setting")]
pub enum VerifiedEmail {
    /// Nothing, while the service listens on loopback only; else as [`Self::Acting`].
    #[default]
    ByListener,
    /// Nothing: `"never"`.
    Never,
    /// API keys and invitations: `false`.
    Acting,
    /// Those, and signing in: `true`.
    SignIn,
}

/// The setting as the file has it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Setting {
    Flag(bool),
    Word(String),
}

impl TryFrom<Setting> for VerifiedEmail {
    type Error = String;

    fn try_from(setting: Setting) -> Result<Self, String> {
        match setting {
            Setting::Flag(true) => Ok(Self::SignIn),
            Setting::Flag(false) => Ok(Self::Acting),
            Setting::Word(word) if word == "never" => Ok(Self::Never),
            Setting::Word(word) => {
                Err(format!("identity.require_verified_email is '{word}'; it must be true, false or \"never\""))
            }
        }
    }
}

/// Who may sign up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SignUpMode {
    /// Everybody.
    Open,
    /// People with an invitation to an organization.
    Invited,
    /// Nobody: administrators make accounts.
    Closed,
}

impl SignUpMode {
    /// The mode and its meaning, for the operator.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Open => "open: everybody who can reach the service may sign up",
            Self::Invited => "invited: people with an invitation may sign up",
            Self::Closed => "closed: nobody may sign up; administrators make accounts",
        }
    }
}

/// Accounts, passwords, tokens and their limits.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Identity {
    /// Life of an access token.
    pub access_token_seconds: i64,
    /// Life of an unused refresh token.
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
    /// Hashes of accounts' passwords that may wait for a core before 429.
    pub hash_queue: usize,
    /// The same for sign-ups, which have a queue of their own.
    pub signup_hash_queue: usize,
    /// Who may sign up; by default `open` where only this machine reaches the service, else `invited`.
    pub signup: Option<SignUpMode>,
    /// Wrong passwords for one account from one network before that network has to wait.
    pub login_failures_before_backoff: u32,
    /// Wrong passwords in a row for one account, from all networks, before every network has to wait from which the
    /// account did not sign in.
    pub login_failures_ceiling: u32,
    /// First wait of an account.
    pub backoff_first_seconds: u64,
    /// Longest wait of an account.
    pub backoff_max_seconds: u64,
    /// Logins a minute for one network: an IPv4 address, or an IPv6 /64.
    pub logins_per_minute_per_address: u32,
    /// Sign-ups a minute for one network; as many as logins when absent.
    pub signups_per_minute_per_network: Option<u32>,
    /// Mails a minute that one network may cause without being signed in; as many as logins when absent.
    pub messages_per_minute_per_network: Option<u32>,
    /// Links and codes of mails a minute that one network may present; as many as logins when absent.
    pub proofs_per_minute_per_network: Option<u32>,
    /// Exchanges of refresh tokens a minute for one network; ten times as many as logins when absent.
    pub refreshes_per_minute_per_network: Option<u32>,
    /// Exchanges of refresh tokens an hour for one session.
    pub refreshes_per_hour_per_session: u32,
    /// Sign-ups an hour with one address, and codes an hour tried for it.
    pub tries_per_hour_per_recipient: u32,
    /// Invitations an hour that one person may send, repeated ones included.
    pub invitations_per_hour: u32,
    /// Requests a minute for one credential; 0 is no limit.
    pub requests_per_minute_per_credential: u32,
    /// Life of a link that sets a new password.
    pub reset_token_seconds: i64,
    /// Life of a link that verifies an address.
    pub email_link_seconds: i64,
    /// Life of a code.
    pub code_seconds: i64,
    /// Wrong tries after which a code is void.
    pub code_tries: i64,
    /// Life of an invitation.
    pub invitation_seconds: i64,
    /// Messages an hour to one recipient for one purpose. Beyond that, invitations wait and other messages are not
    /// sent.
    pub messages_per_hour: i64,
    /// Days for which ended sessions are kept, with their refresh tokens.
    pub ended_sessions_days: i64,
    /// Days for which messages are kept after they were sent or given up, and links and codes after they ended.
    pub settled_messages_days: i64,
    /// Days after which access tokens are signed with a new key.
    pub signing_key_days: i64,
    /// Whether the machines of a suspended organization are stopped.
    pub suspension_stops_machines: bool,
    /// What a person needs a verified address for.
    pub require_verified_email: VerifiedEmail,
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
            signup_hash_queue: 16,
            signup: None,
            login_failures_before_backoff: 5,
            login_failures_ceiling: 100,
            backoff_first_seconds: 1,
            backoff_max_seconds: 900,
            logins_per_minute_per_address: 30,
            signups_per_minute_per_network: None,
            messages_per_minute_per_network: None,
            proofs_per_minute_per_network: None,
            refreshes_per_minute_per_network: None,
            refreshes_per_hour_per_session: 120,
            tries_per_hour_per_recipient: 30,
            invitations_per_hour: 50,
            requests_per_minute_per_credential: 0,
            reset_token_seconds: 1_800,
            email_link_seconds: DAY,
            code_seconds: 600,
            code_tries: 5,
            invitation_seconds: 7 * DAY,
            messages_per_hour: 5,
            ended_sessions_days: 90,
            settled_messages_days: 7,
            signing_key_days: 90,
            suspension_stops_machines: true,
            require_verified_email: VerifiedEmail::ByListener,
            issuer: String::new(),
            audience: "berth".into(),
        }
    }
}

impl Identity {
    /// Fills in the defaults that depend on where the service listens.
    pub(super) const fn complete(&mut self, on_loopback: bool) {
        if matches!(self.require_verified_email, VerifiedEmail::ByListener) {
            self.require_verified_email = if on_loopback { VerifiedEmail::Never } else { VerifiedEmail::Acting };
        }
    }

    /// What is asked of passwords.
    pub const fn password_rules(&self) -> Rules {
        Rules { least: self.password_min_length, most: self.password_max_length }
    }

    /// Sign-ups a minute for one network.
    pub fn signups_per_minute(&self) -> u32 {
        self.signups_per_minute_per_network.unwrap_or(self.logins_per_minute_per_address)
    }

    /// Mails a minute that one network may cause.
    pub fn messages_per_minute(&self) -> u32 {
        self.messages_per_minute_per_network.unwrap_or(self.logins_per_minute_per_address)
    }

    /// Links and codes a minute that one network may present.
    pub fn proofs_per_minute(&self) -> u32 {
        self.proofs_per_minute_per_network.unwrap_or(self.logins_per_minute_per_address)
    }

    /// Exchanges of refresh tokens a minute for one network.
    pub fn refreshes_per_minute(&self) -> u32 {
        self.refreshes_per_minute_per_network.unwrap_or(self.logins_per_minute_per_address.saturating_mul(10))
    }

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
        for (name, value) in [
            ("logins_per_minute_per_address", self.logins_per_minute_per_address),
            ("signups_per_minute_per_network", self.signups_per_minute()),
            ("messages_per_minute_per_network", self.messages_per_minute()),
            ("proofs_per_minute_per_network", self.proofs_per_minute()),
            ("refreshes_per_minute_per_network", self.refreshes_per_minute()),
            ("refreshes_per_hour_per_session", self.refreshes_per_hour_per_session),
            ("tries_per_hour_per_recipient", self.tries_per_hour_per_recipient),
            ("invitations_per_hour", self.invitations_per_hour),
            ("login_failures_before_backoff", self.login_failures_before_backoff),
        ] {
            ensure!(value > 0, "identity.{name} must be at least 1");
        }
        ensure!(
            self.login_failures_ceiling >= self.login_failures_before_backoff,
            "identity.login_failures_ceiling must not be less than identity.login_failures_before_backoff"
        );
        for (name, value) in [
            ("reset_token_seconds", self.reset_token_seconds),
            ("email_link_seconds", self.email_link_seconds),
            ("code_seconds", self.code_seconds),
            ("code_tries", self.code_tries),
            ("invitation_seconds", self.invitation_seconds),
            ("messages_per_hour", self.messages_per_hour),
            ("signing_key_days", self.signing_key_days),
            ("ended_sessions_days", self.ended_sessions_days),
            ("settled_messages_days", self.settled_messages_days),
        ] {
            ensure!(value > 0, "identity.{name} must be at least 1");
        }
        ensure!(!self.audience.is_empty(), "identity.audience must not be empty");
        Ok(())
    }
}
