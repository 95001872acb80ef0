//! The tool for cells: code in an interpreter that keeps what it has.

use std::time::Duration;

use axum::http::Method;
use axum::response::Response;
use berth_domain::mcp::cell::{Cell, Outcome, Told};
use berth_domain::{Code, Error, Result};
use futures::StreamExt;
use rmcp::model::ContentBlock;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::answer::Answer;
use super::tool::{Call, Effect, Tool, invalid};
use crate::facade::api::said;

/// Where the template's server listens.
const PORT: u16 = 49_999;
/// The largest list of contexts that is read, in bytes.
const LISTED: usize = 1 << 20;

/// The tool for cells.
pub fn tools() -> Vec<Tool> {
    vec![Tool::new(
        "sandbox_run_cell",
        "Run a cell",
        "Runs code in an interpreter that keeps its variables from call to call, as a notebook does, and answers what it \
         printed, the value of its last expression, and charts as pictures. Wants a sandbox of the template \
         code-interpreter. Whoever gives it up, or does not wait long enough, interrupts it.",
        Effect::Runs,
        run,
    )]
}

async fn run(mut call: Call, asked: Cell) -> Result<Answer> {
    let wait = Duration::from_secs(asked.wait().map_err(invalid)?);
    let sandbox = asked.sandbox_id.as_str();
    if asked.restart == Some(true) {
        let contexts: Value = said(reach(&call, sandbox, Method::GET, "contexts", None).await?, LISTED).await?;
        let context = asked.context(&contexts);
        let context =
            context.ok_or_else(|| invalid("This interpreter was not used yet: there is nothing to restart."))?;
        reach(&call, sandbox, Method::POST, &format!("contexts/{context}/restart"), None).await?;
    }
    let answer = reach(&call, sandbox, Method::POST, "execute", Some(&asked.body())).await?;
    let outcome = heard(answer, Instant::now() + wait, &mut call).await?;
    let late = (!outcome.ended)
        .then(|| format!("[interrupted after {} s: raise wait_seconds. Variables are kept]", wait.as_secs()));
    let told = outcome.told().into_iter().map(|told| match told {
        Told::Text(text) => ContentBlock::text(text),
        Told::Picture(bytes, kind) => ContentBlock::image(bytes, kind),
    });
    Ok(Answer::blocks(told.chain(late.map(ContentBlock::text)).collect()))
}

/// What comes of a cell until it ends, until an instant, or until the call is given up. Who listens no more interrupts it.
async fn heard(answer: Response, until: Instant, call: &mut Call) -> Result<Outcome> {
    let (mut pieces, mut outcome) = (answer.into_body().into_data_stream(), Outcome::default());
    while !outcome.ended {
        let piece = tokio::select! {
            piece = timeout_at(until, pieces.next()) => piece,
            () = call.given_up.cancelled() => break,
        };
        let Ok(Some(piece)) = piece else { break };
        let printed = outcome.feed(&piece.map_err(|error| broken(&error))?);
        call.progress.tell_output(if printed.is_empty() { b"still running" } else { &printed }).await;
    }
    Ok(outcome)
}

/// Asks the server in the sandbox.
async fn reach(call: &Call, sandbox: &str, method: Method, path: &str, body: Option<&Value>) -> Result<Response> {
    let answer = call.caller.reach(sandbox, PORT, method, path, body).await;
    answer.map_err(|error| match error.code {
        Code::PortRefused => invalid(
            "This sandbox has no interpreter. Make one with template code-interpreter, or use sandbox_run_code.",
        ),
        _ => error,
    })
}

fn broken(error: &impl std::fmt::Display) -> Error {
    Error::new(Code::Unavailable, format!("The answer broke off: {error}. The interpreter may have lost what it had."))
}
