//! Templates for sandboxes.

use std::collections::BTreeMap;

use berth_domain::sse::Event;
use futures::{Stream, StreamExt};
use http::Method;
use reqwest::Body;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::runtime::events::events_within;
use crate::transport::{Named, json, segment};
use crate::{Error, List, Page, ProjectClient, Result};

/// The longest line of an event, in bytes: a log has 1 MiB, and JSON may double it.
const LONGEST: usize = 3 << 20;

/// A template.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Template {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// `pending`, `building`, `ready` or `failed`.
    pub status: String,
    /// The step under way, or the reason of a failure.
    #[serde(default)]
    pub message: Option<String>,
    /// Virtual CPUs.
    #[serde(default)]
    pub vcpu: Option<u32>,
    /// Memory in MiB.
    #[serde(default)]
    pub memory_mb: Option<u64>,
    /// Disk in GiB.
    #[serde(default)]
    pub disk_gb: Option<u64>,
    /// Creation, RFC 3339.
    pub created_at: String,
    /// All other fields of the service's answer.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A template to build, of exactly one of image, Dockerfile and snapshot. Only with a snapshot may sizes be absent.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CreateTemplate {
    /// Name, unique in the project.
    pub name: String,
    /// A container image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The text of a Dockerfile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dockerfile: Option<String>,
    /// The upload that the Dockerfile copies from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_id: Option<String>,
    /// A snapshot's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_snapshot: Option<String>,
    /// Virtual CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vcpu: Option<u32>,
    /// Memory in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    /// Disk in GiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_gb: Option<u64>,
    /// Environment of its sandboxes' commands.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The command that runs in its sandboxes from the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_command: Option<String>,
    /// The command that succeeds once the start command is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_command: Option<String>,
    /// Whether it replaces a template that has this name.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub replace: bool,
}

/// An archive for building templates.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Upload {
    /// Its id, for `context_id`.
    pub id: String,
    /// Its name, for `image` and `FROM`.
    pub image: String,
    /// Its bytes.
    pub size_bytes: u64,
    /// When the service removes it, RFC 3339.
    pub expires_at: String,
}

/// An event of a build. In JSON, `event` has its kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum BuildEvent {
    /// Whole lines, and the offset behind them.
    Log {
        /// The lines.
        text: String,
        /// The offset at which reading goes on.
        offset: u64,
    },
    /// Nothing follows.
    End {
        /// The final status of the template.
        status: String,
        /// The step under way, or the reason of a failure.
        message: Option<String>,
    },
}

impl ProjectClient {
    /// Uploads an archive: an image, or the files that a Dockerfile copies from.
    pub async fn upload(&self, archive: impl Into<Body>) -> Result<Upload> {
        // An upload cannot be sent twice, so this request first makes sure of the token.
        self.quota().await?;
        let request = self.client.request(Method::POST, &format!("{}/sandbox_uploads", self.path));
        json(self.client.once(request.body(archive)).await?).await
    }

    /// Removes an upload. A build that already reads it reads on.
    pub async fn delete_upload(&self, id: &str) -> Result<()> {
        self.client.delete(&format!("{}/sandbox_uploads/{}", self.path, segment(id))).await
    }

    /// The log of a template's build, from an offset on.
    pub async fn build_log(
        &self,
        id: &str,
        offset: u64,
        follow: bool,
    ) -> Result<impl Stream<Item = Result<BuildEvent>> + use<>> {
        let path = format!("{}/logs?follow={follow}&offset={offset}", self.template_path(id));
        let response = self.client.send(Method::GET, &path, None).await?;
        Ok(events_within(response, LONGEST).map(|event| {
            let event = event.map_err(|e| Error::Protocol(format!("the log broke off: {e}")))?;
            read(&event)
        }))
    }

    fn template_path(&self, id: &str) -> String {
        format!("{}/sandbox_templates/{}", self.path, segment(id))
    }

    /// Templates, newest first.
    pub async fn templates(&self, page: Page) -> Result<List<Template>> {
        self.client.list(&format!("{}/sandbox_templates", self.path), &page).await
    }

    /// Templates with this name: the project's own and the platform's.
    pub async fn templates_named(&self, name: &str, page: Page) -> Result<List<Template>> {
        self.client.list(&format!("{}/sandbox_templates", self.path), &Named::new(name, page)).await
    }

    /// One template.
    pub async fn template(&self, id: &str) -> Result<Template> {
        self.client.get(&self.template_path(id)).await
    }

    /// Builds a template; it becomes `ready` some time after the answer.
    pub async fn create_template(&self, request: &CreateTemplate) -> Result<Template> {
        self.client.post(&format!("{}/sandbox_templates", self.path), Some(request)).await
    }

    /// Deletes a template; sandboxes made of it stay.
    pub async fn delete_template(&self, id: &str) -> Result<()> {
        self.client.delete(&self.template_path(id)).await
    }
}

fn read(event: &Event) -> Result<BuildEvent> {
    #[derive(Deserialize)]
    struct Log {
        text: String,
        offset: u64,
    }
    #[derive(Deserialize)]
    struct End {
        #[serde(default)]
        status: String,
        message: Option<String>,
    }
    let read = match event.name.as_str() {
        "log" => serde_json::from_str(&event.data).map(|Log { text, offset }| BuildEvent::Log { text, offset }),
        "end" => serde_json::from_str(&event.data).map(|End { status, message }| BuildEvent::End { status, message }),
        other => return Err(Error::Protocol(format!("the log ended with '{other}'"))),
    };
    read.map_err(|e| Error::Protocol(format!("the log cannot be read: {e}")))
}
