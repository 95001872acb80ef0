//! Other gateways, each in its fastest configuration, if it is installed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Result;

use super::system::{System, free_address, start};

/// Number of streams for the memory of gateways that take milliseconds for a request.
const FEW_STREAMS: u32 = 400;
/// A key for gateways that require one.
const KEY: &str = "sk-5b0e7c1fd2a94f3b8c6d17e2a0b94c83f1d6275e09ab3c48";
/// Most connections at a time: those of the load and some more.
const CONNECTIONS: u32 = 4_500;

/// Parameters for starting a rival.
struct Place<'a> {
    program: PathBuf,
    folder: &'a Path,
    /// Its own address, and the upstream's, both as `127.0.0.1:1234`.
    address: &'a str,
    upstream: &'a str,
}

/// Another gateway.
struct Rival {
    name: &'static str,
    /// The variable with the path of its program.
    variable: &'static str,
    install: &'static str,
    headers: fn(&Place<'_>) -> String,
    command: fn(&Place<'_>) -> Result<Command>,
    few_streams: bool,
}

const RIVALS: [Rival; 4] = [
    Rival {
        name: "haproxy",
        variable: "BERTH_BENCH_HAPROXY",
        install: "apt-get install haproxy",
        headers: |_| String::new(),
        command: haproxy,
        few_streams: false,
    },
    Rival {
        name: "vllm-router",
        variable: "BERTH_BENCH_VLLM_ROUTER",
        install: "python3 -m venv DIR && DIR/bin/pip install vllm-router; \
                  BERTH_BENCH_VLLM_ROUTER=DIR/bin/vllm-router",
        headers: |_| String::new(),
        command: vllm_router,
        few_streams: false,
    },
    Rival {
        name: "Portkey",
        variable: "BERTH_BENCH_PORTKEY",
        install: "npm install --prefix DIR @portkey-ai/gateway; \
                  BERTH_BENCH_PORTKEY=DIR/node_modules/@portkey-ai/gateway/build/start-server.js",
        headers: |place| {
            let host = format!("x-portkey-custom-host: http://{}/v1\r\n", place.upstream);
            format!("x-portkey-provider: openai\r\n{host}authorization: Bearer {KEY}\r\n")
        },
        command: portkey,
        few_streams: true,
    },
    Rival {
        name: "LiteLLM",
        variable: "BERTH_BENCH_LITELLM",
        install: "python3 -m venv DIR && DIR/bin/pip install 'litellm[proxy]'; BERTH_BENCH_LITELLM=DIR/bin/litellm",
        headers: |_| format!("authorization: Bearer {KEY}\r\n"),
        command: litellm,
        few_streams: true,
    },
];

/// Starts the installed ones; prints how to install the others.
pub async fn start_all(folder: &Path, upstream: &str, streams: u32) -> Result<Vec<System>> {
    let mut systems = Vec::new();
    for rival in &RIVALS {
        let Some(program) = rival.program() else {
            println!("{} is not measured. To have it beside Berth: {}", rival.name, rival.install);
            continue;
        };
        let streams = if rival.few_streams { streams.min(FEW_STREAMS) } else { streams };
        match rival.start(program, folder, upstream, streams).await {
            Ok(system) => systems.push(system),
            Err(error) => println!("{} is not measured: {error:#}", rival.name),
        }
    }
    Ok(systems)
}

impl Rival {
    fn program(&self) -> Option<PathBuf> {
        let named = std::env::var_os(self.variable).filter(|path| !path.is_empty()).map(PathBuf::from);
        let installed = || ["haproxy", "/usr/sbin/haproxy"].into_iter().find(|path| runs(path)).map(PathBuf::from);
        named.or_else(|| (self.name == "haproxy").then(installed).flatten())
    }

    async fn start(&self, program: PathBuf, folder: &Path, upstream: &str, streams: u32) -> Result<System> {
        let address = free_address()?;
        let log = folder.join(format!("{}.log", self.name));
        let (process, headers) = {
            let place = Place { program, folder, address: &address, upstream };
            (Some(start(&mut (self.command)(&place)?, &log)?), (self.headers)(&place))
        };
        let mut system = System { name: self.name, address, headers, process, streams, ledger: None };
        if let Err(error) = system.answers().await {
            let said = std::fs::read_to_string(log).unwrap_or_default();
            let end: Vec<&str> = said.lines().rev().filter(|line| !line.is_empty()).take(5).collect();
            return Err(error.context(format!("it said: {}", end.into_iter().rev().collect::<Vec<_>>().join(" / "))));
        }
        Ok(system)
    }
}

fn runs(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("-v").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

impl Place<'_> {
    fn port(&self) -> &str {
        self.address.rsplit(':').next().unwrap_or_default()
    }
}

fn haproxy(place: &Place<'_>) -> Result<Command> {
    let (address, upstream) = (place.address, place.upstream);
    let config = format!(
        "global\n  maxconn {CONNECTIONS}\n\
         defaults\n  mode http\n  option http-keep-alive\n  option http-no-delay\n  http-reuse always\n  \
         maxconn {CONNECTIONS}\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n\
         frontend bench\n  bind {address}\n  default_backend upstream\n\
         backend upstream\n  server upstream {upstream}\n"
    );
    let file = place.folder.join("haproxy.cfg");
    std::fs::write(&file, config)?;
    let mut command = Command::new(&place.program);
    command.arg("-db").arg("-f").arg(file);
    Ok(command)
}

fn vllm_router(place: &Place<'_>) -> Result<Command> {
    let metrics = free_address()?;
    let mut command = Command::new(&place.program);
    command.args(["--host", "127.0.0.1", "--port", place.port(), "--policy", "round_robin", "--log-level", "warning"]);
    command.args(["--worker-urls", &format!("http://{}", place.upstream)]);
    command.args(["--max-concurrent-requests", &CONNECTIONS.to_string()]);
    command.args(["--prometheus-port", metrics.rsplit(':').next().unwrap_or_default()]);
    Ok(command)
}

#[expect(clippy::unnecessary_wraps, reason = "one of several that write files")]
fn portkey(place: &Place<'_>) -> Result<Command> {
    let mut command = Command::new("node");
    command.arg(&place.program).arg(format!("--port={}", place.port())).arg("--headless");
    Ok(command)
}

fn litellm(place: &Place<'_>) -> Result<Command> {
    let config = format!(
        "model_list:\n  - model_name: tiny\n    litellm_params:\n      model: openai/tiny\n      \
         api_base: http://{}/v1\n      api_key: none\n",
        place.upstream
    );
    let file = place.folder.join("litellm.yaml");
    std::fs::write(&file, config)?;
    let mut command = Command::new(&place.program);
    command.arg("--config").arg(file).args(["--host", "127.0.0.1", "--port", place.port(), "--num_workers", "1"]);
    command.args(["--telemetry", "False"]).env("LITELLM_MASTER_KEY", KEY).env("LITELLM_LOG", "ERROR");
    // Otherwise it downloads prices.
    command.env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
    Ok(command)
}
