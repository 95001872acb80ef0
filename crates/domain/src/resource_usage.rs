//! What machines, disks and snapshots took, and what it costs.
//!
//! A [`Line`] of the ledger says that something had one size, at one price, for a while. Whatever is asked of usage is
//! a sum over parts of lines. A part costs the difference of two amounts that are rounded at its ends, so parts that
//! lie side by side cost together what the whole does: days add up to the month, and the month to the bill.

pub mod request;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::AddAssign;

use uuid::Uuid;

use crate::Timestamp;
use crate::gateway::Nano;
use crate::ids::ProjectId;
use crate::words::words;

/// Microseconds in an hour.
const HOUR: i128 = 3600 * Timestamp::SECOND as i128;
/// Microseconds in a day.
const DAY: i64 = 86_400 * Timestamp::SECOND;
/// Bytes in a GiB, as a power of two.
const GIB: u32 = 30;
/// Bytes in a MiB, as a power of two.
const MIB: u32 = 20;
/// Most money of a part of a line: 92 of them fit into an `i64`.
const MOST_COST: i128 = 100_000_000_000_000_000;

words! {
    /// What is counted, under the name of its path.
    Kind {
        /// A VM, while it holds the host's memory and processors.
        Vm = "vm",
        /// A root disk volume, while it is there.
        RootDisk = "root_disk",
        /// A data disk, while it is there.
        Disk = "disk",
        /// A snapshot of a disk, while it is there.
        DiskSnapshot = "disk_snapshot",
        /// A backup of a disk, while it is there.
        Backup = "backup",
        /// An image that a project made, while it is there.
        Image = "image",
        /// A sandbox, while it is `Ready`.
        Sandbox = "sandbox",
        /// A sandbox's snapshot, while it is there.
        Snapshot = "snapshot",
    }
}

words! {
    /// What a quantity is counted in.
    Unit {
        /// Seconds.
        Seconds = "seconds",
        /// GiB, times the hours they were held.
        GibHours = "gib_hours",
    }
}

impl Kind {
    /// What it is counted in.
    pub const fn unit(self) -> Unit {
        match self {
            Self::Vm | Self::Sandbox => Unit::Seconds,
            Self::RootDisk | Self::Disk | Self::DiskSnapshot | Self::Backup | Self::Image | Self::Snapshot => {
                Unit::GibHours
            }
        }
    }
}

/// How much of everything something has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measure {
    /// Virtual CPUs.
    pub vcpu: i64,
    /// Memory, in MiB.
    pub memory_mb: i64,
    /// GPUs.
    pub gpus: i64,
    /// What it keeps on disk, in bytes.
    pub bytes: i64,
}

/// What an hour costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Price {
    /// Of a virtual CPU.
    pub vcpu: Nano,
    /// Of a GiB of memory.
    pub memory_gb: Nano,
    /// Of a GPU.
    pub gpu: Nano,
    /// Of a GiB on disk.
    pub disk_gb: Nano,
}

impl Price {
    /// What an hour of so much costs, rounded to the nearest billionth.
    pub fn of(self, measure: Measure) -> Nano {
        let product = |amount: i64, price: Nano| i128::from(amount.max(0)) * i128::from(price.0);
        let whole = product(measure.vcpu, self.vcpu) + product(measure.gpus, self.gpu);
        let parts =
            (whole << GIB) + (product(measure.memory_mb, self.memory_gb) << MIB) + product(measure.bytes, self.disk_gb);
        Nano(i64::try_from((parts + (1 << (GIB - 1))) >> GIB).unwrap_or(i64::MAX))
    }
}

/// From one time to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its first moment.
    pub begin: Timestamp,
    /// The first moment after it.
    pub end: Timestamp,
}

impl Span {
    /// Its days in UTC, the first and the last cut where it begins and ends.
    pub fn days(self) -> impl Iterator<Item = Self> {
        let mut begin = self.begin;
        std::iter::from_fn(move || {
            (begin < self.end).then(|| {
                let midnight = Timestamp(day_of(begin).0.saturating_add(DAY));
                let day = Self { begin, end: midnight.min(self.end) };
                begin = day.end;
                day
            })
        })
    }
}

/// The beginning of the day in UTC.
const fn day_of(at: Timestamp) -> Timestamp {
    Timestamp(at.0.div_euclid(DAY) * DAY)
}

/// For how long something had one size, at one price.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// Since when.
    pub since: Timestamp,
    /// Until when; `None` while it goes on.
    pub until: Option<Timestamp>,
    /// What an hour costs.
    pub rate: Nano,
    /// What it keeps on disk, in bytes.
    pub bytes: i64,
}

impl Interval {
    /// What of a span it fills; its end is not after its beginning where that is nothing. One that goes on lasts to the
    /// span's end.
    fn within(&self, span: Span) -> Span {
        let end = self.until.map_or(span.end, |until| until.min(span.end));
        Span { begin: self.since.max(span.begin), end }
    }

    /// What of it falls into a span.
    pub fn part(&self, span: Span) -> Amount {
        let Span { begin, end } = self.within(span);
        if begin >= end {
            return Amount::default();
        }
        let micros = i128::from(end.0) - i128::from(begin.0);
        let cost = (self.cost_at(end) - self.cost_at(begin)).clamp(0, MOST_COST);
        let cost = Nano(i64::try_from(cost).unwrap_or(i64::MAX));
        Amount { micros, byte_micros: micros * i128::from(self.bytes.max(0)), cost }
    }

    /// What it costs from its beginning to a time, in billionths, rounded down.
    fn cost_at(&self, at: Timestamp) -> i128 {
        let micros = i128::from(at.0) - i128::from(self.since.0);
        i128::from(self.rate.0).saturating_mul(micros) / HOUR
    }
}

/// How much was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Microseconds.
    pub micros: i128,
    /// Bytes times microseconds.
    pub byte_micros: i128,
    /// What it costs.
    pub cost: Nano,
}

impl AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        self.micros += other.micros;
        self.byte_micros += other.byte_micros;
        self.cost += other.cost;
    }
}

impl Amount {
    /// In a unit, to the millionth.
    pub fn quantity(&self, unit: Unit) -> f64 {
        const MILLION: i128 = 1_000_000;
        let millionths = match unit {
            Unit::Seconds => self.micros * MILLION / i128::from(Timestamp::SECOND),
            Unit::GibHours => self.byte_micros.saturating_mul(MILLION) / (HOUR << GIB),
        };
        #[expect(clippy::cast_precision_loss, reason = "what is shown may be rounded")]
        let quantity = millionths as f64 / MILLION as f64;
        quantity
    }
}

/// A line of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The project.
    pub project: ProjectId,
    /// What it is.
    pub kind: Kind,
    /// The resource.
    pub resource: Uuid,
    /// Its name then.
    pub name: String,
    /// A machine's size then.
    pub size: Option<String>,
    /// When, and at what price.
    pub interval: Interval,
}

/// What usage is told apart by, besides what it is and which size it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct By {
    /// The day in UTC.
    pub day: bool,
    /// The project.
    pub project: bool,
    /// The resource.
    pub resource: bool,
}

impl By {
    /// Parses words with commas between them, of those that are allowed.
    pub fn parse(text: &str, allowed: &[&str]) -> Result<Self, String> {
        let mut by = Self::default();
        for word in text.split(',') {
            let slot = match word {
                "day" => &mut by.day,
                "project" => &mut by.project,
                "resource" => &mut by.resource,
                _ => return Err(one_or_more(allowed)),
            };
            if !allowed.contains(&word) || std::mem::replace(slot, true) {
                return Err(one_or_more(allowed));
            }
        }
        Ok(by)
    }
}

fn one_or_more(allowed: &[&str]) -> String {
    format!("must be one or more of: {}, each once, with commas between them", allowed.join(" "))
}

/// What tells sums apart, in their order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The beginning of the day.
    pub day: Option<Timestamp>,
    /// The project.
    pub project: Option<ProjectId>,
    /// What it is.
    pub kind: Kind,
    /// The resource.
    pub resource: Option<Uuid>,
    /// A machine's size.
    pub size: Option<String>,
}

/// A sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum {
    /// The latest name of the resource, where one is told apart.
    pub name: Option<String>,
    /// How much it is.
    pub amount: Amount,
    latest: Timestamp,
}

/// Sums over the lines of a span.
#[derive(Clone, Debug)]
pub struct Totals {
    span: Span,
    by: By,
    sums: BTreeMap<Key, Sum>,
}

impl Totals {
    /// Nothing yet. The span ends at the present at the latest: what goes on lasts to its end.
    pub const fn new(span: Span, by: By) -> Self {
        Self { span, by, sums: BTreeMap::new() }
    }

    /// Adds what of a line falls into the span.
    pub fn add(&mut self, line: &Line) {
        let part = line.interval.within(self.span);
        if self.by.day {
            for day in part.days() {
                self.add_part(line, day, Some(day_of(day.begin)));
            }
        } else if part.begin < part.end {
            self.add_part(line, part, None);
        }
    }

    fn add_part(&mut self, line: &Line, part: Span, day: Option<Timestamp>) {
        let key = Key {
            day,
            project: self.by.project.then_some(line.project),
            kind: line.kind,
            resource: self.by.resource.then_some(line.resource),
            size: line.size.clone(),
        };
        let amount = line.interval.part(part);
        let since = line.interval.since;
        let name = || self.by.resource.then(|| line.name.clone());
        match self.sums.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(Sum { name: name(), amount, latest: since });
            }
            Entry::Occupied(mut entry) => {
                let sum = entry.get_mut();
                sum.amount += amount;
                if since > sum.latest {
                    (sum.name, sum.latest) = (name(), since);
                }
            }
        }
    }

    /// How many sums there are.
    pub fn len(&self) -> usize {
        self.sums.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }

    /// What everything costs.
    pub fn cost(&self) -> Nano {
        self.sums.values().map(|sum| sum.amount.cost).sum()
    }

    /// The sums, in order.
    pub fn into_sums(self) -> impl Iterator<Item = (Key, Sum)> {
        self.sums.into_iter()
    }
}

#[cfg(test)]
#[path = "resource_usage_tests.rs"]
mod tests;
