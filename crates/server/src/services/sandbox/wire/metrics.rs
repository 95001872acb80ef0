//! Series of a sandbox.

use berth_domain::Timestamp;
use berth_domain::series::Steps;
use serde::Serialize;
use utoipa::ToSchema;

use crate::services::sandbox::metrics::Point;
use crate::services::sandbox::store::metrics::Used;

/// Series of a sandbox.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SandboxMetricsResponse)]
pub struct MetricsView {
    /// Seconds covered, with unit.
    window: String,
    /// Seconds of a step, with unit.
    resolution: String,
    series: Series,
}

/// Lists of `[time, value]`, one for each step; the value is `null` where the sandbox did not run.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SandboxMetricsSeries)]
struct Series {
    /// Per cent of one CPU.
    #[schema(value_type = Vec<Vec<Value>>)]
    cpu_percent: Vec<(Timestamp, Option<f64>)>,
    #[schema(value_type = Vec<Vec<Value>>)]
    memory_bytes: Vec<(Timestamp, Option<i64>)>,
    #[schema(value_type = Vec<Vec<Value>>)]
    disk_bytes: Vec<(Timestamp, Option<i64>)>,
    /// Bytes received within the step.
    #[schema(value_type = Vec<Vec<Value>>)]
    network_rx_bytes: Vec<(Timestamp, Option<i64>)>,
    /// Bytes sent within the step.
    #[schema(value_type = Vec<Vec<Value>>)]
    network_tx_bytes: Vec<(Timestamp, Option<i64>)>,
    #[schema(value_type = Vec<Vec<Value>>)]
    processes: Vec<(Timestamp, Option<i64>)>,
}

impl MetricsView {
    /// The view of a series.
    pub fn new(steps: Steps, points: &[Point]) -> Self {
        let of = |read: fn(Used) -> i64| points.iter().map(|p| (p.at, p.used.map(read))).collect();
        Self {
            window: format!("{}s", steps.window),
            resolution: format!("{}s", steps.resolution),
            series: Series {
                cpu_percent: points.iter().map(|p| (p.at, p.cpu_percent)).collect(),
                memory_bytes: of(|used| used.memory_bytes),
                disk_bytes: of(|used| used.disk_bytes),
                network_rx_bytes: of(|used| used.rx_bytes),
                network_tx_bytes: of(|used| used.tx_bytes),
                processes: of(|used| used.processes),
            },
        }
    }
}
