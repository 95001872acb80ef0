//! Files of a sandbox. Paths are relative to its workspace, unless [`Runtime::at_root`] says otherwise.

use berth_domain::agent::runtime::{Archive, Entry, Exists, Extracted, Listing, Mkdir, Move, Remove};
use bytes::Bytes;
use http::{Method, header};
use reqwest::Body;
use serde::Serialize;
use serde_json::{Value, json};

use super::Runtime;
use crate::transport::{json as read_json, query_text};
use crate::{Error, Result};

/// The bytes of a file or an archive as they come.
pub struct FileContent {
    response: reqwest::Response,
}

impl FileContent {
    /// The number of bytes, if known.
    pub fn length(&self) -> Option<u64> {
        self.response.content_length()
    }

    /// The next bytes; `None` at the end. An early end is an error.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        let chunk = self.response.chunk().await;
        chunk.map_err(|error| Error::Protocol(format!("the content broke off: {error}")))
    }
}

impl Runtime {
    pub(super) fn file_url(&self, route: &str, query: &Value) -> Result<String> {
        let (query, reach) = (query_text(query)?, query_text(&self.reach)?);
        let query = [query, reach].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("&");
        let mark = if query.is_empty() { "" } else { "?" };
        Ok(self.url(&format!("files/{route}{mark}{query}")))
    }

    async fn file_verb(&self, route: &str, body: &(impl Serialize + Sync)) -> Result<reqwest::Response> {
        let body = serde_json::to_value(body).map_err(|e| Error::Protocol(e.to_string()))?;
        self.client.send(Method::POST, &self.file_url(route, &Value::Null)?, Some(body)).await
    }

    /// The content of a file.
    pub async fn read_file(&self, path: &str) -> Result<FileContent> {
        let url = self.file_url("content", &json!({ "path": path }))?;
        Ok(FileContent { response: self.client.send(Method::GET, &url, None).await? })
    }

    /// Writes a file, completely or not at all, and makes missing parents. `mode` is octal, as `0644`.
    pub async fn write_file(&self, path: &str, mode: Option<&str>, content: impl Into<Body>) -> Result<Entry> {
        let url = self.file_url("content", &json!({ "path": path, "mode": mode }))?;
        self.upload(Method::PUT, &url, "application/octet-stream", content.into()).await
    }

    /// The entry at a path. Does not follow a link.
    pub async fn stat(&self, path: &str) -> Result<Entry> {
        self.client.get(&self.file_url("stat", &json!({ "path": path }))?).await
    }

    /// Whether a path exists.
    pub async fn exists(&self, path: &str) -> Result<bool> {
        let answer: Exists = self.client.get(&self.file_url("exists", &json!({ "path": path }))?).await?;
        Ok(answer.exists)
    }

    /// The entries of a directory, to a depth from 1.
    pub async fn list(&self, path: &str, depth: u32, limit: u32) -> Result<Listing> {
        self.client.get(&self.file_url("list", &json!({ "path": path, "depth": depth, "limit": limit }))?).await
    }

    /// Makes a directory; with `parents` also missing parents, and an existing one is fine.
    pub async fn mkdir(&self, path: &str, parents: bool) -> Result<()> {
        self.file_verb("mkdir", &Mkdir { path: path.into(), parents }).await.map(drop)
    }

    /// Removes a file, or an empty directory; with `recursive` any directory.
    pub async fn remove(&self, path: &str, recursive: bool) -> Result<()> {
        self.file_verb("remove", &Remove { path: path.into(), recursive }).await.map(drop)
    }

    /// Moves a file or a directory.
    pub async fn rename(&self, from: &str, to: &str, overwrite: bool) -> Result<()> {
        self.file_verb("move", &Move { from: from.into(), to: to.into(), overwrite }).await.map(drop)
    }

    /// A directory as tar, with entry names relative to it; a file as tar of itself.
    pub async fn archive(&self, path: &str) -> Result<FileContent> {
        Ok(FileContent { response: self.file_verb("archive", &Archive { path: path.into() }).await? })
    }

    /// Unpacks a tar into a directory, which is made if it is missing.
    pub async fn extract(&self, path: &str, archive: impl Into<Body>) -> Result<Extracted> {
        let url = self.file_url("extract", &json!({ "path": path }))?;
        self.upload(Method::POST, &url, "application/x-tar", archive.into()).await
    }

    async fn upload<T: serde::de::DeserializeOwned>(
        &self,
        method: Method,
        url: &str,
        kind: &str,
        body: Body,
    ) -> Result<T> {
        // A stream cannot be sent twice, so this request first makes sure of the token.
        self.exists(".").await?;
        let request = self.client.request(method, url).header(header::CONTENT_TYPE, kind).body(body);
        read_json(self.client.once(request).await?).await
    }
}
