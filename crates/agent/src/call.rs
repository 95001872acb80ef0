//! A request on its way to who answers it.

use std::sync::Arc;

use http::HeaderMap;
use hyper::body::Incoming;

use crate::agent::Agent;
use crate::error::Result;
use crate::query::Query;

/// An admitted request: what its route needs of it, and the agent that it is for.
pub struct Call {
    /// The agent.
    pub agent: Arc<Agent>,
    /// Parameters of the address.
    pub query: Query,
    /// Headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Incoming,
    /// The variable part of the path.
    pub parameter: String,
}

impl Call {
    /// The body as JSON.
    pub async fn json(self) -> Result<serde_json::Value> {
        crate::body::read_json(&self.headers, self.body).await
    }
}
