//! Prints results: tables for people, names and ids for shells, JSON for programs.
//!
//! A table fits a window of 80 columns. It shows the end of an id: ids are UUIDs of version 7, so ids made at the same
//! time begin alike, while their last twelve digits are random. Every argument that takes an id takes its end, too
//! (`pick`). `-o wide` shows whole ids and the columns for which there is no room otherwise.

use anyhow::Result;
use berth_client::List;
use clap::ValueEnum;
use comfy_table::{ContentArrangement, presets};
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::id::short;
use crate::keyboard;

/// How to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    #[default]
    Table,
    Wide,
    Json,
    Name,
    Id,
}

/// How to print, and whether a table has a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The format.
    pub format: Format,
    /// Whether a table begins with the names of its columns.
    pub headers: bool,
}

impl Look {
    /// Whether a person reads the output, who may get hints on what to type next.
    pub const fn is_for_people(self) -> bool {
        matches!(self.format, Format::Table | Format::Wide)
    }

    /// Whether a program reads the API's answer.
    pub const fn is_json(self) -> bool {
        matches!(self.format, Format::Json)
    }
}

/// Prints a value as JSON.
pub fn json(value: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Prints one thing as JSON, by its name or its id, or as `people` prints it.
pub fn print<T: Serialize>(look: Look, value: &T, name: &str, id: &str, people: impl FnOnce(&T)) -> Result<()> {
    match look.format {
        Format::Json => return json(value),
        Format::Name => println!("{name}"),
        Format::Id => println!("{id}"),
        Format::Table | Format::Wide => people(value),
    }
    Ok(())
}

/// Reports what was done to a thing that has nothing else to show; a shell gets only its name or its id.
pub fn done(look: Look, name: &str, id: &str, sentence: &str) {
    match look.format {
        Format::Json => {}
        Format::Name => println!("{name}"),
        Format::Id => println!("{id}"),
        Format::Table | Format::Wide => println!("{sentence}"),
    }
}

/// Prints a sentence for people, and nothing for shells and programs.
pub fn say(look: Look, sentence: &str) {
    if look.is_for_people() {
        println!("{sentence}");
    }
}

/// Prints a page of a list, and says whether there are more.
pub fn list<T: Serialize>(look: Look, list: &List<T>, table: impl FnOnce(&[T]) -> Table) -> Result<()> {
    if look.is_json() {
        return json(list);
    }
    table(&list.data).print(look);
    let page = &list.pagination;
    if page.current_page < page.total_pages {
        eprintln!("Page {} of {}. More: --page {}", page.current_page, page.total_pages, page.current_page + 1);
    }
    Ok(())
}

/// Prints a value as a table: one row of a list, or all of them.
pub fn rows<T: Serialize>(look: Look, value: &T, table: impl FnOnce(&T) -> Table) -> Result<()> {
    if look.is_json() {
        return json(value);
    }
    table(value).print(look);
    Ok(())
}

/// Prints one thing as names and values. One of them is its `id`, and its `name` if it has one.
pub fn record<T: Serialize>(
    look: Look,
    value: &T,
    pairs: impl FnOnce(&T) -> Vec<(&'static str, String)>,
) -> Result<()> {
    if look.is_json() {
        return json(value);
    }
    let pairs = pairs(value);
    let of = |wanted: &str| pairs.iter().find(|(name, value)| *name == wanted && !value.is_empty());
    let chosen = match look.format {
        Format::Id => of("id"),
        Format::Name => of("name").or_else(|| of("id")),
        _ => None,
    };
    match chosen {
        Some((_, value)) => println!("{value}"),
        None => fields(&pairs),
    }
    Ok(())
}

/// Rows below a header.
///
/// A column whose name begins with `+` is shown only in the wide form. Other forms show only the end of an id. The
/// first column is the thing's name, and the column `ID` or `+ID` its id.
pub struct Table {
    columns: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    empty: String,
    cut: bool,
}

impl Table {
    /// Rows below a header; `empty` says what to type if there are none.
    pub fn new<const N: usize>(
        columns: [&'static str; N],
        rows: impl IntoIterator<Item = [String; N]>,
        empty: impl Into<String>,
    ) -> Self {
        let rows = rows.into_iter().map(Vec::from).collect();
        Self { columns: columns.into(), rows, empty: empty.into(), cut: false }
    }

    /// Cuts the last column, a text of any length, to the window's width.
    pub fn cut(self) -> Self {
        Self { cut: true, ..self }
    }

    /// Prints it.
    pub fn print(&self, look: Look) {
        let window = keyboard::columns().filter(|_| self.cut && look.format == Format::Table);
        let lines = self.lines(look);
        if lines.is_empty() && look.is_for_people() {
            eprintln!("{}", self.empty);
        }
        for line in lines {
            println!("{}", window.map_or_else(|| line.clone(), |window| fitted(&line, window)));
        }
    }

    fn lines(&self, look: Look) -> Vec<String> {
        match look.format {
            Format::Id => self.rows.iter().map(|row| self.id(row)).collect(),
            Format::Name => self.rows.iter().map(|row| self.name(row)).collect(),
            _ if self.rows.is_empty() => Vec::new(),
            Format::Table | Format::Json => self.drawn(look.headers, false),
            Format::Wide => self.drawn(look.headers, true),
        }
    }

    fn id(&self, row: &[String]) -> String {
        let at = self.columns.iter().position(|column| column.trim_start_matches('+') == "ID").unwrap_or_default();
        row.get(at).cloned().unwrap_or_default()
    }

    fn name(&self, row: &[String]) -> String {
        row.first().filter(|name| *name != "-").cloned().unwrap_or_else(|| self.id(row))
    }

    fn drawn(&self, headers: bool, wide: bool) -> Vec<String> {
        let shown = |index: &usize| wide || !self.columns[*index].starts_with('+');
        let indices: Vec<_> = (0..self.columns.len()).filter(shown).collect();
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        if headers {
            table.set_header(indices.iter().map(|index| self.columns[*index].trim_start_matches('+')));
        }
        for row in &self.rows {
            table.add_row(indices.iter().map(|index| if wide { &row[*index] } else { short(&row[*index]) }));
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        table.lines().map(|line| line.trim_end().to_owned()).collect()
    }
}

/// A line cut to a width.
fn fitted(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_owned();
    }
    line.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Prints names and values, one on each line; empty values are left out.
pub fn fields(pairs: &[(&str, String)]) {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    for (name, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
        println!("{name:width$}  {value}");
    }
}

/// An amount of money, with as many digits as matter.
pub fn money(amount: f64) -> String {
    let text = format!("{amount:.9}");
    let text = text.trim_end_matches('0');
    text.strip_suffix('.').unwrap_or(text).to_owned()
}

/// The time since a moment, as `5m`.
pub fn age(at: &str) -> String {
    let Ok(at) = OffsetDateTime::parse(at, &Rfc3339) else { return at.to_owned() };
    short_span((OffsetDateTime::now_utc() - at).whole_seconds())
}

/// The time until a moment, as `5m`.
pub fn left(at: &str) -> String {
    let Ok(at) = OffsetDateTime::parse(at, &Rfc3339) else { return at.to_owned() };
    short_span((at - OffsetDateTime::now_utc()).whole_seconds())
}

fn short_span(seconds: i64) -> String {
    match seconds.max(0) {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3600 => format!("{}m", seconds / 60),
        seconds @ 3600..86_400 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// A time to the second: `2026-01-31T12:00:00Z`.
pub fn time(at: &str) -> String {
    let whole = |at: OffsetDateTime| at.replace_nanosecond(0).ok()?.format(&Rfc3339).ok();
    OffsetDateTime::parse(at, &Rfc3339).ok().and_then(whole).unwrap_or_else(|| at.to_owned())
}

/// A text, or a dash.
pub fn or_dash(text: Option<&str>) -> String {
    text.filter(|t| !t.is_empty()).unwrap_or("-").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "01939f2e-7c00-7abc-8def-0123456789ab";

    fn table() -> Table {
        let row = |name: &str, id: &str| [name.to_owned(), "micro".to_owned(), id.to_owned()];
        let other = ID.replace("01939", "01940");
        Table::new(["NAME", "+IMAGE", "ID"], [row("web", ID), row("-", &other)], "None.")
    }

    fn lines(format: Format, headers: bool) -> Vec<String> {
        table().lines(Look { format, headers })
    }

    #[test]
    fn a_table_shows_the_end_of_ids_and_a_wide_one_everything() {
        assert_eq!(lines(Format::Table, true), ["NAME  ID", "web   0123456789ab", "-     0123456789ab"]);
        assert_eq!(lines(Format::Table, false).len(), 2);
        let wide = lines(Format::Wide, true);
        assert!(wide[0].contains("IMAGE") && wide[1].contains("micro") && wide[1].ends_with(ID), "{wide:?}");
    }

    #[test]
    fn shells_get_ids_in_full_and_names_that_are_taken() {
        let other = ID.replace("01939", "01940");
        assert_eq!(lines(Format::Id, true), [ID, &other]);
        assert_eq!(lines(Format::Name, true), ["web", &other]);
        let none = Table::new(["NAME"], [], "None.");
        assert!(none.lines(Look { format: Format::Table, headers: true }).is_empty());
    }

    #[test]
    fn an_id_that_only_the_wide_form_shows_is_one() {
        let table = Table::new(["TIME", "+ID"], [["today".to_owned(), ID.to_owned()]], "None.");
        let lines = |format| table.lines(Look { format, headers: false });
        assert_eq!((lines(Format::Id), lines(Format::Table)), (vec![ID.to_owned()], vec!["today".to_owned()]));
    }

    #[test]
    fn a_window_gets_what_it_has_room_for() {
        assert_eq!((fitted("äbc", 3), fitted("äbcd", 3)), ("äbc".into(), "äb…".into()));
    }

    #[test]
    fn times_have_no_fractions() {
        assert_eq!(time("2026-11-22T20:06:36.123456Z"), "2026-11-22T20:06:36Z");
        assert_eq!(time("soon"), "soon");
    }
    #[test]
    fn money_has_the_digits_that_matter() {
        for (amount, text) in [(0.0, "0"), (1.0, "1"), (0.5, "0.5"), (0.000_15, "0.00015"), (120.0, "120")] {
            assert_eq!(money(amount), text);
        }
    }
}
