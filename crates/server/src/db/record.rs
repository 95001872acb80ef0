//! Rows as lists of columns: the code names a column once, beside its value, for the insertion and for every change,
//! and nobody counts placeholders by hand. A statement that adds to a row, compares with it or reads others stays in
//! its store.

use super::query::{Query, Value, sql};
use super::{DbError, Tx};

/// The columns of a row with their values; the first is its id.
pub type Columns = Vec<(&'static str, Value)>;

/// Writes a new row.
pub fn insert(table: &str, columns: Columns) -> Query {
    insert_all(table, vec![columns])
}

/// Writes new rows with one statement: at least one, and all with the same columns in the same order.
pub fn insert_all(table: &str, rows: Vec<Columns>) -> Query {
    let names: Vec<_> = rows.iter().take(1).flatten().map(|(name, _)| *name).collect();
    let width = names.len();
    let marks = |row: usize| (1..=width).map(|n| format!("${}", row * width + n)).collect::<Vec<_>>().join(", ");
    let marks: Vec<_> = (0..rows.len()).map(|row| format!("({})", marks(row))).collect();
    let text = format!("INSERT INTO {table} ({}) VALUES {}", names.join(", "), marks.join(", "));
    bind(text, rows.into_iter().flatten())
}

/// Inserts a row; if a row with these keys exists, writes all other columns of it. The keys need a unique rule.
pub fn upsert(table: &str, keys: Columns, columns: Columns) -> Query {
    let target: Vec<_> = keys.iter().map(|(name, _)| *name).collect();
    let changes: Vec<_> = columns.iter().map(|(name, _)| format!("{name} = excluded.{name}")).collect();
    let action = format!("({}) DO UPDATE SET {}", target.join(", "), changes.join(", "));
    insert(table, [keys, columns].concat()).on_conflict(&action)
}

/// Writes columns of the row that the first of them names, whatever they held.
pub fn overwrite(table: &str, columns: Columns) -> Query {
    let mut places = columns.iter().enumerate().map(|(n, (name, _))| format!("{name} = ${}", n + 1));
    let row = places.next().unwrap_or_default();
    let changes: Vec<_> = places.collect();
    bind(format!("UPDATE {table} SET {} WHERE {row}", changes.join(", ")), columns)
}

/// Writes the columns that a change made different. Columns that stay the same are not written, nor are their indexes.
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
    (columns.len() > 1).then(|| overwrite(table, columns))
}

fn bind(text: String, columns: impl IntoIterator<Item = (&'static str, Value)>) -> Query {
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
    fn each_value_stands_at_the_place_of_its_column() {
        let one = columns! { "id": "a", "size": 1_i64 };
        let query = sql("INSERT INTO things (id, size) VALUES ($1, $2)").bind("a").bind(1_i64);
        assert_eq!(insert("things", one.clone()), query);
        let text = "INSERT INTO things (id, size) VALUES ($1, $2), ($3, $4)";
        let query = sql(text).bind("a").bind(1_i64).bind("b").bind(2_i64);
        assert_eq!(insert_all("things", vec![one, columns! { "id": "b", "size": 2_i64 }]), query);
    }

    #[test]
    fn a_known_row_keeps_its_keys_alone() {
        let keys = columns! { "shelf": "a", "place": 7_i64 };
        let query = sql("INSERT INTO things (shelf, place, name, note) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (shelf, place) DO UPDATE SET name = excluded.name, note = excluded.note")
        .bind("a")
        .bind(7_i64)
        .bind("one")
        .bind(None::<String>);
        assert_eq!(upsert("things", keys, columns! { "name": "one", "note": None::<String> }), query);
    }

    #[test]
    fn the_first_column_names_the_row_that_is_overwritten() {
        let query = sql("UPDATE things SET name = $2, note = $3 WHERE key = $1").bind("a").bind("one").bind("new");
        assert_eq!(overwrite("things", columns! { "key": "a", "name": "one", "note": "new" }), query);
    }

    #[test]
    fn what_stays_is_not_written() {
        let before = columns! { "id": "a", "name": "one", "size": 1_i64, "note": None::<String> };
        assert!(difference("things", &before, before.clone()).is_none());
        let after = columns! { "id": "a", "name": "one", "size": 2_i64, "note": "new" };
        let query = sql("UPDATE things SET size = $2, note = $3 WHERE id = $1").bind("a").bind(2_i64).bind("new");
        assert_eq!(difference("things", &before, after), Some(query));
    }
}
