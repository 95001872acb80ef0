//! Tools for virtual machines.

use axum::http::Method;
use berth_domain::mcp::list::PAGE;
use berth_domain::mcp::vm::{CONSOLE, Console, Create, List, One};
use berth_domain::{Error, Result};
use http_body_util::{BodyExt, Limited};
use serde_json::Value;

use super::answer::Answer;
use super::caller::Caller;
use super::list::{chosen, page};
use super::tool::{Call, Effect, Tool};
use crate::facade::api::escaped;

/// Bytes of a console that are told where nobody says.
const TAIL: u64 = 4096;
/// What of a VM is told.
const TOLD: [&str; 12] = [
    "id",
    "name",
    "status",
    "message",
    "image_id",
    "vm_config_id",
    "public_ip",
    "exposed_ports",
    "ssh",
    "guest_ready",
    "created_at",
    "expires_at",
];

/// The tools for VMs.
pub fn tools() -> Vec<Tool> {
    vec![
        Tool::new("vm_list", "List VMs", "Lists the project's VMs, the newest first, 20 a page.", Effect::Reads, list),
        Tool::new(
            "vm_show",
            "Show a VM",
            "Tells the state of a VM, and how it is reached over SSH.",
            Effect::Reads,
            show,
        ),
        Tool::new(
            "vm_create",
            "Create a VM",
            "Creates a virtual machine that stays, with a disk of its own and SSH. It boots for some seconds: vm_show tells \
             when `status` is `running` and `guest_ready` is true. For running code use a sandbox.",
            Effect::Adds,
            create,
        ),
        Tool::new("vm_start", "Start a VM", "Starts a VM that is stopped.", Effect::Sets, start),
        Tool::new("vm_stop", "Stop a VM", "Shuts a VM down. Its disks stay.", Effect::Changes, stop),
        Tool::new("vm_delete", "Delete a VM", "Deletes a VM and the root disk made with it.", Effect::Changes, delete),
        Tool::new(
            "vm_console",
            "Read a VM's console",
            "Answers the last bytes that a VM wrote to its serial console: why it does not boot, for instance.",
            Effect::Reads,
            console,
        ),
    ]
}

fn path(id: &str) -> String {
    format!("/vms/{}", escaped(id))
}

fn told(vm: &Value) -> Answer {
    Answer::data(chosen(vm, &TOLD))
}

async fn list(call: Call, asked: List) -> Result<Answer> {
    let status = asked.status.as_deref().map(|status| format!("&status={}", escaped(status))).unwrap_or_default();
    let path = format!("/vms?limit={PAGE}&page={}{status}", asked.page.unwrap_or(1));
    Ok(Answer::data(page(&call.caller.ask(Method::GET, &path, None).await?, &TOLD, asked.page)))
}

async fn show(call: Call, asked: One) -> Result<Answer> {
    Ok(told(&call.caller.ask(Method::GET, &path(&asked.vm_id), None).await?))
}

async fn create(call: Call, asked: Create) -> Result<Answer> {
    let regions = call.caller.ask_anywhere("/api/v1/regions").await?;
    let region = regions["data"][0]["id"].as_str().ok_or_else(|| Error::internal("there is no region"))?;
    Ok(told(&call.caller.ask(Method::POST, "/vms", Some(&asked.body(region))).await?))
}

async fn start(call: Call, asked: One) -> Result<Answer> {
    Ok(told(&call.caller.ask(Method::POST, &format!("{}/start", path(&asked.vm_id)), None).await?))
}

async fn stop(call: Call, asked: One) -> Result<Answer> {
    Ok(told(&call.caller.ask(Method::POST, &format!("{}/stop", path(&asked.vm_id)), None).await?))
}

async fn delete(call: Call, asked: One) -> Result<Answer> {
    call.caller.ask(Method::DELETE, &path(&asked.vm_id), None).await?;
    Ok(Answer::text("The VM is being deleted."))
}

async fn console(call: Call, asked: Console) -> Result<Answer> {
    let bytes = asked.bytes.unwrap_or(TAIL).clamp(1, CONSOLE);
    Ok(Answer::text(tail(&call.caller, &asked.vm_id, bytes).await?))
}

/// The last bytes of a console.
pub async fn tail(caller: &Caller, vm: &str, bytes: u64) -> Result<String> {
    let answer = caller.open(&format!("{}/console?bytes={bytes}", path(vm))).await?;
    let most = usize::try_from(CONSOLE).unwrap_or(usize::MAX);
    let whole = Limited::new(answer.into_body(), most).collect().await;
    let whole = whole.map_err(|error| Error::unavailable(format!("the console broke off: {error}")))?.to_bytes();
    Ok(String::from_utf8_lossy(&whole).into_owned())
}
