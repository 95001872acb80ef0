//! `berth usage --machines`: what machines, disks and snapshots took and cost.

use std::collections::HashMap;

use anyhow::Result;
use berth_client::{Page, ResourceUsageFilter, ResourceUsageRow};

use super::usage_group::Group;
use crate::context::Context;
use crate::output::{self, Table, money};
use crate::span;
use crate::typed::{Words, retold};

/// The option for each field.
const WORDS: Words = &[("from", "--from"), ("to", "--to"), ("by", "--by")];
/// Seconds in an hour.
const HOUR: f64 = 3600.0;

/// The typed options.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// A time, or how long ago.
    pub from: Option<&'a str>,
    /// The same.
    pub to: Option<&'a str>,
    /// How to group the rows.
    pub by: &'a [Group],
}

/// Shows it for the project or, by project, for the organization.
pub async fn run(context: &Context, asked: Asked<'_>) -> Result<()> {
    let words: Vec<_> = asked.by.iter().map(|by| by.as_str()).collect();
    let filter = ResourceUsageFilter {
        from: asked.from.map(span::ago).transpose()?,
        to: asked.to.map(span::ago).transpose()?,
        by: (!words.is_empty()).then(|| words.join(",")),
    };
    let of_org = asked.by.contains(&Group::Project);
    let usage = if of_org {
        context.client.org_resource_usage(context.org()?, &filter).await
    } else {
        context.project()?.resource_usage(&filter).await
    };
    let usage = usage.map_err(|error| retold(error, WORDS))?;
    if context.look.is_json() {
        return output::json(&usage);
    }
    let slugs = if of_org { slugs(context).await? } else { HashMap::new() };
    let (from, to) = (output::time(&usage.from), output::time(&usage.to));
    let empty = format!("There was no machine, disk or snapshot from {from} to {to}.");
    let told_apart = told_apart(asked.by);
    // Output for a shell has no line with the sum.
    let sum = context.look.is_for_people().then_some(usage.cost);
    let rows = rows(&usage.data, &slugs, sum, told_apart);
    if told_apart {
        Table::new(["OF", "TYPE", "NAME", "SIZE", "USED", "COST"], rows, empty).print(context.look);
    } else {
        let rows = rows.into_iter().map(|[_, kind, name, size, used, cost]| [kind, name, size, used, cost]);
        Table::new(["TYPE", "NAME", "SIZE", "USED", "COST"], rows, empty).print(context.look);
    }
    Ok(())
}

/// Slugs of the organization's projects, by id.
async fn slugs(context: &Context) -> Result<HashMap<String, String>> {
    let org = context.org()?;
    let projects = Page::all(async |page| context.client.projects(org, page).await).await?;
    Ok(projects.into_iter().map(|project| (project.id, project.slug)).collect())
}

/// Whether the first column is needed: it shows the day and the project of a row.
fn told_apart(by: &[Group]) -> bool {
    by.contains(&Group::Day) || by.contains(&Group::Project)
}

/// A line for each row, and a sum of their cost if there are several.
fn rows(
    data: &[ResourceUsageRow],
    slugs: &HashMap<String, String>,
    cost: Option<f64>,
    told_apart: bool,
) -> Vec<[String; 6]> {
    let or_dash = |text: Option<&String>| text.cloned().unwrap_or_else(|| "-".to_owned());
    let line = |row: &ResourceUsageRow| {
        let project = row.project_id.as_ref().map(|id| slugs.get(id).unwrap_or(id).as_str());
        let of: Vec<_> = row.day.as_deref().into_iter().chain(project).collect();
        [
            of.join(" "),
            row.resource_type.replace('_', " "),
            or_dash(row.name.as_ref().or(row.resource_id.as_ref())),
            or_dash(row.size.as_ref()),
            quantity(row),
            money(row.cost),
        ]
    };
    let mut rows: Vec<_> = data.iter().map(line).collect();
    if let Some(cost) = cost.filter(|_| rows.len() > 1) {
        let mut sum = [const { String::new() }; 6];
        sum[usize::from(!told_apart)] = "total".into();
        sum[5] = money(cost);
        rows.push(sum);
    }
    rows
}

/// The quantity, in hours.
fn quantity(row: &ResourceUsageRow) -> String {
    match row.unit.as_str() {
        "seconds" => format!("{:.2} h", row.quantity / HOUR),
        "gib_hours" => format!("{:.2} GiB h", row.quantity),
        unit => format!("{} {unit}", row.quantity),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(change: &serde_json::Value) -> ResourceUsageRow {
        let mut row = json!({
            "resource_type": "root_disk", "resource_id": "7", "name": "root", "size": null, "unit": "gib_hours",
            "quantity": 30.0, "cost": 0.25,
        });
        let whole = row.as_object_mut().unwrap();
        whole.extend(change.as_object().unwrap().clone());
        serde_json::from_value(row).unwrap()
    }

    #[test]
    fn rows_tell_hours_and_their_sum() {
        let vm = row(&json!({"resource_type": "vm", "size": "tiny", "unit": "seconds", "quantity": 5400.0}));
        let shown = rows(&[vm.clone(), row(&json!({}))], &HashMap::new(), Some(0.5), false);
        assert_eq!(shown[0], ["", "vm", "root", "tiny", "1.50 h", "0.25"]);
        assert_eq!(shown[1], ["", "root disk", "root", "-", "30.00 GiB h", "0.25"]);
        assert_eq!((shown[2][1].as_str(), shown[2][5].as_str()), ("total", "0.5"));
        assert_eq!(rows(&[vm], &HashMap::new(), Some(0.25), false).len(), 1);
        assert!(rows(&[], &HashMap::new(), Some(0.0), false).is_empty());
    }

    #[test]
    fn days_and_projects_stand_first() {
        let slugs = HashMap::from([("9".to_owned(), "web".to_owned())]);
        let days = row(&json!({"day": "2030-01-31", "project_id": "9", "resource_id": null, "name": null}));
        let unknown = row(&json!({"project_id": "8", "name": null}));
        let shown = rows(&[days, unknown], &slugs, Some(1.0), true);
        assert_eq!((shown[0][0].as_str(), shown[0][2].as_str()), ("2030-01-31 web", "-"));
        assert_eq!((shown[1][0].as_str(), shown[1][2].as_str()), ("8", "7"));
        assert_eq!((shown[2][0].as_str(), shown[2][1].as_str()), ("total", ""));
    }
}
