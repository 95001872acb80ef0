//! Building templates: a provisioner of machines, and what becomes of the disk that was built.
//!
//! A build that was interrupted is thrown away and begun anew. Everything of it lies in one folder, and the disk leaves
//! that folder, as the template's layer, by a rename.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_domain::ids::TemplateId;
use berth_domain::sandbox::dockerfile::ImageConfig;
use berth_domain::sandbox::dockerfile::config::DEFAULT_PATH;
use berth_domain::sandbox::dockerfile::plan::Run;
use berth_oci::Context;
use berth_qemu::sandbox;
use tokio::time::Instant;

use super::checkpoint::blocking;
use super::provisioner::QemuProvisioner;
use super::stage_machine::QemuBuildMachine;
use super::{GIB, QemuSandboxes, account, remove};
use crate::EngineError;
use crate::error::{qemu_failed, transient};
use crate::sandbox::build::{BuildError, BuildMachine, Builder, Finished, Limits, open_context, within};
use crate::sandbox::{Build, Built, Named};

/// What finding out whom programs run as may take, however late it is.
const SETTLING: Duration = Duration::from_secs(30);

/// The result of a step on the host.
type Result<T, E = EngineError> = std::result::Result<T, E>;

impl QemuSandboxes {
    pub(super) async fn build(&self, build: &Build) -> Result<Built> {
        self.throw_away(build.spec.id).await?;
        let dir = self.places.build(build.spec.id);
        tokio::fs::create_dir_all(&dir).await.map_err(transient)?;
        let mut provisioner = QemuProvisioner::new(self, build, dir);
        let outcome = self.build_with(&mut provisioner, build).await;
        provisioner.settle().await;
        self.throw_away(build.spec.id).await?;
        outcome.map_err(told)
    }

    /// Ends what is left of a build, and removes it.
    pub(super) async fn throw_away(&self, id: TemplateId) -> Result<()> {
        let dir = self.places.build(id);
        for machine in super::ids(&dir)? {
            sandbox::stop(&dir.join(uuid::Uuid::to_string(&machine)), machine).await.map_err(qemu_failed)?;
        }
        remove(&dir).await
    }

    async fn build_with(&self, provisioner: &mut QemuProvisioner<'_>, build: &Build) -> Result<Built, BuildError> {
        let bytes = u64::try_from(build.spec.disk_gb).unwrap_or(1) * GIB;
        let began = Instant::now();
        let context = match build.spec.context {
            Some(id) => open_context(self.places.upload(id), bytes, build.spec.patience, &build.cancel).await?,
            None => Context::empty(),
        };
        let whole = build.spec.patience.saturating_sub(began.elapsed());
        let builder = Builder {
            provisioner,
            context: Arc::new(context),
            log: build.log.clone(),
            limits: Limits { step: build.spec.patience, whole, bytes, machines: build.spec.machines.len() },
            cancel: build.cancel.clone(),
        };
        let Finished { machine, config, origin } =
            builder.build(&build.spec.dockerfile, &BTreeMap::new(), None).await?;
        let machine: Box<dyn Any> = machine;
        let foreign = |_| BuildError::Host("a machine that is not this engine's".into());
        let mut machine = machine.downcast::<QemuBuildMachine>().map_err(foreign)?;
        let left = build.spec.patience.saturating_sub(began.elapsed()).max(SETTLING);
        let settled = self.settle_user(build, &mut machine, &config, origin.as_deref());
        let user = within(&build.cancel, left, settled).await?;
        self.keep(build, &machine).await.map_err(|error| BuildError::Host(error.to_string()))?;
        let machine = machine.held();
        Ok(Built {
            // What every command has anyway need not be said.
            env: config.env.iter().filter(|(name, value)| name != "PATH" || value != DEFAULT_PATH).cloned().collect(),
            user,
            workdir: config.workdir.clone(),
            start_command: config.start_command(),
            parent: machine.parent(),
            disk_gb: i64::try_from(machine.bytes().div_ceil(GIB)).unwrap_or(i64::MAX),
        })
    }

    /// Makes a disk that was built the template's layer.
    async fn keep(&self, build: &Build, machine: &QemuBuildMachine) -> Result<()> {
        // What the guest still holds is written, and so is what QEMU does.
        machine.session().freeze(true).await.map_err(super::agent_failed)?;
        let disk = machine.held().finish().await?;
        let layer = self.places.layer(build.spec.layer);
        tokio::fs::create_dir_all(self.places.layers()).await.map_err(transient)?;
        let from = disk.clone();
        blocking(move || sandbox::sync_layer(&from)).await?;
        tokio::fs::rename(disk, layer).await.map_err(transient)
    }

    /// Who commands of the template's sandboxes run as. An image says so; a template that is built on does, too, and
    /// else it is root. The directory that was chosen for it becomes a template's user's.
    async fn settle_user(
        &self,
        build: &Build,
        machine: &mut QemuBuildMachine,
        config: &ImageConfig,
        origin: Option<&str>,
    ) -> Result<String, BuildError> {
        if let Some(user) = &config.user {
            return account::settle(machine, user).await;
        }
        let Some(Named::Template { user, config: before, .. }) = origin.and_then(|name| build.spec.images.get(name))
        else {
            return Ok(account::ROOT.to_owned());
        };
        if let Some(workdir) = config.workdir.as_ref().filter(|dir| before.workdir.as_ref() != Some(dir)) {
            let argv = ["chown", "--", user, workdir].map(ToOwned::to_owned).into();
            let run = Run { argv, env: Arc::default(), cwd: "/".into(), user: None, network: false };
            let log = build.log.clone();
            machine.run(&run, build.spec.patience, &mut |line| log.line(line)).await?;
        }
        Ok(user.clone())
    }
}

/// A build's failure, as the engine tells it.
fn told(error: BuildError) -> EngineError {
    if error.is_transient() || matches!(error, BuildError::Cancelled) {
        EngineError::Transient(error.to_string())
    } else {
        EngineError::Permanent(error.to_string())
    }
}
