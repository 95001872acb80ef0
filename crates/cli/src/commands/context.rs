//! Contexts: the sign-ins kept on this machine, each with its default organization and project. A context has a name.

use anyhow::Result;
use clap::Subcommand;
use serde::Serialize;

use crate::credentials::{Credentials, Store};
use crate::output::{self, Look, Table};
use crate::several::find_all;

#[derive(Subcommand)]
pub enum ContextCommand {
    /// List the sign-ins kept on this machine
    #[command(visible_alias = "ls")]
    List,
    /// Show one sign-in
    #[command(visible_alias = "show")]
    Get {
        /// Name; by default the one that commands use
        name: Option<String>,
    },
    /// Choose the sign-in that commands use
    Use {
        /// Name
        name: String,
    },
    /// Rename a sign-in
    Rename {
        /// Name
        name: String,
        /// New name
        new_name: String,
    },
    /// Forget sign-ins; berth logout --context NAME ends a session, too
    #[command(visible_alias = "rm")]
    Delete {
        /// Names
        #[arg(required = true)]
        names: Vec<String>,
    },
}

/// A sign-in without its secrets.
#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    current: bool,
    url: &'a str,
    email: &'a str,
    org: &'a str,
    project: &'a str,
}

impl<'a> Shown<'a> {
    fn of(store: &'a Store, kept: &'a Credentials) -> Self {
        let Credentials { name, url, email, org, project, .. } = kept;
        Self { name, current: store.current == *name, url, email, org, project }
    }
}

/// Runs the typed command.
pub async fn run(look: Look, command: ContextCommand) -> Result<()> {
    match command {
        ContextCommand::List => {
            let store = Store::load()?;
            let all: Vec<_> = store.contexts.iter().map(|kept| Shown::of(&store, kept)).collect();
            output::rows(look, &all, |all| table(all))
        }
        ContextCommand::Get { name } => {
            let store = Store::load()?;
            let name = name.as_ref().unwrap_or(&store.current);
            let shown = Shown::of(&store, store.find(name)?);
            output::rows(look, &shown, |shown| table(std::slice::from_ref(shown)))
        }
        ContextCommand::Use { name } => {
            let kept = Store::change(|store| {
                let kept = store.find(&name)?.clone();
                store.current.clone_from(&name);
                Ok(kept)
            })?;
            done(look, &name, &format!("Commands now use {name}: {} at {}.", kept.email, kept.url));
            Ok(())
        }
        ContextCommand::Rename { name, new_name } => {
            Store::change(|store| store.rename(&name, &new_name))?;
            done(look, &new_name, &format!("{name} is called {new_name} now."));
            Ok(())
        }
        ContextCommand::Delete { names } => delete(look, &names).await,
    }
}

async fn delete(look: Look, names: &[String]) -> Result<()> {
    let store = Store::load()?;
    let names = find_all(names, async |name: &str| store.find(name).map(|kept| kept.name.clone())).await?;
    Store::change(|store| {
        for name in &names {
            store.forget(name);
        }
        Ok(())
    })?;
    for name in names {
        done(look, &name, &format!("{name} is forgotten."));
    }
    Ok(())
}

/// Reports what was done; a context has only its name for an id.
fn done(look: Look, name: &str, sentence: &str) {
    output::done(look, name, name, sentence);
}

fn table(all: &[Shown<'_>]) -> Table {
    let rows = all.iter().map(|kept| {
        let mark = if kept.current { "*" } else { "" };
        let project =
            if kept.project.is_empty() { kept.org.to_owned() } else { format!("{}/{}", kept.org, kept.project) };
        [kept.name.to_owned(), mark.to_owned(), kept.url.to_owned(), kept.email.to_owned(), project]
    });
    Table::new(["NAME", "", "SERVICE", "ADDRESS", "PROJECT"], rows, "No sign-ins. Type: berth login URL")
}
