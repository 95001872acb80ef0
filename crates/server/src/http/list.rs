//! Lists: the page a caller asks for, and the page it gets.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use berth_domain::error::FieldError;
use berth_domain::page::Page;
use berth_domain::{Error, Result};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use super::envelope::ApiError;
use super::path::storable;

/// The query of a list, for the document.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes the query; `Params` reads it")]
pub struct PageParams {
    /// Page, from 1.
    #[param(minimum = 1, maximum = 2_147_483_647_i64, default = 1)]
    page: Option<i64>,
    /// Items per page.
    #[param(minimum = 1, maximum = 100, default = 20)]
    limit: Option<i64>,
}

/// Totals of a list.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PaginationResponse)]
pub struct Pagination {
    /// Items across all pages.
    total_items: i64,
    /// Number of pages; 0 for an empty list.
    total_pages: i64,
    /// This page.
    current_page: i64,
    /// Items on a full page.
    items_per_page: i64,
}

impl Pagination {
    /// The totals of a list of `total` items.
    pub const fn new(page: Page, total: i64) -> Self {
        Self {
            total_items: total,
            total_pages: page.pages(total),
            current_page: page.number,
            items_per_page: page.limit,
        }
    }
}

/// A page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub struct List<T> {
    /// The items.
    pub data: Vec<T>,
    /// The totals.
    pub pagination: Pagination,
}

impl<T> List<T> {
    /// A page of a list of `total` items.
    pub const fn new(data: Vec<T>, page: Page, total: i64) -> Self {
        Self { data, pagination: Pagination::new(page, total) }
    }

    /// The page of a list that is at hand whole.
    pub fn of_all(items: impl IntoIterator<Item = T>, page: Page) -> Self {
        let items: Vec<T> = items.into_iter().collect();
        let total = i64::try_from(items.len()).unwrap_or(i64::MAX);
        let skip = usize::try_from(page.offset()).unwrap_or(usize::MAX);
        let take = usize::try_from(page.limit).unwrap_or(usize::MAX);
        Self::new(items.into_iter().skip(skip).take(take).collect(), page, total)
    }
}

/// The page of a list that is asked for nothing else.
pub struct Asked(pub Page);

impl<S: Send + Sync> FromRequestParts<S> for Asked {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let mut params = Params::from_request_parts(parts, state).await?;
        let page = params.page();
        params.finish()?;
        Ok(Self(page))
    }
}

/// The query of a request: decoded pairs, read by name, mistakes collected.
pub struct Params {
    pairs: Vec<(String, String)>,
    errors: Vec<FieldError>,
}

impl<S: Send + Sync> FromRequestParts<S> for Params {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Ok(Self::parse(parts.uri.query().unwrap_or_default()))
    }
}

impl Params {
    /// Decodes a query.
    pub fn parse(query: &str) -> Self {
        let decoded = form_urlencoded::parse(query.as_bytes()).into_owned();
        let pairs = decoded.map(|(name, value)| (name, storable(value))).collect();
        Self { pairs, errors: Vec::new() }
    }

    /// The value of a parameter; the last one where it stands several times.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Every value of a parameter.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The parameters whose name begins with a prefix, without it.
    pub fn below(&self, prefix: &str) -> Vec<(String, String)> {
        let named = self.pairs.iter().filter_map(|(name, value)| Some((name.strip_prefix(prefix)?, value)));
        named.map(|(name, value)| (name.to_owned(), value.clone())).collect()
    }

    /// A parameter read by a rule; a mistake is noted.
    pub fn read<T>(&mut self, name: &str, rule: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let parsed = rule(self.get(name)?);
        parsed.map_err(|message| self.errors.push(FieldError { field: name.to_owned(), message })).ok()
    }

    /// A whole number within bounds.
    pub fn integer(&mut self, name: &str, max: i64) -> Option<i64> {
        self.read(name, |text| Page::bound(text, max))
    }

    /// The page asked for.
    pub fn page(&mut self) -> Page {
        let default = Page::default();
        Page {
            number: self.integer("page", Page::MAX_NUMBER).unwrap_or(default.number),
            limit: self.integer("limit", Page::MAX_LIMIT).unwrap_or(default.limit),
        }
    }

    /// Refuses with every mistake that was noted.
    pub fn finish(self) -> Result<()> {
        if self.errors.is_empty() { Ok(()) } else { Err(Error::invalid(self.errors)) }
    }
}
