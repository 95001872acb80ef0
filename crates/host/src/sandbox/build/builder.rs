//! A whole build: which stages, in which order, and on which sites.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_domain::agent::control::Pack;
use berth_domain::sandbox::dockerfile::plan::{Copy, Origin};
use berth_domain::sandbox::dockerfile::{Action, Base, Dockerfile, ImageConfig, Plan, Stage};
use berth_oci::{Budget, Context};
use tokio_util::sync::CancellationToken;

use super::site::{Beginning, Opened, Site, Unpack, Workshop};
use super::{BuildError, Log, blocking, stream};

/// What a build may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long one step may take.
    pub step: Duration,
    /// How long everything may take.
    pub whole: Duration,
    /// Bytes that the layers of an image may have without compression: those of the disk.
    pub bytes: u64,
    /// How many sites there may be at a time.
    pub sites: usize,
}

/// What was built.
pub struct Finished {
    /// Where it is.
    pub site: Box<dyn Site>,
    /// What is known of its programs.
    pub config: ImageConfig,
    /// The image that everything goes back to; none where it began with nothing.
    pub origin: Option<String>,
}

/// Builds.
pub struct Builder<'a> {
    /// Who makes sites.
    pub workshop: &'a mut dyn Workshop,
    /// The files that were sent.
    pub context: Arc<Context>,
    /// Where it is told what is done.
    pub log: Log,
    /// What it may take.
    pub limits: Limits,
    /// Calls it off.
    pub cancel: CancellationToken,
}

/// Does a part of a build until it is called off or its time is up.
pub async fn within<T>(
    cancel: &CancellationToken,
    time: Duration,
    part: impl Future<Output = Result<T, BuildError>>,
) -> Result<T, BuildError> {
    tokio::select! {
        () = cancel.cancelled() => Err(BuildError::Cancelled),
        done = tokio::time::timeout(time, part) => done.unwrap_or(Err(BuildError::TooLong(time.as_secs()))),
    }
}

/// What is to be done.
struct Work<'a> {
    plan: &'a Plan,
    /// The last stage that needs each stage.
    uses: Vec<usize>,
}

/// Sites while stages are built.
#[derive(Default)]
pub(super) struct Sites {
    pub stages: Vec<Option<Box<dyn Site>>>,
    /// Images that are only copied from.
    pub images: BTreeMap<String, Box<dyn Site>>,
}

impl Sites {
    /// How many there are, beside the one that is worked on.
    pub(super) fn others(&self) -> usize {
        self.stages.iter().flatten().count() + self.images.len()
    }

    /// Drops what no stage after this one needs.
    fn forget(&mut self, work: &Work<'_>, index: usize) {
        for (earlier, last) in work.uses.iter().enumerate().take(index) {
            if *last <= index {
                self.stages[earlier] = None;
            }
        }
        let later = &work.plan.stages[index + 1..];
        self.images.retain(|name, _| later.iter().any(|stage| copies_from(stage, name)));
    }
}

impl Builder<'_> {
    /// Builds what a Dockerfile says, with arguments, up to a target (the last stage without).
    pub async fn build(
        mut self,
        dockerfile: &Dockerfile,
        given: &BTreeMap<String, String>,
        target: Option<&str>,
    ) -> Result<Finished, BuildError> {
        let (cancel, log, whole) = (self.cancel.clone(), self.log.clone(), self.limits.whole);
        let built = within(&cancel, whole, self.stages(dockerfile, given, target)).await;
        match &built {
            Ok(_) => log.line("built"),
            Err(error) => log.line(&format!("ERROR: {error}")),
        }
        built
    }

    async fn stages(
        &mut self,
        dockerfile: &Dockerfile,
        given: &BTreeMap<String, String>,
        target: Option<&str>,
    ) -> Result<Finished, BuildError> {
        let mut known = BTreeMap::new();
        for name in dockerfile.images(given, target)? {
            self.log.line(&format!("looking for {name}"));
            let config = self.workshop.inspect(&name).await?;
            known.insert(name, config);
        }
        let config = |name: &str| known.get(name).cloned();
        let plan = dockerfile.plan(given, target, &config)?;
        for note in &plan.notes {
            self.log.line(&format!("NOTE: {note}"));
        }
        look_for_copies(self.context.clone(), &plan).await?;
        let work = Work { uses: last_uses(&plan), plan: &plan };
        let mut sites = Sites { stages: plan.stages.iter().map(|_| None).collect(), ..Sites::default() };
        for (index, stage) in plan.stages.iter().enumerate() {
            sites.stages[index] = Some(self.stage(&work, index, &mut sites).await?);
            sites.forget(&work, index);
            tracing::debug!(stage = stage.name, "a stage was built");
        }
        let last = sites.stages.pop().flatten();
        let site = last.ok_or_else(|| BuildError::Host("the last stage has no site".into()))?;
        Ok(Finished { site, config: plan.config(), origin: origin(&plan) })
    }

    async fn stage(&mut self, work: &Work<'_>, index: usize, sites: &mut Sites) -> Result<Box<dyn Site>, BuildError> {
        let stage = &work.plan.stages[index];
        let title = stage.name.clone().unwrap_or_else(|| format!("stage {index}"));
        let title = if work.plan.stages.len() == 1 { String::new() } else { format!("{title} ") };
        let mut site = self.begin(work, index, &title, sites).await.map_err(|error| error.at(stage.line))?;
        site.furnish().await?;
        for (number, step) in stage.steps.iter().enumerate() {
            self.log.line(&format!("[{title}{}/{}] {}", number + 1, stage.steps.len(), step.text));
            let began = tokio::time::Instant::now();
            self.step(step, &mut *site, sites).await?;
            crate::fault::point("sandbox.build_step.done").await.map_err(BuildError::Host)?;
            self.log.line(&format!("    done in {:.1} s", began.elapsed().as_secs_f64()));
        }
        Ok(site)
    }

    async fn begin(
        &mut self,
        work: &Work<'_>,
        index: usize,
        title: &str,
        sites: &mut Sites,
    ) -> Result<Box<dyn Site>, BuildError> {
        let stage = &work.plan.stages[index];
        match &stage.base {
            Base::Scratch => Ok(self.open(Beginning::Empty, sites.others()).await?.site),
            Base::Image(name) => {
                self.log.line(&format!("[{title}FROM] {name}"));
                self.open_image(name, sites.others()).await
            }
            Base::Stage(base) => {
                let copied_from = origins(stage).any(|origin| origin == *base);
                let gone = || BuildError::Host("a stage that is built on is gone".into());
                if work.uses[*base] == index && !copied_from {
                    return sites.stages[*base].take().ok_or_else(gone);
                }
                self.log.line(&format!("[{title}FROM] a copy of an earlier stage"));
                let mut site = self.open(Beginning::Empty, sites.others()).await?.site;
                let everything = Pack { sources: vec![".".into()], to: "/".into(), into: true };
                let tar = sites.stages[*base].as_mut().ok_or_else(gone)?.pack(everything).await?;
                site.unpack(tar, Unpack::default()).await?;
                Ok(site)
            }
        }
    }

    /// One more site beside so many others.
    async fn open(&mut self, beginning: Beginning<'_>, others: usize) -> Result<Opened, BuildError> {
        if others >= self.limits.sites {
            return Err(BuildError::Machines(others + 1, self.limits.sites));
        }
        self.workshop.open(beginning).await
    }

    /// A site with an image on it, beside so many others.
    pub(super) async fn open_image(&mut self, name: &str, others: usize) -> Result<Box<dyn Site>, BuildError> {
        let Opened { mut site, layers } = self.open(Beginning::Image(name), others).await?;
        let budget = Budget::new(self.limits.bytes);
        for (number, layer) in layers.iter().enumerate() {
            let (at, all, mib) = (number + 1, layers.len(), layer.size().div_ceil(1 << 20));
            self.log.line(&format!("    layer {at}/{all}, {mib} MiB, {}", layer.diff_id()));
            stream::unpack_from(&mut *site, Unpack::default(), layer.open(&budget)?).await?;
        }
        Ok(site)
    }
}

/// Looks for what copies take of the context now, before anything is run.
async fn look_for_copies(context: Arc<Context>, plan: &Plan) -> Result<(), BuildError> {
    let steps = plan.stages.iter().flat_map(|stage| &stage.steps);
    let copies = steps.filter_map(|step| match &step.action {
        Action::Copy(copy) if copy.origin == Origin::Context => Some((step.line, copy.clone())),
        _ => None,
    });
    let copies = copies.collect::<Vec<_>>();
    let look = move || {
        copies.iter().try_for_each(|(line, copy)| {
            let found = context.look_for(copy);
            found.map_err(|error| BuildError::from(error).at(*line))
        })
    };
    blocking(look).await?
}

/// The image that the last stage goes back to.
fn origin(plan: &Plan) -> Option<String> {
    let mut base = plan.stages.last().map(|stage| &stage.base)?;
    // A stage builds only on those before it.
    while let Base::Stage(index) = base {
        base = &plan.stages[*index].base;
    }
    if let Base::Image(name) = base { Some(name.clone()) } else { None }
}

/// The stages that a stage copies from.
fn origins(stage: &Stage) -> impl Iterator<Item = usize> {
    stage.steps.iter().filter_map(|step| match &step.action {
        Action::Copy(Copy { origin: Origin::Base(Base::Stage(base)), .. }) => Some(*base),
        _ => None,
    })
}

/// Whether a stage copies from an image.
fn copies_from(stage: &Stage, image: &str) -> bool {
    stage.steps.iter().any(|step| match &step.action {
        Action::Copy(Copy { origin: Origin::Base(Base::Image(name)), .. }) => name == image,
        _ => false,
    })
}

/// The last stage that needs each stage; itself where none does.
fn last_uses(plan: &Plan) -> Vec<usize> {
    let mut uses = (0..plan.stages.len()).collect::<Vec<_>>();
    for (index, stage) in plan.stages.iter().enumerate() {
        if let Base::Stage(base) = stage.base {
            uses[base] = index;
        }
        for base in origins(stage) {
            uses[base] = index;
        }
    }
    uses
}
