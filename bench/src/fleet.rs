//! A fleet: a service whose simulated hosts joined it, each over a connection of its own with real certificates, and what
//! one more machine costs on one host and on a thousand.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use berth_testkit::{Caller, JoinedHost, vm};
use futures::stream::{self, StreamExt, TryStreamExt};
use serde_json::json;

use crate::api::{Service, settled};
use crate::load::{each, latencies, request};
use crate::process::{median, percentile};
use crate::report::{Bound, Report};

const HOSTS: &str = "/api/v1/admin/hosts";
/// Hosts that join at the same time.
const AT_ONCE: usize = 8;
/// Machines of a fleet that creations are measured on.
const CREATED: usize = 500;
/// For how long what nobody asks is watched.
const IDLE: Duration = Duration::from_secs(30);
/// For how long a request is asked again and again.
const ASKED: Duration = Duration::from_secs(5);

/// A number that a variable of the environment names.
fn number(name: &str, usual: usize) -> Result<usize> {
    std::env::var(name).map_or(Ok(usual), |text| text.parse().with_context(|| format!("{name} is no number: {text}")))
}

pub async fn run(report: &mut Report) -> Result<()> {
    let (hosts, machines) = (number("BERTH_BENCH_HOSTS", 1000)?, number("BERTH_BENCH_MACHINES", 10_000)?);
    let folder = tempfile::tempdir_in("/var/tmp")?;
    let service = Service::start(folder.path(), 0)?;
    let caller = service.admin().await;
    caller.until("the image", |c| async move { c.get("/api/v1/images/micro").await.status == 200 }).await;
    let alone = creating(&service, &caller, (0, CREATED)).await?;
    report.add("fleet: creations on one host", alone.rate, "a second", None, alone.detail());
    let fleet = joining(report, &service, &caller, hosts).await?;
    idle(report, &service, hosts).await?;
    let many = creating(&service, &caller, (CREATED, 2 * CREATED)).await?;
    let what = format!("fleet: creations on {hosts} hosts beside on one (time)");
    report.add(&what, alone.rate / many.rate, "times", Some(Bound::Most(2.0)), many.detail());
    let what = format!("fleet: CPU of a creation on {hosts} hosts beside on one");
    report.add(&what, many.cpu_ms / alone.cpu_ms, "times", None, many.detail());
    asking(report, &service, &caller, (hosts, 2 * CREATED)).await?;
    let full = creating(&service, &caller, (2 * CREATED, machines.max(2 * CREATED + 1))).await?;
    let what = format!("fleet: creations on {hosts} hosts up to {machines} machines");
    report.add(&what, full.rate, "a second", None, full.detail());
    asking(report, &service, &caller, (hosts, machines)).await?;
    idle(report, &service, hosts).await?;
    report.add(&format!("fleet: memory with {hosts} hosts"), service.process.memory()?, "MB", None, String::new());
    drop(fleet);
    Ok(())
}

/// What creations cost.
struct Creations {
    /// How many a second are durable.
    rate: f64,
    /// CPU of each, with the work behind it, in ms.
    cpu_ms: f64,
    /// Machines a second that run.
    running: f64,
}

impl Creations {
    fn detail(&self) -> String {
        format!("{:.0} a second are durable, {:.0} run; {:.1} ms of CPU each", self.rate, self.running, self.cpu_ms)
    }
}

/// Creates VMs of these numbers, and waits until they run.
async fn creating(service: &Service, caller: &Caller, (from, to): (usize, usize)) -> Result<Creations> {
    let path = format!("{}/vms", caller.project);
    let (before, began) = (service.process.cpu(), Instant::now());
    let body = |n: usize| request("POST", &path, &caller.token, &vm(&format!("vm{}", from + n)).to_string());
    let rate = each(service.address(), to - from, body, 201).await?;
    settled(caller).await;
    let count = f64::from(u32::try_from(to - from)?);
    let (cpu, seconds) = (service.process.cpu() - before, began.elapsed().as_secs_f64());
    Ok(Creations { rate, cpu_ms: cpu / count * 1e3, running: count / seconds })
}

/// Has hosts join, and waits until all take machines.
async fn joining(report: &mut Report, service: &Service, caller: &Caller, hosts: usize) -> Result<Vec<JoinedHost>> {
    let (before, began) = (service.process.cpu(), Instant::now());
    let anybody = caller.anonymous();
    let join = |number: usize| {
        let (caller, anybody) = (caller.clone(), anybody.clone());
        async move {
            let made = caller.post(HOSTS, json!({"name": format!("host-{number}"), "region_id": "local"})).await;
            let token = made.body["token"].as_str().with_context(|| format!("a token: {made:?}"))?.to_owned();
            JoinedHost::join(&anybody, &token)
                .await
                .map_err(|answer| anyhow::anyhow!("a host does not join: {answer:?}"))
        }
    };
    let fleet: Vec<_> = stream::iter(0..hosts).map(join).buffer_unordered(AT_ONCE).try_collect().await?;
    let ready = async |c: Caller| {
        let path = format!("{HOSTS}?state=ready&limit=1");
        c.get(&path).await.body["pagination"]["total_items"].as_u64() > u64::try_from(hosts).ok()
    };
    caller.until("the hosts", ready).await;
    let count = f64::from(u32::try_from(hosts)?);
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), service.process.cpu() - before);
    let detail = format!("{:.1} ms of CPU each", cpu / count * 1e3);
    report.add(&format!("fleet: {hosts} hosts join"), count / seconds, "a second", None, detail);
    Ok(fleet)
}

/// What a fleet takes that nobody asks for anything.
async fn idle(report: &mut Report, service: &Service, hosts: usize) -> Result<()> {
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (before, began) = (service.process.cpu(), Instant::now());
    tokio::time::sleep(IDLE).await;
    let share = (service.process.cpu() - before) / began.elapsed().as_secs_f64() * 100.0;
    report.add(
        &format!("fleet: {hosts} hosts and nobody asks"),
        share,
        "% of a core",
        Some(Bound::Most(25.0)),
        String::new(),
    );
    Ok(())
}

/// How long it takes to answer who asks for one VM, for hosts, and for metrics.
async fn asking(
    report: &mut Report,
    service: &Service,
    caller: &Caller,
    (hosts, machines): (usize, usize),
) -> Result<()> {
    let one = caller.get("/vms?limit=1").await.body["data"][0]["id"].as_str().context("a VM")?.to_owned();
    let paths = [
        (format!("{}/vms/{one}", caller.project), "one VM"),
        (format!("{HOSTS}?limit=100"), "a page of hosts"),
        ("/metrics".to_owned(), "metrics"),
    ];
    for (path, what) in paths {
        let asked = request("GET", &path, &caller.token, "");
        let times = latencies(service.address(), &asked, 200, ASKED).await?;
        let detail = format!("99 of 100 within {:.1} ms", percentile(&times, 0.99));
        report.add(
            &format!("fleet: {what} among {machines} machines on {hosts} hosts"),
            median(times),
            "ms",
            None,
            detail,
        );
    }
    Ok(())
}
