//! What the document says of refusals.

use std::collections::BTreeMap;

use utoipa::openapi::{RefOr, Response, ResponseBuilder};

use crate::http::envelope::ErrorBody;

/// What any route of the runtime may refuse with.
pub(super) struct Refused;

impl utoipa::IntoResponses for Refused {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let reasons = [
            ("400", "invalid request"),
            ("401", "unauthorized"),
            ("403", "the role, the key's scope or the file system says no"),
            ("404", "no such sandbox, file, process or terminal"),
            ("409", "paused, failed or interrupted; or the state inside says no"),
            ("413", "the body is too large"),
            ("415", "the body's type is not accepted"),
            ("416", "the range is not there"),
            ("429", "too many at once"),
            ("500", "unexpected internal error"),
            ("502", "nothing answers on the port"),
            ("503", "the sandbox did not come up in time"),
            ("507", "the disk is full"),
        ];
        let refusal = |text: &str| {
            let schema = utoipa::openapi::Ref::from_schema_name(<ErrorBody<'_> as utoipa::ToSchema>::name());
            let content = utoipa::openapi::ContentBuilder::new().schema(Some(schema)).build();
            ResponseBuilder::new().description(text).content("application/json", content).build().into()
        };
        reasons.iter().map(|(status, text)| ((*status).to_owned(), refusal(text))).collect()
    }
}
