//! Rows written whole: the columns stand once, for the insertion and for every change.

use super::query::{Query, Value, sql};

/// The columns of a row with their values; the first is its id.
pub type Columns = Vec<(&'static str, Value)>;

/// Writes a new row.
pub fn insert(table: &str, columns: Columns) -> Query {
    let names: Vec<_> = columns.iter().map(|(name, _)| *name).collect();
    let marks: Vec<_> = (1..=columns.len()).map(|n| format!("${n}")).collect();
    let text = format!("INSERT INTO {table} ({}) VALUES ({})", names.join(", "), marks.join(", "));
    bind(text, columns)
}

/// Writes everything of a row anew.
pub fn update(table: &str, columns: Columns) -> Query {
    let changes: Vec<_> =
        columns.iter().enumerate().skip(1).map(|(n, (name, _))| format!("{name} = ${}", n + 1)).collect();
    let text = format!("UPDATE {table} SET {} WHERE id = $1", changes.join(", "));
    bind(text, columns)
}

fn bind(text: String, columns: Columns) -> Query {
    columns.into_iter().fold(sql(text), |query, (_, value)| query.bind(value))
}

/// Names the columns that are called like the fields they hold.
#[macro_export]
macro_rules! columns {
    ($($name:literal: $value:expr),* $(,)?) => {
        vec![$(($name, $crate::db::Value::from($value))),*]
    };
}
