//! Signing up, in and out.

use std::io::{BufRead, IsTerminal, Write};

use anyhow::{Context as _, Result};
use berth_client::{Client, Page, SignUp, Tokens};

use crate::cli::{Global, LoginArgs, SignupArgs};
use crate::context::{Context, address};
use crate::credentials::Credentials;
use crate::failure::Failure;
use crate::output;

pub async fn login(global: &Global, args: LoginArgs) -> Result<()> {
    let url = address(global, args.service.as_deref())?;
    let client = Client::new(&url)?;
    let email = email(&args)?;
    let password = password(&args, "Password: ")?;
    let tokens = client.login(&email, &password).await?;
    keep(global, &client, email, tokens).await
}

pub async fn sign_up(global: &Global, args: SignupArgs) -> Result<()> {
    let url = address(global, args.login.service.as_deref())?;
    let client = Client::new(&url)?;
    let email = email(&args.login)?;
    let password = password(&args.login, "Password (12 to 128 characters): ")?;
    let request = SignUp { email: email.clone(), password: password.clone(), name: args.name, ..SignUp::default() };
    let made = client.sign_up(&request).await?;
    if made.verification_required {
        println!("A mail was sent to {email}. Follow it, then type: berth login {url}");
        return Ok(());
    }
    let tokens = client.login(&email, &password).await?;
    keep(global, &client, email, tokens).await
}

/// Keeps the sign-in, with the person's oldest organization and its oldest project.
async fn keep(global: &Global, client: &Client, email: String, tokens: Tokens) -> Result<()> {
    let orgs = client.organizations(Page::default()).await?.data;
    let org = global.org.clone().or_else(|| orgs.last().map(|o| o.slug.clone())).unwrap_or_default();
    let projects = if org.is_empty() { Vec::new() } else { client.projects(&org, Page::default()).await?.data };
    let project = global.project.clone().or_else(|| projects.last().map(|p| p.slug.clone())).unwrap_or_default();
    Credentials {
        url: client.base().to_owned(),
        email: email.clone(),
        org: org.clone(),
        project: project.clone(),
        tokens,
    }
    .save()?;
    println!("Signed in to {} as {email}, project {org}/{project}.", client.base());
    Ok(())
}

pub async fn logout(context: &Context, all: bool) -> Result<()> {
    let outcome = context.client.logout(all).await;
    Credentials::forget()?;
    match outcome {
        // The session is over already.
        Err(error) if error.status() == Some(401) => {}
        other => other?,
    }
    println!("Signed out.");
    Ok(())
}

pub async fn whoami(context: &Context) -> Result<()> {
    let me = context.client.me().await?;
    if context.json {
        return output::json(&me);
    }
    output::fields(&[
        ("service", context.client.base().to_owned()),
        ("user", me.email),
        ("name", me.name.unwrap_or_default()),
        ("administrator", if me.is_admin { "yes".into() } else { String::new() }),
        ("organization", context.org().unwrap_or_default().to_owned()),
        ("project", context.project_name().unwrap_or_default().to_owned()),
    ]);
    Ok(())
}

fn email(args: &LoginArgs) -> Result<String> {
    if let Some(email) = args.email.clone().or_else(|| std::env::var("BERTH_EMAIL").ok()) {
        return Ok(email);
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage("Name yourself: --email ADDRESS"));
    }
    eprint!("Address: ");
    std::io::stderr().flush()?;
    Ok(line()?)
}

fn password(args: &LoginArgs, prompt: &str) -> Result<String> {
    if args.password_stdin {
        return Ok(line()?);
    }
    if let Ok(password) = std::env::var("BERTH_PASSWORD") {
        return Ok(password);
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage("No terminal to ask for the password on: --password-stdin reads it from the input"));
    }
    rpassword::prompt_password(prompt).context("the password cannot be read")
}

fn line() -> std::io::Result<String> {
    let mut text = String::new();
    std::io::stdin().lock().read_line(&mut text)?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}
