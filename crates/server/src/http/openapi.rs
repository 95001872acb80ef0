//! The OpenAPI document: made from the handlers, finished here with what all of them share.

use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Content, InfoBuilder, OpenApi, PathItem, Ref, RefOr, ResponseBuilder, ServerBuilder};
use utoipa::{PartialSchema, ToSchema};

use super::openai::{OpenAiError, OpenAiErrorBody};

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
    for (name, schema) in
        [(OpenAiErrorBody::name(), OpenAiErrorBody::schema()), (OpenAiError::name(), OpenAiError::schema())]
    {
        components.schemas.insert(name.into_owned(), schema);
    }
    let key = ApiKeyValue::with_description("X-API-Key", "an API key of scope `sandbox`");
    components.add_security_scheme("api_key", SecurityScheme::ApiKey(ApiKey::Header(key)));
    // The router's way to say that a name may have slashes; the document knows none.
    let paths = std::mem::take(&mut api.paths.paths);
    api.paths.paths = paths.into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
    for (path, item) in &mut api.paths.paths {
        describe(item, if super::openai::is_below(path) { "OpenAIErrorResponse" } else { "ErrorResponse" });
    }
    serde_json::to_string_pretty(&api).unwrap_or_default()
}

/// Gives every answer a description: OpenAPI demands one, and the handlers say it only where it is special.
fn describe(item: &mut PathItem, schema: &str) {
    let operations = [&mut item.get, &mut item.post, &mut item.put, &mut item.patch, &mut item.delete];
    for operation in operations.into_iter().flatten() {
        if operation.security.is_some() {
            refuse(operation, schema);
        }
        for (status, answer) in &mut operation.responses.responses {
            if let RefOr::T(answer) = answer
                && answer.description.is_empty()
            {
                answer.description = meaning(status).into();
            }
        }
    }
}

/// Whoever needs a credential may be suspended, and may ask too often.
fn refuse(operation: &mut Operation, schema: &str) {
    for status in ["403", "429"] {
        let body = Content::new(Some(Ref::from_schema_name(schema)));
        let answer = ResponseBuilder::new().content("application/json", body).build();
        operation.responses.responses.entry(status.into()).or_insert(RefOr::T(answer));
    }
}

/// What a status means on every route.
fn meaning(status: &str) -> &'static str {
    match status {
        "200" => "done",
        "201" => "created; `Location` names it",
        "202" => "accepted; it goes on after the answer",
        "204" => "done; there is nothing to say",
        "400" => "the request is not valid, or the status does not allow it",
        "401" => "no credential, or one that does not hold",
        "403" => "the caller's role does not allow it",
        "404" => "there is no such thing that the caller can see",
        "409" => "in conflict with how things stand",
        "413" => "the body is too large",
        "415" => "the body is not JSON",
        "422" => "the Idempotency-Key was used with another body",
        "429" => "too many tries; `Retry-After` says when",
        "502" => "no upstream gave an answer that is one",
        "504" => "no upstream answered in time",
        "503" => "the service is busy; `Retry-After` says when",
        _ => "see the code",
    }
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
