//! `berth vm screen`: a picture of a screen, or the screen itself for a VNC viewer on this computer.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use berth_client::{Console, ProjectClient};
use clap::Args;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::find::find;
use crate::context::Context;
use crate::output;

#[derive(Args)]
pub struct ScreenArgs {
    /// Name or id
    vm: String,
    /// The picture, a PNG; by default NAME.png, and `-` prints it
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Listen on this computer for a VNC viewer, until Ctrl-C; whoever is signed in here can connect
    #[arg(long, conflicts_with = "file")]
    vnc: bool,
    /// The port for that; by default a free one
    #[arg(long, value_name = "PORT", default_value_t = 0, requires = "vnc")]
    port: u16,
}

pub async fn screen(context: &Context, project: &ProjectClient, args: ScreenArgs) -> Result<()> {
    let vm = find(project, &args.vm).await?;
    if args.vnc {
        return listen(context, project, &vm.id, args.port).await;
    }
    let picture = project.vm_screen(&vm.id).await?;
    let file = args.file.unwrap_or_else(|| PathBuf::from(format!("{}.png", vm.name)));
    if file.as_os_str() == "-" {
        std::io::stdout().lock().write_all(&picture)?;
        return Ok(());
    }
    std::fs::write(&file, picture).with_context(|| format!("{} cannot be written", file.display()))?;
    output::say(context.look, &format!("The screen of {} is in {}.", vm.name, file.display()));
    Ok(())
}

/// Has viewers on this computer connect, each to a connection of its own.
async fn listen(context: &Context, project: &ProjectClient, vm: &str, port: u16) -> Result<()> {
    let listener =
        TcpListener::bind(("127.0.0.1", port)).await.context("The port is not free; name another: --port")?;
    let port = listener.local_addr()?.port();
    // Refused once and in words, rather than in a viewer.
    drop(project.screen(vm).await?);
    output::say(context.look, &format!("Point a VNC viewer at 127.0.0.1::{port}; Ctrl-C ends."));
    loop {
        let (viewer, _) = listener.accept().await?;
        let project = project.clone();
        let vm = vm.to_owned();
        tokio::spawn(async move {
            let carried = async { carry(viewer, project.screen(&vm).await?).await };
            if let Err(error) = carried.await {
                eprintln!("The viewer was cut off: {error:#}");
            }
        });
    }
}

async fn carry(mut viewer: TcpStream, mut screen: Console) -> Result<()> {
    let mut buffer = [0; 4096];
    loop {
        tokio::select! {
            bytes = screen.read() => match bytes? {
                Some(bytes) => viewer.write_all(&bytes).await?,
                None => return Ok(()),
            },
            read = viewer.read(&mut buffer) => match read? {
                0 => return Ok(()),
                n => screen.write(&buffer[..n]).await?,
            },
        }
    }
}
