//! `berth doctor`: what this machine can do, what is missing, and what to type.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_domain::vm::inbound::{Reached, Shared};
use berth_host::bridge;
use berth_host::clock::Clock;
use berth_host::gpu::Gpus;
use berth_host::network::Switches;
use berth_host::sandbox::qemu::QemuSandboxes;
use berth_host::vm::Engine;
use berth_host::vm::qemu::QemuEngine;
use berth_host::{Demand, Finding};
use berth_qemu::{confinement, host};
use tokio::time::timeout;

use super::{lock, members, reachable};
use crate::config::{Config, Network};
use crate::db::Db;
use crate::services::depot;
use crate::services::vm::lacking_stores;

/// The findings.
pub struct Report {
    /// Whether this machine can do what was asked for.
    pub ok: bool,
    lines: Vec<Finding>,
    /// What is said at the end, where it can and where it cannot.
    verdicts: [&'static str; 2],
}

/// How long a store of disks may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Of machines at all.
const MACHINES: [&str; 2] = ["Machines can be run here.", "Something is missing that machines need."];
/// Of GPUs.
const GPUS: [&str; 2] =
    ["GPUs can be handed out here.", "Something is missing that GPUs need; docs/gpu.md has every step."];

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{} {:<14} {}", if line.good { "ok  " } else { "MISS" }, line.what, line.text)?;
        }
        let [yes, no] = self.verdicts;
        f.write_str(if self.ok { yes } else { no })
    }
}

/// Examines this machine.
pub async fn doctor(config: &Config) -> Report {
    // What is found out by trying is tried there.
    let _ = lock::make_folder(&config.data_dir);
    let switches = Switches::open(&config.network_engine());
    let engine = QemuEngine::open(config.vm_engine(), Clock::default(), switches.clone());
    let mut lines = engine.findings().await;
    lines.extend(stores(config, &engine).await);
    lines.extend(fences(config, &engine).await);
    lines.push(reached(config, engine.ssh_port()));
    if let Some(settings) = config.network.bridged() {
        lines.extend(bridge::findings(&settings).await);
    }
    lines.extend(QemuSandboxes::open(config.sandbox_engine(), Clock::default(), switches.clone()).findings());
    lines.extend(confined(config).await);
    lines.extend(switches.findings().await);
    lines.extend(shared(Path::new("/sys")));
    lines.extend(["espeak-ng", "ffmpeg"].map(|name| speaks(name, host::find(name))));
    lines.push(data_dir(config));
    lines.extend(members::findings(&config.database_url).await);
    lines.extend(reachable::findings(config).await);
    lines.extend(backups(config).await);
    lines.push(Finding { good: true, what: "sign-up".into(), text: config.sign_up().describe().into() });
    Report { ok: lines.iter().all(|l| l.good), lines, verdicts: MACHINES }
}

/// Examines what this machine has to hand out GPUs. One that cannot be handed out keeps no other from it.
pub fn doctor_of_gpus(config: &Config) -> Report {
    let gpus = Gpus::of_this_host(&config.data_dir);
    let lines = gpus.findings();
    let can = gpus.inventory().iter().any(|gpu| gpu.unavailable.is_none() || gpu.offered().next().is_some());
    Report {
        ok: can && lines.iter().filter(|line| !line.what.contains(':')).all(|line| line.good),
        lines,
        verdicts: GPUS,
    }
}

/// Whether the store of backups can be written, read and cleared; nothing where none is configured.
async fn backups(config: &Config) -> Option<Finding> {
    let tried = depot::tried(&config.backups).await.transpose()?;
    let text = match &tried {
        Ok(name) => format!("are kept in the {name}, which was written, read and left as it was"),
        Err(error) => format!("cannot be kept: {error:#}; correct [backups] in the configuration, or the store"),
    };
    Some(Finding { good: tried.is_ok(), what: "backups".into(), text })
}

/// What a store of disks answers, or why there is no answer.
async fn in_time<T>(work: impl Future<Output = berth_host::Result<T>>) -> Result<T, String> {
    match timeout(PATIENCE, work).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("it does not answer within {} seconds", PATIENCE.as_secs())),
    }
}

/// Whether this machine reaches the stores of disks, and which of those that have disks are not configured.
async fn stores(config: &Config, engine: &dyn Engine) -> Vec<Finding> {
    let mut lines = Vec::new();
    for store in config.disk_stores.stores() {
        let name = &store.name;
        let found = in_time(engine.reach_store(store)).await;
        let good = found.is_ok();
        let text = match found {
            Ok(_) => format!("{name} is reached, and VMs whose disks lie there can run here"),
            Err(why) => {
                format!("{name} is not reached: {why}; VMs whose disks lie there run on other hosts, or on none")
            }
        };
        lines.push(Finding { good, what: "disk store".into(), text });
    }
    let lacking = async |db: &Db| lacking_stores(db, &config.disk_stores).await;
    let lacking = reachable::of_the_database(config, lacking).await.into_iter();
    lines.extend(lacking.map(|text| Finding { good: false, what: "disk store".into(), text }));
    lines
}

/// Whether this machine may shut lost hosts out of the stores that it is to do so for; nothing where there are none.
async fn fences(config: &Config, engine: &QemuEngine) -> Vec<Finding> {
    let mut lines = Vec::new();
    for name in config.disk_stores.stores().map(|store| &store.name) {
        let Some(fencing) = config.disk_stores.fencing(name) else { continue };
        let user = &fencing.by.user;
        let found = in_time(engine.may_fence(&fencing.by)).await;
        let good = found.is_ok();
        let text = match found {
            Ok(()) => {
                format!("client.{user} may shut hosts that are lost out of {name}, and their VMs start elsewhere")
            }
            Err(why) => format!(
                "no host that is lost can be shut out of {name}, and its VMs wait for it: {why}; where that user lacks the right, \
                 type as an administrator of Ceph: ceph auth caps client.{user} mon 'allow r, allow command \"osd blocklist\"'"
            ),
        };
        lines.push(Finding { good, what: "fencing".into(), text });
    }
    lines
}

/// How VMs are reached.
fn reached(config: &Config, ssh_port: u16) -> Finding {
    let found = config.network.clone().at_this_host();
    let text = match found.as_ref().map(Network::reached) {
        Err(error) => error.to_string(),
        Ok(Reached::Pool(pool)) => {
            let ranges: Vec<_> = pool.ranges().iter().map(ToString::to_string).collect();
            format!("VMs have an address each of {}, and answer SSH there on port {ssh_port}", ranges.join(", "))
        }
        Ok(Reached::Here) => {
            format!(
                "VMs answer SSH on port {ssh_port} of an address of their own in 127.64.0.0/10, on this machine alone"
            )
        }
        Ok(Reached::Shared(Shared { address, ports: (first, last) })) => {
            format!(
                "VMs share the ports {first}-{last} of {address}; open them in the firewall for whoever is to reach VMs"
            )
        }
    };
    Finding { good: found.is_ok(), what: "reach".into(), text }
}

/// How machines are confined here: what holds, and a line for each part that does not. It is wrong only where the
/// operator demands it.
async fn confined(config: &Config) -> Vec<Finding> {
    let demanded = config.machines.confinement == Demand::Required;
    let _ = lock::make_folder(&config.data_dir);
    let found = match confinement::of_host(&config.data_dir).await {
        Ok(found) => found,
        Err(error) => {
            let text = format!("cannot be found out now: {error}");
            return vec![Finding { good: false, what: "confinement".into(), text }];
        }
    };
    let has_user = config.machines.of_sandbox(0).user.is_some();
    let who = if has_user { "a user and group of its own" } else { "the service's user" };
    let parts = match found.missing() {
        [] => "with files, processes, network and names of its own, within limits",
        _ => "without what is missing below",
    };
    let text = format!("each machine runs as {who}, {parts}, behind a list of the system calls that it may make");
    let whole = Finding { good: true, what: "confinement".into(), text };
    let missing = found.missing().iter().map(|missing| Finding {
        good: !demanded,
        what: "not confined".into(),
        text: format!("machines run without {missing}"),
    });
    std::iter::once(whole).chain(missing).collect()
}

/// What machines share of a processor and of memory by the host's settings, by which secrets can be timed. It is the
/// operator's to weigh: a machine runs either way.
fn shared(kernel: &Path) -> Vec<Finding> {
    let settings = [
        (
            "devices/system/cpu/smt/active",
            "threads of one core run different machines; to have them do not, switch SMT off",
        ),
        (
            "kernel/mm/ksm/run",
            "equal pages of machines are merged (KSM); type: echo 2 | sudo tee /sys/kernel/mm/ksm/run",
        ),
    ];
    let is_on = |file: &str| std::fs::read_to_string(kernel.join(file)).is_ok_and(|text| text.trim() == "1");
    let found = settings.into_iter().filter(|(file, _)| is_on(file));
    found.map(|(_, text)| Finding { good: true, what: "shared".into(), text: text.into() }).collect()
}

/// A program that speech needs. Machines run without it.
fn speaks(name: &str, path: Option<PathBuf>) -> Finding {
    let missing = || "none, so that nothing can be spoken here; type: sudo apt install espeak-ng ffmpeg".to_owned();
    Finding { good: true, what: name.into(), text: path.map_or_else(missing, |path| path.display().to_string()) }
}

fn data_dir(config: &Config) -> Finding {
    let dir = &config.data_dir;
    let writable = lock::make_folder(dir).is_ok() && tempfile::tempfile_in(dir).is_ok();
    let text = if writable {
        dir.display().to_string()
    } else {
        format!("{} cannot be written; set BERTH_DATA_DIR to a folder of yours", dir.display())
    };
    Finding { good: writable, what: "data folder".into(), text }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use berth_domain::host::shared_disk::Store;

    use super::*;
    use crate::config::{DiskStore, Fencing};

    #[test]
    fn what_machines_share_is_told() {
        let kernel = tempfile::tempdir().expect("a folder");
        assert!(shared(kernel.path()).is_empty());
        for (file, value) in [("devices/system/cpu/smt/active", "1\n"), ("kernel/mm/ksm/run", "0\n")] {
            let path = kernel.path().join(file);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
            std::fs::write(path, value).expect("a file");
        }
        let found = shared(kernel.path());
        assert!(found.len() == 1 && found[0].good && found[0].text.contains("SMT"));
    }

    #[test]
    fn nobody_else_looks_into_the_data_folder_that_it_makes() {
        let root = tempfile::tempdir().expect("a folder");
        let config = Config { data_dir: root.path().join("data"), ..Config::default() };
        assert!(data_dir(&config).good);
        let mode = std::fs::metadata(&config.data_dir).expect("a folder").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[tokio::test]
    async fn a_store_of_backups_is_tried_where_there_is_one() {
        let root = tempfile::tempdir().expect("a folder");
        assert!(backups(&Config::default()).await.is_none());
        let mut config = Config::default();
        config.backups.folder = root.path().join("backups");
        let found = backups(&config).await.expect("a finding");
        assert!(found.good && found.text.contains("left as it was"), "{}", found.text);
        std::fs::write(root.path().join("file"), "").expect("a file");
        config.backups.folder = root.path().join("file");
        let found = backups(&config).await.expect("a finding");
        assert!(!found.good && found.text.contains("[backups]"), "{}", found.text);
    }

    #[tokio::test]
    async fn who_cannot_shut_hosts_out_is_told_what_to_type() {
        let root = tempfile::tempdir().expect("a folder");
        let mut config = Config { data_dir: root.path().to_owned(), ..Config::default() };
        let switches = Switches::open(&config.network_engine());
        let engine = QemuEngine::open(config.vm_engine(), Clock::default(), switches);
        let key = "AQAAAAAAAAAAABAAAAECAwQFBgcICQoLDA0ODw==".to_owned().try_into().expect("a key");
        // Nobody listens there.
        let monitors = vec!["127.0.0.1:9".into()];
        let store = Store { name: "pool-a".into(), monitors, pool: "rbd".into(), user: "fence".into(), key };
        for (fencing, found) in [(None, 0), (Some(Fencing { by: store.clone(), after: 60 }), 1)] {
            config.disk_stores = vec![DiskStore { regions: Vec::new(), store: store.clone(), fencing }].into();
            let lines = fences(&config, &engine).await;
            assert_eq!(lines.len(), found);
            assert!(lines.iter().all(|line| !line.good && line.text.contains("ceph auth caps client.fence mon")));
        }
    }

    #[test]
    fn a_machine_that_cannot_speak_is_fit() {
        let missing = speaks("espeak-ng", None);
        assert!(missing.good && missing.text.contains("sudo apt install espeak-ng ffmpeg"), "{}", missing.text);
        let found = speaks("ffmpeg", Some("/usr/bin/ffmpeg".into()));
        assert_eq!((found.good, found.text.as_str()), (true, "/usr/bin/ffmpeg"));
    }
}
