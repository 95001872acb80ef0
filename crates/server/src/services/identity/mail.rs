//! What people are told, and how it reaches them.
//!
//! The outbox names only what is to be told to whom. The text, with its link or code, is made at the moment
//! of sending, so that no secret lies anywhere but in the message itself.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Context;
use berth_domain::ids::OutboxId;
use berth_domain::{Secret, Timestamp};
use lettre::message::{Body, Mailbox, header};
use lettre::{AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor};
use serde_json::json;

use crate::config::Config;
use crate::private_file;

/// A link and a code that verify an address.
pub const VERIFY_EMAIL: &str = "verify_email";
/// A code that verifies a number.
pub const VERIFY_PHONE: &str = "verify_phone";
/// A link that sets a new password.
pub const RESET_PASSWORD: &str = "reset_password";
/// A link that accepts an invitation.
pub const INVITATION: &str = "invitation";
/// Somebody signed up with an address that has an account.
pub const EMAIL_TAKEN: &str = "email_taken";
/// The account has another address now.
pub const EMAIL_CHANGED: &str = "email_changed";
/// The password was changed.
pub const PASSWORD_CHANGED: &str = "password_changed";

/// How long a server may take for one message.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is told, with everything the text needs.
#[derive(Debug)]
pub enum Letter {
    /// To verify an address.
    VerifyEmail {
        /// The link's token.
        token: Secret,
        /// How long the link is good, in seconds.
        life: i64,
        /// The code.
        code: Secret,
        /// How long the code is good, in seconds.
        code_life: i64,
    },
    /// To verify a number; a text message.
    VerifyPhone {
        /// The code.
        code: Secret,
        /// How long it is good, in seconds.
        life: i64,
    },
    /// To set a new password.
    ResetPassword {
        /// The link's token.
        token: Secret,
        /// How long the link is good, in seconds.
        life: i64,
    },
    /// To join an organization.
    Invitation {
        /// The link's token.
        token: Secret,
        /// How long the link is good, in seconds.
        life: i64,
        /// Name of the organization.
        org: String,
        /// Who invites.
        by: String,
    },
    /// There is an account already.
    EmailTaken,
    /// The account has another address now.
    EmailChanged,
    /// The password was changed.
    PasswordChanged,
}

/// The longest line that SMTP carries (RFC 5321).
const LINE: usize = 998;

/// A body as it is sent. Plain text stays plain: the encoding that the library chooses for lines of more than
/// 76 characters would tear links apart for whoever reads the file itself.
fn encoded(text: String) -> Body {
    if text.is_ascii() && text.lines().all(|line| line.len() <= LINE) {
        let lines = text.replace('\n', "\r\n").into_bytes();
        return Body::dangerous_pre_encoded(lines, header::ContentTransferEncoding::SevenBit);
    }
    Body::new(text)
}

/// So many seconds as people say them, in the largest unit of which there are two at least. A minute that has begun counts:
/// an invitation of seven days is sent a moment after it was made.
fn time(seconds: i64) -> String {
    let seconds = if seconds < 120 { seconds } else { (seconds + 59) / 60 * 60 };
    let units = [(86_400, "days"), (3_600, "hours"), (60, "minutes")];
    let (unit, name) = units.into_iter().find(|(unit, _)| seconds >= 2 * unit).unwrap_or((1, "seconds"));
    format!("{} {name}", seconds / unit)
}

/// Who carries messages.
pub struct Carrier {
    product: String,
    base_url: String,
    from: Mailbox,
    folder: PathBuf,
    smtp: Option<AsyncSmtpTransport<Tokio1Executor>>,
    webhook: Option<Webhook>,
}

/// What sends text messages for us.
struct Webhook {
    url: String,
    token: Secret,
    http: reqwest::Client,
}

impl Webhook {
    /// The one that is configured. A client holds all certificates that this machine trusts, so that there is none
    /// without a webhook.
    fn of(config: &Config) -> anyhow::Result<Option<Self>> {
        let hook = &config.sms;
        if hook.webhook_url.is_empty() {
            return Ok(None);
        }
        let http = reqwest::Client::builder().timeout(PATIENCE).build()?;
        Ok(Some(Self { url: hook.webhook_url.clone(), token: hook.webhook_token.clone(), http }))
    }
}

impl Carrier {
    /// A carrier as configured: files, SMTP, a webhook.
    pub fn new(config: &Config) -> anyhow::Result<Self> {
        let url = &config.mail.smtp_url.0;
        let smtp = if url.is_empty() {
            None
        } else {
            let builder = AsyncSmtpTransport::<Tokio1Executor>::from_url(url);
            // The URL holds a password: the error is told without it.
            let builder = builder.ok().context("mail.smtp_url must be smtp://user:password@host:port or smtps://…")?;
            Some(builder.timeout(Some(PATIENCE)).build())
        };
        Ok(Self {
            product: config.mail.product.clone(),
            base_url: config.base_url.clone(),
            from: config.mail.from.parse().context("mail.from is not an address")?,
            folder: config.data_dir.join("outbox"),
            smtp,
            webhook: Webhook::of(config)?,
        })
    }

    /// Sends a message. The reason of a failure is for the operator.
    pub async fn send(&self, id: OutboxId, recipient: &str, letter: &Letter) -> Result<(), String> {
        match letter {
            Letter::VerifyPhone { code, life } => self.text(id, recipient, code, *life).await,
            letter => self.mail(id, recipient, letter).await,
        }
    }

    async fn text(&self, id: OutboxId, number: &str, code: &Secret, life: i64) -> Result<(), String> {
        let text = format!("{} is your code for {}. It ends in {}.", code.0, self.product, time(life));
        let Some(Webhook { url, token, http }) = &self.webhook else {
            return self.keep(&format!("{id}.sms.txt"), format!("To: {number}\n\n{text}\n").into()).await;
        };
        let mut request = http.post(url).json(&json!({"id": id, "to": number, "text": text}));
        if !token.0.is_empty() {
            request = request.bearer_auth(&token.0);
        }
        let answer = request.send().await.map_err(|e| e.without_url().to_string())?;
        answer.error_for_status().map(drop).map_err(|e| e.without_url().to_string())
    }

    async fn mail(&self, id: OutboxId, address: &str, letter: &Letter) -> Result<(), String> {
        let (subject, body) = self.words(letter);
        let message = Message::builder()
            .from(self.from.clone())
            .to(address.parse().map_err(|_| "the address cannot be written to".to_owned())?)
            .subject(subject)
            .message_id(Some(format!("<{id}@berth>")))
            .header(header::ContentType::TEXT_PLAIN)
            .body(encoded(body))
            .map_err(|e| e.to_string())?;
        match &self.smtp {
            Some(smtp) => smtp.send(message).await.map(drop).map_err(|e| e.to_string()),
            None => self.keep(&format!("{id}.eml"), message.formatted()).await,
        }
    }

    /// Writes a file, whole or not at all. Whoever reads its link or code acts for its receiver, so that nobody else may.
    async fn keep(&self, name: &str, bytes: Vec<u8>) -> Result<(), String> {
        let file = self.folder.join(name);
        let written = async {
            tokio::fs::create_dir_all(&self.folder).await?;
            tokio::task::spawn_blocking(move || private_file::write(&file, &bytes)).await?
        };
        written.await.map_err(|e: io::Error| format!("the outbox folder cannot be written: {e}"))
    }

    /// Removes the messages in the folder that were written before this: their links ended long ago.
    pub async fn forget(&self, before: Timestamp) -> Result<(), String> {
        let before = UNIX_EPOCH + Duration::from_micros(before.0.try_into().unwrap_or_default());
        let removed = async {
            let mut files = tokio::fs::read_dir(&self.folder).await?;
            while let Some(file) = files.next_entry().await? {
                // What a crash left half written holds a link, too.
                let path = file.path();
                let is_message = matches!(path.extension().and_then(OsStr::to_str), Some("eml" | "txt" | "part"));
                if is_message && file.metadata().await?.modified()? < before {
                    tokio::fs::remove_file(path).await?;
                }
            }
            Ok::<_, io::Error>(())
        };
        match removed.await {
            // None was written yet, or somebody else removed one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(|e| format!("the outbox folder cannot be tidied: {e}")),
        }
    }

    /// Subject and text of a mail. Lines stay below 78 characters and ASCII where they are ours, so that
    /// links survive every mail program.
    fn words(&self, letter: &Letter) -> (String, String) {
        let (product, url) = (&self.product, &self.base_url);
        let link = |page: &str, token: &Secret| format!("{url}/account/{page}?token={}", token.0);
        let (subject, text) = match letter {
            Letter::VerifyEmail { token, life, code, code_life } => (
                format!("Verify your address for {product}"),
                format!(
                    "Somebody, hopefully you, has an account at {product} with this address.\n\n\
                     Open this link within {} to verify the address:\n\n{}\n\n\
                     Or type this code within {}:\n\n{}\n\nIf it was not you, do nothing.",
                    time(*life),
                    link("verify", token),
                    time(*code_life),
                    code.0
                ),
            ),
            Letter::ResetPassword { token, life } => (
                format!("A new password for {product}"),
                format!(
                    "Somebody, hopefully you, forgot the password of your account at {product}.\n\n\
                     Open this link within {} to choose a new one:\n\n{}\n\n\
                     Every session will end. If it was not you, do nothing.",
                    time(*life),
                    link("reset", token)
                ),
            ),
            Letter::Invitation { token, life, org, by } => (
                format!("{by} invites you to {org} at {product}"),
                format!(
                    "{by} invites you to join {org} at {product}.\n\n\
                     Open this link within {} to accept, with or without an account:\n\n{}\n\n\
                     If you do not want to, do nothing.",
                    time(*life),
                    link("invitation", token)
                ),
            ),
            Letter::EmailTaken => (
                format!("You have an account at {product}"),
                format!(
                    "Somebody, perhaps you, signed up at {product} with this address. There is an\n\
                     account with it already. Sign in, or choose a new password here:\n\n{url}/account/forgot\n\n\
                     If it was not you, do nothing."
                ),
            ),
            Letter::EmailChanged => (
                format!("Your account at {product} has another address"),
                format!(
                    "Your account at {product} has another address from now on; this one will get\n\
                     no more mail. If it was not you, write to the operator of {product} at once."
                ),
            ),
            Letter::PasswordChanged => (
                format!("Your password for {product} was changed"),
                format!(
                    "The password of your account at {product} was changed.\n\n\
                     If it was not you, choose a new one here, which ends every session:\n\n{url}/account/forgot"
                ),
            ),
            Letter::VerifyPhone { code, .. } => (format!("Your code for {product}"), code.0.clone()),
        };
        (subject, format!("Hello,\n\n{text}\n\n-- \n{product}, {url}\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn times_are_told_in_a_unit_of_which_there_are_two() {
        let told = [1, 119, 120, 600, 1_800, 7_140, 7_141, 86_400, 172_740, 172_800, 7 * 86_400 - 1].map(time);
        let expected = [
            "1 seconds",
            "119 seconds",
            "2 minutes",
            "10 minutes",
            "30 minutes",
            "119 minutes",
            "2 hours",
            "24 hours",
            "47 hours",
            "2 days",
            "7 days",
        ];
        assert_eq!(told, expected);
    }
}
