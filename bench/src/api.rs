//! Requests: reads beside an empty route, lists of different sizes, durable creations.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use berth_testkit::{Caller, vm};

use crate::load::{each, rate, request};
use crate::process::{Running, median};
use crate::report::{Bound, Report};

/// How long each rate is measured.
const TIME: Duration = Duration::from_secs(3);
/// Pairs of measurements; the median counts.
const ROUNDS: usize = 3;

/// A service in another process, and its address.
pub struct Service {
    pub process: Running,
    pub base: String,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Service {
    /// Starts a service on a folder.
    pub fn start(folder: &Path, machines: usize) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("simulated-service").arg(folder).arg(machines.to_string());
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("its output")?).lines();
        let process = Running(child);
        let base = lines.next().context("its address")??;
        Ok(Self { process, base, lines })
    }

    /// The next line of its output.
    pub fn says(&mut self) -> Result<String> {
        Ok(self.lines.next().context("a line")??)
    }

    pub async fn admin(&self) -> Caller {
        Caller::login(&self.base, "admin@example.com", "a quiet harbour at night").await
    }

    pub fn address(&self) -> &str {
        self.base.trim_start_matches("http://")
    }
}

pub async fn run(report: &mut Report) -> Result<()> {
    let folder = tempfile::tempdir_in("/var/tmp")?;
    let service = Service::start(folder.path(), 0)?;
    let caller = service.admin().await;
    caller.until("the image", |c| async move { c.get("/api/v1/images/micro").await.status == 200 }).await;
    let one = caller.running_vm("one").await;
    reading(report, &service, &caller, &one).await?;
    creating(report, &service, &caller, 99, "first 100").await?;
    let small = list_rate(&service, &caller).await?;
    creating(report, &service, &caller, 9_900, "10,000").await?;
    settled(&caller).await;
    let large = list_rate(&service, &caller).await?;
    let detail = format!("{small:.0} and {large:.0} lists a second");
    report.add(
        "list of 100 among 10,000 beside among 100 (time)",
        small / large,
        "times",
        Some(Bound::Most(2.0)),
        detail,
    );
    let memory = service.process.memory()?;
    report.add("memory of the service with 10,000 VMs", memory, "MB", Some(Bound::Most(150.0)), String::new());
    Ok(())
}

async fn reading(report: &mut Report, service: &Service, caller: &Caller, vm: &str) -> Result<()> {
    let empty = request("GET", "/healthz", &caller.token, "");
    let get = request("GET", &format!("{}/vms/{vm}", caller.project), &caller.token, "");
    let (mut ratios, mut rates, mut cpus) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let nothing = rate(service.address(), empty.clone(), 200, TIME).await?;
        let before = service.process.cpu();
        let something = rate(service.address(), get.clone(), 200, TIME).await?;
        cpus.push((service.process.cpu() - before) / (something * TIME.as_secs_f64()) * 1e6);
        ratios.push(something / nothing);
        rates.push(something);
    }
    let detail = format!("{:.0} a second, {:.0} µs of CPU each", median(rates), median(cpus));
    report.add("GET one VM beside an empty route (rate)", median(ratios), "times", Some(Bound::Least(0.6)), detail);
    Ok(())
}

async fn creating(report: &mut Report, service: &Service, caller: &Caller, number: usize, what: &str) -> Result<()> {
    let path = format!("{}/vms", caller.project);
    let before = service.process.cpu();
    let body = |n: usize| vm(&format!("vm{n}")).to_string();
    let rate = each(service.address(), number, |n| request("POST", &path, &caller.token, &body(n)), 201).await?;
    let each = (service.process.cpu() - before) / f64::from(u32::try_from(number)?) * 1e3;
    let detail = format!("{each:.2} ms of CPU each, with the work behind it");
    report.add(&format!("durable creations ({what})"), rate, "a second", Some(Bound::Least(200.0)), detail);
    Ok(())
}

/// Waits until the workers have nothing left to do.
pub async fn settled(caller: &Caller) {
    for status in ["pending", "provisioning", "starting"] {
        let path = format!("/vms?status={status}&limit=1");
        while caller.get(&path).await.body["pagination"]["total_items"] != 0 {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

async fn list_rate(service: &Service, caller: &Caller) -> Result<f64> {
    settled(caller).await;
    let list = request("GET", &format!("{}/vms?limit=100", caller.project), &caller.token, "");
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        rates.push(rate(service.address(), list.clone(), 200, TIME).await?);
    }
    Ok(median(rates))
}
