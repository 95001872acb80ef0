//! The table of results, and the machine it is from.

use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};

/// The table: the results of this run, over those of earlier runs for other groups.
#[derive(Serialize, Deserialize)]
pub struct Report {
    machine: Vec<String>,
    rows: Vec<Row>,
}

/// One figure.
#[derive(Serialize, Deserialize)]
struct Row {
    what: String,
    value: f64,
    unit: String,
    bound: Option<String>,
    holds: Option<bool>,
    detail: String,
}

/// The bound of a figure.
#[derive(Clone, Copy)]
pub enum Bound {
    /// At least this.
    Least(f64),
    /// At most this.
    Most(f64),
}

impl Report {
    /// A report for this machine, with earlier results of a like one.
    pub fn new(folder: &Path) -> Self {
        let earlier = std::fs::read(folder.join("latest.json")).ok();
        let earlier: Option<Self> = earlier.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let machine = machine();
        let rows = earlier.filter(|e| e.machine.first() == machine.first()).map_or_else(Vec::new, |e| e.rows);
        Self { machine, rows }
    }

    /// Adds a figure, and prints it at once.
    pub fn add(&mut self, what: &str, value: f64, unit: &str, bound: Option<Bound>, detail: String) {
        let holds = bound.map(|bound| match bound {
            Bound::Least(least) => value >= least,
            Bound::Most(most) => value <= most,
        });
        let bound = bound.map(|bound| match bound {
            Bound::Least(least) => format!(">= {least}"),
            Bound::Most(most) => format!("<= {most}"),
        });
        let row = Row { what: what.into(), value, unit: unit.into(), bound, holds, detail };
        println!("{}", line(&row));
        match self.rows.iter_mut().find(|known| known.what == row.what) {
            Some(known) => *known = row,
            None => self.rows.push(row),
        }
    }

    /// Writes `latest.json` and `latest.md`.
    pub fn write(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("latest.json"), serde_json::to_string_pretty(self)? + "\n")?;
        let mut text = String::from("# Results\n\n");
        for fact in &self.machine {
            text.push_str(&format!("- {fact}\n"));
        }
        text.push_str("\n| what | figure | bound | holds | detail |\n|---|---|---|---|---|\n");
        for row in &self.rows {
            text.push_str(&line(row));
            text.push('\n');
        }
        std::fs::write(folder.join("latest.md"), text)?;
        Ok(())
    }
}

fn line(row: &Row) -> String {
    let holds = row.holds.map_or("", |holds| if holds { "yes" } else { "**no**" });
    let bound = row.bound.as_deref().unwrap_or_default();
    format!("| {} | {} {} | {bound} | {holds} | {} |", row.what, rounded(row.value), row.unit, row.detail)
}

fn rounded(value: f64) -> String {
    if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

fn machine() -> Vec<String> {
    let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = file("/proc/cpuinfo");
    let model = cpu.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or_default();
    let cores = cpu.lines().filter(|l| l.starts_with("processor")).count();
    let memory = file("/proc/meminfo");
    let kib: u64 = memory.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or_default();
    vec![
        format!("{cores} cores,{}", model.trim_start_matches(['\t', ' ', ':'])).replace(',', ", "),
        format!("{} GiB of memory, Linux {}", kib >> 20, file("/proc/sys/kernel/osrelease").trim()),
        "a shared virtual machine without hardware acceleration: machines run under TCG".into(),
    ]
}
