//! What callers can ask of a list: the page, filters and the order. All lists follow this rule; a list says only which
//! of its columns hold a name, a status and labels.

use std::borrow::Cow;

use berth_domain::page::Page;

use super::{Value, json};

/// The columns by which callers may filter and order a list. They are qualified, since the query may join other tables.
#[derive(Clone, Copy, Debug)]
pub struct Listed {
    /// The column that makes the order of equal rows definite.
    pub id: &'static str,
    /// The time of a row's creation.
    pub created: &'static str,
    /// The name, where rows have one; never null.
    pub name: Option<&'static str>,
    /// The status of a row.
    pub status: Option<Words>,
    /// Pairs as JSON.
    pub labels: Option<&'static str>,
}

/// A column of words.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    /// The name of the query parameter.
    pub param: &'static str,
    /// The column.
    pub column: &'static str,
    /// The words that the list shows.
    pub words: &'static [&'static str],
}

/// A caller's query of a list.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// The page.
    pub page: Page,
    /// Only this status.
    pub status: Option<&'static str>,
    /// Only this name.
    pub name: Option<String>,
    /// Only rows with this label, and with this value if one is given.
    pub label: Option<(String, Option<String>)>,
    /// The order.
    pub sort: Sort,
}

/// The order of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Newest first.
    #[default]
    Newest,
    /// Oldest first.
    Oldest,
    /// By name.
    Name,
    /// By name, backwards.
    NameDescending,
}

impl Words {
    /// Parses a word; the message names the known ones.
    pub fn read(&self, text: &str) -> Result<&'static str, String> {
        let known = self.words.iter().find(|word| **word == text);
        known.copied().ok_or_else(|| format!("must be one of: {}", self.words.join(" ")))
    }
}

impl Listed {
    /// Parses an order that this list has.
    pub fn sort(&self, text: &str) -> Result<Sort, String> {
        match text {
            "-created_at" => Ok(Sort::Newest),
            "created_at" => Ok(Sort::Oldest),
            "name" if self.name.is_some() => Ok(Sort::Name),
            "-name" if self.name.is_some() => Ok(Sort::NameDescending),
            _ if self.name.is_some() => Err("must be one of: created_at -created_at name -name".into()),
            _ => Err("must be one of: created_at -created_at".into()),
        }
    }

    /// `ORDER BY …`; also orders rows of the same name or moment.
    pub(super) fn order(&self, sort: Sort) -> String {
        let Self { id, created, .. } = self;
        let newest = format!("{created} DESC, {id} DESC");
        match (sort, self.name) {
            (Sort::Oldest, _) => format!("{created}, {id}"),
            (Sort::Name, Some(name)) => format!("{name}, {newest}"),
            (Sort::NameDescending, Some(name)) => format!("{name} DESC, {newest}"),
            (Sort::Newest | Sort::Name | Sort::NameDescending, _) => newest,
        }
    }

    /// Adds the conditions of a listing to the text after `FROM`, and their arguments to `args`.
    pub(super) fn narrow(&self, from: &mut Cow<'static, str>, args: &mut Vec<Value>, listing: &Listing) {
        let status = self.status.map(|words| words.column).zip(listing.status.map(Value::from));
        let name = self.name.zip(listing.name.as_ref().map(Value::from));
        for (column, value) in [status, name].into_iter().flatten() {
            args.push(value);
            from.to_mut().push_str(&format!(" AND {column} = ${}", args.len()));
        }
        if let Some((column, (key, value))) = self.labels.zip(listing.label.as_ref()) {
            let clause = json::has_pair(column, key, value.as_deref(), args);
            from.to_mut().push_str(&format!(" AND {clause}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMED: Listed = Listed { id: "t.id", created: "t.made", name: Some("t.name"), status: None, labels: None };

    #[test]
    fn a_list_has_the_orders_that_its_columns_allow() {
        let nameless = Listed { name: None, ..NAMED };
        assert_eq!(NAMED.sort("-name"), Ok(Sort::NameDescending));
        assert_eq!(nameless.sort("created_at"), Ok(Sort::Oldest));
        assert!(nameless.sort("name").is_err_and(|message| !message.contains("name")));
        assert!(NAMED.sort("").is_err() && NAMED.sort("Name").is_err());
    }

    #[test]
    fn every_order_ends_with_the_id() {
        for sort in [Sort::Newest, Sort::Oldest, Sort::Name, Sort::NameDescending] {
            let order = NAMED.order(sort);
            assert!(order.ends_with("t.id") || order.ends_with("t.id DESC"), "{order}");
        }
    }
}
