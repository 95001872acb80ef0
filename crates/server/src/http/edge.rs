//! Where a request goes: to its route by axum's table, or past it.
//!
//! Every route stands in the table. Those that are asked thousands of times a second are found here by their path
//! alone: they have no use for the table's layers and what those note in each request. They pass the same
//! [`envelope`](super::envelope), and run the same extractors and the same handler.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::handler::Handler;
use axum::http::Method;
use axum::response::Response;
use futures::future::BoxFuture;
use tower::ServiceExt;

use super::auth::Gate;
use super::envelope::enveloped;

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
}

impl Edge {
    /// The routes of a table, of which these are hot.
    pub fn new(router: Router, gate: Arc<dyn Gate>, hot: Hot) -> Self {
        Self { router, gate, hot: Arc::new(hot) }
    }

    /// Answers a request.
    pub async fn answer(&self, request: Request) -> Response {
        let hot = self.hot.0.get(request.uri().path()).filter(|_| request.method() == Method::POST);
        let Some(answer) = hot else {
            return self.router.clone().oneshot(request).await.unwrap_or_else(|never| match never {});
        };
        enveloped(request, |mut request| {
            request.extensions_mut().insert(self.gate.clone());
            answer(request)
        })
        .await
    }
}
