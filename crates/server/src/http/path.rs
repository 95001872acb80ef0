//! Ids in paths. A malformed id is 400, except where the specification knows only 404.

use std::collections::HashMap;
use std::str::FromStr;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use berth_domain::query::storable;
use berth_domain::{Code, Error, Result};

use super::envelope::ApiError;

/// The parameters of the path, as text.
pub struct PathText(HashMap<String, String>);

impl<S: Send + Sync> FromRequestParts<S> for PathText {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Ok(Self::of(parts).await?)
    }
}

impl PathText {
    /// The parameters of a request.
    pub async fn of(parts: &mut Parts) -> Result<Self> {
        let Path(map) = Path::<HashMap<String, String>>::from_request_parts(parts, &())
            .await
            .map_err(|_| Error::new(Code::InvalidRequest, "The path is not valid UTF-8."))?;
        Ok(Self(map.into_iter().map(|(name, value)| (name, storable(value))).collect()))
    }

    /// A parameter as text.
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// A parameter as an id; 400 if it is none.
    pub fn id<T: FromStr>(&self, name: &str) -> Result<T> {
        self.text(name).parse().map_err(|_| Error::field(name, "must be a UUID"))
    }
}
