//! One step of a build.

use berth_domain::agent::control::Pack;
use berth_domain::agent::runtime::Exit;
use berth_domain::sandbox::dockerfile::plan::{Copy, Origin, Run};
use berth_domain::sandbox::dockerfile::{Action, Base, Step};

use super::build_machine::{BuildMachine, Unpack};
use super::builder::{Builder, StageMachines};
use super::{BuildError, stream};

impl Builder<'_> {
    /// Does a step on a machine.
    pub(super) async fn step(
        &mut self,
        step: &Step,
        machine: &mut dyn BuildMachine,
        machines: &mut StageMachines,
    ) -> Result<(), BuildError> {
        let patience = self.limits.step;
        let seconds = patience.as_secs();
        let late = || {
            let reason = format!("it took longer than {seconds} seconds; split it, or do less in it");
            Err(BuildError::Step { line: step.line, reason })
        };
        let done = async {
            match &step.action {
                Action::Run(run) => self.run(step, run, machine).await,
                Action::Copy(copy) => self.copy(copy, machine, machines).await,
                Action::MakeDirectory(path) => {
                    let how = Unpack { path: Some(path.clone()), keep: true, ..Unpack::default() };
                    machine.unpack(stream::empty(), how).await
                }
            }
        };
        // The machine ends a program that is late by itself, and tells more.
        let limit = patience.saturating_add(patience / 8);
        let done = tokio::time::timeout(limit, done).await.unwrap_or_else(|_| late());
        done.map_err(|error| error.at(step.line))
    }

    async fn run(&mut self, step: &Step, run: &Run, machine: &mut dyn BuildMachine) -> Result<(), BuildError> {
        let log = self.log.clone();
        let exit = machine.run(run, self.limits.step, &mut |line| log.line(&format!("    {line}"))).await?;
        match failure(&exit, self.limits.step.as_secs()) {
            None => Ok(()),
            Some(reason) => {
                Err(BuildError::Step { line: step.line, reason: format!("{}: {reason}", clip(&step.text)) })
            }
        }
    }

    async fn copy(
        &mut self,
        copy: &Copy,
        machine: &mut dyn BuildMachine,
        machines: &mut StageMachines,
    ) -> Result<(), BuildError> {
        let into = copy.into || machine.is_directory(&copy.to).await?;
        let how = Unpack { path: None, keep: true, owner: copy.owner.clone(), mode: copy.mode };
        let from = match &copy.origin {
            Origin::Context => {
                let (context, copy) = (self.context.clone(), copy.clone());
                return stream::unpack(machine, how, move |out| context.select(&copy, into, out)).await;
            }
            Origin::Base(Base::Scratch) => return Ok(()),
            Origin::Base(Base::Stage(index)) => machines.stages.get_mut(*index).and_then(Option::as_mut),
            Origin::Base(Base::Image(name)) => {
                if !machines.images.contains_key(name) {
                    let opened = self.open_image(name, machines.others() + 1).await?;
                    machines.images.insert(name.clone(), opened);
                }
                machines.images.get_mut(name)
            }
        };
        let from = from.ok_or_else(|| BuildError::Host("a stage that is copied from is gone".into()))?;
        let tar = from.pack(Pack { sources: copy.sources.clone(), to: copy.to.clone(), into }).await?;
        machine.unpack(tar, how).await
    }
}

/// Why an end is a failure.
fn failure(exit: &Exit, seconds: u64) -> Option<String> {
    match (exit.timed_out, exit.code, exit.signal.as_deref()) {
        (true, ..) => Some(format!("it took longer than {seconds} seconds; split it, or do less in it")),
        (_, Some(0), _) => None,
        (_, Some(137), _) | (_, _, Some("SIGKILL")) => {
            Some("it was killed, perhaps for lack of memory; give the template a larger memory_mb".to_owned())
        }
        (_, Some(code), _) => Some(format!("it ended with exit code {code}; the build's log tells why")),
        (_, None, signal) => Some(format!("it was ended by {}", signal.unwrap_or("a signal"))),
    }
}

fn clip(text: &str) -> String {
    if text.chars().count() <= 100 { text.to_owned() } else { text.chars().take(99).chain(['…']).collect() }
}
