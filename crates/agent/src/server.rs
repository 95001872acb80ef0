//! Handles one request: finds its route, checks that it is allowed, and calls its handler.

use std::convert::Infallible;
use std::sync::Arc;

use berth_domain::agent::error::code;
use http::request::Parts;
use http::{HeaderMap, Request, header};
use hyper::body::Incoming;
use subtle::ConstantTimeEq;

use crate::agent::Agent;
use crate::body::{Answer, refuse};
use crate::call::Call;
use crate::error::{Refusal, Result};
use crate::lock::lock;
use crate::query::Query;
use crate::routes::{Missing, Route, find};
use crate::{boot, build, files, freeze, identity, metrics, process, terminal, tunnel, watch};

/// Answers a request.
pub async fn handle(agent: Arc<Agent>, request: Request<Incoming>) -> Result<Answer, Infallible> {
    let (parts, body) = request.into_parts();
    let answer = match admit(&agent, &parts) {
        Ok((route, parameter)) => {
            let query = Query::of(parts.uri.query());
            let call = Call { agent, query, parameter: parameter.to_owned(), headers: parts.headers, body };
            dispatch(route, call).await
        }
        Err(refusal) => Err(refusal),
    };
    Ok(answer.unwrap_or_else(refuse))
}

fn admit<'a>(agent: &Agent, parts: &'a Parts) -> Result<(Route, &'a str)> {
    let (route, parameter) = find(&parts.method, parts.uri.path()).map_err(|missing| match missing {
        Missing::Path => Refusal::not_found("There is no such route."),
        Missing::Method(allow) => {
            let message = format!("This route has the methods {allow}.");
            Refusal::new(code::METHOD_NOT_ALLOWED, message).with(header::ALLOW, allow)
        }
    })?;
    if !route.is_control() {
        authorize(agent, &parts.headers)?;
    }
    Ok((route, parameter))
}

fn authorize(agent: &Agent, headers: &HeaderMap) -> Result<()> {
    let identity = lock(&agent.identity);
    let Some(token) = &identity.token else {
        return Err(Refusal::new(code::NOT_READY, "The sandbox has no identity yet; try again shortly."));
    };
    let given = headers.get(header::AUTHORIZATION).and_then(|v| v.as_bytes().strip_prefix(b"Bearer "));
    if given.is_some_and(|given| given.ct_eq(token.as_bytes()).into()) {
        return Ok(());
    }
    Err(Refusal::new(code::WRONG_TOKEN, "Send this sandbox's token, with 'Authorization: Bearer …'."))
}

async fn dispatch(route: Route, call: Call) -> Result<Answer> {
    match route {
        Route::Boot => boot::boot(call).await,
        Route::Identity => identity::become_sandbox(call).await,
        Route::Freeze => freeze::freeze(call).await,
        Route::Thaw => freeze::thaw(call).await,
        Route::Metrics => metrics::metrics(&call),
        Route::Unpack => build::unpack::unpack(call).await,
        Route::Pack => build::pack::pack(call).await,
        Route::Run => build::run::run(call).await,
        Route::StatRoot => build::stat(call).await,
        Route::Tunnel => tunnel::tunnel(call).await,
        Route::ReadFile => files::content::read(call).await,
        Route::WriteFile => files::upload::write(call).await,
        Route::List => files::list::list(call).await,
        Route::Stat => files::list::stat(call).await,
        Route::Exists => files::list::exists(call).await,
        Route::Mkdir => files::change::mkdir(call).await,
        Route::Remove => files::change::remove(call).await,
        Route::Move => files::change::rename(call).await,
        Route::Archive => files::archive::archive(call).await,
        Route::Extract => files::extract::extract(call).await,
        Route::Watch => watch::api::watch(call).await,
        Route::OpenWatch => watch::polled::open(call).await,
        Route::PollWatch => watch::polled::poll(call).await,
        Route::CloseWatch => watch::polled::close(&call),
        Route::Command => process::api::command(call).await,
        Route::StartProcess => process::api::start(call).await,
        Route::Processes => process::api::list(call),
        Route::Process => process::api::show(call),
        Route::EndProcess => process::api::end(call).await,
        Route::Logs => process::api::logs(call),
        Route::Stdin => process::api::stdin(call).await,
        Route::Signal => process::api::signal(call).await,
        Route::Resize => process::api::resize(call).await,
        Route::Terminal => terminal::terminal(call).await,
    }
}
