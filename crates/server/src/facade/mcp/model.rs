//! The tool for models.

use berth_domain::Result;
use berth_domain::mcp::list::Nothing;
use serde_json::{Value, json};

use super::answer::Answer;
use super::tool::{Call, Effect, Tool};

/// The tool for models.
pub fn tools() -> Vec<Tool> {
    vec![Tool::new(
        "model_list",
        "List models",
        "Lists the models that the project may use, and where: an OpenAI-compatible API, with the key of this connection.",
        Effect::Reads,
        list,
    )]
}

async fn list(call: Call, _: Nothing) -> Result<Answer> {
    let models = call.caller.ask_anywhere("/v1/models").await?;
    let ids: Vec<&Value> = models["data"].as_array().into_iter().flatten().map(|model| &model["id"]).collect();
    Ok(Answer::data(json!({"base_url": format!("{}/v1", call.caller.base), "models": ids})))
}
