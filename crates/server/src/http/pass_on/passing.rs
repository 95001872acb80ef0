//! A request goes to the active replica, and its answer comes back.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::Response;
use berth_domain::{Code, Error};
use berth_host::clock::Clock;
use berth_host::link::Authority;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::client::legacy;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt, copy_bidirectional};
use tokio::sync::watch;
use tokio::time::timeout;

use super::head;
use super::line::{Active, Line, PATIENCE};
use crate::http::client_address::{ClientAddress, TrustedProxies};
use crate::http::envelope::keep_shape;
use crate::http::passed::{Passed, Way};

/// When a caller should try again, in seconds.
const COME_AGAIN: u64 = 2;

/// What a standby does with requests.
#[derive(Clone)]
pub struct PassOn(Arc<Inner>);

struct Inner {
    authority: Arc<Authority>,
    clock: Clock,
    active: watch::Receiver<Option<Active>>,
    trusted: TrustedProxies,
    line: Mutex<Option<Arc<Line>>>,
}

/// What a client's connection would become, and its stream once it has.
type Upgrade = (HeaderValue, OnUpgrade);

impl PassOn {
    /// Passes on to whoever is active at that moment, as whom its certificate by this authority has to name. Clients are
    /// behind these proxies, as they are of an active replica.
    pub fn new(
        authority: Arc<Authority>,
        clock: Clock,
        active: watch::Receiver<Option<Active>>,
        trusted: TrustedProxies,
    ) -> Self {
        Self(Arc::new(Inner { authority, clock, active, trusted, line: Mutex::default() }))
    }

    /// Where a request comes from.
    pub fn sender(&self, request: &Request) -> ClientAddress {
        self.0.trusted.sender(request)
    }

    /// Sends a request to the active replica, and answers with what that does.
    ///
    /// # Errors
    /// There is none, or it cannot be reached, or it ends before it has answered.
    pub async fn pass(&self, passed: Passed, mut request: Request) -> Result<Response, Error> {
        let line = self.line().ok_or_else(none_is_active)?;
        let upgrade = head::upgrade(request.headers()).map(|to| (to, hyper::upgrade::on(&mut request)));
        let (parts, body) = request.into_parts();
        let protocol = upgrade.as_ref().map(|(protocol, _)| protocol.clone());
        let outgoing = head::outgoing(parts, body, passed, protocol).ok_or_else(nowhere)?;
        let answer = line.send(outgoing).await.map_err(failed)?;
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            return joined(line, answer, upgrade);
        }
        let (mut parts, body) = answer.into_parts();
        head::leave_connection(&mut parts.headers);
        // What the active replica refuses, it has put into its form.
        Ok(keep_shape(Response::from_parts(parts, Body::new(body))))
    }

    /// Whether the active replica answers.
    ///
    /// # Errors
    /// What a caller is told where it does not.
    pub async fn reached(&self) -> Result<(), Error> {
        let mut request = Request::new(Body::empty());
        (*request.method_mut(), *request.uri_mut()) = (Method::GET, axum::http::Uri::from_static("/healthz"));
        let passed = Passed { way: Way::Main, is_secure: false, client: ClientAddress::Unknown };
        let answer = timeout(PATIENCE, self.pass(passed, request)).await.unwrap_or_else(|_| Err(none_is_active()))?;
        if answer.status().is_success() { Ok(()) } else { Err(none_is_active()) }
    }

    /// The connections to the active replica, if there is one. Those to one that was active before are given up.
    fn line(&self) -> Option<Arc<Line>> {
        let Inner { authority, clock, active, line, .. } = &*self.0;
        let active = active.borrow().clone()?;
        let mut line = line.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = line.as_ref().filter(|line| line.leads_to(&active)) {
            return Some(line.clone());
        }
        let new = Arc::new(Line::new(active, authority.clone(), clock.clone()));
        if let Some(before) = line.replace(new.clone()) {
            before.give_up();
        }
        Some(new)
    }
}

/// Joins the two connections, which leave HTTP, until one of them ends.
fn joined(line: Arc<Line>, mut answer: Response<Incoming>, upgrade: Option<Upgrade>) -> Result<Response, Error> {
    let (Some((_, client)), Some(protocol)) = (upgrade, head::upgrade(answer.headers())) else {
        return Err(broken("the connection became something that nobody asked for"));
    };
    let active = hyper::upgrade::on(&mut answer);
    tokio::spawn(async move {
        let Ok((client, active)) = tokio::try_join!(client, active) else { return };
        let (mut client, mut active) = (TokioIo::new(client), TokioIo::new(active));
        tokio::select! {
            // Whoever ended it knows.
            _ = copy_bidirectional(&mut client, &mut active) => {}
            () = line.cut() => {}
        }
        let _ = tokio::join!(client.shutdown(), active.shutdown());
    });
    let (mut parts, _) = answer.into_parts();
    head::leave_connection(&mut parts.headers);
    head::leave_http(protocol, &mut parts.headers);
    Ok(Response::from_parts(parts, Body::empty()))
}

fn none_is_active() -> Error {
    let message = "No replica of this service is active at this moment; the next one takes over within half a minute.";
    Error::new(Code::Unavailable, message).retry_after(COME_AGAIN)
}

fn nowhere() -> Error {
    Error::new(Code::InvalidRequest, "A request names a path of this service.")
}

fn failed(error: legacy::Error) -> Error {
    if error.is_connect() { none_is_active() } else { broken(&chain(&error)) }
}

fn broken(cause: &str) -> Error {
    let message = "The active replica ended the connection before it answered. Look whether your request was done before \
                   you send it again.";
    Error { cause: Some(cause.to_owned()), ..Error::new(Code::Unavailable, message).retry_after(COME_AGAIN) }
}

/// An error with its causes: what the client library says by itself tells nothing.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
