//! A request on its way to its handler.

use std::sync::Arc;

use http::HeaderMap;
use hyper::body::Incoming;

use crate::acting::Acting;
use crate::agent::Agent;
use crate::error::Result;
use crate::files::Worker;
use crate::query::Query;

/// An admitted request: what its handler needs of it, and the agent.
pub struct Call {
    /// The agent.
    pub agent: Arc<Agent>,
    /// Parameters of the query.
    pub query: Query,
    /// Headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Incoming,
    /// The variable part of the path.
    pub parameter: String,
}

impl Call {
    /// As whom a request about files acts, and who does its work. Its query must have been read before.
    pub fn acting(&mut self) -> Result<(Acting, Worker)> {
        let acting = Acting::of(&mut self.query);
        std::mem::take(&mut self.query).finish()?;
        let worker = acting.worker(&self.agent)?;
        Ok((acting, worker))
    }

    /// The body as JSON.
    pub async fn json(self) -> Result<serde_json::Value> {
        crate::body::read_json(&self.headers, self.body).await
    }
}
