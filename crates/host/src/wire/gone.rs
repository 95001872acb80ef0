//! A host that will not come back, with all that it had: what there is still to be asked of it.
//!
//! What ran there does not run, and what is to be removed is gone; whatever else is wished of it cannot be. So rows of things
//! that it had come to their end as all others do.

use std::io;

use async_trait::async_trait;
use berth_domain::host::ask::{
    disk, disk_snapshot, host, image, layer, memory, migration, network, sandbox, shared_snapshot, template, upload, vm,
};
use berth_domain::host::model::{About, AboutSandboxes, AboutVms};
use berth_domain::host::{Ask, EngineError, Result, network as of_networks, sandbox as of_sandboxes, vm as of_vms};
use berth_domain::sandbox::plan::Machine as SandboxMachine;
use berth_domain::vm::plan::Machine;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, duplex};
use tokio::time::timeout;

use super::frame;
use super::message::{Asked, QUESTION, SILENCE};
use super::remote::Carrier;
use super::tell::end;
use crate::answer::say;
use crate::vm::Console;

/// What is said of everything that cannot be.
const GONE: &str = "the host that it was on will not come back, nor will what was there";
/// Bytes under way in a pipe.
const UNDER_WAY: usize = 64 << 10;

/// Leads to a host that will not come back.
pub struct Gone;

#[async_trait]
impl Carrier for Gone {
    async fn connect(&self) -> io::Result<Box<dyn Console>> {
        let (ours, theirs) = duplex(UNDER_WAY);
        tokio::spawn(async move {
            if let Err(error) = serve(theirs).await {
                tracing::debug!(%error, "a question to a host that is gone has ended");
            }
        });
        Ok(Box::new(ours))
    }
}

async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let asked = timeout(SILENCE, frame::read(&mut stream, QUESTION)).await??;
    end(&mut stream, Asked::read(&asked).and_then(answer).into()).await
}

fn answer(ask: Ask) -> Result<Value> {
    match ask {
        Ask::Host(ask) => of_host(ask),
        Ask::Vm(ask) => of_vm(ask),
        Ask::Migration(migration::Ask::CallOff(q)) => say(&q, Ok(())),
        Ask::Disk(disk::Ask::Remove(q)) => say(&q, Ok(())),
        Ask::Disk(disk::Ask::SetAside(q)) => say(&q, Ok(())),
        Ask::DiskSnapshot(disk_snapshot::Ask::Remove(q)) => say(&q, Ok(())),
        Ask::DiskSnapshot(disk_snapshot::Ask::SetAside(q)) => say(&q, Ok(())),
        Ask::SharedSnapshot(shared_snapshot::Ask::Remove(q)) => say(&q, Ok(())),
        Ask::Image(image::Ask::List(q)) => say(&q, Ok(Vec::new())),
        Ask::Image(image::Ask::Find(q)) => say(&q, Ok(None)),
        Ask::Image(image::Ask::Remove(q)) => say(&q, Ok(())),
        Ask::Image(image::Ask::SetAside(q)) => say(&q, Ok(())),
        Ask::Layer(layer::Ask::Remove(q)) => say(&q, Ok(())),
        Ask::Memory(memory::Ask::Remove(q)) => say(&q, Ok(())),
        Ask::Upload(upload::Ask::Remove(q)) => say(&q, Ok(())),
        Ask::Template(template::Ask::ClearBuild(q)) => say(&q, Ok(())),
        Ask::Sandbox(ask) => of_sandbox(ask),
        Ask::Network(network::Ask::Set(q)) => say(&q, Ok(())),
        Ask::Network(network::Ask::Remove(q)) => say(&q, Ok(())),
        _ => gone(),
    }
}

fn of_host(ask: host::Ask) -> Result<Value> {
    let missing = || Some(GONE.to_owned());
    match ask {
        host::Ask::Describe(q) => {
            let vm = AboutVms { missing: missing(), ..AboutVms::default() };
            say(&q, Ok(About { vm, sandbox: AboutSandboxes { missing: missing(), ..AboutSandboxes::default() } }))
        }
        host::Ask::ScanVms(q) => say(&q, Ok(of_vms::Found::default())),
        host::Ask::ScanSandboxes(q) => say(&q, Ok(of_sandboxes::Found::default())),
        host::Ask::ScanNetworks(q) => say(&q, Ok(of_networks::Found::default())),
        host::Ask::SetAside(q) => say(&q, Ok(())),
        _ => gone(),
    }
}

fn of_vm(ask: vm::Ask) -> Result<Value> {
    match ask {
        vm::Ask::Observe(q) => say(&q, Ok(Machine::Absent)),
        vm::Ask::GuestReady(q) => say(&q, Ok(false)),
        vm::Ask::HasNetwork(q) => say(&q, Ok(false)),
        vm::Ask::ForgetMemory(q) => say(&q, Ok(())),
        vm::Ask::PressPower(q) => say(&q, Ok(())),
        vm::Ask::PowerOff(q) => say(&q, Ok(())),
        vm::Ask::Discard(q) => say(&q, Ok(())),
        vm::Ask::DetachDisk(q) => say(&q, Ok(true)),
        vm::Ask::ConsoleLog(q) => say(&q, Ok(Vec::new())),
        vm::Ask::Usage(q) => say(&q, Ok(None)),
        _ => gone(),
    }
}

fn of_sandbox(ask: sandbox::Ask) -> Result<Value> {
    match ask {
        sandbox::Ask::Observe(q) => say(&q, Ok(SandboxMachine::Absent)),
        sandbox::Ask::Pause(q) => say(&q, Ok(of_sandboxes::Paused { memory_bytes: None })),
        sandbox::Ask::End(q) => say(&q, Ok(())),
        sandbox::Ask::Discard(q) => say(&q, Ok(())),
        sandbox::Ask::Activity(q) => {
            say(&q, Ok(of_sandboxes::Activity { running: Some(0), ..of_sandboxes::Activity::default() }))
        }
        sandbox::Ask::Sample(q) => say(&q, Ok(None)),
        sandbox::Ask::IsWarm(q) => say(&q, Ok(false)),
        _ => gone(),
    }
}

fn gone() -> Result<Value> {
    Err(EngineError::Permanent(GONE.into()))
}
