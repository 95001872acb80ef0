//! The OpenAPI document: made from the handlers, finished here with what all of them share.

use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{InfoBuilder, OpenApi, ServerBuilder};
use utoipa::{PartialSchema, ToSchema};

/// Adds title, servers and the security scheme, and writes the document as JSON.
pub fn finish(mut api: OpenApi) -> String {
    api.info = InfoBuilder::new()
        .title("Berth")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("Virtual machines, sandboxes and models behind one identity and one API."))
        .build();
    api.servers = Some(vec![ServerBuilder::new().url("/").build()]);
    let components = api.components.get_or_insert_default();
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("JWT").build();
    components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
    serde_json::to_string_pretty(&api).unwrap_or_default()
}

/// The stable codes of errors.
pub struct ErrorCode;

impl PartialSchema for ErrorCode {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::Type::String)
            .enum_values(Some(berth_domain::Code::ALL.iter().map(|c| c.as_str())))
            .into()
    }
}

impl ToSchema for ErrorCode {
    fn name() -> std::borrow::Cow<'static, str> {
        "ErrorCode".into()
    }
}

/// One invalid field.
#[derive(ToSchema)]
#[schema(as = FieldError)]
#[expect(dead_code, reason = "describes berth_domain::FieldError")]
pub struct FieldErrorBody {
    /// Path of the field.
    field: String,
    /// The rule it broke.
    message: String,
}
