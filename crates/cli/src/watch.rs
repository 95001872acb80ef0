//! `--watch` of lists: shown again whenever something happens in the project, and every two seconds, until Ctrl-C.
//!
//! A terminal has the list alone, drawn anew in place. Elsewhere a list is written whenever it says something else than
//! the one before, so that a file or a program gets each state once.

use std::io::{IsTerminal, Write as _};
use std::pin::Pin;
use std::time::Duration;

use anyhow::Result;
use berth_client::{Event, List, Page, ProjectClient};
use clap::Args;
use futures::{Stream, StreamExt};
use serde::Serialize;

use crate::output::{self, Look, Table};
use crate::page::PageArgs;

/// Longest pause between two looks: not everything that a list shows is an event, and time passes in it.
const LOOK: Duration = Duration::from_secs(2);
/// Shortest pause: many events come together.
const PAUSE: Duration = Duration::from_millis(200);
/// To the upper left corner, and nothing behind it.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// The option of lists.
#[derive(Args, Clone, Copy)]
pub struct WatchArgs {
    /// Show the list again whenever something changes, until Ctrl-C
    #[arg(long)]
    watch: bool,
}

/// The options of lists that have pages and change by themselves.
#[derive(Args, Clone, Copy)]
pub struct ListArgs {
    #[command(flatten)]
    page: PageArgs,
    #[command(flatten)]
    watching: WatchArgs,
}

impl ListArgs {
    /// Shows a page of a list, once or as often as it changes.
    pub async fn show<T: Serialize>(
        self,
        look: Look,
        project: Option<&ProjectClient>,
        ask: impl AsyncFn(Page) -> berth_client::Result<List<T>>,
        table: impl Fn(&[T]) -> Table,
    ) -> Result<()> {
        let show = async |list: &List<T>| output::list(look, list, &table);
        self.show_with(project, ask, show).await
    }

    /// The same, where it takes more than the list to show it.
    pub async fn show_with<T: Serialize>(
        self,
        project: Option<&ProjectClient>,
        ask: impl AsyncFn(Page) -> berth_client::Result<List<T>>,
        show: impl AsyncFn(&List<T>) -> Result<()>,
    ) -> Result<()> {
        self.watching.show(project, async || Ok(ask(self.page.into()).await?), show).await
    }
}

type Events = Pin<Box<dyn Stream<Item = berth_client::Result<Event>>>>;

impl WatchArgs {
    /// Shows a list once, or as often as it changes: where no project is chosen, every few seconds.
    pub async fn show<T: Serialize>(
        self,
        project: Option<&ProjectClient>,
        ask: impl AsyncFn() -> Result<T>,
        show: impl AsyncFn(&T) -> Result<()>,
    ) -> Result<()> {
        if !self.watch {
            return show(&ask().await?).await;
        }
        let is_terminal = std::io::stdout().is_terminal();
        let (mut events, mut before) = (None, None);
        loop {
            let list = ask().await?;
            let now = serde_json::to_value(&list)?;
            if is_terminal {
                print!("{CLEAR}");
            }
            if is_terminal || before.as_ref() != Some(&now) {
                show(&list).await?;
                std::io::stdout().flush()?;
            }
            before = Some(now);
            next(project, &mut events).await;
        }
    }
}

/// Returns after the next event, or when it is time to look. Where the stream breaks off, another one is asked for later.
async fn next(project: Option<&ProjectClient>, events: &mut Option<Events>) {
    tokio::time::sleep(PAUSE).await;
    if let (None, Some(project)) = (&events, project) {
        *events = project.events(None).await.ok().map(|events| Box::pin(events) as Events);
    }
    let looked = match events {
        Some(stream) => tokio::time::timeout(LOOK, stream.next()).await,
        None => Ok(None),
    };
    if let Ok(None | Some(Err(_))) = looked {
        *events = None;
        tokio::time::sleep(LOOK).await;
    }
}
