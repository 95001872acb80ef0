//! `berth vm events`.

use anyhow::Result;
use berth_client::{Event, ProjectClient};
use clap::Args;
use futures::StreamExt;

use super::find::find;
use crate::context::Context;
use crate::output;

#[derive(Args)]
pub struct EventArgs {
    /// Only this VM, by name or id
    vm: Option<String>,
    /// Begin after the event with this number; 0 begins with the oldest
    #[arg(long, value_name = "NUMBER")]
    after: Option<i64>,
}

pub async fn events(context: &Context, project: &ProjectClient, args: EventArgs) -> Result<()> {
    let only = match &args.vm {
        Some(vm) => Some(find(project, vm).await?.id),
        None => None,
    };
    let mut events = std::pin::pin!(project.events(args.after).await?);
    while let Some(event) = events.next().await {
        let event = event?;
        // A gap concerns also those who watch a single VM.
        if event.kind == "truncated" || only.as_ref().is_none_or(|id| *id == event.subject) {
            show(context, &event)?;
        }
    }
    Ok(())
}

/// One event on one line, so that a program can read events as they come.
fn show(context: &Context, event: &Event) -> Result<()> {
    if context.look.is_json() {
        println!("{}", serde_json::to_string(event)?);
    } else {
        println!(
            "{} {:<5} {:<16} {} {}",
            output::time(&event.created_at),
            event.id,
            event.kind,
            event.subject,
            event.data
        );
    }
    Ok(())
}
