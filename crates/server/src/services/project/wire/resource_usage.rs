//! How usage is told.

use berth_domain::Timestamp;
use berth_domain::resource_usage::{Key, Span, Sum, Totals, Unit};
use serde::Serialize;
use utoipa::ToSchema;

/// Usage of machines, disks and snapshots.
#[derive(Serialize, ToSchema)]
#[schema(as = ResourceUsageResponse)]
pub(in crate::services::project) struct ResourceUsageView {
    /// Its beginning.
    #[schema(value_type = String, format = DateTime)]
    from: Timestamp,
    /// Its end; what goes on is counted up to now.
    #[schema(value_type = String, format = DateTime)]
    to: Timestamp,
    /// What all of it costs.
    cost: f64,
    /// What was taken, by day, project, type and resource, as far as they are told apart.
    data: Vec<SumView>,
}

/// What was taken of something.
#[derive(Serialize, ToSchema)]
#[schema(as = ResourceUsage)]
struct SumView {
    /// The day in UTC; only where days are told apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = Date)]
    day: Option<String>,
    /// The project; only where projects are told apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<uuid::Uuid>)]
    project_id: Option<String>,
    /// What it is: vm, root_disk, disk, disk_snapshot, backup, image, sandbox or snapshot.
    resource_type: &'static str,
    /// The resource; `null` where resources are not told apart.
    #[schema(value_type = Option<uuid::Uuid>, required = true)]
    resource_id: Option<String>,
    /// Its latest name in the span, also when it is gone.
    #[schema(required = true)]
    name: Option<String>,
    /// A machine's size: the vm_config of a VM.
    #[schema(required = true)]
    size: Option<String>,
    /// What the quantity is counted in: seconds of machines, gib_hours of disks and snapshots.
    unit: &'static str,
    /// How much it is, to the millionth.
    quantity: f64,
    /// What it costs, by the prices of its time.
    cost: f64,
}

impl ResourceUsageView {
    /// The sums over a span.
    pub(in crate::services::project) fn new(span: Span, totals: Totals) -> Self {
        let cost = totals.cost().units();
        let data = totals.into_sums().map(SumView::from).collect();
        Self { from: span.begin, to: span.end, cost, data }
    }
}

impl From<(Key, Sum)> for SumView {
    fn from((key, sum): (Key, Sum)) -> Self {
        let unit: Unit = key.kind.unit();
        Self {
            day: key.day.map(Timestamp::date),
            project_id: key.project.map(|project| project.to_string()),
            resource_type: key.kind.as_str(),
            resource_id: key.resource.map(|resource| resource.to_string()),
            name: sum.name,
            size: key.size,
            unit: unit.as_str(),
            quantity: sum.amount.quantity(unit),
            cost: sum.amount.cost.units(),
        }
    }
}
