//! Tools for sandboxes: made, found, kept and ended.

use std::time::Duration;

use axum::http::Method;
use berth_domain::mcp::list::PAGE;
use berth_domain::mcp::sandbox::{Create, Extend, List, One, Port, Templates};
use berth_domain::{Code, Error, Result};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::answer::Answer;
use super::list::{chosen, page};
use super::tool::{Call, Effect, Tool};
use crate::facade::api::escaped;

/// How long a sandbox, or a snapshot of one, is waited for: a little less than clients wait for an answer.
pub const PATIENCE: Duration = Duration::from_secs(50);
/// Seconds of one wait, after which the caller hears how far it is.
const LOOK: u64 = 2;
/// What of a sandbox is told. The rest is for people who look at it.
pub const TOLD: [&str; 11] = [
    "id",
    "name",
    "phase",
    "message",
    "template_id",
    "metadata",
    "vcpu",
    "memory_mb",
    "disk_gb",
    "created_at",
    "expires_at",
];

/// The tools for sandboxes.
pub fn tools() -> Vec<Tool> {
    vec![
        Tool::new(
            "sandbox_create",
            "Create a sandbox",
            "Creates a sandbox: a Linux machine of its own with files, processes and a network, ready in about a second. \
             Answers its id once it is ready. Use one sandbox for a whole task, and sandbox_delete when it is done. One that \
             nobody uses for a quarter of an hour is paused, with its memory, and resumes by itself.",
            Effect::Adds,
            create,
        ),
        Tool::new(
            "sandbox_list",
            "List sandboxes",
            "Lists the project's sandboxes, the newest first, 20 a page.",
            Effect::Reads,
            list,
        ),
        Tool::new("sandbox_show", "Show a sandbox", "Tells the state of a sandbox.", Effect::Reads, show),
        Tool::new(
            "sandbox_extend",
            "Set a sandbox's time",
            "Sets how many seconds a sandbox lives from now on, before it is paused or deleted.",
            Effect::Sets,
            extend,
        ),
        Tool::new(
            "sandbox_pause",
            "Pause a sandbox",
            "Pauses a sandbox with its memory: it costs no processor, and its processes go on when it resumes, which it \
             does by itself when it is used again.",
            Effect::Sets,
            pause,
        ),
        Tool::new("sandbox_resume", "Resume a sandbox", "Resumes a paused sandbox.", Effect::Sets, resume),
        Tool::new(
            "sandbox_delete",
            "Delete a sandbox",
            "Ends a sandbox with all that is in it. Its snapshots stay.",
            Effect::Changes,
            delete,
        ),
        Tool::new(
            "sandbox_templates",
            "List templates",
            "Lists what sandboxes can start from, 20 a page.",
            Effect::Reads,
            templates,
        ),
        Tool::new(
            "sandbox_port_url",
            "Address of a port",
            "Tells the address at which a server inside a sandbox is reached over HTTP or WebSocket from outside, and with \
             which header. The server has to listen on that port.",
            Effect::Reads,
            port_url,
        ),
    ]
}

/// The path of a sandbox below its project.
pub fn path(id: &str) -> String {
    format!("/sandboxes/{}", escaped(id))
}

impl Call {
    /// The sandbox once it has a phase, at the latest at an instant; the caller hears how far it is.
    pub async fn until(&mut self, id: &str, phase: &str, by: Instant) -> Result<Value> {
        let wait = format!("{}/wait?phase={phase}&timeout={LOOK}", path(id));
        loop {
            let sandbox = self.caller.ask(Method::GET, &wait, None).await?;
            let why = sandbox["message"].as_str().unwrap_or_default();
            match sandbox["phase"].as_str().unwrap_or_default() {
                now if now == phase => return Ok(sandbox),
                "Failed" => {
                    let message = format!("The sandbox {id} has failed: {why}. sandbox_delete removes it.");
                    return Err(Error::new(Code::SandboxFailed, message));
                }
                now if Instant::now() > by || self.given_up.is_cancelled() => {
                    let message = format!("The sandbox {id} is still {now}. {why} sandbox_show tells how it goes on.");
                    return Err(Error::new(Code::Unavailable, message));
                }
                now => self.progress.tell(&format!("{now}: {why}")).await,
            }
        }
    }

    /// Has a sandbox do something, and waits for the phase that it leads to.
    pub async fn led(&mut self, id: &str, verb: &str, body: Option<&Value>, phase: &str) -> Result<Answer> {
        self.caller.ask(Method::POST, &format!("{}/{verb}", path(id)), body).await?;
        Ok(Answer::data(chosen(&self.until(id, phase, Instant::now() + PATIENCE).await?, &TOLD)))
    }
}

/// The id of something new.
pub fn id(thing: &Value) -> Result<String> {
    thing["id"].as_str().map(str::to_owned).ok_or_else(|| Error::internal("an answer of the API without an id"))
}

async fn create(mut call: Call, asked: Create) -> Result<Answer> {
    let made = call.caller.ask(Method::POST, "/sandboxes", Some(&asked.body())).await?;
    let ready = call.until(&id(&made)?, "Ready", Instant::now() + PATIENCE).await?;
    Ok(Answer::data(chosen(&ready, &TOLD)))
}

async fn list(call: Call, asked: List) -> Result<Answer> {
    let list = call.caller.ask(Method::GET, &format!("/sandboxes?{}", asked.query()), None).await?;
    Ok(Answer::data(page(&list, &TOLD, asked.page)))
}

async fn show(call: Call, asked: One) -> Result<Answer> {
    Ok(Answer::data(chosen(&call.caller.ask(Method::GET, &path(&asked.sandbox_id), None).await?, &TOLD)))
}

async fn extend(call: Call, asked: Extend) -> Result<Answer> {
    let body = json!({"timeout_seconds": asked.timeout_seconds});
    let sandbox = call.caller.ask(Method::PATCH, &path(&asked.sandbox_id), Some(&body)).await?;
    Ok(Answer::data(chosen(&sandbox, &TOLD)))
}

async fn pause(mut call: Call, asked: One) -> Result<Answer> {
    call.led(&asked.sandbox_id, "pause", None, "Paused").await
}

async fn resume(mut call: Call, asked: One) -> Result<Answer> {
    call.led(&asked.sandbox_id, "resume", None, "Ready").await
}

async fn delete(call: Call, asked: One) -> Result<Answer> {
    call.caller.ask(Method::DELETE, &path(&asked.sandbox_id), None).await?;
    Ok(Answer::text("The sandbox is being deleted."))
}

async fn templates(call: Call, asked: Templates) -> Result<Answer> {
    let path = format!("/sandbox_templates?limit={PAGE}&page={}", asked.page.unwrap_or(1));
    let list = call.caller.ask(Method::GET, &path, None).await?;
    let fields = ["id", "name", "status", "message", "vcpu", "memory_mb", "disk_gb", "created_at"];
    Ok(Answer::data(page(&list, &fields, asked.page)))
}

async fn port_url(call: Call, asked: Port) -> Result<Answer> {
    // Of a sandbox that is not the caller's nothing is told.
    let sandbox = call.caller.ask(Method::GET, &path(&asked.sandbox_id), None).await?;
    let url = format!("{}/sandbox/{}/ports/{}/", call.caller.base, id(&sandbox)?, asked.port);
    let person = format!("berth sandbox port {} {port} --listen 127.0.0.1:{port}", id(&sandbox)?, port = asked.port);
    Ok(Answer::data(json!({
        "url": url,
        "header": "Authorization: Bearer <API key of the project>",
        "for_a_person": person,
        "from_inside": format!("http://127.0.0.1:{}/", asked.port),
    })))
}
