//! Errors below `/v1`, as OpenAI's clients read them: `{"error": {"message", "type", "param", "code"}}`.

use axum::body::Body;
use axum::http::header;
use axum::response::Response;
use berth_domain::gateway::refusal::{self, Refusal};
use berth_domain::{Code, Error, sse};
use bytes::Bytes;
use utoipa::ToSchema;

/// Whether requests to a path speak OpenAI's protocol.
pub fn is_spoken_at(path: &str) -> bool {
    path == "/v1" || path.starts_with("/v1/")
}

/// An error in the form that OpenAI's clients read.
pub fn refusal(error: &Error) -> Refusal {
    let code = match error.code {
        Code::Unauthorized => Code::InvalidApiKey,
        code => code,
    };
    let message = match error.code {
        Code::Unauthorized => "Send 'Authorization: Bearer KEY' with an API key of scope 'inference'. Make one: \
                               berth key create NAME --scope inference"
            .to_owned(),
        _ => error.message.clone(),
    };
    Refusal {
        message,
        kind: refusal::kind_of(error.code.status()).to_owned(),
        param: error.details.first().map(|detail| detail.field.clone()),
        code: Some(code.as_str().to_owned()),
    }
}

/// The body of an error.
pub fn envelope(error: &Error) -> String {
    refusal::envelope(&refusal(error))
}

/// A refusal as an event of a stream that began well.
pub fn event(refusal: &Refusal) -> Bytes {
    sse::event(None, &refusal::envelope(refusal)).into()
}

/// The same answer with another JSON body.
pub fn reshaped(response: Response, body: String) -> Response {
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(body))
}

/// What a refused request is answered with below `/v1`.
#[derive(ToSchema)]
#[schema(as = OpenAIErrorResponse)]
#[expect(dead_code, reason = "describes Refusal")]
pub struct OpenAiErrorBody {
    error: OpenAiError,
}

/// What is wrong.
#[derive(ToSchema)]
#[schema(as = OpenAIError)]
#[expect(dead_code, reason = "describes Refusal")]
pub struct OpenAiError {
    /// For people: what is wrong and what to do.
    message: String,
    /// The kind of error.
    r#type: String,
    /// The field that is meant.
    #[schema(required = true)]
    param: Option<String>,
    /// Stable, machine-readable; what an upstream said where the error is its own.
    #[schema(required = true)]
    code: Option<String>,
}
