//! Templates: the disks that the platform brings along, and machines kept in memory.

use std::time::Duration;

use axum_core::body::Body;
use berth_domain::agent::runtime::{CommandRequest, OutputEvent};
use berth_domain::ids::{LayerId, MachineId};
use berth_qemu::disk;
use http::{Request, StatusCode, header};
use serde::Deserialize;
use tokio::time::{sleep, timeout};

use super::QemuSandboxes;
use super::captured::{About, agent_failed, bytes_of};
use crate::error::{qemu_failed, transient};
use crate::sandbox::agent::{AgentError, Output, Session};
use crate::sandbox::{PlatformTemplate, Warming};
use crate::{EngineError, Result};

/// The file that describes a platform's template.
const MANIFEST: &str = "template.json";
/// How long starting a program may take.
const START: Duration = Duration::from_secs(30);
/// How long the usual programs may take, emulated on a busy host.
const USUALLY: Duration = Duration::from_mins(1);
/// Between two questions whether it is.
const ASK: Duration = Duration::from_millis(500);
/// What is worth having in memory when a command comes: the shell, and what it needs.
const USUAL: &str = "bash -c true; ls / >/dev/null; cat /etc/passwd >/dev/null; command -v python3 >/dev/null && python3 -c 'import json, os, re, subprocess, sys'; true";

#[derive(Deserialize)]
struct Manifest {
    name: String,
    version: String,
    disk: String,
    virtual_size_bytes: u64,
    user: String,
    vcpu: i64,
    memory_mb: i64,
    start_command: Option<String>,
    ready_command: Option<String>,
}

impl QemuSandboxes {
    fn manifest(&self, name: &str) -> Result<Manifest> {
        let bytes = std::fs::read(self.places.templates().join(name).join(MANIFEST)).map_err(transient)?;
        let manifest: Manifest = serde_json::from_slice(&bytes).map_err(transient)?;
        let plain = !manifest.disk.contains('/') && manifest.name == name;
        if plain { Ok(manifest) } else { Err(EngineError::Permanent(format!("the template '{name}' is damaged"))) }
    }

    pub(super) fn platform_templates(&self) -> Result<Vec<PlatformTemplate>> {
        let names = super::names(&self.places.templates(), |name| (!name.contains('.')).then(|| name.to_owned()))?;
        let template = |name: String| {
            let manifest = self.manifest(&name)?;
            Ok(PlatformTemplate {
                name,
                version: manifest.version,
                vcpu: manifest.vcpu,
                memory_mb: manifest.memory_mb,
                disk_gb: i64::try_from(manifest.virtual_size_bytes.div_ceil(super::GIB)).unwrap_or(i64::MAX),
                user: manifest.user,
                start_command: manifest.start_command,
                ready_command: manifest.ready_command,
            })
        };
        names.into_iter().map(template).collect()
    }

    /// Unpacks a template's disk into a layer: what is read again and again should not be unpacked each time.
    pub(super) async fn adopt(&self, name: &str, layer: LayerId) -> Result<()> {
        let to = self.places.layer(layer);
        if to.exists() {
            return Ok(());
        }
        let manifest = self.manifest(name)?;
        tokio::fs::create_dir_all(self.places.layers()).await.map_err(transient)?;
        let (from, tmp) = (self.places.templates().join(name).join(manifest.disk), to.with_extension("tmp"));
        disk::flatten(&from, "qcow2", &tmp).await.map_err(qemu_failed)?;
        tokio::fs::rename(tmp, to).await.map_err(transient)
    }

    pub(super) async fn warm(&self, warming: &Warming) -> Result<i64> {
        let (id, captured) = (warming.machine.id, self.places.memory(warming.memory));
        let mut paused = Ok(());
        if About::read(&captured).is_none() {
            self.start_machine(&warming.machine).await?;
            paused = match self.prepare(warming).await {
                Ok(()) => self.pause_machine(id, Some(warming.memory)).await.map(drop),
                Err(error) => Err(error),
            };
            self.end_machine(id).await?;
        }
        // The folder goes of one that could not be captured, too.
        super::remove(&self.places.machine(id)).await?;
        paused?;
        let kept = || transient("its memory could not be kept");
        let bytes = About::read(&captured).map(|_| bytes_of(&captured)).ok_or_else(kept)?;
        Ok(bytes)
    }

    /// Has it run what its sandboxes find running, as long as its owner's commands may take.
    async fn prepare(&self, warming: &Warming) -> Result<()> {
        let ready = timeout(warming.patience, self.make_ready(warming)).await;
        ready.unwrap_or_else(|_| {
            let seconds = warming.patience.as_secs();
            let what =
                if warming.ready_command.is_some() { "ready_command did not succeed" } else { "it was not ready" };
            Err(EngineError::Permanent(format!("{what} within {seconds} s")))
        })?;
        self.run_within(warming.machine.id, "commands", USUAL, USUALLY).await.map(drop)
    }

    async fn make_ready(&self, warming: &Warming) -> Result<()> {
        if let Some(start) = &warming.start_command {
            self.run_within(warming.machine.id, "processes", start, START).await?;
        }
        while let Some(ready) = &warming.ready_command
            && !self.run_in(warming.machine.id, "commands", ready).await?
        {
            sleep(ASK).await;
        }
        Ok(())
    }

    /// Runs a command in the machine, for so long.
    pub(super) async fn run_within(
        &self,
        id: MachineId,
        route: &str,
        command: &str,
        patience: Duration,
    ) -> Result<bool> {
        let ran = timeout(patience, self.run_in(id, route, command)).await;
        ran.unwrap_or_else(|_| Err(transient(format!("its shell did not answer within {} s", patience.as_secs()))))
    }

    /// Runs a command in the machine; whether it returned 0, or was started where nobody waits. One whose caller does not
    /// wait any longer is ended with its reader.
    async fn run_in(&self, id: MachineId, route: &str, command: &str) -> Result<bool> {
        let live = self.live(id).ok_or_else(|| transient("the machine is gone"))?;
        let body = CommandRequest { cmd: Some(command.to_owned()), ..CommandRequest::default() };
        let request = Request::post(format!("http://agent/runtime/{route}"))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::AUTHORIZATION, live.authorization())
            .body(Body::from(serde_json::to_vec(&body).map_err(transient)?))
            .map_err(transient)?;
        let session = live.session().await.map_err(agent_failed)?;
        succeeds(&session, &live.authorization(), request).await
    }
}

/// Whether a command returned 0, or was started where nobody waits. One that ended is forgotten: who looks for processes
/// of a sandbox finds its own.
async fn succeeds(session: &Session, authorization: &str, request: Request<Body>) -> Result<bool> {
    let answer = match session.ask(request).await {
        Ok(answer) if answer.status() == StatusCode::CREATED => return Ok(true),
        Ok(answer) => answer,
        // A disk may have no shell.
        Err(AgentError::Refused { .. }) => return Ok(false),
        Err(error) => return Err(agent_failed(error)),
    };
    let (mut output, mut started) = (Output::of(answer.into_body()), None);
    let succeeded = loop {
        match output.next().await.map_err(agent_failed)? {
            OutputEvent::Start { pid } => started = Some(pid),
            OutputEvent::Exit(exit) => break exit.code == Some(0),
            OutputEvent::Error { .. } => break false,
            _ => {}
        }
    };
    if let Some(pid) = started {
        let forget = Request::delete(format!("http://agent/runtime/processes/{pid}"))
            .header(header::AUTHORIZATION, authorization)
            .body(Body::empty())
            .map_err(transient)?;
        session.ask(forget).await.map_err(agent_failed)?;
    }
    Ok(succeeded)
}
