//! Rows as lists of columns: the columns stand once, for the insertion and for every change.

use super::query::{Query, Value, sql};
use super::{DbError, Tx};

/// The columns of a row with their values; the first is its id.
pub type Columns = Vec<(&'static str, Value)>;

/// Writes a new row.
pub fn insert(table: &str, columns: Columns) -> Query {
    let names: Vec<_> = columns.iter().map(|(name, _)| *name).collect();
    let marks: Vec<_> = (1..=columns.len()).map(|n| format!("${n}")).collect();
    let text = format!("INSERT INTO {table} ({}) VALUES ({})", names.join(", "), marks.join(", "));
    bind(text, columns)
}

/// Writes what a change made different. What stays as it was is not written, nor an index over it.
pub async fn update(tx: &mut Tx, table: &str, before: &Columns, after: Columns) -> Result<(), DbError> {
    match difference(table, before, after) {
        Some(query) => query.execute(tx).await.map(drop),
        None => Ok(()),
    }
}

fn difference(table: &str, before: &Columns, after: Columns) -> Option<Query> {
    let with_its_past = after.into_iter().zip(before).enumerate();
    let different = with_its_past.filter(|(n, (after, before))| *n == 0 || after != *before);
    let columns: Columns = different.map(|(_, (after, _))| after).collect();
    let changes: Vec<_> =
        columns.iter().enumerate().skip(1).map(|(n, (name, _))| format!("{name} = ${}", n + 1)).collect();
    (!changes.is_empty()).then(|| bind(format!("UPDATE {table} SET {} WHERE id = $1", changes.join(", ")), columns))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_is_not_written() {
        let before = columns! { "id": "a", "name": "one", "size": 1_i64, "note": None::<String> };
        assert!(difference("things", &before, before.clone()).is_none());
        let after = columns! { "id": "a", "name": "one", "size": 2_i64, "note": "new" };
        let query = sql("UPDATE things SET size = $2, note = $3 WHERE id = $1").bind("a").bind(2_i64).bind("new");
        assert_eq!(difference("things", &before, after), Some(query));
    }
}
