//! Where a request goes: to its route by axum's table, or past it.
//!
//! Every route is in the table, whose handlers run on the service's own runtime and may take their time. The edge finds
//! routes with thousands of requests a second by their path alone and runs them on the [event loop](super::event_loop)
//! that serves the connection: they need neither the table's layers nor what those note in each request. They pass the
//! same [`envelope`](super::envelope), and run the same extractors and the same handler.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::handler::Handler;
use axum::http::{HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};
use berth_domain::Error;
use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;
use tower::ServiceExt;

use super::addressed::readdress;
use super::auth::Gate;
use super::client_address::{ClientAddress, TrustedProxies};
use super::cors::{self, Cors};
use super::envelope::{ApiError, enveloped, unknown_route};
use super::paced::Grace;
use super::passed;
use super::streams::Streams;
use super::traffic::Class;

/// In the extensions of requests that came over TLS.
#[derive(Clone, Copy, Debug)]
pub struct Secure;

/// The routes behind a door.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rooms {
    /// All.
    #[default]
    All,
    /// All but those with a door of their own.
    Without {
        /// `/metrics`.
        metrics: bool,
        /// `/api/v1/admin`, and changes to `/api/v1/images`.
        administration: bool,
    },
    /// The probes and `/metrics`.
    Probes,
}

impl Rooms {
    /// Whether a request finds its route among them.
    pub fn hold(self, method: &Method, path: &str) -> bool {
        match self {
            Self::All => true,
            Self::Without { metrics, administration } => {
                !(metrics && path == "/metrics" || administration && administers(method, path))
            }
            Self::Probes => Class::of(path) == Class::Probes,
        }
    }
}

/// Whether only administrators may send this request. Everybody may read images.
fn administers(method: &Method, path: &str) -> bool {
    let images = path.strip_prefix("/api/v1/images");
    let is_images = images.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    Class::of(path) == Class::Admin || !method.is_safe() && is_images
}

type Answer = Box<dyn Fn(Request) -> BoxFuture<'static, Response> + Send + Sync>;

/// Handlers of POST by path, ready to be called.
#[derive(Default)]
pub struct Hot(HashMap<String, Answer>);

impl Hot {
    /// Adds the handler that the table has for POST on the path `P`, as the OpenAPI document names it.
    #[must_use]
    pub fn post<P: utoipa::Path, T: 'static, S: Clone + Send + Sync + 'static>(
        mut self,
        handler: impl Handler<T, S>,
        state: &S,
    ) -> Self {
        let state = state.clone();
        self.0.insert(P::path(), Box::new(move |request| Box::pin(handler.clone().call(request, state.clone()))));
        self
    }
}

/// Every route of the service.
#[derive(Clone)]
pub struct Edge {
    router: Router,
    gate: Arc<dyn Gate>,
    hot: Arc<Hot>,
    proxies: Arc<TrustedProxies>,
    home: Handle,
    rooms: Rooms,
    cors: Arc<Cors>,
    streams: Option<Arc<Streams>>,
    grace: Grace,
}

impl Edge {
    /// The routes of a table with these hot ones, behind these proxies. The other routes run on the present runtime.
    pub fn new(router: Router, gate: Arc<dyn Gate>, hot: Hot, proxies: TrustedProxies) -> Self {
        Self {
            router,
            gate,
            hot: Arc::new(hot),
            proxies: Arc::new(proxies),
            home: Handle::current(),
            rooms: Rooms::All,
            cors: Arc::default(),
            streams: None,
            grace: Grace::default(),
        }
    }

    /// Also answers pages of these origins.
    #[must_use]
    pub fn with_cors(self, cors: Cors) -> Self {
        Self { cors: Arc::new(cors), ..self }
    }

    /// Bounds answers without an end.
    #[must_use]
    pub fn with_streams(self, streams: Arc<Streams>) -> Self {
        Self { streams: Some(streams), ..self }
    }

    /// Sets how long a body may stall.
    #[must_use]
    pub fn with_grace(self, grace: Grace) -> Self {
        Self { grace, ..self }
    }

    /// The same with fewer routes.
    #[must_use]
    pub fn showing(&self, rooms: Rooms) -> Self {
        Self { rooms, ..self.clone() }
    }

    /// Answers a request of whoever sent it.
    pub async fn answer(&self, mut request: Request) -> Response {
        request.headers_mut().remove(passed::HEADER);
        let client = self.proxies.sender(&request);
        self.answer_to(client, request).await
    }

    /// Answers a request of this client.
    pub async fn answer_to(&self, client: ClientAddress, mut request: Request) -> Response {
        request.extensions_mut().insert(client);
        request.extensions_mut().insert(self.grace);
        if let Err(error) = readdress(&mut request) {
            return enveloped(request, |_| async { ApiError(error).into_response() }).await;
        }
        if !self.rooms.hold(request.method(), request.uri().path()) {
            return enveloped(request, |_| async { unknown_route().await.into_response() }).await;
        }
        if !self.cors.counts() {
            return self.route(request).await;
        }
        let origin = self.cors.origin(&request);
        if origin.is_some() {
            request.extensions_mut().insert(cors::Listed);
        }
        let mut answer = if origin.is_some() && cors::asks_first(&request) {
            enveloped(request, |_| async { cors::leave() }).await
        } else {
            self.route(request).await
        };
        answer.headers_mut().append(header::VARY, HeaderValue::from_static("origin"));
        if let Some(origin) = origin {
            cors::allow(answer.headers_mut(), origin);
        }
        answer
    }

    async fn route(&self, request: Request) -> Response {
        let hot = self.hot.0.get(request.uri().path()).filter(|_| request.method() == Method::POST);
        let Some(answer) = hot else {
            return self.answer_at_home(request).await;
        };
        enveloped(request, |mut request| {
            request.extensions_mut().insert(self.gate.clone());
            answer(request)
        })
        .await
    }

    /// Runs a request on the service's runtime. Dropping the future drops the request's work.
    async fn answer_at_home(&self, mut request: Request) -> Response {
        if let Some(streams) = &self.streams {
            request.extensions_mut().insert(streams.clone());
        }
        let answering = self.home.spawn(self.router.clone().oneshot(request));
        match AbortOnDropHandle::new(answering).await {
            Ok(answered) => answered.unwrap_or_else(|never| match never {}),
            Err(ended) => ApiError(Error::unavailable(ended)).into_response(),
        }
    }
}
