//! One's own account: name, address, number, password, sessions.

use anyhow::Result;
use berth_client::{ChangeUser, Client, Page, Session, User};
use clap::{Args, Subcommand};

use super::session;
use crate::context::{Context, address, warn_in_clear};
use crate::failure::Failure;
use crate::global::Global;
use crate::id::is_id;
use crate::output::{self, Table};
use crate::page::PageArgs;
use crate::pick::{self, Noun};
use crate::prompt;
use crate::typed::{Words, retold};

/// The option for each field.
const WORDS: Words = &[
    ("name", "--name"),
    ("phone", "--phone"),
    ("email", "--email"),
    ("code", "--code"),
    ("token", "the link"),
    ("current_password", "the password"),
    ("new_password", "the new password"),
];
const SESSION: Noun = Noun { one: "session", list: "berth account sessions" };

#[derive(Subcommand)]
pub enum AccountCommand {
    /// Change name, phone number or address; a new address needs the password
    Update(UpdateArgs),
    /// Delete the account, with its empty organizations that have no other member; BERTH_PASSWORD answers for a program
    Delete {
        /// Do not ask for confirmation
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

/// Runs the typed command.
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
            output::list(context.look, &sessions, show_sessions)
        }
        AccountCommand::EndSession { session } => {
            let context = person()?;
            let id = find_session(&context.client, &session).await?;
            context.client.end_session(&id).await?;
            output::done(context.look, &id, &id, "The session is over.");
            Ok(())
        }
        AccountCommand::Forgot { email } => {
            let asked = anybody(global)?.forgot_password(&email).await;
            asked.map_err(|error| retold(error, &[("email", "EMAIL")]))?;
            let next = "a mail is on its way. Type: berth account reset LINK";
            output::say(global.look(), &format!("If {email} has an account, {next}"));
            Ok(())
        }
        AccountCommand::Reset { token } => {
            let client = of_link(global, &token)?;
            warn_in_clear(client.base());
            let set = client.reset_password(pick::token(&token), &prompt::new_password()?).await;
            set.map_err(|error| retold(error, WORDS))?;
            output::say(global.look(), "The password is set and every session is over. Type: berth login");
            Ok(())
        }
    }
}

/// The service, for calls without a sign-in.
fn anybody(global: &Global) -> Result<Client> {
    Ok(Client::new(&address(global, None)?)?)
}

/// The service to which a mail's link leads, unless the caller named another one; or the usual one for a bare token.
fn of_link(global: &Global, link: &str) -> Result<Client> {
    Ok(Client::new(&address(global, pick::service(link).filter(|_| !names_a_service(global)))?)?)
}

/// Whether the caller named a service.
pub const fn names_a_service(global: &Global) -> bool {
    global.url.is_some() || global.context.is_some()
}

async fn update(context: &Context, args: UpdateArgs) -> Result<()> {
    let current_password = match &args.email {
        Some(_) => Some(prompt::password(prompt::PASSWORD, "Password: ")?),
        None => None,
    };
    let change = ChangeUser { name: args.name, phone: args.phone, email: args.email, current_password };
    let me = context.client.update_me(&change).await.map_err(|error| retold(error, WORDS))?;
    if change.email.is_some() {
        context.keep(|kept| kept.email.clone_from(&me.email))?;
    }
    output::print(context.look, &me, &me.email, &me.id, |me| output::fields(&session::facts(me)))?;
    if change.email.is_some() && !me.email_verified {
        eprintln!("A mail was sent to {}. Type: berth account verify LINK", me.email);
    }
    Ok(())
}

async fn delete(context: &Context, yes: bool) -> Result<()> {
    let User { email, id, .. } = context.client.me().await?;
    if !yes && prompt::ask(&format!("Type {email} to delete this account for good: "))?.as_ref() != Some(&email) {
        return Err(Failure::usage("Nothing was deleted. To delete without being asked: berth account delete --yes"));
    }
    context.client.delete_me(&prompt::password(prompt::PASSWORD, "Password: ")?).await?;
    context.forget()?;
    output::done(context.look, &email, &id, &format!("The account of {email} is deleted."));
    Ok(())
}

async fn change_password(context: &Context) -> Result<()> {
    warn_in_clear(context.client.base());
    let current = prompt::password(prompt::PASSWORD, "Current password: ")?;
    let changed = context.client.change_password(&current, &prompt::new_password()?).await;
    changed.map_err(|error| retold(error, WORDS))?;
    output::say(context.look, "The password is changed, and every other session is over.");
    Ok(())
}

async fn verify(global: &Global, args: VerifyArgs) -> Result<()> {
    if let Some(token) = &args.token {
        of_link(global, token)?.verify_email(pick::token(token)).await?;
        output::say(global.look(), "The address is verified.");
        return Ok(());
    }
    let email = match args.email {
        Some(email) => email,
        None => Context::person(global)?.client.me().await?.email,
    };
    let client = anybody(global)?;
    if let Some(code) = &args.code {
        client.verify_email_by_code(&email, code).await.map_err(|error| retold(error, WORDS))?;
        output::say(global.look(), &format!("{email} is verified."));
    } else {
        client.request_email_verification(&email).await.map_err(|error| retold(error, WORDS))?;
        let next = "unless it is verified. Type: berth account verify LINK";
        output::say(global.look(), &format!("A mail is on its way to {email}, {next}"));
    }
    Ok(())
}

async fn verify_phone(context: &Context, phone: &str, code: Option<&str>) -> Result<()> {
    if let Some(code) = code {
        context.client.verify_phone(phone, code).await.map_err(|error| retold(error, WORDS))?;
        output::say(context.look, &format!("{phone} is verified."));
    } else {
        context.client.request_phone_verification(phone).await.map_err(|error| retold(error, WORDS))?;
        let next = format!("berth account verify --phone {phone} --code CODE");
        output::say(context.look, &format!("A text message is on its way to {phone}. Type: {next}"));
    }
    Ok(())
}

/// The id of a session, from its id or a part of it.
async fn find_session(client: &Client, text: &str) -> Result<String> {
    if is_id(text) {
        return Ok(text.to_owned());
    }
    let all = Page::all(async |page| client.sessions(page).await).await?;
    Ok(SESSION.of(all, text, |session| &session.id, |_| false)?.id)
}

fn show_sessions(sessions: &[Session]) -> Table {
    let rows = sessions.iter().map(|s| {
        [
            s.id.clone(),
            if s.current { "this one".into() } else { String::new() },
            output::or_dash(s.address.as_deref()),
            output::age(&s.last_used_at),
            output::age(&s.created_at),
            output::or_dash(s.client.as_deref()),
        ]
    });
    Table::new(["ID", "", "ADDRESS", "USED", "AGE", "PROGRAM"], rows, "No sessions.").cut()
}
