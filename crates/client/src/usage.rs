//! What a project's requests to models took, over time.

use serde::{Deserialize, Serialize};

use crate::{ProjectClient, Result};

/// Requests of a window, step by step.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Usage {
    /// The window, as `24h`.
    pub window: String,
    /// The step, as `1h`.
    pub resolution: String,
    /// One row for each step and group in which something happened.
    pub data: Vec<UsageRow>,
}

/// Requests of one step and group.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct UsageRow {
    /// When the step begins, RFC 3339.
    pub time: String,
    /// The model, or the id of the key, if the rows are grouped; absent for requests of persons when grouped by key.
    #[serde(default)]
    pub group: Option<String>,
    /// Requests.
    pub requests: i64,
    /// Tokens of prompts.
    pub prompt_tokens: i64,
    /// Tokens of answers.
    pub completion_tokens: i64,
    /// What they cost, in units of money.
    pub cost: f64,
    /// Whether any of it is an estimate, because the upstream counted no tokens.
    pub estimated: bool,
}

#[derive(Serialize)]
struct Asked<'a> {
    window: &'a str,
    resolution: &'a str,
    group_by: Option<&'a str>,
}

impl ProjectClient {
    /// What requests to models took; `group_by` is `model` or `key`.
    pub async fn usage(&self, window: &str, resolution: &str, group_by: Option<&str>) -> Result<Usage> {
        let query = crate::transport::query_text(&Asked { window, resolution, group_by })?;
        self.client.get(&format!("{}/usage?{query}", self.path)).await
    }
}
