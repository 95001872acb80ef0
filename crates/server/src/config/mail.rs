//! `[mail]` and `[sms]`: how messages reach people.

use anyhow::{Result, ensure};
use serde::Deserialize;

use berth_domain::Secret;

/// Mail. Without an SMTP server, every mail is a file in the data folder's `outbox`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mail {
    /// The platform's name in every text.
    pub product: String,
    /// The sender, like `Berth <berth@example.com>`.
    pub from: String,
    /// `smtp://user:password@host:587?tls=required` or `smtps://…`; also from `BERTH_SMTP_URL`.
    pub smtp_url: Secret,
}

impl Default for Mail {
    fn default() -> Self {
        Self { product: "Berth".into(), from: "Berth <berth@localhost>".into(), smtp_url: Secret::default() }
    }
}

impl Mail {
    pub(super) fn check(&self) -> Result<()> {
        ensure!(!self.product.trim().is_empty(), "mail.product must not be empty");
        ensure!(
            self.from.parse::<lettre::message::Mailbox>().is_ok(),
            "mail.from must be an address, like \"Berth <berth@example.com>\""
        );
        Ok(())
    }
}

/// Text messages. Without a webhook, every message is a file in the data folder's `outbox`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sms {
    /// The URL that gets `{id, to, text}` as JSON, by POST.
    pub webhook_url: String,
    /// Sent to it as a bearer token; also from `BERTH_SMS_WEBHOOK_TOKEN`.
    pub webhook_token: Secret,
}

impl Sms {
    pub(super) fn check(&self) -> Result<()> {
        let url = &self.webhook_url;
        let good = url.is_empty() || url.starts_with("http://") || url.starts_with("https://");
        ensure!(good, "sms.webhook_url must be an http or https URL");
        Ok(())
    }
}
