//! Building a template's disk from an image or a Dockerfile.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use berth_domain::ids::{HostId, LayerId, TemplateId, UploadId};
use berth_domain::sandbox::dockerfile::config::DEFAULT_PATH;
use berth_domain::sandbox::dockerfile::{Dockerfile, ImageConfig};
use berth_domain::sandbox::request::UPLOAD;
use berth_domain::sandbox::{SourceKind, TemplateStatus};
use berth_domain::{Error, Timestamp};
use berth_host::EngineError;
use berth_host::sandbox::build::Log;
use berth_host::sandbox::{Build, BuildSpec, Built, DISK_FULL, Named, SandboxEngine, Stage};
use tokio_util::sync::CancellationToken;

use super::{StepError, TemplateLife};
use crate::services::sandbox::ops::template::USER;
use crate::services::sandbox::reconcile::capacity::{Asked, offer, offers, place};
use crate::services::sandbox::store;
use crate::services::sandbox::store::Tenant;
use crate::services::sandbox::store::build_log::BuildLog;
use crate::services::sandbox::store::template::TemplateRow;

/// Tries of a build that fails by no fault of its own.
const TRIES: i64 = 3;
/// Between two looks whether a build is still wanted.
const LOOK: Duration = Duration::from_secs(1);
/// Seconds between two looks whether a build can begin.
const WAIT: i64 = 2;
/// Why nothing is built of these templates.
const APART: &str =
    "the templates that it is built of are on different hosts; build them anew, one of the other, or ask an operator";

/// What the images of a build mean to its project, and the host that has those of them that are templates.
#[derive(Default)]
struct Images {
    named: BTreeMap<String, Named>,
    host: Option<HostId>,
}

/// Why a build does not begin.
enum Not {
    /// It will: until then this is what it waits for.
    Yet(String),
    /// It cannot.
    Ever(String),
}

impl TemplateLife {
    /// Builds the disk. None if it waits, or is not wanted any more.
    pub(super) async fn build_disk(
        &self,
        template: &TemplateRow,
        layer: LayerId,
        until: Timestamp,
    ) -> Result<Option<Built>, StepError> {
        let dockerfile = dockerfile_of(template).map_err(EngineError::Permanent)?;
        let images = match self.images(template, &dockerfile).await? {
            Ok(images) => images,
            Err(Not::Yet(reason)) => return self.later(template, &reason, |_, _| {}).await,
            Err(Not::Ever(reason)) => return Err(EngineError::Permanent(reason).into()),
        };
        let Some(_place) = self.sandboxes.builds().place(template.org.zip(template.project), template.id) else {
            // Its own time begins with its place.
            return self.later(template, "waiting until other builds are done", |t, now| t.status_since = now).await;
        };
        let most = dockerfile.machines();
        let Some((host, machines)) = self.reserve(template, layer, images.host, most).await? else { return Ok(None) };
        let left = u64::try_from((until.0 - self.sandboxes.clock().now().0) / 1_000_000).unwrap_or(0);
        let spec = BuildSpec {
            id: template.id,
            hostname: template.name.clone(),
            vcpu: template.vcpu,
            memory_mb: template.memory_mb,
            machines,
            dockerfile,
            images: images.named,
            context: template.context,
            layer,
            disk_gb: template.disk_gb,
            patience: Duration::from_secs(left.min(self.sandboxes.config().build_seconds.unsigned_abs()).max(1)),
        };
        let engine = self.sandboxes.engine_of(Some(host))?;
        // A host that cannot be asked costs none of its tries.
        if !engine.capacity().await?.has_room(0) {
            return Err(EngineError::Permanent(format!("insufficient_capacity: {DISK_FULL}")).into());
        }
        self.send_uploads(host, &spec).await?;
        let log = self.sandboxes.builds().begin(template.id);
        let build = Build { spec, log, cancel: CancellationToken::new() };
        let outcome = self.watched(&*engine, &build, template).await;
        self.take_uploads_back(host, &build.spec).await;
        self.conclude(template, &build.log, outcome).await
    }

    /// Builds, and calls it off once nobody wants it any more or the service stops.
    async fn watched(
        &self,
        engine: &dyn SandboxEngine,
        build: &Build,
        template: &TemplateRow,
    ) -> Result<Built, EngineError> {
        let called_off = async {
            self.called_off(template).await;
            build.cancel.cancel();
            std::future::pending().await
        };
        tokio::select! {
            outcome = engine.build_template(build) => outcome,
            never = called_off => never,
        }
    }

    /// Returns once nobody wants a template any more as it was, or the service stops.
    pub(super) async fn called_off(&self, template: &TemplateRow) {
        while !self.is_called_off(template).await {
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = self.stop.cancelled() => {}
            }
        }
    }

    async fn conclude(
        &self,
        template: &TemplateRow,
        log: &Log,
        outcome: Result<Built, EngineError>,
    ) -> Result<Option<Built>, StepError> {
        if outcome.is_err() && self.is_called_off(template).await {
            self.sandboxes.builds().end(template.id);
            return Ok(None);
        }
        if let Err(EngineError::Transient(reason)) = &outcome
            && template.attempts + 1 < TRIES
        {
            log.line(&format!("trying again: {reason}"));
            self.change(template.id, |t, _| t.attempts += 1).await?;
            return Err(EngineError::Transient(reason.clone()).into());
        }
        self.keep_log(template.id).await?;
        match outcome {
            Ok(built) => Ok(Some(built)),
            Err(error) => Err(EngineError::Permanent(error.to_string()).into()),
        }
    }

    /// Writes down what a build told, which is over.
    pub(super) async fn keep_log(&self, id: TemplateId) -> Result<(), StepError> {
        let Some(log) = self.sandboxes.builds().log(id) else { return Ok(()) };
        let told = log.read(0);
        let log = BuildLog { starts_at: i64::try_from(told.from).unwrap_or(i64::MAX), text: told.text };
        let mut tx = self.sandboxes.db().begin().await?;
        store::build_log::put(&mut tx, id, &log).await?;
        tx.commit().await?;
        self.sandboxes.builds().end(id);
        Ok(())
    }

    /// Whether nobody wants what is under way.
    pub(super) async fn is_called_off(&self, template: &TemplateRow) -> bool {
        let row = store::template::load(self.sandboxes.db(), template.id).await;
        self.stop.is_cancelled() || row.is_ok_and(|row| row.is_none_or(|row| row.status != template.status))
    }

    pub(super) async fn later(
        &self,
        template: &TemplateRow,
        reason: &str,
        also: impl FnOnce(&mut TemplateRow, Timestamp),
    ) -> Result<Option<Built>, StepError> {
        self.change(template.id, |t, now| {
            also(t, now);
            t.message = Some(reason.to_owned());
            t.work_at = Some(now.plus_seconds(WAIT));
        })
        .await?;
        Ok(None)
    }

    /// Reserves as many of `most` machines as there is room for, on the host that has what they build on or on any; there the
    /// layer has its place. None if it is not to be built any more.
    async fn reserve(
        &self,
        template: &TemplateRow,
        layer: LayerId,
        tied: Option<HostId>,
        most: usize,
    ) -> Result<Option<(HostId, Vec<Stage>)>, StepError> {
        // An interrupted build kept what it had.
        let has_some = !store::template::machines(self.sandboxes.db(), template.id).await?.is_empty();
        let offers = match tied {
            _ if has_some => HashMap::new(),
            Some(host) => offer(&self.sandboxes, host, false).await?,
            None => offers(&self.sandboxes, false).await?,
        };
        let Some(mut change) = self.begin(template.id).await? else { return Ok(None) };
        let mut machines = store::template::machines(&mut change.tx, template.id).await?;
        if machines.is_empty() {
            let most = i64::try_from(most).unwrap_or(i64::MAX);
            let machines_of_it = Asked::machines((template.vcpu, template.memory_mb), most);
            let asked = Asked { makes_disk: true, tied, ..machines_of_it };
            let placed = match place(&mut change.tx, &self.sandboxes, &offers, asked).await? {
                Ok(placed) => placed,
                Err(refusal) => {
                    drop(change);
                    return self.refused(template, refusal).await.map(|()| None);
                }
            };
            machines = store::template::reserve(&mut change.tx, template, &placed).await?;
        }
        let host = machines.first().and_then(|machine| machine.host).unwrap_or_else(|| self.sandboxes.host());
        store::layer::place(&mut change.tx, layer, host).await?;
        change.after.message = Some("building its disk".into());
        change.commit().await?;
        let stages = machines.iter().filter_map(|machine| Some(Stage { machine: machine.id, slot: machine.slot? }));
        Ok(Some((host, stages.collect())))
    }

    /// What the images of a Dockerfile mean to its project.
    async fn images(&self, template: &TemplateRow, dockerfile: &Dockerfile) -> Result<Result<Images, Not>, StepError> {
        let names = match dockerfile.images(&BTreeMap::new(), None) {
            Ok(names) => names,
            Err(mistakes) => return Ok(Err(Not::Ever(mistakes.to_string()))),
        };
        let (Some(org), Some(project)) = (template.org, template.project) else {
            return Err(Error::internal("a template of nobody's is built").into());
        };
        let tenant = Tenant { org, project };
        let mut images = Images::default();
        for name in names {
            let meaning = match name.strip_prefix(UPLOAD) {
                Some(id) => self.upload(tenant, id).await?.map(|known| Some((known, None))),
                None => self.template(tenant, template, &name).await?,
            };
            match meaning {
                Ok(None) => {}
                Ok(Some((known, host))) => {
                    if host.zip(images.host).is_some_and(|(host, other)| host != other) {
                        return Ok(Err(Not::Ever(APART.to_owned())));
                    }
                    images.host = images.host.or(host);
                    images.named.insert(name, known);
                }
                Err(not) => return Ok(Err(not)),
            }
        }
        Ok(Ok(images))
    }

    async fn upload(&self, tenant: Tenant, id: &str) -> Result<Result<Named, Not>, StepError> {
        let found = match id.parse::<UploadId>() {
            Ok(id) => store::upload::find(self.sandboxes.db(), tenant, id).await?,
            Err(_) => None,
        };
        let missing = || Not::Ever(format!("there is no upload '{id}'; it may be over, so send it again"));
        Ok(found.map(|found| Named::Upload(found.id)).ok_or_else(missing))
    }

    /// A template of the project or the platform, and the host that has it; what no template is called is a registry's.
    async fn template(
        &self,
        tenant: Tenant,
        own: &TemplateRow,
        name: &str,
    ) -> Result<Result<Option<(Named, Option<HostId>)>, Not>, StepError> {
        let Some(row) = store::template::named(self.sandboxes.db(), tenant, name, own.id).await? else {
            return Ok(Ok(None));
        };
        match (row.status, row.base_layer) {
            (TemplateStatus::Ready, Some(base)) => {
                let layers = store::layer::chain(self.sandboxes.db(), base).await?;
                let config = config_of(&row);
                let host = self.host(&row).await?;
                Ok(Ok(Some((Named::Template { layers, config, user: row.run_user }, Some(host)))))
            }
            (TemplateStatus::Failed, _) => {
                Ok(Err(Not::Ever(format!("the template '{name}' failed; build it anew, then this one"))))
            }
            _ => Ok(Err(Not::Yet(format!("waiting for the template '{name}'")))),
        }
    }
}

/// What is to be done for a template.
fn dockerfile_of(template: &TemplateRow) -> Result<Dockerfile, String> {
    let text = match template.kind {
        SourceKind::Image => &format!("FROM {}\n", template.source),
        _ => &template.source,
    };
    Dockerfile::parse(text).map_err(|mistakes| mistakes.to_string())
}

/// What a template says about its programs. As in every Dockerfile, those of the build run as root unless a user was
/// chosen, and there is a `PATH` to add to.
fn config_of(row: &TemplateRow) -> ImageConfig {
    let path = [("PATH".to_owned(), DEFAULT_PATH.to_owned())];
    ImageConfig {
        env: path.into_iter().chain(row.env.clone()).collect::<BTreeMap<_, _>>().into_iter().collect(),
        user: (row.run_user != USER).then(|| row.run_user.clone()),
        workdir: row.workdir.clone(),
        ..ImageConfig::default()
    }
}
