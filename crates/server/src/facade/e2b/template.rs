//! Templates, which E2B's snapshots are among.

use axum::Json;
use axum::extract::Path;
use axum::http::{Method, StatusCode};
use berth_domain::e2b::sandbox::template_names;
use berth_domain::{Code, Error, Result, Timestamp};
use serde_json::{Value, json};

use super::holder::Holder;
use super::sandbox::{Reply, snapshots};
use crate::facade::api::escaped;

/// `GET /templates`.
pub async fn list(holder: Holder) -> Reply<Json<Vec<Value>>> {
    let listed = holder.ask(Method::GET, "/sandbox_templates?limit=100", None).await?;
    Ok(Json(listed["data"].as_array().into_iter().flatten().map(told).collect()))
}

/// `GET /templates/{id}`.
pub async fn show(holder: Holder, Path(id): Path<String>) -> Reply<Json<Value>> {
    Ok(Json(told(&template(&holder, &id).await?)))
}

/// The template that is called so.
async fn template(holder: &Holder, called: &str) -> Result<Value> {
    for name in template_names(called) {
        if let Some(template) = holder.template(name).await? {
            return Ok(template);
        }
    }
    Err(Error::new(Code::TemplateNotFound, format!("template '{called}' not found")))
}

/// `GET /templates/aliases/{alias}`.
pub async fn alias(holder: Holder, Path(alias): Path<String>) -> Reply<Json<Value>> {
    let template = template(&holder, &alias).await?;
    Ok(Json(json!({"templateID": template["id"], "public": false})))
}

/// `DELETE /templates/{id}`: all snapshots of a name, or a template.
pub async fn remove(holder: Holder, Path(id): Path<String>) -> Reply<StatusCode> {
    let kept = snapshots(&holder, &id).await?;
    for snapshot in &kept {
        holder.ask(Method::DELETE, &format!("/snapshots/{}", escaped(&snapshot.id)), None).await?;
    }
    if kept.is_empty() {
        let template = template(&holder, &id).await?;
        let id = template["id"].as_str().unwrap_or_default();
        holder.ask(Method::DELETE, &format!("/sandbox_templates/{}", escaped(id)), None).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// What builds templates, names their versions, or keeps volumes and secrets.
pub async fn absent() -> Reply<StatusCode> {
    let message = "This is not there. Templates are built by: berth template create. docs/e2b.md says what there is.";
    Err(Error::new(Code::NotSupported, message).into())
}

/// A template as SDKs read it.
fn told(template: &Value) -> Value {
    let gone = Timestamp(0).to_string();
    let time = |name: &str| template[name].as_str().unwrap_or(&gone).to_owned();
    let status = match template["status"].as_str() {
        Some("ready") => "ready",
        Some("failed") => "error",
        _ => "building",
    };
    json!({
        "templateID": template["id"], "buildID": template["id"], "aliases": [template["name"]], "names": [template["name"]],
        "public": false, "cpuCount": template["vcpu"], "memoryMB": template["memory_mb"],
        "diskSizeMB": template["disk_gb"].as_i64().unwrap_or(0) << 10, "createdAt": time("created_at"),
        "updatedAt": time("updated_at"), "createdBy": null, "lastSpawnedAt": null, "spawnCount": 0, "buildCount": 1,
        "envdVersion": berth_domain::e2b::sandbox::ENVD, "buildStatus": status,
    })
}
