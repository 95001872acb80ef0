//! Completes words for a shell: with the names of existing things.
//!
//! The shell calls `berth` at every press of its key. Whatever goes wrong then, `berth` prints nothing and offers
//! nothing, and it does not wait for a slow service.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use berth_client::{Page, SandboxFilter, VmFilter};
use clap::{Arg, Command, FromArgMatches};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};

use crate::context::{Context, api_key};
use crate::credentials::Store;
use crate::global::Global;

/// How long to wait for the service.
const PATIENCE: Duration = Duration::from_secs(1);
/// The variable with which a shell asks for completions.
const ASKS: &str = "BERTH_COMPLETE";

/// The kind of thing that an argument names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Vm,
    Sandbox,
    Disk,
    Network,
    SshKey,
    Template,
    Snapshot,
    DiskSnapshot,
    Backup,
    BackupSchedule,
    Image,
    Size,
    Project,
    Org,
    Member,
    Key,
    Model,
    Context,
}

/// Builds the whole command line, which in turn determines what to offer a shell.
pub type Grammar = fn() -> Command;

/// If a shell asks, answers it and ends the program.
pub fn answer(grammar: Grammar) {
    CompleteEnv::with_factory(grammar).var(ASKS).complete();
}

/// Prints the script with which a shell asks this program.
pub fn register(shell: Shell) -> Result<()> {
    let typed = std::env::args_os().next().unwrap_or_else(|| "berth".into());
    // A program typed with its folder need not be in the search path.
    let has_folder = Path::new(&typed).components().count() > 1;
    let program = if has_folder { std::env::current_exe()? } else { typed.into() };
    let program = program.to_string_lossy();
    let shells = Shells::builtins();
    let shell = shells.completer(&shell.to_string()).context("this shell is not known")?;
    shell.write_registration(ASKS, "berth", "berth", &program, &mut std::io::stdout())?;
    Ok(())
}

/// Lets a shell complete an argument of the command at this path with names, if the argument names something. `grammar`
/// parses the unfinished line.
pub fn completed(arg: Arg, path: &[&str], grammar: Grammar) -> Arg {
    match kind(arg.get_id().as_str(), arg.is_positional(), path) {
        Some(kind) => arg.add(ArgValueCompleter::new(move |begun: &OsStr| candidates(kind, begun, grammar))),
        None => arg,
    }
}

/// The kind of thing that an argument names, from its own name and its command's path.
fn kind(id: &str, positional: bool, path: &[&str]) -> Option<Kind> {
    Some(match (id, path.first().copied().unwrap_or_default()) {
        // Administrators name things that are not their own.
        (_, "admin") => return None,
        ("vm" | "vms", _) | ("from_vm", "image") => Kind::Vm,
        ("sandbox" | "sandboxes", _) => Kind::Sandbox,
        ("disk" | "disks", _) if positional => Kind::Disk,
        ("attach" | "root_disk", "vm") | ("from_disk", "image") => Kind::Disk,
        // Of a key they are networks that it may be used from.
        ("network" | "networks", "vm" | "sandbox" | "network") => Kind::Network,
        ("ssh_keys", "ssh-key") => Kind::SshKey,
        ("template" | "templates", _) => Kind::Template,
        ("backup" | "backups", "disk") => Kind::Backup,
        ("schedule" | "schedules", "disk") => Kind::BackupSchedule,
        ("snapshot" | "snapshots", "disk" | "vm") => Kind::DiskSnapshot,
        ("snapshot" | "snapshots" | "from_snapshot", _) => Kind::Snapshot,
        ("image", "vm" | "image") | ("images", _) => Kind::Image,
        ("size", "vm") => Kind::Size,
        ("project", _) | ("whose", "quota") => Kind::Project,
        ("org", _) => Kind::Org,
        ("member", _) => Kind::Member,
        ("key" | "keys", _) => Kind::Key,
        ("model", _) => Kind::Model,
        ("context", _) | ("name" | "names", "context") => Kind::Context,
        _ => return None,
    })
}

fn candidates(kind: Kind, begun: &OsStr, grammar: Grammar) -> Vec<CompletionCandidate> {
    let begun = begun.to_string_lossy();
    let mut names = found(kind, grammar).unwrap_or_default();
    names.retain(|name| name.starts_with(&*begun));
    names.sort();
    names.dedup();
    names.into_iter().map(CompletionCandidate::new).collect()
}

fn found(kind: Kind, grammar: Grammar) -> Result<Vec<String>> {
    if kind == Kind::Context {
        return Ok(Store::load()?.contexts.into_iter().map(|kept| kept.name).collect());
    }
    let global = line(std::env::args_os().skip_while(|word| word != "--").skip(1), grammar)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let found = runtime.block_on(async { tokio::time::timeout(PATIENCE, ask(&global, kind)).await });
    // Does not wait for unfinished work, such as looking up a name.
    runtime.shutdown_background();
    found?
}

/// The global options of an unfinished line.
fn line(words: impl IntoIterator<Item = OsString>, grammar: Grammar) -> Result<Global> {
    let command = grammar().ignore_errors(true);
    Ok(Global::from_arg_matches(&command.try_get_matches_from(words)?)?)
}

async fn ask(global: &Global, kind: Kind) -> Result<Vec<String>> {
    let context = Context::any(global).await?;
    let (client, page) = (&context.client, Page::default());
    let most = Some(page.limit);
    Ok(match kind {
        Kind::Vm => {
            let filter = VmFilter { limit: most, ..VmFilter::default() };
            context.project()?.vms(filter).await?.data.into_iter().map(|vm| vm.name).collect()
        }
        Kind::Sandbox => {
            let filter = SandboxFilter { limit: most, ..SandboxFilter::default() };
            let all = context.project()?.sandboxes(&filter).await?.data.into_iter();
            all.map(|sandbox| sandbox.name.unwrap_or(sandbox.id)).collect()
        }
        Kind::Disk => {
            let project = context.project()?;
            let (data, roots) = tokio::try_join!(project.disks(page), project.root_disks(page))?;
            let roots = roots.data.into_iter().map(|disk| disk.name);
            data.data.into_iter().map(|disk| disk.name).chain(roots).collect()
        }
        Kind::DiskSnapshot => {
            context.project()?.disk_snapshots(page).await?.data.into_iter().map(|one| one.name).collect()
        }
        Kind::Backup => context.project()?.backups(page).await?.data.into_iter().map(|one| one.name).collect(),
        Kind::BackupSchedule => {
            context.project()?.backup_schedules(page).await?.data.into_iter().map(|one| one.name).collect()
        }
        Kind::Network => context.project()?.networks(page).await?.data.into_iter().map(|one| one.name).collect(),
        Kind::SshKey => {
            let own = context.typed_project().is_none() && api_key().is_none();
            let all = if own { client.own_ssh_keys(page).await? } else { context.project()?.ssh_keys(page).await? };
            all.data.into_iter().map(|key| key.name).collect()
        }
        Kind::Template => context.project()?.templates(page).await?.data.into_iter().map(|t| t.name).collect(),
        Kind::Snapshot => {
            let all = context.project()?.snapshots(page).await?.data.into_iter();
            all.map(|snapshot| snapshot.name.unwrap_or(snapshot.id)).collect()
        }
        Kind::Image => {
            let own = match context.project() {
                Ok(project) => project.images(page).await?.data,
                Err(_) => Vec::new(),
            };
            let all = client.images(page).await?.data.into_iter().map(|image| image.id);
            own.into_iter().map(|image| image.id).chain(all).collect()
        }
        Kind::Size => client.vm_configs().await?.data.into_iter().map(|size| size.id).collect(),
        Kind::Project => client.projects(context.org()?, page).await?.data.into_iter().map(|p| p.slug).collect(),
        Kind::Org => client.organizations(page).await?.data.into_iter().map(|org| org.slug).collect(),
        Kind::Member => client.members(context.org()?, page).await?.data.into_iter().map(|m| m.email).collect(),
        Kind::Key => context.project()?.api_keys(page).await?.data.into_iter().map(|key| key.name).collect(),
        Kind::Model => context.inference().await?.models().await?.data.into_iter().map(|model| model.id).collect(),
        Kind::Context => Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grammar;

    #[test]
    fn arguments_are_known_by_what_they_name() {
        for (id, positional, path, expected) in [
            ("vms", true, &["vm", "delete"][..], Some(Kind::Vm)),
            ("disk", true, &["disk", "get"], Some(Kind::Disk)),
            ("disk", false, &["vm", "create"], None),
            ("snapshot", false, &["vm", "create"], Some(Kind::DiskSnapshot)),
            ("snapshots", true, &["disk", "snapshot", "delete"], Some(Kind::DiskSnapshot)),
            ("snapshot", true, &["sandbox", "snapshot", "show"], Some(Kind::Snapshot)),
            ("backup", true, &["disk", "backup", "restore"], Some(Kind::Backup)),
            ("schedules", true, &["disk", "backup", "schedule", "delete"], Some(Kind::BackupSchedule)),
            ("networks", false, &["vm", "create"], Some(Kind::Network)),
            ("network", true, &["network", "rename"], Some(Kind::Network)),
            ("networks", false, &["key", "create"], None),
            ("image", false, &["vm", "create"], Some(Kind::Image)),
            ("image", false, &["template", "create"], None),
            ("size", false, &["disk", "create"], None),
            ("project", false, &[], Some(Kind::Project)),
            ("names", true, &["context", "delete"], Some(Kind::Context)),
            ("vm", true, &["admin", "vm", "stop"], None),
            ("templates", true, &["template", "delete"], Some(Kind::Template)),
            ("images", true, &["image", "delete"], Some(Kind::Image)),
            ("keys", true, &["key", "revoke"], Some(Kind::Key)),
            ("ssh_keys", true, &["ssh-key", "delete"], Some(Kind::SshKey)),
            ("ssh_keys", false, &["vm", "create"], None),
        ] {
            assert_eq!(kind(id, positional, path), expected, "{id} of {path:?}");
        }
    }

    #[test]
    fn a_line_that_is_not_whole_says_which_project() {
        let words = ["berth", "vm", "get", "--project", "web", "--org", "acme"].map(OsString::from);
        let global = line(words, grammar::command).unwrap();
        assert_eq!((global.project.as_deref(), global.org.as_deref()), (Some("web"), Some("acme")));
        let words = ["berth", "--context", "work", "sandbox", "exec", ""].map(OsString::from);
        assert_eq!(line(words, grammar::command).unwrap().context.as_deref(), Some("work"));
    }
}
