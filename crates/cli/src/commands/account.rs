//! One's own account: name, address, number, password, sessions.

use anyhow::Result;
use berth_client::{ChangeUser, Client, Session};
use clap::{Args, Subcommand};

use super::session;
use crate::cli::{Global, PageArgs};
use crate::context::{Context, address};
use crate::credentials::Credentials;
use crate::failure::Failure;
use crate::{output, pick, prompt};

#[derive(Subcommand)]
pub enum AccountCommand {
    /// Change name, phone number or address; the address wants the password
    Update(UpdateArgs),
    /// Delete the account, with the organizations that are nobody else's and empty
    Delete {
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Change the password; BERTH_PASSWORD and BERTH_NEW_PASSWORD answer for a program
    Password,
    /// Verify the address or a phone number; without a token or code, ask for another mail
    Verify(VerifyArgs),
    /// List your sessions
    Sessions(PageArgs),
    /// End one of your sessions
    EndSession {
        /// Id: berth account sessions
        session: String,
    },
    /// Ask for a mail that sets a new password
    Forgot {
        /// Your address
        email: String,
    },
    /// Set a new password by the mail's link
    Reset {
        /// The link, or the token in it
        token: String,
    },
}

#[derive(Args)]
#[group(required = true, multiple = true)]
pub struct UpdateArgs {
    /// Your name
    #[arg(long)]
    name: Option<String>,
    /// Your phone number, as +4930123456
    #[arg(long)]
    phone: Option<String>,
    /// Your address
    #[arg(long)]
    email: Option<String>,
}

#[derive(Args)]
pub struct VerifyArgs {
    /// The link of the mail, or the token in it
    #[arg(conflicts_with_all = ["code", "email", "phone"])]
    token: Option<String>,
    /// The code of the mail or the text message
    #[arg(long)]
    code: Option<String>,
    /// The address; by default yours
    #[arg(long, conflicts_with = "phone")]
    email: Option<String>,
    /// A phone number instead of the address
    #[arg(long, value_name = "NUMBER")]
    phone: Option<String>,
}

/// Does what was typed.
pub async fn run(global: &Global, command: AccountCommand) -> Result<()> {
    let person = || Context::person(global);
    match command {
        AccountCommand::Update(args) => update(&person()?, args).await,
        AccountCommand::Delete { yes } => delete(&person()?, yes).await,
        AccountCommand::Password => change_password(&person()?).await,
        AccountCommand::Verify(args) => match &args.phone {
            Some(phone) => verify_phone(&person()?, phone, args.code.as_deref()).await,
            None => verify(global, args).await,
        },
        AccountCommand::Sessions(page) => {
            let context = person()?;
            let sessions = context.client.sessions(page.into()).await?;
            output::list(context.json, &sessions, show_sessions)
        }
        AccountCommand::EndSession { session } => {
            let context = person()?;
            context.client.end_session(&session).await?;
            say(&context, "The session is over.");
            Ok(())
        }
        AccountCommand::Forgot { email } => {
            anybody(global)?.forgot_password(&email).await?;
            println!("If {email} has an account, a mail is on its way. Type: berth account reset LINK");
            Ok(())
        }
        AccountCommand::Reset { token } => {
            anybody(global)?.reset_password(pick::token(&token), &prompt::new_password()?).await?;
            println!("The password is set and every session is over. Type: berth login");
            Ok(())
        }
    }
}

/// The service, for what needs no sign-in.
fn anybody(global: &Global) -> Result<Client> {
    Ok(Client::new(&address(global, None)?)?)
}

fn say(context: &Context, text: &str) {
    if !context.json {
        println!("{text}");
    }
}

async fn update(context: &Context, args: UpdateArgs) -> Result<()> {
    let current_password = match &args.email {
        Some(_) => Some(prompt::password(prompt::PASSWORD, "Password: ")?),
        None => None,
    };
    let change = ChangeUser { name: args.name, phone: args.phone, email: args.email, current_password };
    let me = context.client.update_me(&change).await?;
    if change.email.is_some() {
        context.keep(|kept| kept.email.clone_from(&me.email))?;
    }
    output::print(context.json, &me, |me| output::fields(&session::facts(me)))?;
    if change.email.is_some() && !me.email_verified {
        eprintln!("A mail was sent to {}. Type: berth account verify LINK", me.email);
    }
    Ok(())
}

async fn delete(context: &Context, yes: bool) -> Result<()> {
    let email = context.client.me().await?.email;
    if !yes && prompt::ask(&format!("Type {email} to delete this account for good: "))?.as_ref() != Some(&email) {
        return Err(Failure::usage("Nothing was deleted. To delete without being asked: berth account delete --yes"));
    }
    context.client.delete_me().await?;
    Credentials::forget()?;
    say(context, &format!("The account of {email} is deleted."));
    Ok(())
}

async fn change_password(context: &Context) -> Result<()> {
    let current = prompt::password(prompt::PASSWORD, "Current password: ")?;
    context.client.change_password(&current, &prompt::new_password()?).await?;
    say(context, "The password is changed, and every other session is over.");
    Ok(())
}

async fn verify(global: &Global, args: VerifyArgs) -> Result<()> {
    if let Some(token) = &args.token {
        anybody(global)?.verify_email(pick::token(token)).await?;
        println!("The address is verified.");
        return Ok(());
    }
    let email = match args.email {
        Some(email) => email,
        None => Context::person(global)?.client.me().await?.email,
    };
    let client = anybody(global)?;
    if let Some(code) = &args.code {
        client.verify_email_by_code(&email, code).await?;
        println!("{email} is verified.");
    } else {
        client.request_email_verification(&email).await?;
        println!("A mail is on its way to {email}, unless it is verified. Type: berth account verify LINK");
    }
    Ok(())
}

async fn verify_phone(context: &Context, phone: &str, code: Option<&str>) -> Result<()> {
    if let Some(code) = code {
        context.client.verify_phone(phone, code).await?;
        say(context, &format!("{phone} is verified."));
    } else {
        context.client.request_phone_verification(phone).await?;
        let next = format!("berth account verify --phone {phone} --code CODE");
        say(context, &format!("A text message is on its way to {phone}. Type: {next}"));
    }
    Ok(())
}

fn show_sessions(sessions: &[Session]) {
    let rows = sessions.iter().map(|s| {
        [
            s.id.clone(),
            if s.current { "this one".into() } else { String::new() },
            output::or_dash(s.client.as_deref()),
            output::or_dash(s.address.as_deref()),
            output::age(&s.last_used_at),
            output::age(&s.created_at),
        ]
    });
    output::table(["ID", "", "PROGRAM", "ADDRESS", "USED", "AGE"], rows, "No sessions.");
}
