//! Resources: files of sandboxes, output of processes, consoles of VMs.

use axum::http::Method;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_domain::mcp::file::{IMAGE, ListFiles, lines};
use berth_domain::mcp::uri::Resource as Named;
use berth_domain::mcp::vm::CONSOLE;
use berth_domain::{Code, Error, Result};
use rmcp::model::{
    ArgumentInfo, CompletionInfo, ListResourceTemplatesResult, ListResourcesResult, ReadResourceResult, Resource,
    ResourceContents, ResourceTemplate,
};
use serde_json::Value;

use super::caller::Caller;
use super::tool::Call;
use super::{command, file, vm};

/// Most sandboxes, and VMs, that are listed as resources.
const LISTED: u64 = 50;
/// Most of them that a blank is looked for among.
const CANDIDATES: u64 = 100;

/// The forms of addresses.
pub fn templates() -> ListResourceTemplatesResult {
    let template = |uri, name, about| ResourceTemplate::new(uri, name).with_description(about);
    ListResourceTemplatesResult::with_all_items(vec![
        template(
            "berth://sandboxes/{sandbox_id}/files/{+path}",
            "File of a sandbox",
            "A file, or the listing of a directory, by its absolute path.",
        ),
        template(
            "berth://sandboxes/{sandbox_id}/processes/{pid}/output",
            "Output of a process",
            "The first and the last of what a process of a sandbox printed.",
        ),
        template("berth://vms/{vm_id}/console", "Console of a VM", "The last 16 KiB of a VM's serial console."),
    ])
}

/// What there is: the home of each sandbox, and the console of each VM.
pub async fn list(caller: &Caller) -> Result<ListResourcesResult> {
    let (sandboxes, vms) = (all(caller, "sandboxes", LISTED).await?, all(caller, "vms", LISTED).await?);
    let of_sandbox = sandboxes.iter().map(|sandbox| {
        let uri = Named::File { sandbox: text(&sandbox["id"]), path: "/home/user".to_owned() }.to_string();
        Resource::new(uri, format!("Home of {}", text(&sandbox["name"]))).with_mime_type("text/plain")
    });
    let of_vm = vms.iter().map(|vm| {
        let uri = Named::Console { vm: text(&vm["id"]) }.to_string();
        Resource::new(uri, format!("Console of {}", text(&vm["name"]))).with_mime_type("text/plain")
    });
    Ok(ListResourcesResult::with_all_items(of_sandbox.chain(of_vm).collect()))
}

/// What the blank of an address may be, where it begins with what is written.
pub async fn complete(caller: &Caller, argument: &ArgumentInfo) -> Result<CompletionInfo> {
    let there = match argument.name.as_str() {
        "sandbox_id" => all(caller, "sandboxes", CANDIDATES).await?,
        "vm_id" => all(caller, "vms", CANDIDATES).await?,
        _ => Vec::new(),
    };
    let ids = there.iter().map(|one| text(&one["id"])).filter(|id| id.starts_with(&argument.value));
    CompletionInfo::with_all_values(ids.take(CompletionInfo::MAX_VALUES).collect()).map_err(Error::internal)
}

/// The newest of a kind that the caller may see; who may see none has none.
async fn all(caller: &Caller, kind: &str, most: u64) -> Result<Vec<Value>> {
    match caller.ask(Method::GET, &format!("/{kind}?limit={most}"), None).await {
        Ok(mut list) => match list["data"].take() {
            Value::Array(list) => Ok(list),
            _ => Ok(Vec::new()),
        },
        Err(error) if matches!(error.code, Code::Forbidden | Code::MissingScope) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// What an address names.
pub async fn read(mut call: Call, uri: &str) -> Result<ReadResourceResult> {
    let named = Named::parse(uri).ok_or_else(|| {
        Error::new(Code::NotFound, "No resource has this address. resources/templates/list has the forms.")
    })?;
    let contents = match named {
        Named::File { sandbox, path } => of_file(&call.caller, &sandbox, &path, uri).await,
        Named::Output { sandbox, pid } => {
            let text = command::output(&mut call, &sandbox, pid).await;
            text.map(|text| ResourceContents::text(text, uri))
        }
        Named::Console { vm } => {
            vm::tail(&call.caller, &vm, CONSOLE).await.map(|text| ResourceContents::text(text, uri))
        }
    };
    Ok(ReadResourceResult::new(vec![contents?]))
}

async fn of_file(caller: &Caller, sandbox: &str, path: &str, uri: &str) -> Result<ResourceContents> {
    match file::part(caller, file::Place { sandbox, path, user: None }, (0, IMAGE)).await {
        Err(error) if error.code == Code::IsADirectory => {
            let asked =
                ListFiles { sandbox_id: sandbox.to_owned(), path: Some(path.to_owned()), depth: None, user: None };
            Ok(ResourceContents::text(lines(&file::listing(caller, &asked).await?), uri))
        }
        Err(error) => Err(error),
        Ok(part) if part.total.is_none_or(|total| total > IMAGE) => {
            let message = "The file is too large, or goes on for ever: sandbox_read_file reads it in parts.";
            Err(Error::new(Code::InvalidRequest, message))
        }
        Ok(part) => Ok(match (part.picture, std::str::from_utf8(&part.bytes)) {
            (None, Ok(text)) => ResourceContents::text(text, uri),
            (kind, _) => ResourceContents::blob(STANDARD.encode(&part.bytes), uri)
                .with_mime_type(kind.unwrap_or("application/octet-stream")),
        }),
    }
}
