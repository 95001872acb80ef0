//! Signing up, in and out.

use anyhow::Result;
use berth_client::{Client, Organization, Page, SignUp, User};
use clap::Args;

use crate::context::{Context, address, address_of, warn_in_clear};
use crate::credentials::{Credentials, Store, signed_out};
use crate::failure::Failure;
use crate::global::Global;
use crate::typed::{Words, retold};
use crate::{output, pick, prompt};

/// The option for each field.
const WORDS: Words = &[
    ("email", "--email"),
    ("password", "the password"),
    ("name", "--name"),
    ("phone", "--phone"),
    ("referral_code", "--referral"),
    ("invitation_token", "--invitation"),
];

#[derive(Args)]
pub struct LoginArgs {
    /// Address of the service, as http://127.0.0.1:8080
    #[arg(value_name = "URL")]
    service: Option<String>,
    /// Your address
    #[arg(long)]
    email: Option<String>,
    /// Read the password from standard input; BERTH_PASSWORD answers for a program, too
    #[arg(long)]
    password_stdin: bool,
}

#[derive(Args)]
pub struct SignupArgs {
    #[command(flatten)]
    login: LoginArgs,
    /// Your name
    #[arg(long)]
    name: Option<String>,
    /// Your phone number, as +4930123456
    #[arg(long)]
    phone: Option<String>,
    /// Accept an invitation: the link of its mail, or the token in it
    #[arg(long, value_name = "TOKEN")]
    invitation: Option<String>,
    /// Referral code of the person who recommended Berth
    #[arg(long, value_name = "CODE")]
    referral: Option<String>,
}

pub async fn login(global: &Global, args: LoginArgs) -> Result<()> {
    let store = Store::load().unwrap_or_default();
    let client = Client::new(&address_of(&store, global, args.service.as_deref())?)?;
    warn_in_clear(client.base());
    let email = email(&args)?;
    let name = global.context.as_deref().unwrap_or_default();
    store.require_free(name, client.base(), &email)?;
    client.login(&email, &password(&args, "Password: ")?).await.map_err(|error| retold(error, WORDS))?;
    // A person who signs in again keeps their organization and project.
    let place = match store.named(name).or_else(|| store.of(client.base(), &email)) {
        Some(kept) if client.get_project(&kept.org, &kept.project).await.is_ok() => {
            (kept.org.clone(), kept.project.clone())
        }
        _ => place(&client, |_| true).await?,
    };
    keep(global, &client, email, place)
}

pub async fn sign_up(global: &Global, args: SignupArgs) -> Result<()> {
    // A link leads to its own service, unless the caller named another one.
    let link = args.invitation.as_deref().and_then(pick::service).filter(|_| global.url.is_none());
    let client = Client::new(&address(global, args.login.service.as_deref().or(link))?)?;
    warn_in_clear(client.base());
    let email = email(&args.login)?;
    let name = global.context.as_deref().unwrap_or_default();
    Store::load().unwrap_or_default().require_free(name, client.base(), &email)?;
    let password = password(&args.login, "Password (12 to 128 characters): ")?;
    let request = SignUp {
        email: email.clone(),
        password: password.clone(),
        name: args.name,
        phone: args.phone,
        referral_code: args.referral,
        invitation_token: args.invitation.map(|text| pick::token(&text).to_owned()),
    };
    let made = client.sign_up(&request).await.map_err(|error| retold(error, WORDS))?;
    if made.verification_required {
        let next = format!("berth account verify LINK; berth login {}", client.base());
        output::done(global.look(), &email, &made.user.id, &format!("A mail was sent to {email}. Type: {next}"));
        return Ok(());
    }
    client.login(&email, &password).await?;
    // An invited person came for the inviting organization, not for their own.
    let place = match request.invitation_token {
        Some(_) => place(&client, |org| org.id != made.organization.id).await?,
        None => (made.organization.slug, made.project.slug),
    };
    keep(global, &client, email.clone(), place)?;
    if !made.user.email_verified && request.invitation_token.is_none() {
        output::say(global.look(), &format!("A mail was sent to {email}. Type: berth account verify LINK"));
    }
    Ok(())
}

/// The organization and the project for later commands: the oldest, and wanted ones before others.
async fn place(client: &Client, wanted: impl Fn(&Organization) -> bool) -> Result<(String, String)> {
    let mut orgs = Page::all(async |page| client.organizations(page).await).await?;
    orgs.reverse();
    orgs.sort_by_key(|org| !wanted(org));
    for org in &orgs {
        if let Some(project) = first_project(client, &org.slug).await? {
            return Ok((org.slug.clone(), project));
        }
    }
    Ok((orgs.into_iter().next().map(|org| org.slug).unwrap_or_default(), String::new()))
}

/// The slug of the oldest project that the caller sees in an organization.
pub async fn first_project(client: &Client, org: &str) -> Result<Option<String>> {
    let projects = Page::all(async |page| client.projects(org, page).await).await?;
    Ok(projects.into_iter().next_back().map(|project| project.slug))
}

/// Keeps the sign-in, with the organization and the project for later commands.
fn keep(global: &Global, client: &Client, email: String, place: (String, String)) -> Result<()> {
    let tokens = client.tokens().ok_or_else(signed_out)?;
    let org = global.org.clone().unwrap_or(place.0);
    let project = global.project.clone().unwrap_or(place.1);
    let place = if project.is_empty() { "no project".into() } else { format!("project {org}/{project}") };
    let (look, said) = (global.look(), format!("Signed in to {} as {email}, {place}.", client.base()));
    let name = global.context.clone().unwrap_or_default();
    let store = Store::put(Credentials { name, url: client.base().to_owned(), email, org, project, tokens })?;
    let name = &store.current;
    output::done(look, name, name, &said);
    if store.contexts.len() > 1 {
        output::say(look, &format!("Commands now use the context {name}. Another one: berth context use NAME"));
    }
    Ok(())
}

pub async fn logout(context: &Context, all: bool) -> Result<()> {
    let outcome = context.client.logout(all).await;
    let others = context.forget()?;
    match outcome {
        // The session has already ended.
        Err(error) if error.status() == Some(401) => {}
        other => other?,
    }
    match context.kept_as() {
        Some(name) => output::done(context.look, name, name, "Signed out."),
        None => output::say(context.look, "Signed out."),
    }
    if !others.is_empty() {
        output::say(context.look, &format!("Still kept: {}. Use one: berth context use NAME", others.join(", ")));
    }
    Ok(())
}

pub async fn whoami(context: &Context) -> Result<()> {
    let me = context.client.me().await?;
    let (org, project) = if context.look.is_for_people() { roles(context).await } else { Default::default() };
    let (service, kept_as) = (context.client.base().to_owned(), context.kept_as().unwrap_or_default().to_owned());
    output::print(context.look, &me, &me.email, &me.id, |me| {
        let mut all = vec![("service", service), ("context", kept_as)];
        all.extend(facts(me));
        all.extend([("organization", org), ("project", project)]);
        output::fields(&all);
    })
}

/// A person, by names and values.
pub fn facts(user: &User) -> [(&'static str, String); 4] {
    let verified = |text: &str, is: bool| format!("{text} ({})", if is { "verified" } else { "not verified" });
    let phone = user.phone.as_deref().map(|phone| verified(phone, user.phone_verified));
    [
        ("user", verified(&user.email, user.email_verified)),
        ("name", user.name.clone().unwrap_or_default()),
        ("phone", phone.unwrap_or_default()),
        ("administrator", if user.is_admin { "yes".into() } else { String::new() }),
    ]
}

/// The organization and the project that commands use, with the caller's roles; deleted ones only with their names.
async fn roles(context: &Context) -> (String, String) {
    let (org, project) = (context.org().unwrap_or_default(), context.project_name().unwrap_or_default());
    let with =
        |name: &str, role: Option<String>| role.map_or_else(|| name.to_owned(), |role| format!("{name} ({role})"));
    let org_role = context.client.organization(org).await.ok().and_then(|found| found.role);
    let project_role = context.client.get_project(org, project).await.ok().and_then(|found| found.role);
    (with(org, org_role), with(project, project_role))
}

fn email(args: &LoginArgs) -> Result<String> {
    if let Some(email) = args.email.clone().or_else(|| std::env::var("BERTH_EMAIL").ok()) {
        return Ok(email);
    }
    prompt::ask("Address: ")?.ok_or_else(|| Failure::usage("Name yourself: --email ADDRESS"))
}

fn password(args: &LoginArgs, question: &str) -> Result<String> {
    if args.password_stdin { Ok(prompt::line()?) } else { prompt::password(prompt::PASSWORD, question) }
}
