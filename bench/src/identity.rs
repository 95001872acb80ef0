//! Identity: the cost of checking a credential, of logins, and of logins for other callers.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use berth_host::clock::Clock;
use berth_server::config::Config;
use berth_server::db::Db;
use berth_server::http::auth::Gate;
use berth_server::http::client_address::ClientAddress;
use berth_server::seal::Sealer;
use berth_server::services::identity::Identity;
use berth_testkit::Caller;
use serde_json::json;

use crate::api::Service;
use crate::load::{latencies, rate, request};
use crate::process::{median, percentile};
use crate::report::{Bound, Report};

const PASSWORD: &str = "a quiet harbour at night";
/// Number of checks for one figure.
const CHECKS: u32 = 200_000;
/// How long logins are counted.
const TIME: Duration = Duration::from_secs(5);
/// Logins of each kind; the median counts.
const PAIRS: usize = 60;

pub async fn run(report: &mut Report) -> Result<()> {
    let folder = tempfile::tempdir_in("/var/tmp")?;
    let service = Service::start(folder.path(), 0)?;
    let admin = service.admin().await;
    checks(report, folder.path(), &admin).await?;
    logins(report, &service, &admin).await?;
    enumeration(report, &admin).await
}

/// The gate itself, warm, in this process, over the service's own database.
async fn checks(report: &mut Report, folder: &std::path::Path, admin: &Caller) -> Result<()> {
    let made = admin.post("/api_keys", json!({"name": "bench", "scopes": ["vm"]})).await;
    let key = made.body["key"].as_str().context("a key")?.to_owned();
    let data = folder.to_string_lossy().into_owned();
    let config = Config::from_sources(None, |name| (name == "BERTH_DATA_DIR").then(|| data.clone()))?;
    let db = Db::open(&config.database_url).await?;
    let sealer = Sealer::open(&config.secrets, &db).await?;
    let (identity, _) = Identity::start(db, Clock::default(), &config, sealer, Vec::new()).await?;
    for (what, token, most) in [("an access token", &admin.token, 20.0), ("an API key", &key, 10.0)] {
        identity.caller(token, ClientAddress::default()).await?;
        let before = cpu();
        for _ in 0..CHECKS {
            identity.caller(token, ClientAddress::default()).await?;
        }
        let each = (cpu() - before) / f64::from(CHECKS) * 1e6;
        report.add(&format!("check of {what}, warm"), each, "µs of CPU", Some(Bound::Most(most)), String::new());
    }
    Ok(())
}

/// CPU seconds of this process so far.
fn cpu() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of minutes")]
    let seconds = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
    seconds
}

/// Password logins a second, and the wait of a reader beside them.
async fn logins(report: &mut Report, service: &Service, admin: &Caller) -> Result<()> {
    let body = json!({"email": "admin@example.com", "password": PASSWORD}).to_string();
    let login = request("POST", "/api/v1/auth/login", "", &body);
    let get = request("GET", &format!("{}/vms", admin.project), &admin.token, "");
    let quiet = latencies(service.address(), &get, 200, Duration::from_secs(2)).await?;
    let (rate, beside) =
        tokio::join!(rate(service.address(), login, 200, TIME), latencies(service.address(), &get, 200, TIME));
    let cores = std::thread::available_parallelism().map_or(1.0, |n| f64::from(u32::try_from(n.get()).unwrap_or(1)));
    let detail = format!("{cores} cores, 16 connections");
    report.add("password logins for each core", rate? / cores, "a second", Some(Bound::Least(30.0)), detail);
    let detail = format!("{:.2} ms without them", percentile(&quiet, 0.99));
    let slow = percentile(&beside?, 0.99);
    report.add("another route beside them, 99th percentile", slow, "ms", Some(Bound::Most(10.0)), detail);
    Ok(())
}

/// Whether the time of a login reveals that an account exists. Takes turns between both kinds, so that they share
/// noise.
async fn enumeration(report: &mut Report, admin: &Caller) -> Result<()> {
    let (mut known, mut unknown) = (Vec::new(), Vec::new());
    for pair in 0..PAIRS {
        let email = format!("person{pair}@example.com");
        let signed = admin.anonymous().post("/api/v1/auth/signup", json!({"email": email, "password": PASSWORD})).await;
        anyhow::ensure!(signed.status == 201, "{signed:?}");
        for (email, times) in [(email, &mut known), (format!("nobody{pair}@example.com"), &mut unknown)] {
            let began = Instant::now();
            let answer = admin.anonymous().post("/api/v1/auth/login", json!({"email": email, "password": "x"})).await;
            times.push(began.elapsed().as_secs_f64() * 1e3);
            anyhow::ensure!(answer.status == 401, "{answer:?}");
        }
    }
    let (known, unknown) = (median(known), median(unknown));
    let difference = (known / unknown - 1.0).abs() * 100.0;
    let detail = format!("{known:.2} and {unknown:.2} ms");
    report.add("login of a known beside an unknown address", difference, "% apart", Some(Bound::Most(5.0)), detail);
    Ok(())
}
