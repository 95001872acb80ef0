//! `berth vm console`: the serial console on this terminal.

use std::io::{IsTerminal, Write};

use anyhow::Result;
use berth_client::ProjectClient;
use clap::Args;
use tokio::io::AsyncReadExt;

use super::find::find;
use crate::keyboard::Raw;

/// Ctrl-] leaves, as in telnet.
const LEAVE: u8 = 0x1d;

#[derive(Args)]
pub struct ConsoleArgs {
    /// Name or id
    vm: String,
    /// Print the console's log, and end
    #[arg(long)]
    log: bool,
    /// How much of the log
    #[arg(long, default_value_t = 65_536, requires = "log")]
    bytes: u32,
}

pub async fn console(project: &ProjectClient, args: ConsoleArgs) -> Result<()> {
    let vm = find(project, &args.vm).await?;
    if args.log {
        print!("{}", project.vm_console_log(&vm.id, args.bytes).await?);
        return Ok(());
    }
    let mut console = project.console(&vm.id).await?;
    let raw = std::io::stdin().is_terminal().then(Raw::enter).transpose()?;
    if raw.is_some() {
        eprint!("Connected to {}; Ctrl-] leaves. Press Enter for a prompt.\r\n", vm.name);
    }
    let mut keys = tokio::io::stdin();
    let mut buffer = [0; 1024];
    let mut open = true;
    loop {
        tokio::select! {
            bytes = console.read() => match bytes? {
                Some(bytes) => {
                    let mut out = std::io::stdout().lock();
                    out.write_all(&bytes)?;
                    out.flush()?;
                }
                None => break,
            },
            read = keys.read(&mut buffer), if open => match read? {
                0 => open = false,
                n if raw.is_some() && buffer[..n].contains(&LEAVE) => break,
                n => console.write(&buffer[..n]).await?,
            },
        }
    }
    if raw.is_some() {
        drop(raw);
        eprintln!();
    }
    Ok(())
}
