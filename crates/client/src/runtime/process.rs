//! Commands and processes.

use berth_domain::agent::runtime::{CommandRequest, Process, Processes, PtySize};
use bytes::Bytes;
use http::{Method, header};
use serde_json::json;

use super::execution::Stream;
use super::{Execution, Form, Runtime};
use crate::{Error, Result};

impl Runtime {
    /// Runs a command and follows it. With `detach` the command outlives its connection, and is followed over several.
    pub async fn command(&self, request: &CommandRequest, form: Form) -> Result<Execution> {
        let body = serde_json::to_value(request).map_err(|e| Error::Protocol(e.to_string()))?;
        let url = self.program_url("commands", "");
        let build = || self.client.request(Method::POST, &url).header(header::ACCEPT, form.accept()).json(&body);
        let response = self.client.send_again(build).await?;
        Ok(Execution::command(self.clone(), Stream::of(response), request.hold, form))
    }

    /// Starts a process with an open input.
    pub async fn start(&self, request: &CommandRequest) -> Result<Process> {
        self.client.post(&self.program_url("processes", ""), Some(request)).await
    }

    /// Running and recently ended processes, the newest first.
    pub async fn processes(&self) -> Result<Processes> {
        self.client.get(&self.url("processes")).await
    }

    /// One process.
    pub async fn process(&self, pid: i32) -> Result<Process> {
        self.client.get(&self.url(&format!("processes/{pid}"))).await
    }

    /// The output of a process from an offset on; with `follow` until its end.
    pub fn logs(&self, pid: i32, offset: u64, follow: bool, form: Form) -> Execution {
        Execution::process(self.clone(), pid, offset, follow, form)
    }

    /// Follows a process that was started with `hold` to its end; it waits for this reader.
    pub fn output(&self, pid: i32, form: Form) -> Execution {
        Execution::process(self.clone(), pid, 0, true, form).holding()
    }

    pub(super) async fn open_logs(
        &self,
        pid: i32,
        offset: u64,
        (follow, hold): (bool, bool),
        form: Form,
    ) -> Result<Stream> {
        let url = self.url(&format!("processes/{pid}/logs?follow={follow}&offset={offset}&hold={hold}"));
        let build = || self.client.request(Method::GET, &url).header(header::ACCEPT, form.accept());
        self.client.send_again(build).await.map(Stream::of)
    }

    /// Writes to a process's input; returns once the process has taken everything. `eof` closes it.
    pub async fn write_stdin(&self, pid: i32, bytes: Bytes, eof: bool) -> Result<()> {
        let url = self.url(&format!("processes/{pid}/stdin?eof={eof}"));
        let build = || {
            let request = self.client.request(Method::POST, &url);
            request.header(header::CONTENT_TYPE, "application/octet-stream").body(bytes.clone())
        };
        self.client.send_again(build).await.map(drop)
    }

    /// Sends a signal, such as `SIGINT`, to a process and its group.
    pub async fn signal(&self, pid: i32, signal: &str) -> Result<()> {
        let url = self.url(&format!("processes/{pid}/signal"));
        self.client.send(Method::POST, &url, Some(json!({ "signal": signal }))).await.map(drop)
    }

    /// Changes the size of a process's terminal.
    pub async fn resize(&self, pid: i32, size: PtySize) -> Result<()> {
        let url = self.url(&format!("processes/{pid}/resize"));
        self.client.send(Method::POST, &url, Some(json!(size))).await.map(drop)
    }

    /// Ends a process: SIGTERM, and SIGKILL after 5 s.
    pub async fn end_process(&self, pid: i32) -> Result<()> {
        self.client.delete(&self.url(&format!("processes/{pid}"))).await
    }
}
