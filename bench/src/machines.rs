//! Real machines, beside bare QEMU with the very arguments of the service's machine.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_testkit::{Caller, Service, vm};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use crate::process::{Running, median, until};
use crate::report::{Bound, Report};
use crate::service::program;

/// What a guest writes and reads, past its own memory: 128 MiB in a row, and 1,000 blocks here and there. It says MiB and
/// blocks for each second: written, read, written at random, read at random.
const IO: &str = r"python3 - <<'END'
import mmap, os, random, time
SIZE = 128
file = os.open('io', os.O_RDWR | os.O_CREAT | os.O_DIRECT)
large, small = mmap.mmap(-1, 1 << 20), mmap.mmap(-1, 4096)
places = [random.randrange(SIZE * 256) * 4096 for _ in range(1000)]
def rate(act, buffer, places):
    began = time.monotonic()
    for place in places:
        act(file, [buffer], place)
    os.fsync(file)
    return len(places) / (time.monotonic() - began)
row = [number << 20 for number in range(SIZE)]
os.pwritev(file, [large], (SIZE - 1) << 20)
for buffer, where in (large, row), (small, places):
    print(rate(os.pwritev, buffer, where), rate(os.preadv, buffer, where))
END";

pub async fn run(report: &mut Report) -> Result<()> {
    let program = program()?;
    let program = program.to_str().context("a path")?;
    cloning(report).await?;
    let service = Service::started(program, &["micro", "debian-12"]);
    let caller = service.admin().await;
    let key = key(&service)?;
    running(report, &service, &caller, &key).await?;
    micro(report, &service, &caller, &key).await?;
    debian(report, &service, &caller, &key).await
}

/// Makes a key pair in the service's folder; returns the public key.
pub fn key(service: &Service) -> Result<String> {
    let file = service.dir.path().join("key");
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&file).status()?;
    ensure!(made.success(), "ssh-keygen");
    Ok(std::fs::read_to_string(file.with_extension("pub"))?.trim().to_owned())
}

async fn cloning(report: &mut Report) -> Result<()> {
    let folder = tempfile::tempdir_in("/var/tmp")?;
    let image = berth_testkit::images().join("micro/disk.qcow2");
    let mut figures = Vec::new();
    for gib in [20_u64, 2048] {
        let mut times = Vec::new();
        for round in 0..7 {
            let to = folder.path().join(format!("{gib}-{round}.qcow2"));
            let began = Instant::now();
            berth_qemu::disk::clone_image(&image, &to, gib << 30).await?;
            times.push(began.elapsed().as_secs_f64() * 1e3);
        }
        figures.push(median(times));
    }
    let detail = format!("{:.1} ms and {:.1} ms", figures[0], figures[1]);
    report.add(
        "clone of 2,048 GiB beside 20 GiB (time)",
        figures[1] / figures[0],
        "times",
        Some(Bound::Most(1.5)),
        detail,
    );
    Ok(())
}

pub fn body(name: &str, image: &str, size: &str, key: &str) -> Value {
    let mut body = vm(name);
    body["vm_config_id"] = json!(size);
    body["ssh_keys"] = json!([key]);
    body["delete_root_disk"] = json!(true);
    body["root_disk"]["create_disk_request"]["image_id"] = json!(image);
    body
}

/// A machine of the service, with its arguments.
struct Machine {
    id: String,
    arguments: Vec<String>,
    ssh: Value,
    /// Seconds from the request to `running`.
    running: f64,
    began: Instant,
}

async fn create(service: &Service, caller: &Caller, body: Value) -> Result<Machine> {
    let began = Instant::now();
    let id = caller.create_vm(body).await;
    let vm = caller.reaches(&id, "running").await;
    let running = began.elapsed().as_secs_f64();
    let pid = service.machine(&id).context("a process")?.as_raw_pid();
    let line = std::fs::read(format!("/proc/{pid}/cmdline"))?;
    let arguments = line.split(|b| *b == 0).filter(|a| !a.is_empty()).map(|a| String::from_utf8_lossy(a).into_owned());
    Ok(Machine { id, arguments: arguments.collect(), ssh: vm["ssh"].clone(), running, began })
}

/// Where bare QEMU has its sockets: in the machine's own folder the service would find the process, and end it.
fn bare_folder(service: &Service) -> std::path::PathBuf {
    service.dir.path().join("bare")
}

/// Starts bare QEMU with a machine's arguments, on another root disk and with a network of its own: nobody else carries it.
fn bare(service: &Service, machine: &Machine, root: &Path) -> Result<Running> {
    let dir = bare_folder(service);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir)?;
    let with_root = |argument: &String| match argument.split_once("id=d0,file=") {
        Some((before, after)) => {
            let options = after.split_once(',').map_or("", |(_, options)| options);
            format!("{before}id=d0,file={},{options}", root.display())
        }
        None => with_user_network(argument, &machine.ssh),
    };
    let mut command = Command::new(&machine.arguments[0]);
    command.args(machine.arguments[1..].iter().map(with_root)).current_dir(&dir);
    Ok(Running(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?))
}

/// An argument with QEMU's own network in the place of the program's: SSH answers where it did.
fn with_user_network(argument: &str, ssh: &Value) -> String {
    if argument.starts_with("stream,id=n0,") {
        let host = ssh["host"].as_str().unwrap_or_default();
        return format!("user,id=n0,hostfwd=tcp:{host}:{}-:22", ssh["port"]);
    }
    match argument.split_once("host_mtu=") {
        Some((before, after)) => {
            let options = after.split_once(',').map_or("", |(_, options)| options);
            format!("{before}host_mtu=1500,{options}")
        }
        None => argument.to_owned(),
    }
}

async fn stop(service: &Service, caller: &Caller, machine: &Machine) {
    caller.act(&format!("/vms/{}/stop", machine.id)).await;
    if let Some(pid) = service.machine(&machine.id) {
        // The measured part is over: nothing needs the guest any more.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    caller.reaches(&machine.id, "stopped").await;
}

fn clone_of(service: &Service, image: &str, to: &Path) -> Result<()> {
    let _ = std::fs::remove_file(to);
    let base = service.dir.path().join("images").join(image).join("disk.qcow2");
    let mut command = Command::new("qemu-img");
    command.args(["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b"]).arg(base).arg(to).arg("20G");
    ensure!(command.status()?.success(), "qemu-img");
    Ok(())
}

async fn running(report: &mut Report, service: &Service, caller: &Caller, key: &str) -> Result<()> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let root = service.dir.path().join("bare.qcow2");
    // The first round determines the acceleration and fills caches.
    for round in 0..8 {
        let machine = create(service, caller, body("bench", "micro", "tiny", key)).await?;
        stop(service, caller, &machine).await;
        clone_of(service, "micro", &root)?;
        let socket = bare_folder(service).join("qmp.sock");
        let began = Instant::now();
        let process = bare(service, &machine, &root)?;
        let greeted = until(began, "QMP", async || greets(&socket).await).await?;
        if round > 0 {
            ours.push(machine.running * 1e3);
            theirs.push(greeted.as_secs_f64() * 1e3);
        }
        drop(process);
        caller.delete(&format!("/vms/{}", machine.id)).await;
        caller.gone(&machine.id).await;
    }
    let (ours, theirs) = (median(ours), median(theirs));
    let detail = format!("{ours:.0} ms from the request to running, {theirs:.0} ms from exec to QMP's first word");
    report.add("create to running above bare QEMU", ours - theirs, "ms", Some(Bound::Most(100.0)), detail);
    Ok(())
}

async fn greets(socket: &Path) -> bool {
    let greeting = async {
        let mut stream = UnixStream::connect(socket).await.ok()?;
        let mut byte = [0; 1];
        stream.read_exact(&mut byte).await.ok()
    };
    greeting.await.is_some()
}

/// Rates of a guest's root disk, in the order of [`IO`].
async fn disk_rates(service: &Service, ssh: &Value) -> Result<Vec<f64>> {
    let output = remote(service, ssh, IO)?.output().await?;
    ensure!(output.status.success(), "the guest did not write and read: {}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout)?;
    said.split_whitespace().map(|rate| Ok(rate.parse()?)).collect()
}

/// A command that a guest executes for its login user.
fn remote(service: &Service, ssh: &Value, what: &str) -> Result<tokio::process::Command> {
    let text = |name: &str| ssh[name].as_str().unwrap_or_default();
    let port = ssh["port"].as_u64().context("a port")?;
    let mut command = tokio::process::Command::new("ssh");
    command.args(["-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR"]);
    command.args(["-o", "UserKnownHostsFile=/dev/null", "-p", &port.to_string(), "-l", text("user")]);
    command.arg("-i").arg(service.dir.path().join("key")).args([text("host"), what]);
    Ok(command)
}

/// Seconds from `began` until a login succeeded.
pub async fn login(service: &Service, ssh: &Value, began: Instant) -> Result<f64> {
    let address =
        (ssh["host"].as_str().context("an address")?, u16::try_from(ssh["port"].as_u64().context("a port")?)?);
    until(began, "SSH", async || {
        let greeting = async {
            let mut stream = TcpStream::connect(address).await.ok()?;
            let mut bytes = [0; 4];
            stream.read_exact(&mut bytes).await.ok()
        };
        // QEMU's network is slow to retry a connection from before the guest listened.
        let patience = (began.elapsed() / 4).clamp(Duration::from_millis(300), Duration::from_secs(5));
        matches!(timeout(patience, greeting).await, Ok(Some(_)))
    })
    .await?;
    let status = remote(service, ssh, "true")?.status().await?;
    ensure!(status.success(), "the login failed");
    Ok(began.elapsed().as_secs_f64())
}

async fn micro(report: &mut Report, service: &Service, caller: &Caller, key: &str) -> Result<()> {
    let mut times = Vec::new();
    for _ in 0..3 {
        let machine = create(service, caller, body("bench", "micro", "tiny", key)).await?;
        times.push(login(service, &machine.ssh, machine.began).await?);
        caller.delete(&format!("/vms/{}", machine.id)).await;
        caller.gone(&machine.id).await;
    }
    report.add("create to a login, micro", median(times), "s", Some(Bound::Most(5.0)), String::new());
    Ok(())
}

async fn debian(report: &mut Report, service: &Service, caller: &Caller, key: &str) -> Result<()> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let mut rates: Vec<Rates> = Vec::new();
    let root = service.dir.path().join("bare.qcow2");
    for _ in 0..3 {
        let machine = create(service, caller, body("bench", "debian-12", "small", key)).await?;
        ours.push(login(service, &machine.ssh, machine.began).await?);
        let of_ours = disk_rates(service, &machine.ssh).await?;
        stop(service, caller, &machine).await;
        let began = Instant::now();
        clone_of(service, "debian-12", &root)?;
        let process = bare(service, &machine, &root)?;
        theirs.push(login(service, &machine.ssh, began).await?);
        rates.push((of_ours, disk_rates(service, &machine.ssh).await?));
        drop(process);
        caller.delete(&format!("/vms/{}", machine.id)).await;
        caller.gone(&machine.id).await;
    }
    disks(report, &rates);
    let (ours, theirs) = (median(ours), median(theirs));
    let detail = format!("{ours:.1} s beside {theirs:.1} s by hand");
    let what = "create to a login, debian-12, beside by hand (time)";
    report.add(what, ours / theirs, "times", Some(Bound::Most(1.05)), detail);
    report.add("that boot", ours, "s", Some(Bound::Most(30.0)), String::new());
    Ok(())
}

/// Rates of a root disk and of one by hand, in one round.
type Rates = (Vec<f64>, Vec<f64>);

/// What a root disk does for its guest beside the same by hand, round for round.
fn disks(report: &mut Report, rounds: &[Rates]) {
    let kinds = [("written", "MiB"), ("read", "MiB"), ("written at random", "blocks"), ("read at random", "blocks")];
    for (at, (what, unit)) in kinds.into_iter().enumerate() {
        let of = |pick: fn(&Rates, usize) -> f64| median(rounds.iter().map(|round| pick(round, at)).collect());
        let (ours, theirs) = (of(|round, at| round.0[at]), of(|round, at| round.1[at]));
        let times = of(|round, at| round.0[at] / round.1[at]);
        let detail = format!("{ours:.0} and {theirs:.0} {unit} a second");
        report.add(&format!("root disk, {what}, beside by hand"), times, "times", Some(Bound::Least(0.95)), detail);
    }
}
