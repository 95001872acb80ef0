//! Referrals: your code, and the people who signed up with it.

use anyhow::Result;
use berth_client::Referral;
use clap::Subcommand;

use crate::context::Context;
use crate::output::{self, Table};
use crate::page::PageArgs;

#[derive(Subcommand)]
pub enum ReferralCommand {
    /// Show your code, and a link for signing up with it
    Code,
    /// List the people who signed up with your code
    #[command(visible_alias = "ls")]
    List(PageArgs),
}

/// Runs the typed command.
pub async fn run(context: &Context, command: Option<ReferralCommand>) -> Result<()> {
    match command.unwrap_or(ReferralCommand::Code) {
        ReferralCommand::Code => {
            let code = context.client.referral_code().await?;
            output::print(context.look, &code, &code.code, &code.code, |code| {
                output::fields(&[("code", code.code.clone()), ("link", code.url.clone())]);
            })
        }
        ReferralCommand::List(page) => output::list(context.look, &context.client.referrals(page.into()).await?, show),
    }
}

fn show(referrals: &[Referral]) -> Table {
    let rows = referrals.iter().map(|r| [r.email.clone(), r.status.clone(), output::age(&r.created_at), r.id.clone()]);
    Table::new(["ADDRESS", "STATUS", "AGE", "ID"], rows, "Nobody yet. Hand out your link: berth referral code")
}
