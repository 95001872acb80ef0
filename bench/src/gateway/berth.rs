//! Berth as people use it: the program itself with a data folder, a key, every limit, a price and metering.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_testkit::Caller;
use reqwest::Method;
use serde_json::json;

use super::system::{OURS, System, free_address, start};
use crate::process::{Running, until};
use crate::service::program;

const EMAIL: &str = "admin@example.com";
const PASSWORD: &str = "a quiet harbour at night";
/// A limit that exists and is never reached.
const PLENTY: u32 = 1_000_000_000;
/// How long a service that has just started takes to come to rest.
const STILL: Duration = Duration::from_secs(5);

/// A service on a folder.
pub struct Berth {
    folder: PathBuf,
    address: String,
}

impl Berth {
    /// A service with a model that has this upstream.
    pub fn new(folder: &Path, upstream: &str) -> Result<Self> {
        let folder = folder.join("berth");
        std::fs::create_dir_all(&folder)?;
        let config = format!(
            "[[models]]\nid = \"tiny\"\nprice = {{ input = 0.15, output = 0.60 }}\n\n[[models.upstreams]]\n\
             url = \"http://{upstream}/v1\"\n"
        );
        std::fs::write(folder.join("berth.toml"), config)?;
        Ok(Self { folder, address: free_address()? })
    }

    /// Starts its process, and waits until it has come to rest.
    pub async fn launch(&self) -> Result<Running> {
        let mut command = Command::new(program()?);
        command.arg("serve").env("BERTH_DATA_DIR", &self.folder).env("BERTH_LISTEN", &self.address);
        command.env("BERTH_CONFIG", self.folder.join("berth.toml")).env("BERTH_ACCEL", "tcg");
        command.env("BERTH_ADMIN_EMAIL", EMAIL).env("BERTH_ADMIN_PASSWORD", PASSWORD);
        command.env_remove("BERTH_DATABASE_URL");
        let log = self.folder.join("service.log");
        let mut process = start(&mut command, &log)?;
        let ready = format!("http://{}/readyz", self.address);
        let mut ended = || process.0.try_wait().is_ok_and(|status| status.is_some());
        until(Instant::now(), "Berth", async || reqwest::get(&ready).await.is_ok() || ended()).await?;
        ensure!(!ended(), "Berth ended: {}", std::fs::read_to_string(log)?);
        tokio::time::sleep(STILL).await;
        Ok(process)
    }

    /// The system under test for a process, with a key and with limits.
    pub async fn system(&self, process: Running, streams: u32) -> Result<System> {
        let base = format!("http://{}", self.address);
        let admin = Caller::login(&base, EMAIL, PASSWORD).await;
        let made = admin.post("/api_keys", json!({"name": "bench", "scopes": ["inference"]})).await;
        ensure!(made.status == 201, "{made:?}");
        let key = made.body["key"].as_str().context("a key")?;
        let project = admin.project.rsplit('/').next().context("a project")?;
        let limits = json!({"tokens_per_minute": PLENTY, "spend_per_month": PLENTY, "requests_per_minute": PLENTY});
        let path = format!("/api/v1/admin/projects/{project}/quota");
        let set = admin.send(admin.request(Method::PUT, &path).json(&limits)).await;
        ensure!(set.status == 200 && set.body["tokens_per_minute"] == PLENTY, "{set:?}");
        Ok(System {
            name: OURS,
            address: self.address.clone(),
            headers: format!("authorization: Bearer {key}\r\n"),
            process: Some(process),
            streams,
            ledger: Some(admin),
        })
    }
}
