//! Lists: the page a caller asks for, and the page it gets.

use std::ops::{Deref, DerefMut};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use berth_domain::page::Page;
use berth_domain::{Result, query};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use super::envelope::ApiError;
use crate::db::listing::{Listed, Listing};

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

/// The query of a list whose rows have no name, for the document.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes the query; `Params` reads it")]
pub struct SortParams {
    /// The order: `created_at`, or with `-` newest first.
    #[param(pattern = "^-?created_at$", default = "-created_at")]
    sort: Option<String>,
}

/// The query of a list whose rows have a name, for the document.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes the query; `Params` reads it")]
pub struct NameParams {
    /// Only this name.
    name: Option<String>,
    /// The order: by `created_at` or `name`, with `-` backwards.
    #[param(pattern = "^-?(created_at|name)$", default = "-created_at")]
    sort: Option<String>,
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

    /// A page of a list that is already in memory.
    pub fn of_all(items: impl IntoIterator<Item = T>, page: Page) -> Self {
        let items: Vec<T> = items.into_iter().collect();
        let total = i64::try_from(items.len()).unwrap_or(i64::MAX);
        let skip = usize::try_from(page.offset()).unwrap_or(usize::MAX);
        let take = usize::try_from(page.limit).unwrap_or(usize::MAX);
        Self::new(items.into_iter().skip(skip).take(take).collect(), page, total)
    }
}

/// The page of a list that has no other parameters.
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

/// The query of a request, as handlers read it: [`query::Params`] with what lists are asked for.
pub struct Params(pub query::Params);

impl<S: Send + Sync> FromRequestParts<S> for Params {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Ok(Self(query::Params::parse(parts.uri.query().unwrap_or_default())))
    }
}

impl Deref for Params {
    type Target = query::Params;

    fn deref(&self) -> &query::Params {
        &self.0
    }
}

impl DerefMut for Params {
    fn deref_mut(&mut self) -> &mut query::Params {
        &mut self.0
    }
}

impl Params {
    /// What is asked of a list: the page, and as far as its rows have them a status, a name, a label and the order.
    pub fn listing(&mut self, listed: &Listed) -> Listing {
        let label = listed.labels.and_then(|_| self.get("label")).map(|text| match text.split_once('=') {
            Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
            None => (text.to_owned(), None),
        });
        Listing {
            page: self.page(),
            status: listed.status.and_then(|words| self.read(words.param, |text| words.read(text))),
            name: listed.name.and_then(|_| self.get("name")).map(str::to_owned),
            label,
            sort: self.read("sort", |text| listed.sort(text)).unwrap_or_default(),
        }
    }

    /// Refuses with every mistake that was noted, and every parameter that nobody asked for.
    pub fn finish(self) -> Result<()> {
        self.0.finish()
    }
}
