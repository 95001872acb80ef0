//! A whole build: which stages, in which order, and on which machines.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_domain::agent::control::Pack;
use berth_domain::sandbox::dockerfile::plan::{Copy, Origin};
use berth_domain::sandbox::dockerfile::{Action, Base, Dockerfile, ImageConfig, Plan, Stage};
use berth_oci::{Budget, Context};
use tokio_util::sync::CancellationToken;

use super::build_machine::{Beginning, BuildMachine, Opened, Provisioner, Unpack};
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
    /// How many machines there may be at a time.
    pub machines: usize,
}

/// What was built.
pub struct Finished {
    /// Where it is.
    pub machine: Box<dyn BuildMachine>,
    /// What is known of its programs.
    pub config: ImageConfig,
    /// The image that everything goes back to; none where it began with nothing.
    pub origin: Option<String>,
}

/// Builds.
pub struct Builder<'a> {
    /// Who makes machines.
    pub provisioner: &'a mut dyn Provisioner,
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

/// StageMachines while stages are built.
#[derive(Default)]
pub(super) struct StageMachines {
    pub stages: Vec<Option<Box<dyn BuildMachine>>>,
    /// Images that are only copied from.
    pub images: BTreeMap<String, Box<dyn BuildMachine>>,
}

impl StageMachines {
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
            let config = self.provisioner.inspect(&name).await?;
            known.insert(name, config);
        }
        let config = |name: &str| known.get(name).cloned();
        let plan = dockerfile.plan(given, target, &config)?;
        for note in &plan.notes {
            self.log.line(&format!("NOTE: {note}"));
        }
        look_for_copies(self.context.clone(), &plan).await?;
        let work = Work { uses: last_uses(&plan), plan: &plan };
        let mut machines =
            StageMachines { stages: plan.stages.iter().map(|_| None).collect(), ..StageMachines::default() };
        for (index, stage) in plan.stages.iter().enumerate() {
            machines.stages[index] = Some(self.stage(&work, index, &mut machines).await?);
            machines.forget(&work, index);
            tracing::debug!(stage = stage.name, "a stage was built");
        }
        let last = machines.stages.pop().flatten();
        let machine = last.ok_or_else(|| BuildError::Host("the last stage has no machine".into()))?;
        Ok(Finished { machine, config: plan.config(), origin: origin(&plan) })
    }

    async fn stage(
        &mut self,
        work: &Work<'_>,
        index: usize,
        machines: &mut StageMachines,
    ) -> Result<Box<dyn BuildMachine>, BuildError> {
        let stage = &work.plan.stages[index];
        let title = stage.name.clone().unwrap_or_else(|| format!("stage {index}"));
        let title = if work.plan.stages.len() == 1 { String::new() } else { format!("{title} ") };
        let mut machine = self.begin(work, index, &title, machines).await.map_err(|error| error.at(stage.line))?;
        machine.furnish().await?;
        for (number, step) in stage.steps.iter().enumerate() {
            self.log.line(&format!("[{title}{}/{}] {}", number + 1, stage.steps.len(), step.text));
            let began = tokio::time::Instant::now();
            self.step(step, &mut *machine, machines).await?;
            crate::fault::point("sandbox.build_step.done").await.map_err(BuildError::Host)?;
            self.log.line(&format!("    done in {:.1} s", began.elapsed().as_secs_f64()));
        }
        Ok(machine)
    }

    async fn begin(
        &mut self,
        work: &Work<'_>,
        index: usize,
        title: &str,
        machines: &mut StageMachines,
    ) -> Result<Box<dyn BuildMachine>, BuildError> {
        let stage = &work.plan.stages[index];
        match &stage.base {
            Base::Scratch => Ok(self.open(Beginning::Empty, machines.others()).await?.machine),
            Base::Image(name) => {
                self.log.line(&format!("[{title}FROM] {name}"));
                self.open_image(name, machines.others()).await
            }
            Base::Stage(base) => {
                let copied_from = origins(stage).any(|origin| origin == *base);
                let gone = || BuildError::Host("a stage that is built on is gone".into());
                if work.uses[*base] == index && !copied_from {
                    return machines.stages[*base].take().ok_or_else(gone);
                }
                self.log.line(&format!("[{title}FROM] a copy of an earlier stage"));
                let mut machine = self.open(Beginning::Empty, machines.others()).await?.machine;
                let everything = Pack { sources: vec![".".into()], to: "/".into(), into: true };
                let tar = machines.stages[*base].as_mut().ok_or_else(gone)?.pack(everything).await?;
                machine.unpack(tar, Unpack::default()).await?;
                Ok(machine)
            }
        }
    }

    /// One more machine beside so many others.
    async fn open(&mut self, beginning: Beginning<'_>, others: usize) -> Result<Opened, BuildError> {
        if others >= self.limits.machines {
            return Err(BuildError::Machines(others + 1, self.limits.machines));
        }
        self.provisioner.open(beginning).await
    }

    /// A machine with an image on it, beside so many others.
    pub(super) async fn open_image(&mut self, name: &str, others: usize) -> Result<Box<dyn BuildMachine>, BuildError> {
        let Opened { mut machine, layers } = self.open(Beginning::Image(name), others).await?;
        let budget = Budget::new(self.limits.bytes);
        for (number, layer) in layers.iter().enumerate() {
            let (at, all, mib) = (number + 1, layers.len(), layer.size().div_ceil(1 << 20));
            self.log.line(&format!("    layer {at}/{all}, {mib} MiB, {}", layer.diff_id()));
            stream::unpack_from(&mut *machine, Unpack::default(), layer.open(&budget)?).await?;
        }
        Ok(machine)
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
