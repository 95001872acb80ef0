//! A whole build: which stages, in which order, and on which sites.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_domain::agent::control::Pack;
use berth_domain::sandbox::dockerfile::key::Contents;
use berth_domain::sandbox::dockerfile::plan::{Copy, Origin};
use berth_domain::sandbox::dockerfile::{Action, Base, Dockerfile, ImageConfig, Plan, Stage};
use berth_oci::{Budget, Context};
use tokio_util::sync::CancellationToken;

use super::site::{Beginning, Inspected, Opened, Site, Unpack, Workshop};
use super::{BuildError, Log, stream};

/// What a build may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long one step may take.
    pub step: Duration,
    /// How long everything may take.
    pub whole: Duration,
    /// Bytes that the layers of an image may have without compression: those of the disk.
    pub bytes: u64,
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

/// What is to be done.
struct Work<'a> {
    plan: &'a Plan,
    /// The keys of each stage's steps.
    keys: Vec<Vec<String>>,
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

impl Builder<'_> {
    /// Builds what a Dockerfile says, with arguments, up to a target (the last stage without).
    pub async fn build(
        mut self,
        dockerfile: &Dockerfile,
        given: &BTreeMap<String, String>,
        target: Option<&str>,
    ) -> Result<Finished, BuildError> {
        let (cancel, log, whole) = (self.cancel.clone(), self.log.clone(), self.limits.whole);
        let built = tokio::select! {
            () = cancel.cancelled() => Err(BuildError::Cancelled),
            built = tokio::time::timeout(whole, self.stages(dockerfile, given, target)) => {
                built.unwrap_or(Err(BuildError::TooLong(whole.as_secs())))
            }
        };
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
            let inspected = self.workshop.inspect(&name).await?;
            known.insert(name, inspected);
        }
        let config = |name: &str| known.get(name).map(|found| found.config.clone()).unwrap_or_default();
        let plan = dockerfile.plan(given, target, &config)?;
        for note in &plan.notes {
            self.log.line(&format!("NOTE: {note}"));
        }
        let keys = self.keys(&plan, &known)?;
        let starts = self.starts(&plan, &keys).await?;
        let work = Work { keys, uses: last_uses(&plan), plan: &plan };
        let mut sites = Sites { stages: plan.stages.iter().map(|_| None).collect(), ..Sites::default() };
        for (index, stage) in plan.stages.iter().enumerate() {
            let Some(start) = starts[index] else { continue };
            let site = self.stage(&work, index, start, &mut sites).await?;
            sites.stages[index] = Some(site);
            for (earlier, last) in work.uses.iter().enumerate().take(index) {
                if *last <= index {
                    sites.stages[earlier] = None;
                }
            }
            tracing::debug!(stage = stage.name, "a stage was built");
        }
        let last = sites.stages.pop().flatten();
        let site = last.ok_or_else(|| BuildError::Host("the last stage has no site".into()))?;
        Ok(Finished { site, config: plan.config(), origin: origin(&plan) })
    }

    /// The keys of all steps. What a copy takes of the context is looked for now, before anything is run.
    fn keys(&self, plan: &Plan, known: &BTreeMap<String, Inspected>) -> Result<Vec<Vec<String>>, BuildError> {
        for step in plan.stages.iter().flat_map(|stage| &stage.steps) {
            if let Action::Copy(copy) = &step.action
                && copy.origin == Origin::Context
            {
                self.context.digest(copy).map_err(|error| BuildError::from(error).at(step.line))?;
            }
        }
        Ok(plan.keys(&Digests { known, context: &self.context }))
    }

    /// Where each stage begins: `Some(None)` with its base, `Some(Some(n))` after `n` steps of an earlier build, and
    /// `None` where it is not needed.
    async fn starts(&mut self, plan: &Plan, keys: &[Vec<String>]) -> Result<Vec<Option<Option<usize>>>, BuildError> {
        let mut starts = vec![None; plan.stages.len()];
        let mut needed = vec![false; plan.stages.len()];
        if let Some(last) = needed.last_mut() {
            *last = true;
        }
        for (index, stage) in plan.stages.iter().enumerate().rev() {
            if !needed[index] {
                continue;
            }
            let reached = self.workshop.reached(&keys[index]).await?.filter(|reached| *reached <= stage.steps.len());
            starts[index] = Some(reached);
            if let (None, Base::Stage(base)) = (reached, &stage.base) {
                needed[*base] = true;
            }
            for base in origins(stage, reached.unwrap_or(0)) {
                needed[base] = true;
            }
        }
        Ok(starts)
    }

    async fn stage(
        &mut self,
        work: &Work<'_>,
        index: usize,
        start: Option<usize>,
        sites: &mut Sites,
    ) -> Result<Box<dyn Site>, BuildError> {
        let (stage, keys) = (&work.plan.stages[index], &work.keys[index]);
        let title = stage.name.clone().unwrap_or_else(|| format!("stage {index}"));
        let title = if work.plan.stages.len() == 1 { String::new() } else { format!("{title} ") };
        let mut site = match start {
            Some(reached) => {
                self.log.line(&format!("[{title}{reached}/{}] reached by an earlier build", stage.steps.len()));
                self.workshop.open(Beginning::Checkpoint(&keys[reached])).await?.site
            }
            None => self.begin(work, index, &title, sites).await.map_err(|error| error.at(stage.line))?,
        };
        site.furnish().await?;
        if start.is_none() {
            site.checkpoint(&keys[0]).await?;
        }
        for (number, step) in stage.steps.iter().enumerate().skip(start.unwrap_or(0)) {
            self.log.line(&format!("[{title}{}/{}] {}", number + 1, stage.steps.len(), step.text));
            let began = tokio::time::Instant::now();
            self.step(step, &mut *site, sites).await?;
            crate::fault::point("sandbox.build_step.done").await.map_err(BuildError::Host)?;
            self.log.line(&format!("    done in {:.1} s", began.elapsed().as_secs_f64()));
            site.checkpoint(&keys[number + 1]).await?;
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
            Base::Scratch => Ok(self.workshop.open(Beginning::Empty).await?.site),
            Base::Image(name) => {
                self.log.line(&format!("[{title}FROM] {name}"));
                self.open_image(name).await
            }
            Base::Stage(base) => {
                let copied_from = origins(stage, 0).any(|origin| origin == *base);
                let gone = || BuildError::Host("a stage that is built on is gone".into());
                if work.uses[*base] == index && !copied_from {
                    return sites.stages[*base].take().ok_or_else(gone);
                }
                self.log.line(&format!("[{title}FROM] a copy of an earlier stage"));
                let mut site = self.workshop.open(Beginning::Empty).await?.site;
                let everything = Pack { sources: vec![".".into()], to: "/".into(), into: true };
                let tar = sites.stages[*base].as_mut().ok_or_else(gone)?.pack(everything).await?;
                site.unpack(tar, Unpack::default()).await?;
                Ok(site)
            }
        }
    }

    /// A site with an image on it.
    pub(super) async fn open_image(&mut self, name: &str) -> Result<Box<dyn Site>, BuildError> {
        let Opened { mut site, layers } = self.workshop.open(Beginning::Image(name)).await?;
        let budget = Budget::new(self.limits.bytes);
        for (number, layer) in layers.iter().enumerate() {
            let (at, all, mib) = (number + 1, layers.len(), layer.size().div_ceil(1 << 20));
            self.log.line(&format!("    layer {at}/{all}, {mib} MiB, {}", layer.diff_id()));
            stream::unpack_from(&mut *site, Unpack::default(), layer.open(&budget)?).await?;
        }
        Ok(site)
    }
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

/// The stages that a stage copies from, from a step on.
fn origins(stage: &Stage, start: usize) -> impl Iterator<Item = usize> {
    stage.steps.iter().skip(start).filter_map(|step| match &step.action {
        Action::Copy(Copy { origin: Origin::Base(Base::Stage(base)), .. }) => Some(*base),
        _ => None,
    })
}

/// The last stage that needs each stage; itself where none does.
fn last_uses(plan: &Plan) -> Vec<usize> {
    let mut uses = (0..plan.stages.len()).collect::<Vec<_>>();
    for (index, stage) in plan.stages.iter().enumerate() {
        if let Base::Stage(base) = stage.base {
            uses[base] = index;
        }
        for base in origins(stage, 0) {
            uses[base] = index;
        }
    }
    uses
}

struct Digests<'a> {
    known: &'a BTreeMap<String, Inspected>,
    context: &'a Context,
}

impl Contents for Digests<'_> {
    fn image(&self, name: &str) -> String {
        self.known.get(name).map(|found| found.digest.clone()).unwrap_or_default()
    }

    fn context(&self, copy: &Copy) -> String {
        self.context.digest(copy).unwrap_or_default()
    }
}
