//! A host that is asked by values: every question of [`Ask`] is a call of one of its engines.
//!
//! Whoever is in the same process may as well call the engines; both are the same verbs. What each answer looks like
//! follows from its question's type ([`Question::Answer`]), so that no answer can be given to another one's question.

use std::path::PathBuf;
use std::sync::Arc;

use berth_domain::Timestamp;
use berth_domain::host::ask::{
    Ask, Question, disk, disk_snapshot, export, guest, host, image, layer, memory, migration, network, sandbox,
    shared_disk, shared_snapshot, template, upload, vm,
};
use berth_domain::host::model::{About, AboutSandboxes, AboutVms};
use berth_domain::ids::DiskId;
use berth_domain::names::Slug;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::lost::Lost;
use crate::network::NetworkEngine;
use crate::sandbox::SandboxEngine;
use crate::vm::{BroughtDisk, Engine, ImageImport, ImageInfo};
use crate::{EngineError, Result};

/// The folders of disks, of snapshots and of projects' images that were set aside.
const DISKS: &str = "disks";
const SNAPSHOTS: &str = "snapshots";
const IMAGES: &str = "images";

/// A host: its engines, and where it sets aside what no row owns.
pub struct Host {
    pub(crate) vm: Arc<dyn Engine>,
    pub(crate) sandbox: Arc<dyn SandboxEngine>,
    network: Arc<dyn NetworkEngine>,
    lost: Lost,
}

impl Host {
    /// A host with these engines.
    pub const fn new(
        vm: Arc<dyn Engine>,
        sandbox: Arc<dyn SandboxEngine>,
        network: Arc<dyn NetworkEngine>,
        lost: Lost,
    ) -> Self {
        Self { vm, sandbox, network, lost }
    }

    /// What its engines do of their own accord, until told to stop: whoever asks by bytes leaves that to the host.
    pub async fn tend(&self, stop: CancellationToken) {
        tokio::join!(self.vm.tend(stop.clone()), self.sandbox.tend(stop.clone()), self.network.tend(stop));
    }

    /// Asks one question.
    pub async fn ask<Q: Question>(&self, question: Q) -> Result<Q::Answer>
    where
        Ask: From<Q::Noun>,
    {
        let said = self.answer(Ask::from(question.into())).await?;
        serde_json::from_value(said).map_err(|error| EngineError::Transient(format!("{}: {error}", Q::VERB)))
    }

    /// Answers any question. What is said is the answer of the question's type, as JSON.
    pub async fn answer(&self, ask: Ask) -> Result<Value> {
        match ask {
            Ask::Host(ask) => self.of_host(ask).await,
            Ask::Image(ask) => self.of_image(ask).await,
            Ask::Disk(ask) => self.of_disk(ask).await,
            Ask::DiskSnapshot(ask) => self.of_disk_snapshot(ask).await,
            Ask::SharedDisk(ask) => self.of_shared_disk(ask).await,
            Ask::SharedSnapshot(ask) => self.of_shared_snapshot(ask).await,
            Ask::Export(export::Ask::Make(q)) => say(&q, self.vm.export(&q.of).await),
            Ask::Vm(ask) => self.of_vm(ask).await,
            Ask::Migration(ask) => self.of_migration(ask).await,
            Ask::Layer(ask) => self.of_layer(ask).await,
            Ask::Memory(ask) => self.of_memory(ask).await,
            Ask::Upload(upload::Ask::Remove(q)) => say(&q, self.sandbox.remove_upload(q.id).await),
            Ask::Template(ask) => self.of_template(ask).await,
            Ask::Sandbox(ask) => self.of_sandbox(ask).await,
            Ask::Guest(ask) => self.of_guest(ask).await,
            Ask::Network(network::Ask::Set(q)) => say(&q, self.network.set(&q.network).await),
            Ask::Network(network::Ask::Remove(q)) => say(&q, self.network.remove(q.id).await),
            // What carries bytes answers those itself.
            Ask::Stream(ask) => {
                Err(EngineError::Permanent(format!("{} needs a connection that becomes a stream", ask.verb())))
            }
        }
    }

    /// What it says of itself without looking at anything.
    pub fn about(&self) -> About {
        let (vm, sandbox) = (&self.vm, &self.sandbox);
        About {
            vm: AboutVms {
                missing: vm.ready().err(),
                ssh_port: vm.ssh_port(),
                boot: vm.host_boot(),
                network: vm.network(),
            },
            sandbox: AboutSandboxes {
                missing: sandbox.ready().err(),
                boot: sandbox.host_boot(),
                unlimited: sandbox.unlimited(),
                most_warm: sandbox.most_warm(),
            },
        }
    }

    async fn of_host(&self, ask: host::Ask) -> Result<Value> {
        use host::Ask as A;
        let (vm, sandbox) = (&self.vm, &self.sandbox);
        match ask {
            A::Describe(q) => say(&q, Ok(self.about())),
            A::VmCapacity(q) => say(&q, vm.capacity().await),
            A::SandboxCapacity(q) => say(&q, sandbox.capacity().await),
            A::Gpus(q) => say(&q, vm.gpus().await),
            A::PortsFree(q) => say(&q, Ok(vm.ports_free(q.first, q.count).await)),
            A::ScanVms(q) => say(&q, vm.scan().await),
            A::ScanSandboxes(q) => say(&q, sandbox.scan().await),
            A::ScanNetworks(q) => say(&q, self.network.scan().await),
            A::SetAside(q) => {
                let into = self.aside(q.kept.folder(), q.at).await?;
                say(&q, sandbox.set_aside(q.kept, &into).await)
            }
        }
    }

    async fn of_image(&self, ask: image::Ask) -> Result<Value> {
        use image::Ask as A;
        match ask {
            A::List(q) => say(&q, self.vm.images().await),
            A::Find(q) => say(&q, self.vm.image(&q.id).await),
            A::Editions(q) => say(&q, self.vm.editions().await),
            A::Files(q) => say(&q, self.vm.image_files(&q.edition).await),
            A::Expect(q) => say(&q, self.vm.expect_image(&q.arrival).await),
            A::Adopt(q) => say(&q, self.vm.adopt_image(&q.arrival).await),
            A::Import(q) => say(&q, self.import(&q.import).await),
            A::Make(q) => say(&q, self.vm.make_image(&q.image).await),
            A::SetAside(q) => {
                let into = self.aside(IMAGES, q.at).await?;
                say(&q, self.vm.set_aside_image(q.id, &into).await)
            }
            A::Remove(q) => say(&q, self.vm.remove_image(&q.id).await),
        }
    }

    async fn of_disk(&self, ask: disk::Ask) -> Result<Value> {
        use disk::Ask as A;
        match ask {
            A::Make(q) => say(&q, self.vm.make_disk(&q.disk).await),
            A::Bring(q) => say(&q, self.bring(&q.disk).await),
            A::Grow(q) => say(&q, self.vm.grow_disk(q.id, q.size_gb, q.of).await),
            A::Remove(q) => say(&q, self.vm.remove_disk(q.id).await),
            A::SetAside(q) => {
                let into = self.aside(DISKS, q.at).await?;
                say(&q, self.vm.set_aside_disk(q.id, &into).await)
            }
        }
    }

    async fn of_disk_snapshot(&self, ask: disk_snapshot::Ask) -> Result<Value> {
        use disk_snapshot::Ask as A;
        match ask {
            A::Make(q) => say(&q, self.vm.snapshot_disk(&q.snapshot, q.of).await),
            A::Remove(q) => say(&q, self.vm.remove_snapshot(q.id, q.of).await),
            A::SetAside(q) => {
                let into = self.aside(SNAPSHOTS, q.at).await?;
                say(&q, self.vm.set_aside_snapshot(q.id, &into).await)
            }
        }
    }

    async fn of_shared_disk(&self, ask: shared_disk::Ask) -> Result<Value> {
        use shared_disk::Ask as A;
        match ask {
            A::Reach(q) => say(&q, self.vm.reach_store(&q.store).await),
            A::Make(q) => say(&q, self.vm.make_shared_disk(&q.disk, &q.store).await),
            A::Grow(q) => say(&q, self.vm.grow_shared_disk(q.id, q.size_gb, &q.store).await),
            A::Remove(q) => say(&q, self.vm.remove_shared_disk(q.id, &q.store).await),
            A::Attach(q) => say(&q, self.vm.attach_shared_disk(q.aim, q.disk, &q.store).await),
        }
    }

    async fn of_shared_snapshot(&self, ask: shared_snapshot::Ask) -> Result<Value> {
        use shared_snapshot::Ask as A;
        match ask {
            A::Make(q) => say(&q, self.vm.snapshot_shared_disk(&q.snapshot, q.of, &q.store).await),
            A::Copy(q) => say(&q, self.vm.copy_shared_disk(&q.snapshot, q.of, &q.store).await),
            A::Restore(q) => say(&q, self.vm.restore_shared_disk(&q.disk, &q.store).await),
            A::Remove(q) => say(&q, self.vm.remove_shared_snapshot(&q.snapshot, &q.store).await),
        }
    }

    async fn of_vm(&self, ask: vm::Ask) -> Result<Value> {
        use vm::Ask as A;
        let engine = &self.vm;
        match ask {
            A::Observe(q) => say(&q, engine.observe(q.id).await),
            A::GuestReady(q) => say(&q, Ok(engine.guest_ready(q.id).await)),
            A::HasNetwork(q) => say(&q, Ok(engine.has_network(q.id).await)),
            A::Start(q) => say(&q, engine.start(&q.spec).await),
            A::RemakeDisk(q) => say(&q, engine.remake_disk(q.aim, &q.disk).await),
            A::Suspend(q) => say(&q, engine.suspend(&q.spec).await),
            A::ForgetMemory(q) => say(&q, engine.forget_memory(q.aim).await),
            A::Resume(q) => say(&q, engine.resume(q.aim).await),
            A::PressPower(q) => say(&q, engine.press_power(q.aim).await),
            A::PowerOff(q) => say(&q, engine.power_off(q.aim).await),
            A::Discard(q) => say(&q, engine.discard(q.aim).await),
            A::SetPorts(q) => say(&q, engine.set_ports(&q.spec, q.before.clone()).await),
            A::SetKeys(q) => say(&q, engine.set_keys(q.aim, &q.keys).await),
            A::AttachDisk(q) => say(&q, engine.attach_disk(q.aim, q.disk).await),
            A::DetachDisk(q) => say(&q, engine.detach_disk(q.aim, q.disk).await),
            A::ConsoleLog(q) => say(&q, engine.console_log(q.id, q.bytes).await),
            A::Usage(q) => say(&q, Ok(engine.usage(q.id).await)),
        }
    }

    async fn of_migration(&self, ask: migration::Ask) -> Result<Value> {
        use migration::Ask as A;
        let engine = &self.vm;
        match ask {
            A::Describe(q) => say(&q, engine.likeness(&q.spec).await),
            A::Expect(q) => say(&q, engine.expect_machine(&q.spec, &q.likeness).await),
            A::Mirrored(q) => say(&q, engine.mirrored(q.aim).await),
            A::HandOver(q) => say(&q, engine.hand_over(q.aim).await),
            A::Taken(q) => say(&q, engine.taken(q.aim).await),
            A::CallOff(q) => say(&q, engine.call_off(q.aim).await),
        }
    }

    async fn of_memory(&self, ask: memory::Ask) -> Result<Value> {
        use memory::Ask as A;
        match ask {
            A::Remove(q) => say(&q, self.sandbox.remove_memory(q.id).await),
            A::File(q) => say(&q, self.sandbox.memory_file(q.id).await),
            A::Expect(q) => say(&q, self.sandbox.expect_memory(q.id, &q.file).await),
        }
    }

    async fn of_layer(&self, ask: layer::Ask) -> Result<Value> {
        use layer::Ask as A;
        match ask {
            A::Make(q) => say(&q, self.sandbox.make_layer(q.id, q.parent).await),
            A::Remove(q) => say(&q, self.sandbox.remove_layer(q.id).await),
            A::File(q) => say(&q, self.sandbox.layer_file(q.id).await),
            A::Expect(q) => say(&q, self.sandbox.expect_layer(q.id, &q.file).await),
            A::Bytes(q) => say(&q, self.sandbox.layer_bytes(q.id).await),
        }
    }

    async fn of_template(&self, ask: template::Ask) -> Result<Value> {
        use template::Ask as A;
        match ask {
            A::List(q) => say(&q, self.sandbox.templates().await),
            A::Adopt(q) => say(&q, self.sandbox.adopt_template(&q.name, q.layer).await),
            A::ClearBuild(q) => say(&q, self.sandbox.clear_build(q.id).await),
            A::Warm(q) => say(&q, self.sandbox.warm_template(&q.warming).await),
        }
    }

    async fn of_guest(&self, ask: guest::Ask) -> Result<Value> {
        use guest::Ask as A;
        match ask {
            A::Version(q) => say(&q, self.sandbox.guest().await),
            A::Files(q) => say(&q, self.sandbox.guest_files(&q.version).await),
            A::Expect(q) => say(&q, self.sandbox.expect_guest(&q.arrival).await),
            A::Adopt(q) => say(&q, self.sandbox.adopt_guest(&q.arrival).await),
        }
    }

    async fn of_sandbox(&self, ask: sandbox::Ask) -> Result<Value> {
        use sandbox::Ask as A;
        let engine = &self.sandbox;
        match ask {
            A::Observe(q) => say(&q, engine.observe(q.id).await),
            A::Start(q) => say(&q, engine.start(&q.spec).await),
            A::Checkpoint(q) => say(&q, engine.checkpoint(&q.checkpoint).await),
            A::CheckpointCold(q) => say(&q, engine.checkpoint_cold(&q.checkpoint).await),
            A::Pause(q) => say(&q, engine.pause(q.aim, q.memory).await),
            A::End(q) => say(&q, engine.end(q.aim).await),
            A::Discard(q) => say(&q, engine.discard(q.aim).await),
            A::SetNetwork(q) => say(&q, engine.set_network(q.aim, &q.network).await),
            A::Activity(q) => say(&q, Ok(engine.activity(q.id))),
            A::Sample(q) => say(&q, Ok(engine.sample(q.id).await)),
            A::WarmUp(q) => say(&q, engine.warm_up(&q.spec).await),
            A::IsWarm(q) => say(&q, engine.is_warm(q.id).await),
        }
    }

    /// Takes in an image that was brought, and keeps what was brought only where another try may help.
    async fn import(&self, import: &ImageImport) -> Result<ImageInfo> {
        let file = self.staged(&import.id).await?;
        let imported = self.vm.import_image(&file, import).await;
        if imported.as_ref().err().is_none_or(EngineError::is_final) {
            // What stays is overwritten by the next one.
            let _ = tokio::fs::remove_file(&file).await;
        }
        imported
    }

    /// Makes a disk of what was brought, and keeps that only where another try may help.
    async fn bring(&self, disk: &BroughtDisk) -> Result<()> {
        let file = self.staged(&disk.id.to_string()).await?;
        let made = self.vm.bring_disk(&file, disk).await;
        if made.as_ref().err().is_none_or(EngineError::is_final) {
            // What stays is overwritten by the next one.
            let _ = tokio::fs::remove_file(&file).await;
        }
        made
    }

    /// Where an image is brought to that is about to be imported, or a disk that is about to be made.
    pub(crate) async fn staged(&self, id: &str) -> Result<PathBuf> {
        let plain = if id.parse::<DiskId>().is_ok() { Ok(()) } else { Slug::parse(id).map(drop) };
        plain.map_err(|why| EngineError::Permanent(format!("the id of an image {why}")))?;
        Ok(self.vm.staging().await?.join(format!("{id}.brought")))
    }

    /// The folder for what is set aside.
    async fn aside(&self, kind: &str, at: Timestamp) -> Result<PathBuf> {
        self.lost.folder(kind, at).await.map_err(|error| EngineError::Transient(error.to_string()))
    }
}

/// What is said to a question: an answer of its type.
pub fn say<Q: Question>(_: &Q, answer: Result<Q::Answer>) -> Result<Value> {
    serde_json::to_value(answer?).map_err(|error| EngineError::Permanent(format!("{}: {error}", Q::VERB)))
}
