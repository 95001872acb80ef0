//! Changes in a sandbox's life: pause, resume, restore, fork, deletion.

use std::time::Instant;

use anyhow::Result;
use berth_client::{ForkSandbox, ProjectClient, Sandbox};
use clap::Args;

use super::find::find;
use super::{durable, show, snapshot};
use crate::context::Context;
use crate::output;
use crate::progress::{called, wait_sandbox};
use crate::several::{self, Doomed, Outcome, find_all};
use crate::typed::{Words, retold};
use crate::wait::WaitArgs;

/// Seconds to wait for a verb.
const LONGEST: u64 = 300;
/// The option for each field of a fork.
const FORK: Words = &[("count", "--count"), ("name", "--name"), ("snapshot_id", "--snapshot")];

#[derive(Args)]
pub struct VerbArgs {
    /// Names or ids
    #[arg(required = true)]
    sandboxes: Vec<String>,
    #[command(flatten)]
    waiting: WaitArgs,
}

#[derive(Args)]
pub struct PauseArgs {
    #[command(flatten)]
    verb: VerbArgs,
    /// Keep all of it on a second host or with backups, too: it outlives its host while it is paused. Waits until it is there;
    /// --durable=false ends that of one that is paused
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    durable: Option<bool>,
}

#[derive(Args)]
pub struct RestoreArgs {
    /// Name or id
    sandbox: String,
    /// Snapshot, by name or id
    snapshot: String,
    #[command(flatten)]
    waiting: WaitArgs,
}

#[derive(Args)]
pub struct ForkArgs {
    /// Name or id
    sandbox: String,
    /// How many, 1 to 100
    #[arg(long, short = 'n', default_value_t = 1)]
    count: u32,
    /// Their name; several get -1, -2, … appended
    #[arg(long)]
    name: Option<String>,
    /// Continue from the memory, with the running programs
    #[arg(long)]
    include_memory: bool,
    /// A snapshot instead of the live state, by name or id
    #[arg(long)]
    snapshot: Option<String>,
    #[command(flatten)]
    waiting: WaitArgs,
}

/// The sandbox once it has a phase; or at once, if the caller does not want to wait.
async fn until(
    context: &Context,
    project: &ProjectClient,
    waiting: WaitArgs,
    id: &str,
    phase: &str,
) -> Result<Sandbox> {
    if !waiting.wanted(true) {
        return Ok(project.sandbox(id).await?);
    }
    wait_sandbox(project, id, phase, waiting.longest(LONGEST), context.is_quiet()).await
}

pub async fn resume(context: &Context, project: &ProjectClient, args: VerbArgs) -> Result<()> {
    let ask = async |sandbox: &str| project.resume_sandbox(sandbox).await;
    let wait = async |id: &str| until(context, project, args.waiting, id, "Ready").await;
    each(context, project, &args.sandboxes, ask, wait).await
}

pub async fn pause(context: &Context, project: &ProjectClient, args: PauseArgs) -> Result<()> {
    let PauseArgs { verb, durable } = args;
    let ask = async |sandbox: &str| project.pause_sandbox(sandbox, durable).await;
    let wait = async |id: &str| {
        let begun = Instant::now();
        let sandbox = until(context, project, verb.waiting, id, "Paused").await?;
        if durable != Some(true) || !verb.waiting.wanted(true) {
            return Ok(sandbox);
        }
        let (name, left) =
            (called(&sandbox).to_owned(), verb.waiting.longest(LONGEST).saturating_sub(begun.elapsed().as_secs()));
        let look = async || Ok(project.sandbox(id).await?);
        durable::wait(context, (sandbox, &name), left, |sandbox| &sandbox.more, look).await
    };
    each(context, project, &verb.sandboxes, ask, wait).await
}

/// Asks something of each sandbox that is named, waits for each, and says what became of it.
async fn each(
    context: &Context,
    project: &ProjectClient,
    sandboxes: &[String],
    ask: impl AsyncFn(&str) -> berth_client::Result<()>,
    wait: impl AsyncFn(&str) -> Result<Sandbox>,
) -> Result<()> {
    let all = find_all(sandboxes, async |text: &str| find(project, text).await).await?;
    let (mut outcome, mut asked) = (Outcome::of(all.len(), context.look), Vec::new());
    for sandbox in all {
        let answer = ask(&sandbox.id).await.map_err(Into::into);
        asked.extend(outcome.of_one(called(&sandbox), answer.map(drop)).map(|()| sandbox));
    }
    for sandbox in asked {
        let done = wait(&sandbox.id).await;
        if let Some(sandbox) = outcome.of_one(called(&sandbox), done) {
            say(context, &sandbox)?;
        }
    }
    outcome.end()
}

fn say(context: &Context, sandbox: &Sandbox) -> Result<()> {
    let name = called(sandbox);
    output::print(context.look, sandbox, name, &sandbox.id, |sandbox| println!("{name} {}", sandbox.phase))
}

pub async fn restore(context: &Context, project: &ProjectClient, args: RestoreArgs) -> Result<()> {
    let sandbox = find(project, &args.sandbox).await?;
    let snapshot = snapshot::find(project, &args.snapshot, Some(&sandbox.id)).await?;
    project.restore_sandbox(&sandbox.id, &snapshot.id).await?;
    say(context, &until(context, project, args.waiting, &sandbox.id, "Ready").await?)
}

pub async fn fork(context: &Context, project: &ProjectClient, args: ForkArgs) -> Result<()> {
    let sandbox = find(project, &args.sandbox).await?;
    let snapshot_id = match &args.snapshot {
        Some(text) => Some(snapshot::find(project, text, Some(&sandbox.id)).await?.id),
        None => None,
    };
    let request = ForkSandbox { count: args.count, name: args.name, include_memory: args.include_memory, snapshot_id };
    let mut forks = project.fork_sandbox(&sandbox.id, &request).await.map_err(|error| retold(error, FORK))?;
    if args.waiting.wanted(true) {
        for fork in &mut forks {
            *fork = wait_sandbox(project, &fork.id, "Ready", args.waiting.longest(LONGEST), context.is_quiet()).await?;
        }
    }
    let templates = show::templates(context, project).await?;
    output::rows(context.look, &forks, |forks| show::table(forks, &templates))
}

pub async fn delete(context: &Context, project: &ProjectClient, args: VerbArgs) -> Result<()> {
    let all = find_all(&args.sandboxes, async |text: &str| find(project, text).await).await?;
    let doomed = all.into_iter().map(|sandbox| Doomed { name: called(&sandbox).to_owned(), id: sandbox.id });
    let ask = async |id: &str| project.delete_sandbox(id).await;
    let look = async |id: &str| project.sandbox(id).await.map(|sandbox| sandbox.phase);
    several::delete(context, doomed.collect(), (args.waiting, LONGEST), ask, look).await
}
