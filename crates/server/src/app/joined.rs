//! A host of another machine's platform: what `berth host join` and `berth host serve` do. It runs machines and answers
//! the service that asks it; it opens no database, and once it has joined it asks nobody anything.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use berth_domain::host::join::{JoinToken, Presence};
use berth_host::Host;
use berth_host::clock::Clock;
use berth_host::link::{self, Door, Papers, Pem, Terms};
use berth_host::lost::Lost;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::engines::{reached, ready};
use super::process::{ENDING, Signals, begin, ended};
use super::{listener, lock, own};
use crate::config::Config;
use crate::private_file;
use crate::services::fleet::Engines;

/// The file in a data folder that says which platform it joined.
const FILE: &str = "joined.json";
/// Files of a folder that is a service's.
const OF_A_SERVICE: [&str; 3] = ["identity", "database", "berth.db"];

/// What a host has of the platform that it joined.
#[derive(Clone, Serialize, Deserialize)]
pub struct Joined {
    /// Where its service is.
    pub platform: String,
    /// The host's id there.
    pub host_id: String,
    /// What it is called there.
    pub name: String,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Where the service finds it, as `host:port`.
    pub address: String,
    /// Its papers.
    pub papers: Pem,
}

/// What a host is to join.
pub struct Wanted {
    /// Where the service is.
    pub platform: String,
    /// What it joins with.
    pub token: JoinToken,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Where the service finds it, as `host:port`.
    pub address: String,
    /// Whether it joins though its folder has joined already.
    pub again: bool,
}

/// What a host sends to the service that it joins.
#[derive(Serialize)]
pub struct Request {
    /// Its token.
    pub token: String,
    /// Its request for a certificate, in PEM.
    pub csr: String,
    /// Where the service finds it.
    pub address: String,
    /// What its machine calls itself.
    pub name: String,
    /// The version of Berth there.
    pub version: String,
}

/// What the service answers.
#[derive(Deserialize)]
pub struct Answer {
    /// The host's id.
    pub host_id: String,
    /// What it is called.
    pub name: String,
    /// Its certificate, in PEM.
    pub certificate: String,
    /// The authority's, in PEM.
    pub authority: String,
}

/// What a folder has joined, if it has.
///
/// # Errors
/// The file that says so cannot be read.
pub fn joined(dir: &Path) -> Result<Option<Joined>> {
    let file = dir.join(FILE);
    match std::fs::read(&file) {
        Ok(bytes) => {
            let read = serde_json::from_slice(&bytes);
            read.map(Some).with_context(|| format!("{} is not what a host keeps of its platform", file.display()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("{} cannot be read", file.display())),
    }
}

/// Takes a folder for a service.
pub(super) async fn take(dir: &Path) -> Result<lock::DataDir> {
    let lock = lock::DataDir::take(dir).await?;
    refuse(dir)?;
    Ok(lock)
}

/// Refuses a folder of a host for a service: machines lie there of which the service's database knows nothing.
fn refuse(dir: &Path) -> Result<()> {
    if let Some(joined) = joined(dir)? {
        bail!(
            "the data folder {} is a host's that joined {}; to run that again, type: berth host serve. For a service of \
             its own, set BERTH_DATA_DIR to another folder",
            dir.display(),
            joined.platform
        );
    }
    Ok(())
}

fn write(dir: &Path, joined: &Joined) -> std::io::Result<()> {
    let bytes = serde_json::to_vec_pretty(joined).map_err(std::io::Error::other)?;
    private_file::write(&dir.join(FILE), &bytes)
}

/// `berth host join`: joins by asking the service with `ask`, once, and then answers it until SIGTERM or SIGINT.
pub async fn join<A, F>(config: Config, wanted: Wanted, ask: A) -> Result<()>
where
    A: FnOnce(Request) -> F,
    F: Future<Output = Result<Answer>>,
{
    begin(&config);
    let dir = config.data_dir.clone();
    let lock = lock::DataDir::take(&dir).await?;
    let joined = match joined(&dir)? {
        Some(joined) if !wanted.again => {
            ensure!(
                joined.platform == wanted.platform,
                "the data folder {} has joined {}. To join {} with another one, set BERTH_DATA_DIR; to leave the first \
                 with all that this host has, add --again",
                dir.display(),
                joined.platform,
                wanted.platform
            );
            println!("This host has joined {} already, as {}", joined.platform, joined.name);
            joined
        }
        before => {
            if let Some(file) = OF_A_SERVICE.iter().find(|file| dir.join(file).exists()) {
                bail!(
                    "the data folder {} is a service's: it has a file {file}. Set BERTH_DATA_DIR to a folder for this host",
                    dir.display()
                );
            }
            enlist(&dir, wanted, before.as_ref(), ask).await?
        }
    };
    serve(config, joined, lock).await
}

async fn enlist<A, F>(dir: &Path, wanted: Wanted, before: Option<&Joined>, ask: A) -> Result<Joined>
where
    A: FnOnce(Request) -> F,
    F: Future<Output = Result<Answer>>,
{
    // Before the token is used: somebody else may listen there.
    drop(bind(wanted.listen).await?);
    let (key, csr) = link::request()?;
    let request = Request {
        token: wanted.token.shown().0,
        csr,
        address: wanted.address.clone(),
        name: hostname(),
        version: env!("CARGO_PKG_VERSION").into(),
    };
    let Answer { host_id, name, certificate, authority } = ask(request).await?;
    let papers = Pem { key, certificate, authority };
    ensure!(
        papers.is_of(wanted.token.authority()),
        "what answered at {} is not the platform that the token is of. Nothing was joined; look at the address, and print \
         another command there: berth admin host token NAME",
        wanted.platform
    );
    if let Some(before) = before.filter(|before| before.host_id != host_id && has_machines(dir)) {
        bail!(
            "the token is of another host than this one, which is {} of {}: the service would end the machines that are here, and \
             set their disks aside. Nothing was changed; print another command there: berth admin host token {}. To have \
             this machine begin as another host, set BERTH_DATA_DIR to an empty folder",
            before.name,
            before.platform,
            before.name
        );
    }
    let Wanted { platform, listen, address, .. } = wanted;
    let joined = Joined { platform, host_id, name, listen, address, papers };
    write(dir, &joined).context("what this host has of its platform cannot be kept")?;
    println!("This host has joined {}, as {}", joined.platform, joined.name);
    Ok(joined)
}

/// Whether a folder has machines, or disks of some.
fn has_machines(dir: &Path) -> bool {
    let is_full = |folder: &str| std::fs::read_dir(dir.join(folder)).is_ok_and(|mut entries| entries.next().is_some());
    ["machines", "disks"].into_iter().any(is_full)
}

/// `berth host serve`: answers the service of the platform that the folder joined, until SIGTERM or SIGINT.
pub async fn serve_host(config: Config) -> Result<()> {
    begin(&config);
    let lock = lock::DataDir::take(&config.data_dir).await?;
    let joined = joined(&config.data_dir)?.with_context(|| {
        format!(
            "the data folder {} has joined no platform; to join one, type what this prints on its machine: berth admin \
             host add NAME",
            config.data_dir.display()
        )
    })?;
    serve(config, joined, lock).await
}

async fn serve(config: Config, joined: Joined, _lock: lock::DataDir) -> Result<()> {
    let listener = bind(joined.listen).await?;
    let config = match own_address(&joined) {
        Some(address) => Config { network: config.network.clone().for_a_joined_host(address), ..config },
        None => config,
    };
    let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
    let mut signals = Signals::new()?;
    let papers = papers(config.data_dir.clone(), joined.clone())?;
    let config = reached(&config)?;
    let engines = Engines::of_this_host(&config).await?;
    answer((&config, engines), papers, listener, (&mut tasks, &stop))?;
    println!("Host {} answers the service of {} at {}", joined.name, joined.platform, joined.address);
    println!("Data: {}", config.data_dir.display());
    tracing::info!(listen = %joined.listen, platform = joined.platform, host = joined.host_id, "ready");
    let outcome = tokio::select! {
        () = signals.next() => Ok(()),
        ended = tasks.join_next() => match ended {
            Some(Err(error)) => Err(anyhow::anyhow!("a worker of the host failed: {error}")),
            _ => Err(anyhow::anyhow!("a worker of the host ended by itself")),
        },
    };
    tracing::info!("draining; machines keep running");
    stop.cancel();
    tokio::select! {
        _ = ended(&mut tasks, ENDING) => outcome,
        () = signals.next() => bail!("ended at once by a second signal; machines keep running, the next start goes on"),
    }
}

/// Has this host answer a service of its platform until told to stop.
pub(super) fn answer(
    (config, engines): (&Config, Engines),
    papers: Papers,
    listener: TcpListener,
    (tasks, stop): (&mut JoinSet<()>, &CancellationToken),
) -> Result<()> {
    let terms = Terms::open(&config.data_dir).context("the term in which this host was asked last is not known")?;
    let lost = Lost::new(&config.data_dir, config.lost.days);
    let host = Host::new(engines.vm.clone(), engines.sandbox.clone(), engines.network.clone(), lost.clone());
    let host = Arc::new(host);
    let door = Door::new(host.clone(), Arc::new(papers), terms, presence(config, engines));
    tasks.spawn(lost.keep(Clock::default(), stop.clone()));
    let stopped = stop.clone();
    tasks.spawn(async move { host.tend(stopped).await });
    tasks.spawn(door.listen(listener, stop.clone()));
    Ok(())
}

fn papers(dir: PathBuf, joined: Joined) -> Result<Papers> {
    let papers = joined.papers.clone();
    let keep = move |papers: &Pem| write(&dir, &Joined { papers: papers.clone(), ..joined.clone() });
    Papers::new(papers, keep).context("the papers of this host do not fit; join again with --again and a new token")
}

fn presence(config: &Config, engines: Engines) -> impl Fn() -> Presence + Send + Sync + 'static {
    let (probe, overcommit) = (own::probe(config, engines.vm.clone()), config.overcommit());
    move || {
        let capacity = probe.capacity();
        Presence {
            name: hostname(),
            version: env!("CARGO_PKG_VERSION").into(),
            boot: probe.boot(),
            cpus: capacity.cpus,
            memory_mb: capacity.memory_mb,
            overcommit: [("vm".to_owned(), overcommit.vm), ("sandbox".to_owned(), overcommit.sandbox)].into(),
            missing: ready(&engines).err(),
        }
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener> {
    listener::bound(address).await.with_context(|| {
        format!("cannot listen on {address}; is another program there? Choose another address with --listen")
    })
}

/// The address that others find this host at, where it is told as such; else the one on which it listens.
fn own_address(joined: &Joined) -> Option<IpAddr> {
    let told = joined.address.parse::<SocketAddr>().ok().map(|told| told.ip());
    told.or_else(|| Some(joined.listen.ip()).filter(|ip| !ip.is_unspecified()))
}

/// What this machine calls itself.
fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "host".into() } else { name.chars().take(100).collect() }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    fn wanted(token: JoinToken) -> Wanted {
        let (platform, address) = ("http://127.0.0.1:1".into(), "127.0.0.1:1".into());
        Wanted { platform, token, listen: ([127, 0, 0, 1], 0).into(), address, again: false }
    }

    fn answered(request: Request, authority: &link::Authority, other: &link::Authority) -> Result<Answer> {
        let id = berth_domain::ids::HostId(uuid::Uuid::now_v7());
        let name = link::HostName { id, enrolment: 1 };
        let (certificate, _) = authority.host(name, &request.csr, Clock::default().now())?;
        Ok(Answer { host_id: id.to_string(), name: "beta".into(), certificate, authority: other.pem().into() })
    }

    #[tokio::test]
    async fn a_host_believes_only_the_authority_that_its_token_names() {
        let now = Clock::default().now();
        let (own, other) = (link::Authority::make(now).unwrap(), link::Authority::make(now).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let token = || JoinToken::new([1; 32], own.fingerprint());
        let refused =
            enlist(dir.path(), wanted(token()), None, |request| ready(answered(request, &other, &other))).await;
        let refused = refused.map(drop).unwrap_err().to_string();
        assert!(refused.contains("is not the platform that the token is of"), "{refused}");
        assert!(joined(dir.path()).unwrap().is_none());
        refuse(dir.path()).unwrap();
        enlist(dir.path(), wanted(token()), None, |request| ready(answered(request, &own, &own))).await.unwrap();
        let kept = joined(dir.path()).unwrap().unwrap();
        assert_eq!((kept.name.as_str(), kept.platform.as_str()), ("beta", "http://127.0.0.1:1"));
        papers(dir.path().to_owned(), kept.clone()).unwrap();
        // Where machines are, another host's token is refused.
        let authority = &own;
        let ask = |request| ready(answered(request, authority, authority));
        std::fs::create_dir(dir.path().join("machines")).unwrap();
        enlist(dir.path(), wanted(token()), Some(&kept), ask).await.unwrap();
        std::fs::create_dir(dir.path().join("machines/one")).unwrap();
        let refused = enlist(dir.path(), wanted(token()), Some(&kept), ask).await;
        let refused = refused.map(drop).unwrap_err().to_string();
        assert!(refused.contains("berth admin host token beta"), "{refused}");
        let refused = refuse(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("berth host serve"), "{refused}");
    }
}
