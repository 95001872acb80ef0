//! Sandboxes on real machines, as a caller with an API key sees them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_qemu::machine::{Accel, Assigned, Jail};
use berth_qemu::sandbox::{self, Begin, Layer, Spec, create_layer, layer_size};
use berth_qemu::seed::Mac;
use berth_testkit::{Caller, Service};
use reqwest::{Method, header};
use serde_json::{Value, json};

use crate::process::{cpu, median, percentile, pss};
use crate::report::{Bound, Report};
use crate::service::program;

/// Sandboxes made one after another.
const ROUNDS: usize = 30;
/// Sandboxes made at the same moment.
const BURST: usize = 30;
/// Pause before many at the same moment.
const QUIET: Duration = Duration::from_secs(15);
/// Sandboxes alive at the same time.
const ALIVE: usize = 100;
/// Bytes copied into a sandbox and out of it.
const FILE: u32 = 64 << 20;
/// MB that `seq 1000000` writes.
const LINES: f64 = 6.888_896;

pub async fn run(report: &mut Report) -> Result<()> {
    let program = program()?;
    let service = Service::new(program.to_str().context("a path")?, &[]).with_sandboxes();
    let bench = Bench::start(service).await?;
    creation(report, &bench).await?;
    burst(report, &bench).await?;
    one(report, &bench).await?;
    forks(report, &bench).await?;
    crowd(report, &bench).await
}

struct Bench {
    service: Service,
    caller: Caller,
}

/// Runs a program repeatedly, and prints the median time in milliseconds.
const INSIDE: &str = "import subprocess, time
times = []
for _ in range(40):
    began = time.perf_counter()
    subprocess.run(['/bin/true'])
    times.append((time.perf_counter() - began) * 1000)
print(sorted(times)[20])";
/// Writes a line every few milliseconds, for a second.
const TICKING: &str = "import time
for number in range(300):
    print(number, flush=True)
    time.sleep(0.003)";

impl Bench {
    async fn start(mut service: Service) -> Result<Self> {
        service.start();
        let caller = service.admin().await;
        // The first one boots the template, which happens once.
        caller
            .until("the template", |c| async move { c.get("/sandbox_templates/base").await.body["status"] == "ready" })
            .await;
        let bench = Self { service, caller };
        let first = bench.create().await?;
        bench.delete(&first).await;
        Ok(bench)
    }

    /// A sandbox that has answered its first command.
    async fn create(&self) -> Result<String> {
        let id = self.caller.create_sandbox(json!({})).await;
        self.caller.sandbox_reaches(&id, "Ready").await;
        self.command(&id, json!({"cmd": "true"})).await?;
        Ok(id)
    }

    async fn delete(&self, id: &str) {
        self.caller.delete(&format!("/sandboxes/{id}")).await;
        self.caller
            .until("the end", |c| {
                let path = format!("/sandboxes/{id}");
                async move { c.get(&path).await.status == 404 }
            })
            .await;
    }

    /// Time of a command for its caller, in milliseconds.
    async fn command(&self, id: &str, body: Value) -> Result<f64> {
        let began = Instant::now();
        let text = self.request(Method::POST, id, "commands").json(&body).send().await?.text().await?;
        ensure!(text.contains("\"code\":0"), "a command ended with {text}");
        Ok(began.elapsed().as_secs_f64() * 1e3)
    }

    /// Time of the same for a program inside.
    async fn inside(&self, id: &str) -> Result<f64> {
        let body = json!({"argv": ["python3", "-c", INSIDE]});
        let text = self.request(Method::POST, id, "commands").json(&body).send().await?.text().await?;
        let line = text.split("\"line\":\"").nth(1).and_then(|rest| rest.split(['\\', '"']).next());
        Ok(line.context("a line of output")?.parse()?)
    }

    fn request(&self, method: Method, id: &str, path: &str) -> reqwest::RequestBuilder {
        self.caller.request(method, &format!("/sandbox/{id}/{path}"))
    }

    fn process(&self, id: &str) -> Result<i32> {
        Ok(self.service.sandbox(id).context("a machine")?.as_raw_pid())
    }
}

async fn creation(report: &mut Report, bench: &Bench) -> Result<()> {
    let mut times = Vec::new();
    let mut ready = Vec::new();
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let id = bench.caller.create_sandbox(json!({})).await;
        bench.caller.sandbox_reaches(&id, "Ready").await;
        ready.push(began.elapsed().as_secs_f64() * 1e3);
        bench.command(&id, json!({"cmd": "true"})).await?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
        bench.delete(&id).await;
    }
    let (ready, bare) = (median(ready), bare_restore(bench).await?);
    let detail = format!("{ready:.0} ms of it to Ready; {ROUNDS} one after another");
    let worst = percentile(&times, 0.99);
    report.add("sandbox: create to its first answer, median", median(times), "ms", Some(Bound::Most(250.0)), detail);
    report.add("the same, 99th percentile", worst, "ms", Some(Bound::Most(500.0)), String::new());
    let detail = format!("{ready:.0} ms to Ready, {bare:.0} ms until bare QEMU runs where the template was captured");
    let what = "sandbox: create to Ready beside bare QEMU's restore of the template (time)";
    report.add(what, ready / bare, "times", Some(Bound::Most(1.5)), detail);
    Ok(())
}

/// Milliseconds that QEMU alone takes to continue from a template's memory, on an empty layer.
async fn bare_restore(bench: &Bench) -> Result<f64> {
    let id = bench.create().await?;
    let line = std::fs::read(format!("/proc/{}/cmdline", bench.process(&id)?))?;
    let line = String::from_utf8_lossy(&line).into_owned();
    let files = line.split("\"filename\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    let mut disk: Vec<Layer> = files.map(layer).collect::<Result<_>>()?;
    disk.reverse();
    let folder = bench.service.dir.path().join("sandbox");
    let memory = bench.service.files("sandbox/memories").pop().context("the template's memory")?;
    let memory = folder.join("memories").join(memory);
    let size = layer_size(&disk[0].path)?;
    let parent = disk[1].path.to_string_lossy().into_owned();
    let mut times = Vec::new();
    for _ in 0..9 {
        let dir = tempfile::tempdir_in(&folder)?;
        disk[0] = Layer { path: dir.path().join("top.qcow2"), id: disk[0].id };
        create_layer(&disk[0].path, &parent, size)?;
        let begin = Begin::Load { memory: memory.join("memory"), state: memory.join("state") };
        let spec = Spec {
            assigned: Assigned::default(),
            id: disk[0].id,
            dir: dir.path().to_path_buf(),
            vcpus: 1,
            memory_mb: 256,
            disk: disk.clone(),
            mac: Mac([0x52, 0x54, 0, 0, 0, 1]),
            begin,
            accel: if line.contains("tcg,") { Accel::Tcg } else { Accel::Kvm },
            jail: Jail::default(),
            reads_memory: false,
            qemu: line.split('\0').next().unwrap_or_default().into(),
        };
        let since = Instant::now();
        sandbox::start(&spec, || Ok(())).await?;
        times.push(since.elapsed().as_secs_f64() * 1e3);
        sandbox::stop(&spec.dir, spec.id).await?;
    }
    bench.delete(&id).await;
    Ok(median(times))
}

fn layer(path: &str) -> Result<Layer> {
    let path = std::path::PathBuf::from(path);
    let id = path.file_stem().and_then(|stem| stem.to_str()).context("a layer")?.parse()?;
    Ok(Layer { path, id })
}

async fn burst(report: &mut Report, bench: &Bench) -> Result<()> {
    // Long enough for the service to make warm machines.
    tokio::time::sleep(QUIET).await;
    let began = Instant::now();
    let all = (0..BURST).map(|_| bench.create());
    let ids = futures::future::try_join_all(all).await?;
    let seconds = began.elapsed().as_secs_f64();
    let detail = format!("after {} s in which nobody asked for anything", QUIET.as_secs());
    report.add("30 sandboxes at once, each answered", seconds, "s", Some(Bound::Most(5.0)), detail);
    futures::future::join_all(ids.iter().map(|id| bench.delete(id))).await;
    Ok(())
}

async fn one(report: &mut Report, bench: &Bench) -> Result<()> {
    let id = bench.create().await?;
    let mut whole = Vec::new();
    for _ in 0..ROUNDS {
        whole.push(bench.command(&id, json!({"argv": ["/bin/true"]})).await?);
    }
    let (outside, inside) = (median(whole), bench.inside(&id).await?);
    let detail = format!("{outside:.1} ms beside {inside:.1} ms for the same from a program inside");
    report.add("sandbox: a command above its time inside", outside - inside, "ms", Some(Bound::Most(5.0)), detail);
    files(report, bench, &id).await?;
    let process = bench.process(&id)?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (before, seconds) = (cpu(process), 20.0);
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    let used = (cpu(process) - before) / seconds * 100.0;
    report.add("sandbox: an idle one", used, "% of a core", Some(Bound::Most(1.0)), String::new());
    bench.delete(&id).await;
    Ok(())
}

async fn files(report: &mut Report, bench: &Bench, id: &str) -> Result<()> {
    let began = Instant::now();
    let put =
        bench.request(Method::PUT, id, "files/content?path=big").body(vec![0x5a_u8; FILE as usize]).send().await?;
    ensure!(put.status().is_success(), "a file was refused: {}", put.status());
    let megabytes = f64::from(FILE) / 1e6;
    let there = megabytes / began.elapsed().as_secs_f64();
    let began = Instant::now();
    let back = bench.request(Method::GET, id, "files/content?path=big").send().await?.bytes().await?;
    ensure!(back.len() == FILE as usize, "{} bytes came back", back.len());
    let here = megabytes / began.elapsed().as_secs_f64();
    report.add("sandbox: a file in", there, "MB/s", Some(Bound::Least(30.0)), "64 MiB".into());
    report.add("sandbox: a file out", here, "MB/s", Some(Bound::Least(30.0)), "64 MiB".into());
    output(report, bench, id, here).await
}

/// The same bytes as a command's output; and lines as events, for programs that do not parse frames.
async fn output(report: &mut Report, bench: &Bench, id: &str, file: f64) -> Result<()> {
    let began = Instant::now();
    let request =
        bench.request(Method::POST, id, "commands").header(header::ACCEPT, berth_domain::agent::output::CONTENT_TYPE);
    let frames = request.json(&json!({"cmd": "cat big"})).send().await?.bytes().await?;
    ensure!(frames.len() >= FILE as usize, "{} bytes came back", frames.len());
    let rate = f64::from(FILE) / 1e6 / began.elapsed().as_secs_f64();
    let detail = format!("64 MiB in frames of bytes; the file itself {file:.0}");
    report.add("sandbox: output of a command", rate, "MB/s", Some(Bound::Least(40.0)), detail);
    let began = Instant::now();
    let text =
        bench.request(Method::POST, id, "commands").json(&json!({"cmd": "seq 1000000"})).send().await?.text().await?;
    ensure!(text.contains("\"code\":0"), "the end is missing");
    let rate = LINES / began.elapsed().as_secs_f64();
    let detail = format!("a million lines of 7 bytes, {} bytes of events", text.len());
    report.add("sandbox: output of a command as events", rate, "MB/s", None, detail);
    Ok(())
}

/// The longest silence of a program that writes all the time, while the sandbox is forked and while it is not.
async fn forks(report: &mut Report, bench: &Bench) -> Result<()> {
    let id = bench.create().await?;
    for (name, memory, bound) in [("its disk", false, 20.0), ("its memory", true, 60.0)] {
        let mut gaps = Vec::new();
        let mut quiet = Vec::new();
        for _ in 0..5 {
            quiet.push(silence(bench, &id, None).await?);
            gaps.push(silence(bench, &id, Some(memory)).await?);
        }
        let (during, without) = (median(gaps), median(quiet));
        let detail = format!("{during:.0} ms during one and {without:.0} ms without, of a line each 3 ms");
        let what = format!("sandbox: a fork with {name}, by the longest silence of its output");
        report.add(&what, during - without, "ms", Some(Bound::Most(bound)), detail);
    }
    bench.delete(&id).await;
    Ok(())
}

/// The longest silence, in milliseconds.
async fn silence(bench: &Bench, id: &str, fork: Option<bool>) -> Result<f64> {
    let ticking = json!({"argv": ["python3", "-c", TICKING]});
    let mut answer = bench.request(Method::POST, id, "commands").json(&ticking).send().await?;
    let began = Instant::now();
    let forking = async {
        let Some(include_memory) = fork else { return };
        tokio::time::sleep(Duration::from_millis(500)).await;
        let wanted = json!({"count": 1, "include_memory": include_memory});
        let forked = bench.caller.post(&format!("/sandboxes/{id}/fork"), wanted).await;
        let copy = forked.body["data"][0]["id"].as_str().unwrap_or_default().to_owned();
        bench.caller.sandbox_reaches(&copy, "Ready").await;
        bench.delete(&copy).await;
    };
    let listening = async {
        let (mut longest, mut last) = (0.0_f64, None::<Instant>);
        while let Some(chunk) = answer.chunk().await? {
            // A program's first lines are always slow.
            if began.elapsed() > Duration::from_millis(400) && !chunk.starts_with(b":") {
                let gap = last.map_or(0.0, |last| last.elapsed().as_secs_f64() * 1e3);
                (longest, last) = (longest.max(gap), Some(Instant::now()));
            }
        }
        anyhow::Ok(longest)
    };
    tokio::join!(listening, forking).0
}

async fn crowd(report: &mut Report, bench: &Bench) -> Result<()> {
    let mut ids = Vec::new();
    while ids.len() < ALIVE {
        let some = (0..10).map(|_| bench.create());
        ids.extend(futures::future::try_join_all(some).await?);
    }
    let sizes = ids.iter().map(|id| pss(bench.process(id)?)).collect::<Result<Vec<_>>>()?;
    let answers = futures::future::try_join_all(ids.iter().map(|id| bench.command(id, json!({"cmd": "true"})))).await?;
    let detail = format!("{ALIVE} of 256 MiB beside each other, {} of which answer", answers.len());
    report.add("sandbox: memory of an idle one (PSS)", median(sizes), "MiB", Some(Bound::Most(45.0)), detail);
    for some in ids.chunks(10) {
        futures::future::join_all(some.iter().map(|id| bench.delete(id))).await;
    }
    Ok(())
}
