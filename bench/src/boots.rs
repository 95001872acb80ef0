//! VMs that begin with a captured boot, beside those that boot, in turns.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use berth_testkit::{Caller, Service, eventually};
use serde_json::Value;

use crate::machines::{body, key, login};
use crate::process::{cpu, median, own, pss};
use crate::report::{Bound, Report};
use crate::service::program;

/// Rounds of each kind.
const ROUNDS: usize = 5;
/// How many idle ones share a memory in the end.
const IDLE: u32 = 4;
/// How many would on a host that has many, where each keeps so much translated code, in MiB.
const MANY: (u32, u32) = (50, 40);

pub async fn run(report: &mut Report) -> Result<()> {
    let program = program()?;
    let mut service = Service::new(program.to_str().context("a path")?, &["micro", "debian-12"]);
    service.capture_boots();
    service.start();
    let caller = service.admin().await;
    let key = key(&service)?;
    let vm = |name: &str| body(name, "debian-12", "small", &key);
    let (first, _) = created(&service, &caller, vm("first")).await?;
    let boots = service.dir.path().join("boots");
    let whole = |name: &String| boots.join(name).join("boot.json").is_file();
    let boot = boots.join(eventually("a captured boot", 600, || service.files("boots").into_iter().find(whole)));
    caller.delete(&format!("/vms/{first}")).await;
    let (mut begun, mut booted, mut taken) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for (times, aside) in [(&mut begun, false), (&mut booted, true)] {
            let elsewhere = service.dir.path().join("boot-aside");
            if aside {
                std::fs::rename(&boot, &elsewhere)?;
            }
            let (id, seconds) = created(&service, &caller, vm("bench")).await?;
            times.push(seconds);
            if !aside {
                taken.push(cpu(service.machine(&id).context("a process")?.as_raw_pid()));
            }
            caller.delete(&format!("/vms/{id}")).await;
            caller.gone(&id).await;
            if aside {
                // Of the wish that this one left, nothing comes before its two minutes.
                let _ = std::fs::remove_dir_all(&boot);
                std::fs::rename(&elsewhere, &boot)?;
            }
        }
    }
    let (begun, booted) = (median(begun), median(booted));
    let detail = format!("{begun:.2} s beside {booted:.2} s");
    report.add(
        "create to a login, debian-12, with a captured boot beside booting (time)",
        begun / booted,
        "times",
        None,
        detail,
    );
    report.add("that with a captured boot", begun, "s", Some(Bound::Most(2.0)), String::new());
    report.add("that with a captured boot (CPU of QEMU)", median(taken), "s", None, String::new());
    service.stop();
    service.configure(&format!("translated_mb = {}\n", MANY.1));
    service.start();
    let caller = service.admin().await;
    idle(report, &service, &caller, vm).await
}

/// What each of several that do nothing takes of the host's memory.
async fn idle(report: &mut Report, service: &Service, caller: &Caller, vm: impl Fn(&str) -> Value) -> Result<()> {
    let mut ids = Vec::new();
    for number in 0..IDLE {
        let id = caller.create_vm(vm(&format!("idle-{number}"))).await;
        caller.until("a guest that is ready", |caller| is_ready(caller.clone(), id.clone())).await;
        ids.push(id);
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    let process = |id: &String| service.machine(id).context("a process").map(rustix::process::Pid::as_raw_pid);
    let of_many = |id: &String| {
        let own = own(process(id)?)?;
        Ok(own + (pss(process(id)?)? - own) * f64::from(IDLE) / f64::from(MANY.0))
    };
    let sizes = ids.iter().map(of_many).collect::<Result<Vec<_>>>()?;
    report.add(
        "an idle debian-12 that began with a captured boot, of 50 (PSS)",
        median(sizes),
        "MiB",
        Some(Bound::Most(150.0)),
        format!("translated_mb = {}; its own of {IDLE}, and a fiftieth of what they share", MANY.1),
    );
    Ok(())
}

async fn is_ready(caller: Caller, id: String) -> bool {
    caller.get(&format!("/vms/{id}")).await.body["guest_ready"] == true
}

/// A new VM, and the seconds from the request to its login.
async fn created(service: &Service, caller: &Caller, body: Value) -> Result<(String, f64)> {
    let began = Instant::now();
    let id = caller.create_vm(body).await;
    let vm = caller.reaches(&id, "running").await;
    Ok((id, login(service, &vm["ssh"], began).await?))
}
