//! `berth vm ssh-config`: the project's VMs as hosts of the system's own ssh, so that `ssh web.berth`, scp and the remote
//! sessions of editors reach them.
//!
//! A host has the same settings as `berth vm ssh`: its key is known by the VM's id, since addresses are used again, and
//! kept in a file of Berth's own. What comes from the service is written only if it cannot be taken for a setting.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use berth_client::{ProjectClient, Vm, VmFilter};
use clap::Args;
use serde_json::json;

use super::known_hosts;
use crate::context::Context;
use crate::failure::Failure;
use crate::id::short;
use crate::{credentials, output, own_key};

/// The domain of the names.
const DOMAIN: &str = "berth";
/// VMs of one request.
const PAGE: u32 = 100;

#[derive(Args)]
pub struct SshConfigArgs {
    /// Keep it in a file of its own, which ~/.ssh/config includes from then on; type it again after VMs have changed
    #[arg(long)]
    write: bool,
}

pub async fn ssh_config(context: &Context, project: &ProjectClient, args: SshConfigArgs) -> Result<()> {
    let vms = all(project).await?;
    let (folder, key) = (credentials::folder()?, own_key::private()?);
    let text = config(&vms, key.as_deref())?;
    if !args.write {
        print!("{text}");
        return Ok(());
    }
    let place = format!("{}.{}.conf", context.org()?, context.project_name().unwrap_or_default());
    let file = write(&folder.join("ssh"), &place, &text)?;
    let included = include(&folder.join("ssh"))?;
    let hosts: Vec<String> = names(&vms).into_iter().map(|(name, _)| name).collect();
    let written = json!({"file": file, "config": included, "hosts": hosts});
    output::print(context.look, &written, &file.display().to_string(), &file.display().to_string(), |_| {
        let example = hosts.first().map_or_else(String::new, |name| format!(". Log in: ssh {name}"));
        println!("{} VMs are in {}, which {} includes{example}", hosts.len(), file.display(), included.display());
    })
}

async fn all(project: &ProjectClient) -> Result<Vec<Vm>> {
    let (mut all, mut page) = (Vec::new(), 1);
    loop {
        let filter = VmFilter { page: Some(page), limit: Some(PAGE), ..VmFilter::default() };
        let found = project.vms(filter).await?;
        let is_last = i64::from(page) >= found.pagination.total_pages;
        all.extend(found.data);
        if is_last {
            return Ok(all);
        }
        page += 1;
    }
}

/// The VMs that can be logged in to as themselves, by their names there. A name that several have is the newest one's; each
/// is also known by the end of its id. A rescue system has another user, and host keys of its own: it is not what a file
/// says that outlives it.
fn names(vms: &[Vm]) -> Vec<(String, &Vm)> {
    let up: Vec<&Vm> = vms.iter().filter(|vm| vm.ssh.is_some() && !vm.rescue).collect();
    let is_first = |index: usize, vm: &Vm| up.iter().position(|other| other.name == vm.name) == Some(index);
    let name = |(index, vm): (usize, &&Vm)| {
        let name = if is_first(index, vm) { vm.name.clone() } else { short(&vm.id).to_owned() };
        format!("{name}.{DOMAIN}")
    };
    up.iter().enumerate().map(|(index, vm)| (name((index, vm)), *vm)).collect()
}

/// A block of settings for each VM.
fn config(vms: &[Vm], key: Option<&Path>) -> Result<String> {
    let mut text = String::from("# VMs of Berth, written by berth vm ssh-config\n");
    for (name, vm) in names(vms) {
        let Some(ssh) = &vm.ssh else { continue };
        let id = short(&vm.id);
        let other = if name == format!("{id}.{DOMAIN}") { String::new() } else { format!(" {id}.{DOMAIN}") };
        writeln!(text, "\nHost {}{}", plain(&name)?, plain_or_empty(&other)?)?;
        writeln!(text, "  HostName {}\n  Port {}\n  User {}", plain(&ssh.host)?, ssh.port, plain(&ssh.user)?)?;
        writeln!(text, "  HostKeyAlias {}\n  UserKnownHostsFile {}", plain(&vm.id)?, quoted(&known_hosts::file(vm)?)?)?;
        writeln!(text, "  StrictHostKeyChecking accept-new")?;
        if let Some(key) = key {
            writeln!(text, "  IdentityFile {}", quoted(key)?)?;
        }
    }
    for vm in vms.iter().filter(|vm| vm.ssh.is_some() && vm.rescue) {
        let (name, id) = (plain(&vm.name)?, short(plain(&vm.id)?));
        writeln!(
            text,
            "\n# {name} ({id}) is in rescue: berth vm ssh {id}; after berth vm restart {id} it is here again"
        )?;
    }
    Ok(text)
}

/// A word of the service, if ssh takes it for one: nobody else writes settings here.
fn plain(word: &str) -> Result<&str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._:-".contains(c);
    if !word.is_empty() && !word.starts_with('-') && word.chars().all(is_plain) {
        return Ok(word);
    }
    Err(Failure::of(1, format!("The service says '{}', which is no name for ssh", word.escape_debug())))
}

fn plain_or_empty(word: &str) -> Result<&str> {
    if word.is_empty() { Ok(word) } else { plain(word.trim_start()).map(|_| word) }
}

/// A file for ssh, which takes percent signs for something else.
fn quoted(file: &Path) -> Result<String> {
    let text = file.to_str().filter(|text| !text.contains(['"', '\n', '\\']));
    let text = text.with_context(|| format!("{} is no name that ssh can be told", file.display()))?;
    Ok(format!("\"{}\"", text.replace('%', "%%")))
}

/// Puts the settings into their file, whole or not at all.
fn write(folder: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let failed = |file: &Path| format!("{} cannot be written", file.display());
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).with_context(|| failed(folder))?;
    let (file, draft) = (folder.join(name), folder.join(format!(".{name}")));
    private(&draft, text).with_context(|| failed(&draft))?;
    fs::rename(&draft, &file).with_context(|| failed(&file))?;
    Ok(file)
}

fn private(file: &Path, text: &str) -> std::io::Result<()> {
    let mut open = fs::OpenOptions::new();
    open.write(true).create(true).truncate(true).mode(0o600).open(file)?.write_all(text.as_bytes())
}

/// Has the person's own settings include the folder's. They begin with it: what stands behind a `Host` is only for that.
fn include(folder: &Path) -> Result<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from).context("HOME is not set")?;
    let config = home.join(".ssh").join("config");
    let line = format!("Include {}", quoted(&folder.join("*.conf"))?);
    let failed = || format!("{} cannot be changed; put this line at its beginning: {line}", config.display());
    let before = match fs::read_to_string(&config) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        before => before.with_context(failed)?,
    };
    if before.lines().all(|known| known.trim() != line) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(home.join(".ssh")).with_context(failed)?;
        private(&config, &format!("{line}\n\n{before}")).with_context(failed)?;
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn vm(name: &str, digit: char, ssh: Value) -> Vm {
        let id = format!("01939f2e-7c00-7abc-8def-{}", digit.to_string().repeat(12));
        serde_json::from_value(json!({
            "id": id, "name": name, "region_id": "local", "status": "running", "message": null, "vm_config_id": "tiny",
            "plan_id": "p", "image_id": "micro", "delete_root_disk": true, "root_disk": null, "public_ip": null,
            "ssh": ssh, "created_at": "", "updated_at": "",
        }))
        .expect("a VM")
    }

    fn at(host: &str, user: &str) -> Value {
        json!({"host": host, "port": 22, "user": user})
    }

    #[test]
    fn a_name_is_the_newest_ones_and_what_is_off_has_none() {
        let vms = [
            vm("web", 'a', Value::Null),
            vm("web", 'b', at("127.64.0.1", "root")),
            vm("web", 'c', at("127.64.0.2", "root")),
        ];
        let named: Vec<_> = names(&vms).into_iter().map(|(name, _)| name).collect();
        assert_eq!(named, ["web.berth", "cccccccccccc.berth"]);
        let text = config(&vms, None).expect("settings");
        assert!(text.contains("\nHost web.berth bbbbbbbbbbbb.berth\n") && text.contains("\nHost cccccccccccc.berth\n"));
        assert!(text.contains("  UserKnownHostsFile \"/") && !text.contains("IdentityFile"), "{text}");
    }

    #[test]
    fn one_in_rescue_is_a_comment_alone() {
        let rescued = Vm { rescue: true, ..vm("web", 'a', at("127.64.0.1", "root")) };
        let vms = [rescued, vm("web", 'b', at("127.64.0.2", "ada"))];
        assert_eq!(names(&vms).len(), 1);
        let text = config(&vms, None).expect("settings");
        assert!(text.contains("\nHost web.berth bbbbbbbbbbbb.berth\n") && !text.contains("127.64.0.1"), "{text}");
        assert!(text.contains("\n# web (aaaaaaaaaaaa) is in rescue: berth vm ssh aaaaaaaaaaaa; "), "{text}");
        let foul = Vm { name: "web\nHost *".into(), ..vms[0].clone() };
        assert!(config(&[foul], None).is_err());
    }

    #[test]
    fn nothing_of_the_service_becomes_a_setting() {
        for (host, user) in
            [("127.0.0.1\n  ProxyCommand x", "root"), ("127.0.0.1", "root\nx"), ("-oProxyCommand", "a"), ("", "a")]
        {
            assert!(config(&[vm("web", 'a', at(host, user))], None).is_err(), "{host:?} {user:?}");
        }
        assert_eq!(quoted(Path::new("/a b%c")).expect("a name"), "\"/a b%%c\"");
        assert!(quoted(Path::new("/a\"b")).is_err() && quoted(Path::new("/a\nb")).is_err());
    }
}
