//! Which query parameters an operation has, according to the OpenAPI document.
//!
//! The service refuses an unknown parameter like an unknown field: ignoring a filter would list everything, and
//! ignoring `?delete_root_disk=false` would delete. A route whose handler reads its query with [`Params`] refuses
//! there, together with every other mistake. The extractors check all other routes here, by a table made from the
//! document, after they know the caller: 401, 404 and 403 come first.
//!
//! [`Params`]: berth_domain::query::Params

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::MatchedPath;
use axum::http::Method;
use axum::http::request::Parts;
use berth_domain::{Result, query};
use utoipa::openapi::path::{Operation, Parameter, ParameterIn};
use utoipa::openapi::{OpenApi, PathItem, RefOr};

/// What the document says about an operation.
struct Known {
    names: Vec<String>,
    /// Whether it reads JSON. Its query is then checked after the body: 415 and 413 come first.
    has_json: bool,
}

/// Operations by method and route.
#[derive(Default)]
pub struct Queries(HashMap<(Method, String), Known>);

impl Queries {
    /// The operations of a document, by the paths of the router.
    pub fn of(api: &OpenApi) -> Self {
        let operations = api.paths.paths.iter().flat_map(|(path, item)| {
            methods(item).map(move |(method, operation)| ((method, path.clone()), Known::of(operation)))
        });
        Self(operations.collect())
    }
}

fn methods(item: &PathItem) -> impl Iterator<Item = (Method, &Operation)> {
    let all = [
        (Method::GET, &item.get),
        (Method::POST, &item.post),
        (Method::PUT, &item.put),
        (Method::PATCH, &item.patch),
        (Method::DELETE, &item.delete),
    ];
    all.into_iter().filter_map(|(method, operation)| Some((method, operation.as_ref()?)))
}

impl Known {
    fn of(operation: &Operation) -> Self {
        let name = |parameter: &RefOr<Parameter>| match parameter {
            RefOr::T(one) if one.parameter_in == ParameterIn::Query => Some(one.name.clone()),
            _ => None,
        };
        Self {
            names: operation.parameters.iter().flatten().filter_map(name).collect(),
            has_json: match &operation.request_body {
                Some(RefOr::T(body)) => body.content.contains_key("application/json"),
                _ => false,
            },
        }
    }
}

/// Refuses every parameter on a route that has none. A route with parameters reads them itself; a route that reads JSON
/// checks its query [after it](refuse_with_body).
pub fn refuse(parts: &Parts) -> Result<()> {
    match known(parts) {
        Some(known) if known.names.is_empty() && !known.has_json => judge(parts, &[]),
        _ => Ok(()),
    }
}

/// The same on a route whose JSON body was read.
pub fn refuse_with_body(parts: &Parts) -> Result<()> {
    match known(parts) {
        Some(known) if known.names.is_empty() => judge(parts, &[]),
        _ => Ok(()),
    }
}

/// Refuses every parameter that the route does not have, where other code reads those that it has.
pub fn refuse_unknown(parts: &Parts) -> Result<()> {
    known(parts).map_or(Ok(()), |known| judge(parts, &known.names))
}

/// What is known of the route, if the request has a query at all. A route that is not in the document takes any.
fn known(parts: &Parts) -> Option<&Known> {
    parts.uri.query().filter(|query| !query.is_empty())?;
    // Whoever may send a GET may send a HEAD.
    let method = if parts.method == Method::HEAD { Method::GET } else { parts.method.clone() };
    let path = parts.extensions.get::<MatchedPath>()?.as_str().to_owned();
    parts.extensions.get::<Arc<Queries>>()?.0.get(&(method, path))
}

fn judge(parts: &Parts, known: &[String]) -> Result<()> {
    query::refuse_unknown(parts.uri.query().unwrap_or_default(), known)
}
/// Rule: `true` or `false`.
///
/// # Errors
/// Anything else.
pub fn truth(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| "must be true or false".into())
}
