//! What a project's requests to models took, as series.

use axum::Json;
use axum::extract::State;
use berth_domain::series::{Bounds, Steps};
use berth_domain::{Timestamp, query};
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::auth::Onlooker;
use crate::http::envelope::ErrorBody;
use crate::http::list::Params;
use crate::http::reply::Reply;
use crate::services::gateway::Gateway;
use crate::services::gateway::store::usage::{self, Grouping, StepRow};

/// Seconds in a minute.
const MINUTE: i64 = 60;
/// The bounds of a query: usage has a resolution of one minute.
const BOUNDS: Bounds =
    Bounds { unit: MINUTE, finest: MINUTE, longest: 30 * 86_400, default: Steps { window: 86_400, resolution: 3600 } };

/// Usage of models.
#[derive(Serialize, ToSchema)]
#[schema(as = InferenceUsageResponse)]
pub(super) struct UsageView {
    /// What is covered, as it was asked for.
    window: String,
    /// Size of a step, as it was asked for.
    resolution: String,
    /// Steps and groups that have requests, by time, then group; the present step is among them.
    data: Vec<StepView>,
}

/// Usage of models in a step.
#[derive(Serialize, ToSchema)]
#[schema(as = InferenceUsage)]
pub(super) struct StepView {
    /// Beginning of the step.
    #[schema(value_type = String, format = DateTime)]
    time: Timestamp,
    /// The model, or the API key's id; `null` for requests of persons, and where nothing is grouped.
    #[schema(required = true)]
    group: Option<String>,
    /// Requests.
    requests: i64,
    /// Tokens of the prompts.
    prompt_tokens: i64,
    /// Tokens of the answers.
    completion_tokens: i64,
    /// What they cost, by the models' prices.
    cost: f64,
    /// Whether any of the numbers is an estimate.
    estimated: bool,
}

impl From<StepRow> for StepView {
    fn from(row: StepRow) -> Self {
        let StepRow { begin, group, requests, prompt_tokens, completion_tokens, cost, estimated } = row;
        let time = Timestamp(begin.saturating_mul(Timestamp::SECOND));
        Self { time, group, requests, prompt_tokens, completion_tokens, cost: cost.units(), estimated }
    }
}

/// The parsed query.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    steps: Steps,
    /// Window and resolution in the caller's words.
    words: (String, String),
    group_by: Option<Grouping>,
}

impl Asked {
    fn read(mut params: query::Params) -> berth_domain::Result<Self> {
        let group_by = params.read("group_by", grouping);
        let word = |name: &str| params.get(name).map(str::to_owned);
        let (window, resolution) = (word("window"), word("resolution"));
        let steps = Steps::read(params, BOUNDS)?;
        let window = window.unwrap_or_else(|| "24h".into());
        let short = steps.window < BOUNDS.default.resolution;
        let resolution = resolution.unwrap_or_else(|| if short { window.clone() } else { "1h".into() });
        Ok(Self { steps, words: (window, resolution), group_by })
    }
}

fn grouping(text: &str) -> Result<Grouping, String> {
    match text {
        "model" => Ok(Grouping::Model),
        "key" => Ok(Grouping::Key),
        _ => Err("must be model or key".into()),
    }
}

/// What the project's requests to models took, for a window and a resolution.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/usage", operation_id = "getUsage",
    tag = "models",
    params(("org_id" = String, Path), ("project_id" = String, Path),
        ("window" = Option<String>, Query, description = "like 60m or 7d, whole minutes, at most 30d; default 24h"),
        ("resolution" = Option<String>, Query, description = "like 5m or 1d, whole minutes; default 1h"),
        ("group_by" = Option<String>, Query, description = "model or key")),
    responses((status = 200, body = UsageView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn get_usage(
    State(gateway): State<Gateway>,
    Onlooker(scope): Onlooker,
    Params(params): Params,
) -> Reply<Json<UsageView>> {
    let Asked { steps, words: (window, resolution), group_by } = Asked::read(params)?;
    gateway.meter().catch_up().await?;
    let span = steps.span(gateway.clock().now());
    let rows = usage::steps(gateway.db(), (&scope).into(), span, steps.resolution, group_by).await?;
    Ok(Json(UsageView { window, resolution, data: rows.into_iter().map(StepView::from).collect() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> berth_domain::Result<Asked> {
        Asked::read(query::Params::parse(query))
    }

    fn asked(window: (i64, &str), resolution: (i64, &str), group_by: Option<Grouping>) -> Asked {
        let steps = Steps { window: window.0, resolution: resolution.0 };
        Asked { steps, words: (window.1.into(), resolution.1.into()), group_by }
    }

    #[test]
    fn what_may_be_asked_for() {
        assert_eq!(read("").unwrap(), asked((86_400, "24h"), (3600, "1h"), None));
        let keys = asked((30 * 86_400, "30d"), (86_400, "24h"), Some(Grouping::Key));
        assert_eq!(read("window=30d&resolution=24h&group_by=key").unwrap(), keys);
        let models = asked((300, "5m"), (300, "5m"), Some(Grouping::Model));
        assert_eq!(read("window=5m&group_by=model").unwrap(), models);
        assert_eq!(read("window=1h").unwrap(), asked((3600, "1h"), (3600, "1h"), None));
        assert!(read("window=1m&resolution=1m").is_ok());
        assert!(read("window=120s&resolution=60s").is_ok());
        for bad in [
            "group_by=user",
            "group_by=",
            "window=31d",
            "window=59s",
            "window=119s",
            "resolution=59s",
            "resolution=61s",
            "resolution=2d",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
        let fields = read("group_by=user&window=x&resolution=y").unwrap_err().details.len();
        assert_eq!(fields, 3);
    }
}
