//! Where a request goes: to its route by axum's table, or past it.
//!
//! Every route stands in the table, whose handlers run on the service's own runtime: they may take their time. Those
//! that are asked thousands of times a second are found here by their path alone and run where their connection is
//! served, on its [event loop](super::event_loop): they have no use for the table's layers and what those note in each
//! request. They pass the same [`envelope`](super::envelope), and run the same extractors and the same handler.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::handler::Handler;
use axum::http::Method;
use axum::response::{IntoResponse, Response};
use berth_domain::Error;
use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;
use tower::ServiceExt;

use super::auth::Gate;
use super::envelope::{ApiError, enveloped};

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
    home: Handle,
}

impl Edge {
    /// The routes of a table, of which these are hot. The others run on the present runtime.
    pub fn new(router: Router, gate: Arc<dyn Gate>, hot: Hot) -> Self {
        Self { router, gate, hot: Arc::new(hot), home: Handle::current() }
    }

    /// Answers a request.
    pub async fn answer(&self, request: Request) -> Response {
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

    /// Dropped, it drops what is done for the request.
    async fn answer_at_home(&self, request: Request) -> Response {
        let answering = self.home.spawn(self.router.clone().oneshot(request));
        match AbortOnDropHandle::new(answering).await {
            Ok(answered) => answered.unwrap_or_else(|never| match never {}),
            Err(ended) => ApiError(Error::unavailable(ended)).into_response(),
        }
    }
}
