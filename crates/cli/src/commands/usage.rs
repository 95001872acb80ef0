//! `berth usage`: what the project's requests to models took.

use std::collections::HashMap;

use anyhow::Result;
use berth_client::{Page, ProjectClient, UsageRow};
use clap::{Args, ValueEnum};

use crate::context::{Context, api_key};
use crate::output;

#[derive(Args)]
pub struct UsageArgs {
    /// How far back, as 1h, 24h or 30d
    #[arg(long, default_value = "24h", value_name = "SPAN")]
    window: String,
    /// Length of a step, as 5m, 1h or 1d
    #[arg(long, default_value = "1h", value_name = "SPAN")]
    resolution: String,
    /// One line for each of these
    #[arg(long, value_enum)]
    by: Option<Group>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Group {
    /// Model
    Model,
    /// API key
    Key,
}

impl Group {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Key => "key",
        }
    }
}

/// Does what was typed.
pub async fn run(context: &Context, args: UsageArgs) -> Result<()> {
    let project = context.project()?;
    let usage = project.usage(&args.window, &args.resolution, args.by.map(Group::as_str)).await?;
    if context.json {
        return output::json(&usage);
    }
    let names = if args.by == Some(Group::Key) { names(&project).await } else { HashMap::new() };
    let group = args.by.map_or("OF", |by| if by == Group::Model { "MODEL" } else { "KEY" });
    let header = ["TIME", group, "REQUESTS", "PROMPT TOKENS", "ANSWER TOKENS", "COST", "ESTIMATED"];
    let rows = rows(&usage.data, &names);
    output::table(header, rows, &format!("No requests to models in the last {}.", usage.window));
    Ok(())
}

/// Names of the project's keys, by id, for those who see them.
async fn names(project: &ProjectClient) -> HashMap<String, String> {
    if api_key().is_some() {
        return HashMap::new();
    }
    let keys = Page::all(async |page| project.api_keys(page).await).await.unwrap_or_default();
    keys.into_iter().map(|key| (key.id, key.name)).collect()
}

/// A row for each step and group with requests, and their sum where there are several.
fn rows(data: &[UsageRow], names: &HashMap<String, String>) -> Vec<[String; 7]> {
    let busy: Vec<_> = data.iter().filter(|row| row.requests > 0).collect();
    let group = |row: &UsageRow| match &row.group {
        Some(group) => names.get(group).unwrap_or(group).clone(),
        None => "-".to_owned(),
    };
    let shown = |time: &str, group: String, row: &UsageRow, estimated: String| {
        [
            time.to_owned(),
            group,
            row.requests.to_string(),
            row.prompt_tokens.to_string(),
            row.completion_tokens.to_string(),
            money(row.cost),
            estimated,
        ]
    };
    let mut rows: Vec<_> = busy.iter().map(|row| shown(&row.time, group(row), row, yes(row.estimated))).collect();
    if busy.len() > 1 {
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

/// An amount of money: as many digits as matter.
fn money(amount: f64) -> String {
    let text = format!("{amount:.9}");
    let text = text.trim_end_matches('0');
    text.strip_suffix('.').unwrap_or(text).to_owned()
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
        let shown = rows(&data, &names);
        let column = |index: usize| shown.iter().map(|row| row[index].as_str()).collect::<Vec<_>>();
        assert_eq!(column(1), ["ci", "9", ""]);
        assert_eq!(column(2), ["2", "3", "5"]);
        assert_eq!(column(5), ["0.25", "0.25", "0.5"]);
        assert_eq!(column(6), ["yes", "-", "yes"]);
        assert_eq!(rows(&data[..1], &names).len(), 1);
        assert!(rows(&data[1..2], &names).is_empty());
    }

    #[test]
    fn money_has_the_digits_that_matter() {
        for (amount, text) in [(0.0, "0"), (1.0, "1"), (0.5, "0.5"), (0.000_15, "0.00015"), (120.0, "120")] {
            assert_eq!(money(amount), text);
        }
    }
}
