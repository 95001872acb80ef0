//! `berth usage`: what the project's requests to models took, and its machines.

use std::collections::HashMap;

use anyhow::Result;
use berth_client::{Page, ProjectClient, UsageRow};
use clap::Args;

use super::resource_usage::{self, Asked};
use super::usage_group::Group;
use crate::context::{Context, api_key};
use crate::failure::Failure;
use crate::output::{self, Table};
use crate::typed::{Words, retold};

/// For models: the option for each field.
const WORDS: Words = &[("window", "--window"), ("resolution", "--resolution"), ("group_by", "--by")];

#[derive(Args)]
pub struct UsageArgs {
    /// Machines, disks and snapshots instead of models: this month, by resource
    #[arg(long)]
    machines: bool,
    /// Of models: how far back, as 1h, 24h or 30d [default: 24h]
    #[arg(long, value_name = "SPAN")]
    window: Option<String>,
    /// Of models: length of a step, as 5m, 1h or 1d [default: 1h]
    #[arg(long, value_name = "SPAN")]
    resolution: Option<String>,
    /// Of machines: from when on, as 7d or 2030-01-31T00:00:00Z [default: the beginning of the month]
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Of machines: until when, as 1d or 2030-01-31T00:00:00Z [default: now]
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// Group by model or key; for machines by day, resource or project (of the organization), several of them with
    /// commas between
    #[arg(long, value_enum, value_delimiter = ',')]
    by: Vec<Group>,
}

/// Runs the typed command.
pub async fn run(context: &Context, args: UsageArgs) -> Result<()> {
    if of_machines(&args)? {
        let asked = Asked { from: args.from.as_deref(), to: args.to.as_deref(), by: &args.by };
        return resource_usage::run(context, asked).await;
    }
    let (window, resolution) = (args.window.as_deref().unwrap_or("24h"), args.resolution.as_deref().unwrap_or("1h"));
    of_models(context, window, resolution, args.by.first().copied()).await
}

/// Whether machines are meant: by their option, or by a grouping that only they have.
fn of_machines(args: &UsageArgs) -> Result<bool> {
    let machines = args.by.iter().filter(|by| by.is_of_machines()).count();
    let named = args.machines || args.from.is_some() || args.to.is_some();
    if (named || machines > 0) && (args.window.is_some() || args.resolution.is_some()) {
        return Err(Failure::usage("--window and --resolution are of models; of machines say --from and --to"));
    }
    match (machines, args.by.len() - machines) {
        (0, 0) => Ok(named),
        (_, 0) => Ok(true),
        (0, 1) if !named => Ok(false),
        _ => Err(Failure::usage(
            "Usage of models is told apart by model or by key, that of machines by day, resource and project: ask for \
             one after the other",
        )),
    }
}

async fn of_models(context: &Context, window: &str, resolution: &str, by: Option<Group>) -> Result<()> {
    let project = context.project()?;
    let usage = project.usage(window, resolution, by.map(Group::as_str)).await.map_err(|error| retold(error, WORDS))?;
    if context.look.is_json() {
        return output::json(&usage);
    }
    let names = if by == Some(Group::Key) { names(&project).await } else { HashMap::new() };
    let group = by.map_or("OF", |by| if by == Group::Model { "MODEL" } else { "KEY" });
    // The columns PROMPT and ANSWER count tokens.
    let header = ["TIME", "REQUESTS", "PROMPT", "ANSWER", "COST", "ESTIMATED", group];
    let empty =
        format!("No requests to models in the last {}. Machines and disks: berth usage --machines", usage.window);
    let rows = rows(&usage.data, &names, context.look.is_for_people());
    Table::new(header, rows, empty).cut().print(context.look);
    Ok(())
}

/// Names of the project's keys, by id, if the caller may see them.
async fn names(project: &ProjectClient) -> HashMap<String, String> {
    if api_key().is_some() {
        return HashMap::new();
    }
    let keys = Page::all(async |page| project.api_keys(page).await).await.unwrap_or_default();
    keys.into_iter().map(|key| (key.id, key.name)).collect()
}

/// A row for each step and group with requests, and for people a sum if there are several.
fn rows(data: &[UsageRow], names: &HashMap<String, String>, is_for_people: bool) -> Vec<[String; 7]> {
    let busy: Vec<_> = data.iter().filter(|row| row.requests > 0).collect();
    let group = |row: &UsageRow| match &row.group {
        Some(group) => names.get(group).unwrap_or(group).clone(),
        None => "-".to_owned(),
    };
    let shown = |time: &str, group: String, row: &UsageRow, estimated: String| {
        [
            output::time(time),
            row.requests.to_string(),
            row.prompt_tokens.to_string(),
            row.completion_tokens.to_string(),
            output::money(row.cost),
            estimated,
            group,
        ]
    };
    let mut rows: Vec<_> = busy.iter().map(|row| shown(&row.time, group(row), row, yes(row.estimated))).collect();
    if is_for_people && busy.len() > 1 {
        let sum = UsageRow {
            time: String::new(),
            group: None,
            requests: busy.iter().map(|row| row.requests).sum(),
            prompt_tokens: busy.iter().map(|row| row.prompt_tokens).sum(),
            completion_tokens: busy.iter().map(|row| row.completion_tokens).sum(),
            cost: busy.iter().map(|row| row.cost).sum(),
            estimated: busy.iter().any(|row| row.estimated),
        };
        rows.push(shown("total", String::new(), &sum, yes(sum.estimated)));
    }
    rows
}

fn yes(estimated: bool) -> String {
    let word = if estimated { "yes" } else { "-" };
    word.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(group: &str, requests: i64, estimated: bool) -> UsageRow {
        serde_json::from_value(json!({
            "time": "2030-01-31T12:00:00Z", "group": group, "requests": requests, "prompt_tokens": 10,
            "completion_tokens": 5, "cost": 0.25, "estimated": estimated,
        }))
        .unwrap()
    }

    #[test]
    fn rows_have_names_and_a_sum() {
        let names = HashMap::from([("7".to_owned(), "ci".to_owned())]);
        let data = [row("7", 2, true), row("8", 0, false), row("9", 3, false)];
        let shown = rows(&data, &names, true);
        let column = |index: usize| shown.iter().map(|row| row[index].as_str()).collect::<Vec<_>>();
        assert_eq!(column(1), ["2", "3", "5"]);
        assert_eq!(column(4), ["0.25", "0.25", "0.5"]);
        assert_eq!(column(5), ["yes", "-", "yes"]);
        assert_eq!(column(6), ["ci", "9", ""]);
        assert_eq!(rows(&data[..1], &names, true).len(), 1);
        assert_eq!(rows(&data, &names, false).len() + 1, shown.len(), "a shell gets no sum");
        assert!(rows(&data[1..2], &names, true).is_empty());
    }

    #[test]
    fn machines_are_meant_by_name_or_by_what_only_they_have() {
        use Group::{Day, Key, Model, Project, Resource};
        let args = |machines: bool, by: &[Group]| UsageArgs {
            machines,
            window: None,
            resolution: None,
            from: None,
            to: None,
            by: by.to_vec(),
        };
        for (machines, by, meant) in [
            (false, &[][..], false),
            (false, &[Model][..], false),
            (false, &[Key][..], false),
            (true, &[][..], true),
            (false, &[Day, Resource][..], true),
            (true, &[Project][..], true),
        ] {
            assert_eq!(of_machines(&args(machines, by)).unwrap(), meant, "{by:?}");
        }
        assert!(of_machines(&UsageArgs { from: Some("7d".into()), ..args(false, &[]) }).unwrap());
        for (machines, by) in [(true, &[Model][..]), (false, &[Model, Day][..]), (false, &[Model, Key][..])] {
            assert!(of_machines(&args(machines, by)).is_err(), "{by:?}");
        }
        let back = |args| UsageArgs { window: Some("7d".into()), ..args };
        assert!(!of_machines(&back(args(false, &[Model]))).unwrap());
        for args in [back(args(true, &[])), back(args(false, &[Day]))] {
            assert!(of_machines(&args).is_err_and(|error| error.to_string().contains("--from and --to")));
        }
    }
}
