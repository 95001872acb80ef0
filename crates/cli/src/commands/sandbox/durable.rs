//! Waiting for the second copy of what is to outlive its host.

use anyhow::{Result, bail};
use serde_json::{Map, Value};

use crate::context::Context;
use crate::output;
use crate::progress::{Progress, Stage, watch};

/// What an answer says of it, in words; nothing of what need not outlive its host.
pub fn told(answer: &Map<String, Value>) -> String {
    let is_durable = answer.get("durable").and_then(Value::as_bool).unwrap_or(false);
    match answer.get("copied_at").and_then(Value::as_str) {
        Some(at) => format!("whole since {}", output::time(at)),
        None if is_durable => "not whole yet".to_owned(),
        None => String::new(),
    }
}

/// Waits until there is a second copy of a thing, so many seconds at most.
///
/// # Errors
/// Nobody wants that any more, or it takes longer.
pub async fn wait<T>(
    context: &Context,
    (thing, name): (T, &str),
    seconds: u64,
    answer: impl Fn(&T) -> &Map<String, Value>,
    look: impl AsyncFn() -> Result<T>,
) -> Result<T> {
    let stage = |thing: &T| {
        let answer = answer(thing);
        if answer.get("copied_at").is_some_and(Value::is_string) {
            return Ok(Stage::Over);
        }
        if answer.get("durable") != Some(&Value::Bool(true)) {
            bail!("{name} need not outlive its host any more: somebody resumed it, or ended that");
        }
        Ok(Stage::Underway {
            shown: format!("{name}: making the second copy, which outlives its host"),
            late: format!(
                "{name} is kept on its own host, and its second copy is not whole after {seconds} s. It may come later, and \
                 then stands beside it in: berth sandbox show, and berth sandbox snapshot list. An administrator finds in the log \
                 of the service what is in the way"
            ),
        })
    };
    watch(Progress::new(context.is_quiet()), Some(seconds), thing, stage, look).await
}
