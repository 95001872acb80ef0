//! The pages: a person signs in, agrees, and goes back to the client.

use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use berth_domain::Error;
use berth_domain::identity::api_key::KeyScope;
use berth_domain::oauth::redirect::shown;
use berth_domain::oauth::request::{AuthorizationRequest, Back};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::http::envelope::keep_shape;
use crate::http::page::private;

/// No scripts; forms go to this service, and no frame may show it.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
);
const STYLE: &str = "
  :root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
  body { max-width: 26rem; margin: 12vh auto; padding: 0 1rem }
  label { display: block; margin: 1rem 0 .25rem }
  input:not([type=checkbox]), select { width: 100%; box-sizing: border-box; padding: .5rem; font: inherit }
  fieldset { margin: 1rem 0; border: 1px solid } fieldset label { margin: .25rem 0 }
  button { margin: 1.25rem .5rem 0 0; padding: .5rem 1.25rem; font: inherit; cursor: pointer }
  [role=alert] { border-left: 4px solid #c33; padding-left: .75rem }
";

/// A project to choose.
pub(super) struct Choice {
    /// What the form says.
    pub value: String,
    /// What the person reads.
    pub name: String,
}

/// The page on which a person signs in, which may say what was wrong before.
pub(super) fn sign_in(asked: &AuthorizationRequest, query: &str, wrong: Option<&Error>) -> Response {
    let status = wrong.map_or(StatusCode::OK, status_of);
    let body = html! {
        h1 { "Sign in" }
        p { b { (asked.client.name) } ", " (shown(&asked.redirect)) ", wants to work in one of your projects. Sign in to look at "
            "what it asks for, if you have just started it." }
        (alert(wrong))
        form method="post" action="/oauth/authorize" {
            input type="hidden" name="request" value=(query);
            label for="email" { "E-mail address" }
            input id="email" name="email" type="email" autocomplete="username" required autofocus;
            label for="password" { "Password" }
            input id="password" name="password" type="password" autocomplete="current-password" required;
            button { "Sign in" }
        }
        p { a href="/account/forgot" { "Forgot your password?" } }
    };
    page(status, "Sign in", &html! {}, &body)
}

/// The page on which a person agrees.
pub(super) fn consent(
    asked: &AuthorizationRequest,
    query: &str,
    session: &str,
    choices: &[Choice],
    wrong: Option<&Error>,
) -> Response {
    let body = html! {
        h1 { "Let " (asked.client.name) " work for you?" }
        p { "It gets an API key of the project that you choose, for 90 days. " code { "berth key list" } " shows the key, and "
            code { "berth key revoke" } " ends it." }
        p { "The key goes to " b { (shown(&asked.redirect)) } ". The name above is what the program says of itself: go on only "
            "if you have just started it." }
        (alert(wrong))
        @if choices.is_empty() {
            p role="alert" { "You have no project yet. Make one: " code { "berth project create NAME" } }
        }
        form method="post" action="/oauth/authorize" {
            input type="hidden" name="request" value=(query);
            input type="hidden" name="session" value=(session);
            label for="project" { "Project" }
            select id="project" name="project" required {
                @if choices.len() > 1 { option value="" { "Choose one" } }
                @for choice in choices { option value=(choice.value) { (choice.name) } }
            }
            fieldset {
                legend { "What it may use" }
                @for scope in KeyScope::ALL.iter().copied() {
                    label {
                        input type="checkbox" name="scope" value=(scope.as_str()) checked[asked.scopes.contains(scope)];
                        " " (said(scope))
                    }
                }
            }
            button name="decision" value="allow" { "Allow" }
            button name="decision" value="deny" { "Deny" }
        }
    };
    page(wrong.map_or(StatusCode::OK, status_of), "Agree", &html! {}, &body)
}

/// The page that leads back to the client: a form may lead to no other site by itself, and a program's own scheme wants a
/// person's click in some browsers. Elsewhere than to their own machine nobody is led who did not agree.
pub(super) fn back(back: &Back) -> Response {
    let address = &back.address;
    let head = html! {
        @if back.at_once { meta http-equiv="refresh" content=(format!("0;url={address}")); }
    };
    let body = html! {
        @if back.at_once {
            h1 { "Done" }
            p { "You can close this page once the program goes on. " a href=(address) { "Back to it" } " if it does not." }
        } @else {
            h1 { "Nothing was allowed" }
            p { "Close this page, or " a href=(address) { "tell " (back.who) } "." }
        }
    };
    page(StatusCode::OK, "Done", &head, &body)
}

/// The page that says why nothing can go on.
pub(super) fn refused(status: StatusCode, message: &str) -> Response {
    page(status, "Not possible", &html! {}, &html! { h1 { "Not possible" } p role="alert" { (message) } })
}

const fn said(scope: KeyScope) -> &'static str {
    match scope {
        KeyScope::Vm => "virtual machines, disks and networks",
        KeyScope::Sandbox => "sandboxes and what is in them",
        KeyScope::Inference => "models, at the project's cost",
    }
}

fn alert(wrong: Option<&Error>) -> Markup {
    html! { @if let Some(error) = wrong { p role="alert" { (error.message) } } }
}

fn status_of(error: &Error) -> StatusCode {
    StatusCode::from_u16(error.code.status()).unwrap_or(StatusCode::BAD_REQUEST)
}

fn page(status: StatusCode, title: &str, head: &Markup, body: &Markup) -> Response {
    let whole = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Berth: " (title) }
                style { (PreEscaped(STYLE)) }
                (head)
            }
            body { main { (body) } }
        }
    };
    keep_shape((status, private(POLICY), whole.into_string()).into_response())
}
