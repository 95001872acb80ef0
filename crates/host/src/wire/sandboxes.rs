//! [`SandboxEngine`] by bytes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use berth_domain::host::ask::{Ask, WHOLE, guest, host, layer, memory, sandbox, stream, template, upload};
use berth_domain::host::gpu::Gpu;
use berth_domain::ids::{LayerId, MachineId, MemoryId, TemplateId, UploadId};
use berth_domain::sandbox::network_policy::NetworkPolicy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::message::CALL_OFF;
use super::remote::{Remote, read};
use crate::error::transient;
use crate::sandbox::agent::{self, Connection};
use crate::sandbox::{
    Activity, Aim, Build, Built, Capacity, Checkpoint, CheckpointDone, Found, GuestArrival, ImageFile, Kept, Observed,
    Paused, PlatformTemplate, Sample, SandboxEngine, StartSpec, Started, Warming,
};
use crate::vm::Content;
use crate::{Result, lost};

#[async_trait]
impl SandboxEngine for Remote {
    fn ready(&self) -> std::result::Result<(), String> {
        self.cache.about().sandbox.missing.map_or(Ok(()), Err)
    }

    async fn capacity(&self) -> Result<Capacity> {
        self.ask(host::SandboxCapacity {}).await
    }

    async fn gpus(&self) -> Result<Vec<Gpu>> {
        self.ask(host::Gpus {}).await
    }

    fn host_boot(&self) -> String {
        self.cache.about().sandbox.boot
    }

    async fn guest(&self) -> Result<Option<String>> {
        self.ask(guest::Version {}).await
    }

    async fn guest_files(&self, version: &str) -> Result<Vec<ImageFile>> {
        self.ask(guest::Files { version: version.to_owned() }).await
    }

    async fn guest_file(&self, version: &str, file: &ImageFile) -> Result<Box<dyn Content>> {
        let asked = stream::GuestFile { version: version.to_owned(), file: file.clone() };
        let mut stream = self.begin(Ask::Stream(asked.into())).await?;
        self.hear(&mut stream).await?;
        Ok(Box::new(stream.take(file.bytes)))
    }

    async fn expect_guest(&self, arrival: &GuestArrival) -> Result<()> {
        self.ask(guest::Expect { arrival: arrival.clone() }).await
    }

    async fn take_guest_file(&self, travel: Uuid, file: &ImageFile, content: Box<dyn Content>) -> Result<()> {
        let asked = stream::TakeGuest { travel, file: file.clone() };
        self.pass_on(content, file.bytes, Ask::Stream(asked.into())).await
    }

    async fn adopt_guest(&self, arrival: &GuestArrival) -> Result<()> {
        self.ask(guest::Adopt { arrival: arrival.clone() }).await
    }

    async fn templates(&self) -> Result<Vec<PlatformTemplate>> {
        self.ask(template::List {}).await
    }

    async fn adopt_template(&self, name: &str, layer: LayerId) -> Result<()> {
        self.ask(template::Adopt { name: name.to_owned(), layer }).await
    }

    async fn make_layer(&self, id: LayerId, parent: LayerId) -> Result<()> {
        self.ask(layer::Make { id, parent }).await
    }

    async fn remove_layer(&self, id: LayerId) -> Result<()> {
        self.ask(layer::Remove { id }).await
    }

    async fn layer_bytes(&self, id: LayerId) -> Result<i64> {
        self.ask(layer::Bytes { id }).await
    }

    async fn layer_file(&self, id: LayerId) -> Result<ImageFile> {
        self.ask(layer::File { id }).await
    }

    async fn read_layer(&self, id: LayerId, file: &ImageFile) -> Result<Box<dyn Content>> {
        let asked = stream::LayerFile { id, file: file.clone() };
        let mut stream = self.begin(Ask::Stream(asked.into())).await?;
        self.hear(&mut stream).await?;
        Ok(Box::new(stream.take(file.bytes)))
    }

    async fn expect_layer(&self, id: LayerId, file: &ImageFile) -> Result<bool> {
        self.ask(layer::Expect { id, file: file.clone() }).await
    }

    async fn take_layer(&self, id: LayerId, file: &ImageFile, content: Box<dyn Content>) -> Result<()> {
        let asked = stream::TakeLayer { id, file: file.clone() };
        self.pass_on(content, file.bytes, Ask::Stream(asked.into())).await
    }

    async fn remove_memory(&self, id: MemoryId) -> Result<()> {
        self.ask(memory::Remove { id }).await
    }

    async fn memory_file(&self, id: MemoryId) -> Result<ImageFile> {
        self.ask(memory::File { id }).await
    }

    async fn read_memory(&self, id: MemoryId, file: &ImageFile) -> Result<Box<dyn Content>> {
        let asked = stream::MemoryFile { id, file: file.clone() };
        let mut stream = self.begin(Ask::Stream(asked.into())).await?;
        self.hear(&mut stream).await?;
        Ok(Box::new(stream.take(file.bytes)))
    }

    async fn expect_memory(&self, id: MemoryId, file: &ImageFile) -> Result<bool> {
        self.ask(memory::Expect { id, file: file.clone() }).await
    }

    async fn take_memory(&self, id: MemoryId, file: &ImageFile, content: Box<dyn Content>) -> Result<()> {
        let asked = stream::TakeMemory { id, file: file.clone() };
        self.pass_on(content, file.bytes, Ask::Stream(asked.into())).await
    }

    async fn set_aside(&self, kept: Kept, into: &Path) -> Result<()> {
        if let Kept::Upload(id) = kept {
            lost::put(&self.spooled(id), into).await.map_err(transient)?;
        }
        self.ask(host::SetAside { kept, at: lost::day(into)? }).await
    }

    async fn observe(&self, id: MachineId) -> Result<Observed> {
        let machine = self.ask(sandbox::Observe { id }).await?;
        if !matches!(machine, Observed::Running { .. }) {
            // As of VMs.
            self.describe().await?;
        }
        Ok(machine)
    }

    async fn start(&self, spec: &StartSpec) -> Result<Started> {
        self.ask(sandbox::Start { spec: spec.clone() }).await
    }

    async fn checkpoint(&self, checkpoint: &Checkpoint) -> Result<CheckpointDone> {
        self.ask(sandbox::Checkpoint { checkpoint: checkpoint.clone() }).await
    }

    async fn checkpoint_cold(&self, checkpoint: &Checkpoint) -> Result<CheckpointDone> {
        self.ask(sandbox::CheckpointCold { checkpoint: checkpoint.clone() }).await
    }

    async fn pause(&self, aim: Aim, memory: Option<MemoryId>) -> Result<Paused> {
        self.ask(sandbox::Pause { aim, memory }).await
    }

    async fn end(&self, aim: Aim) -> Result<()> {
        self.ask(sandbox::End { aim }).await
    }

    async fn discard(&self, aim: Aim) -> Result<()> {
        self.ask(sandbox::Discard { aim }).await
    }

    async fn set_network(&self, aim: Aim, network: &NetworkPolicy) -> Result<()> {
        self.ask(sandbox::SetNetwork { aim, network: network.clone() }).await
    }

    async fn upload(&self, id: UploadId) -> Result<PathBuf> {
        tokio::fs::create_dir_all(self.spool.join(UPLOADS)).await.map_err(transient)?;
        Ok(self.spooled(id))
    }

    async fn remove_upload(&self, id: UploadId) -> Result<()> {
        self.forget(id).await?;
        self.ask(upload::Remove { id }).await
    }

    async fn clear_build(&self, id: TemplateId) -> Result<()> {
        self.ask(template::ClearBuild { id }).await
    }

    async fn build_template(&self, build: &Build) -> Result<Built> {
        for id in build.spec.uploads() {
            self.send_upload(id).await?;
        }
        let asked = self.begin(Ask::Stream(stream::Build { spec: build.spec.clone() }.into())).await?;
        let (mut reading, mut writing) = tokio::io::split(asked);
        let call_off = async {
            build.cancel.cancelled().await;
            // A host that is gone is found by its silence.
            let _ = writing.write_u8(CALL_OFF).await;
            let _ = writing.flush().await;
            std::future::pending().await
        };
        let mut lines = |text: &str| text.lines().for_each(|line| build.log.line(line));
        tokio::select! {
            answer = self.hear_within(WHOLE, &mut reading, &mut lines) => read::<stream::Build>(answer?),
            never = call_off => never,
        }
    }

    async fn warm_template(&self, warming: &Warming) -> Result<i64> {
        self.ask(template::Warm { warming: warming.clone() }).await
    }

    async fn connect(&self, id: MachineId) -> Result<Connection> {
        let mut stream = self.begin(Ask::Stream(stream::Agent { id }.into())).await?;
        let reached = read::<stream::Agent>(self.hear(&mut stream).await?)?;
        let session = agent::begin(stream).await.map_err(transient)?;
        let age = Duration::from_millis(reached.age_ms);
        Ok(Connection {
            session,
            authorization: reached.authorization,
            since: Instant::now().checked_sub(age).unwrap_or_else(Instant::now),
            patience: Duration::from_millis(reached.patience_ms),
            // The host holds it as long as the stream lasts.
            in_use: std::sync::Arc::new(()),
        })
    }

    fn activity(&self, id: MachineId) -> Activity {
        self.cache.take_activity(id).unwrap_or_else(|| {
            self.learn_activity(id);
            Activity::default()
        })
    }

    async fn sample(&self, id: MachineId) -> Option<Sample> {
        self.ask(sandbox::Sample { id }).await.ok().flatten()
    }

    fn unlimited(&self) -> u64 {
        self.cache.about().sandbox.unlimited
    }

    async fn scan(&self) -> Result<Found> {
        let mut found = self.ask(host::ScanSandboxes {}).await?;
        for id in self.all_spooled() {
            if !found.uploads.contains(&id) {
                found.uploads.push(id);
            }
        }
        Ok(found)
    }

    fn most_warm(&self) -> usize {
        self.cache.about().sandbox.most_warm
    }

    async fn warm_up(&self, spec: &StartSpec) -> Result<()> {
        self.ask(sandbox::WarmUp { spec: spec.clone() }).await
    }

    async fn is_warm(&self, id: MachineId) -> Result<bool> {
        self.ask(sandbox::IsWarm { id }).await
    }

    async fn tend(&self, stop: CancellationToken) {
        self.follow(stop).await;
    }

    fn watch(&self) -> broadcast::Receiver<MachineId> {
        self.cache.sandboxes.subscribe()
    }
}

/// The folder of uploads, below what waits on this side.
const UPLOADS: &str = "uploads";

impl Remote {
    /// Where an upload waits until it is needed.
    fn spooled(&self, id: UploadId) -> PathBuf {
        self.spool.join(UPLOADS).join(id.to_string())
    }

    /// The uploads that wait.
    fn all_spooled(&self) -> Vec<UploadId> {
        let entries = std::fs::read_dir(self.spool.join(UPLOADS)).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    /// Removes an upload from this side; fine where there is none.
    async fn forget(&self, id: UploadId) -> Result<()> {
        match tokio::fs::remove_file(self.spooled(id)).await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(transient(error)),
            _ => Ok(()),
        }
    }

    /// Has the host have an upload, if it waits on this side.
    async fn send_upload(&self, id: UploadId) -> Result<()> {
        let _uploading = self.cache.uploading.lock().await;
        let file = self.spooled(id);
        if tokio::fs::try_exists(&file).await.map_err(transient)? {
            self.send(&file, |bytes| Ask::Stream(stream::Receive { id, bytes }.into())).await?;
            self.forget(id).await?;
        }
        Ok(())
    }
}
