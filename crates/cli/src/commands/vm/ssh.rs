//! `berth vm ssh`: the system's own ssh, once the guest answers.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use berth_client::{ProjectClient, Ssh, Vm};
use clap::Args;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::find::find;
use super::known_hosts;
use crate::failure::Failure;
use crate::own_key;
use crate::progress::{self, Progress};
use crate::span;

/// How long one try may wait for the guest's greeting. It grows with the boot: QEMU's network is slow to retry a
/// connection from before the guest listened, and a slow guest is slow to greet.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(10));
/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Args)]
pub struct SshArgs {
    /// Name or id
    vm: String,
    /// How long to wait until the guest answers, as 90s or 5m
    #[arg(long, visible_alias = "wait-timeout", value_name = "SPAN", default_value = "5m", value_parser = span::parse)]
    timeout: u64,
    /// File of the private key
    #[arg(long, short)]
    identity: Option<std::path::PathBuf>,
    /// Log in as this user instead of the image's
    #[arg(long, short)]
    user: Option<String>,
    /// Command to run, and options for ssh before it
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

pub async fn ssh(project: &ProjectClient, args: SshArgs) -> Result<ExitCode> {
    let started = Instant::now();
    let mut vm = find(project, &args.vm).await?;
    if ["pending", "provisioning", "starting", "restarting"].contains(&vm.status.as_str()) {
        vm = progress::wait(project, &vm.id, "running", args.timeout, false).await?;
    }
    if vm.status != "running" {
        let verb = if vm.status == "suspended" { "Resume it: berth vm resume" } else { "Start it: berth vm start" };
        return Err(Failure::usage(format!("{} is {}. {verb} {}", vm.name, vm.status, vm.name)));
    }
    let ssh = vm.ssh.clone().with_context(|| format!("{} has no address", vm.name))?;
    let left = Duration::from_secs(args.timeout).saturating_sub(started.elapsed());
    greeted(&vm, &ssh, left).await?;
    let mut command = command(&vm, &ssh, &args)?;
    // From here on this process is ssh.
    Err(command.exec()).context("ssh cannot be started; install openssh-client")
}

/// Waits for the greeting of the guest's SSH: the port is open before, because it is the host's.
async fn greeted(vm: &Vm, ssh: &Ssh, left: Duration) -> Result<()> {
    let mut progress = Progress::new(false);
    let deadline = Instant::now() + left;
    let mut tries = 0;
    let began = Instant::now();
    while !greets(ssh, (began.elapsed() / 4).clamp(PATIENCE.0, PATIENCE.1)).await {
        tries += 1;
        if Instant::now() > deadline {
            return Err(Failure::late(format!(
                "{} does not answer on SSH. Look at its console: berth vm console --log {}",
                vm.name, vm.name
            )));
        }
        if tries > 1 {
            progress.show(format!("{}: running (waiting for SSH)", vm.name));
        }
        tokio::time::sleep(PAUSE).await;
    }
    progress.finish();
    Ok(())
}

async fn greets(ssh: &Ssh, patience: Duration) -> bool {
    let greeting = async {
        let mut stream = TcpStream::connect((ssh.host.as_str(), ssh.port)).await?;
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes).await?;
        Ok::<_, std::io::Error>(bytes)
    };
    matches!(timeout(patience, greeting).await, Ok(Ok(bytes)) if &bytes == b"SSH-")
}

/// The ssh command. It stores a VM's host key under the VM's id, because addresses are reused.
fn command(vm: &Vm, ssh: &Ssh, args: &SshArgs) -> Result<Command> {
    let known = known_hosts::file(vm)?;
    let mut command = Command::new("ssh");
    command.args(["-p", &ssh.port.to_string(), "-o", "StrictHostKeyChecking=accept-new", "-o", "LogLevel=ERROR"]);
    command.args(["-o", &format!("HostKeyAlias={}", vm.id), "-o", &format!("UserKnownHostsFile={}", known.display())]);
    match &args.identity {
        Some(file) => command.arg("-i").arg(file),
        None => match own_key::private()? {
            Some(file) => command.arg("-i").arg(file),
            None => &mut command,
        },
    };
    command.arg("-l").arg(args.user.as_deref().unwrap_or(&ssh.user)).arg(&ssh.host).args(&args.command);
    Ok(command)
}
