//! The OpenAPI document: generated from the handlers, and completed here with what they all share.

use std::collections::BTreeSet;

use utoipa::openapi::Tag;
use utoipa::openapi::path::{Operation, Parameter};
use utoipa::openapi::schema::{AdditionalProperties, ArrayItems, Schema};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
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
    let key = ApiKeyValue::with_description("X-API-Key", "an API key, wherever `Authorization: Bearer` takes one");
    components.add_security_scheme("api_key", SecurityScheme::ApiKey(ApiKey::Header(key)));
    // The router's notation for names with slashes, which the document does not know.
    let paths = std::mem::take(&mut api.paths.paths);
    api.paths.paths = paths.into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
    api.tags = Some(TAGS.iter().map(|(name, text)| tag(name, text)).collect());
    for (path, item) in &mut api.paths.paths {
        describe(item, if super::openai::is_spoken_at(path) { "OpenAIErrorResponse" } else { "ErrorResponse" });
    }
    close_requests(&mut api);
    serde_json::to_string_pretty(&api).unwrap_or_default()
}

/// Declares that objects in request bodies have no other fields: [`berth_domain::fields`] refuses them. Below `/v1`
/// other fields pass.
fn close_requests(api: &mut OpenApi) {
    let mut found = BTreeSet::new();
    for (path, item) in &mut api.paths.paths {
        if super::openai::is_spoken_at(path) {
            continue;
        }
        let operations = [&mut item.post, &mut item.put, &mut item.patch, &mut item.delete];
        for operation in operations.into_iter().flatten() {
            let Some(RefOr::T(body)) = &mut operation.request_body else { continue };
            let Some(RefOr::T(content)) = body.content.get_mut("application/json") else { continue };
            if let Some(schema) = &mut content.schema {
                close(schema, &mut found);
            }
        }
    }
    let Some(components) = &mut api.components else { return };
    let mut closed = BTreeSet::new();
    while let Some(name) = found.pop_first() {
        if closed.insert(name.clone())
            && let Some(schema) = components.schemas.get_mut(&name)
        {
            close(schema, &mut found);
        }
    }
}

/// Closes the schemas described here, and notes the names of referenced ones.
fn close(schema: &mut RefOr<Schema>, found: &mut BTreeSet<String>) {
    match schema {
        RefOr::Ref(named) => found.extend(named.ref_location.rsplit('/').next().map(str::to_owned)),
        RefOr::T(Schema::Object(object)) => {
            // An object without fields of its own is a map.
            if !object.properties.is_empty() && object.additional_properties.is_none() {
                object.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
            }
            object.properties.values_mut().for_each(|field| close(field, found));
        }
        RefOr::T(Schema::Array(array)) => {
            if let ArrayItems::RefOrSchema(items) = &mut array.items {
                close(items, found);
            }
        }
        RefOr::T(Schema::OneOf(any)) => any.items.iter_mut().for_each(|item| close(item, found)),
        RefOr::T(Schema::AnyOf(any)) => any.items.iter_mut().for_each(|item| close(item, found)),
        RefOr::T(_) => {}
    }
}

/// Gives every answer a description: OpenAPI requires one, and the handlers write only special ones.
fn describe(item: &mut PathItem, schema: &str) {
    let operations = [&mut item.get, &mut item.post, &mut item.put, &mut item.patch, &mut item.delete];
    for operation in operations.into_iter().flatten() {
        if let Some(accepted) = &mut operation.security {
            let by_header = SecurityRequirement::new("api_key", [""; 0]);
            if !accepted.contains(&by_header) {
                accepted.push(by_header);
            }
            refuse(operation, &["400", "403", "429"], schema);
        }
        let is_key = |told: &RefOr<Parameter>| matches!(told, RefOr::T(told) if told.name == "Idempotency-Key");
        if operation.parameters.iter().flatten().any(is_key) {
            refuse(operation, &["409", "422"], schema);
        }
        if operation.request_body.is_some() {
            refuse(operation, &["408"], schema);
        }
        if operation.tags.iter().flatten().all(|tag| tag != "operation") {
            refuse(operation, &["500", "503"], schema);
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

/// The groups of operations, in the order in which a newcomer needs them.
const TAGS: [(&str, &str); 15] = [
    (
        "identity",
        "Accounts, sessions, organizations, projects, members, invitations, API keys, quotas and the audit log.",
    ),
    ("catalog", "Regions, sizes and plans on offer."),
    ("images", "What machines boot from."),
    ("vms", "Virtual machines: their life, consoles and metrics."),
    ("disks", "Data disks and root disk volumes."),
    ("ssh_keys", "SSH keys that people and projects store, to choose them for VMs."),
    ("networks", "Networks, in which VMs and sandboxes of a project reach each other."),
    ("events", "What happens in a project, as it happens."),
    ("sandbox_templates", "What sandboxes are made of: images, Dockerfiles, snapshots."),
    ("sandboxes", "Small machines that are there at once, for programs that nobody has to trust."),
    ("snapshots", "Sandboxes as they were at a moment."),
    ("runtime", "Files, commands, processes, terminals and ports inside a sandbox."),
    ("models", "Chat, embeddings and speech, as OpenAI's clients ask for them."),
    ("administration", "What administrators of the platform do."),
    ("operation", "Whether the service is well, its metrics, and the keys that its tokens are checked with."),
];

fn tag(name: &str, text: &str) -> Tag {
    let mut tag = Tag::new(name);
    tag.description = Some(text.to_owned());
    tag
}

/// Adds the refusals that any operation of a kind may give. A caller with a credential may be suspended, ask too often,
/// or ask for something unknown; a body may stop half way; the database may be away.
fn refuse(operation: &mut Operation, statuses: &[&str], schema: &str) {
    for status in statuses {
        let body = Content::new(Some(Ref::from_schema_name(schema)));
        let answer = ResponseBuilder::new().content("application/json", body).build();
        operation.responses.responses.entry((*status).to_owned()).or_insert(RefOr::T(answer));
    }
}

/// What a status means on every route.
fn meaning(status: &str) -> &'static str {
    match status {
        "200" => "success",
        "201" => "created; `Location` names it",
        "202" => "accepted; it goes on after the answer",
        "204" => "success, without a body",
        "400" => "the request is not valid, or the status does not allow it",
        "401" => "no credential, or one that does not hold",
        "403" => "the caller's role does not allow it",
        "404" => "there is no such thing that the caller can see",
        "408" => "the body did not come in time",
        "409" => "in conflict with how things stand",
        "413" => "the body is too large",
        "415" => "the body is not JSON",
        "422" => "the Idempotency-Key was used with another body",
        "429" => "too many tries; `Retry-After` says when",
        "500" => "unexpected internal error; the log knows more by the request id",
        "502" => "no upstream gave an answer that is one",
        "504" => "no upstream answered in time",
        "503" => "the service, or something that it needs, is busy or away; `Retry-After` says when to come again",
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
