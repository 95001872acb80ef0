//! Runs the benchmarks and writes their table.

mod api;
mod boots;
mod fleet;
mod gateway;
mod identity;
mod load;
mod machines;
mod network;
mod placement;
mod process;
mod report;
mod sandboxes;
mod service;
mod simulated;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use report::Report;

fn main() -> ExitCode {
    if let Some(code) = berth_qemu::launch::answer() {
        return code;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error:?}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // The two ends of a measurement run in processes of their own.
    match arguments.as_slice() {
        [first] if first == gateway::upstream::ARGUMENT => gateway::upstream::serve(),
        [first, work] if first == gateway::load::ARGUMENT => gateway::load::serve(work),
        [first, folder, user] if first == network::ARGUMENT => network::measure(folder, user),
        [first, folder, _] if first == network::bridge::ARGUMENT => network::bridge::measure(folder),
        _ => benchmarks(&arguments),
    }
}

#[tokio::main]
async fn benchmarks(arguments: &[String]) -> Result<()> {
    if let Some((first, [folder, machines])) = arguments.split_first()
        && first == "simulated-service"
    {
        return simulated::serve(Path::new(folder), machines.parse()?).await;
    }
    let folder = Path::new("bench/results");
    let mut report = Report::new(folder);
    for group in groups(arguments)? {
        match group {
            "api" => api::run(&mut report).await?,
            "identity" => identity::run(&mut report).await?,
            "sandboxes" => sandboxes::run(&mut report).await?,
            "service" => service::run(&mut report).await?,
            "gateway" => gateway::run(&mut report).await?,
            "network" => network::run(&mut report).await?,
            "bridge" => network::bridge::run(&mut report).await?,
            "machines" => machines::run(&mut report).await?,
            "placement" => placement::run(&mut report)?,
            "fleet" => fleet::run(&mut report).await?,
            _ => boots::run(&mut report).await?,
        }
        // Writes the results so far, whatever happens to the next group.
        report.write(folder)?;
    }
    Ok(())
}

fn groups(arguments: &[String]) -> Result<Vec<&str>> {
    const ALL: [&str; 11] = [
        "api",
        "identity",
        "placement",
        "fleet",
        "service",
        "gateway",
        "network",
        "bridge",
        "sandboxes",
        "machines",
        "boots",
    ];
    if let Some(unknown) = arguments.iter().find(|a| !ALL.contains(&a.as_str())) {
        bail!("there is no group '{unknown}'; there are {}", ALL.join(", "));
    }
    let named: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Ok(if named.is_empty() { ALL.to_vec() } else { named })
}
