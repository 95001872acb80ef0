//! The service itself: how soon it is ready, what it costs when idle, how fast it adopts machines.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use berth_testkit::{Caller, vm};

use crate::api::Service;
use crate::process::{Running, median, until};
use crate::report::{Bound, Report};

const MACHINES: usize = 200;
/// Machines whose use is sampled.
const SAMPLED: usize = 1000;
/// For how long, which is several samples of each.
const SAMPLING: Duration = Duration::from_mins(1);

pub async fn run(report: &mut Report) -> Result<()> {
    starting(report).await?;
    adopting(report).await?;
    sampling(report).await
}

async fn starting(report: &mut Report) -> Result<()> {
    let folder = tempfile::tempdir_in("/var/tmp")?;
    let mut times = Vec::new();
    let mut memory = 0.0;
    for round in 0..6 {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let url = format!("http://127.0.0.1:{port}/readyz");
        let began = Instant::now();
        let mut command = Command::new(program()?);
        command.arg("serve").env("BERTH_DATA_DIR", folder.path()).env("BERTH_LISTEN", format!("127.0.0.1:{port}"));
        let process = Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
        let ready = until(began, "the service", async || reqwest::get(&url).await.is_ok()).await?;
        // The first start makes the database.
        if round > 0 {
            times.push(ready.as_secs_f64() * 1e3);
        } else {
            tokio::time::sleep(Duration::from_secs(5)).await;
            memory = process.memory()?;
        }
    }
    report.add(
        "ready after the start, on an existing database",
        median(times),
        "ms",
        Some(Bound::Most(200.0)),
        String::new(),
    );
    report.add("memory of an idle service", memory, "MB", Some(Bound::Most(40.0)), String::new());
    Ok(())
}

/// The program beside this one.
pub fn program() -> Result<std::path::PathBuf> {
    let own = std::env::current_exe()?;
    Ok(own.parent().context("a folder")?.join("berth"))
}

/// Creates so many VMs, and waits until they run.
async fn populate(caller: &Caller, machines: usize) {
    caller.until("the image", |c| async move { c.get("/api/v1/images/micro").await.status == 200 }).await;
    for number in 0..machines {
        caller.create_vm(vm(&format!("vm{number}"))).await;
    }
    let running = async |caller: Caller| {
        caller.get("/vms?status=running&limit=1").await.body["pagination"]["total_items"] == machines
    };
    caller.until("the machines", running).await;
}

async fn adopting(report: &mut Report) -> Result<()> {
    let folder = tempfile::tempdir_in("/var/tmp")?;
    let service = Service::start(folder.path(), 0)?;
    populate(&service.admin().await, MACHINES).await;
    drop(service);
    let mut service = Service::start(folder.path(), MACHINES)?;
    let seconds: f64 = service.says()?.parse()?;
    report.add("200 machines adopted after the start", seconds, "s", Some(Bound::Most(2.0)), "engine simulated".into());
    Ok(())
}

/// What a service takes whose machines nobody asks for anything.
async fn sampling(report: &mut Report) -> Result<()> {
    let folder = tempfile::tempdir_in("/var/tmp")?;
    let service = Service::start(folder.path(), 0)?;
    populate(&service.admin().await, SAMPLED).await;
    // What the creations left to do is not what is measured.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let (before, began) = (service.process.cpu(), Instant::now());
    tokio::time::sleep(SAMPLING).await;
    let share = (service.process.cpu() - before) / began.elapsed().as_secs_f64() * 100.0;
    let what = "1,000 running machines, their metrics among it";
    report.add(what, share, "% of a core", Some(Bound::Most(5.0)), "engine simulated".into());
    Ok(())
}
