//! Tables for people, JSON for programs.

use anyhow::Result;
use berth_client::List;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Prints a value as JSON.
pub fn json(value: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Prints a value as JSON, or as `people` shows it.
pub fn print<T: Serialize>(as_json: bool, value: &T, people: impl FnOnce(&T)) -> Result<()> {
    if as_json {
        return json(value);
    }
    people(value);
    Ok(())
}

/// Prints a page of a list, and says if there are more.
pub fn list<T: Serialize>(as_json: bool, list: &List<T>, people: impl FnOnce(&[T])) -> Result<()> {
    if as_json {
        return json(list);
    }
    people(&list.data);
    let page = &list.pagination;
    if page.current_page < page.total_pages {
        eprintln!("Page {} of {}. More: --page {}", page.current_page, page.total_pages, page.current_page + 1);
    }
    Ok(())
}

/// Prints rows below a header; or, where there are none, what to type.
pub fn table<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>, empty: &str) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    table.add_rows(rows);
    if table.is_empty() {
        eprintln!("{empty}");
        return;
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    for line in table.lines() {
        println!("{}", line.trim_end());
    }
}

/// Prints names and values, one on each line; empty values are left out.
pub fn fields(pairs: &[(&str, String)]) {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    for (name, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
        println!("{name:width$}  {value}");
    }
}

/// How long ago a time was, as `5m`.
pub fn age(at: &str) -> String {
    let Ok(at) = OffsetDateTime::parse(at, &Rfc3339) else { return at.to_owned() };
    let seconds = (OffsetDateTime::now_utc() - at).whole_seconds().max(0);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A text, or a dash.
pub fn or_dash(text: Option<&str>) -> String {
    text.filter(|t| !t.is_empty()).unwrap_or("-").to_owned()
}
