//! The routes: parse, authorize, call, view. A file holds the handlers of one noun.

mod completion;
mod inference;
mod model;
mod model_admin;
mod speech;
mod usage;
mod voice_admin;

use std::collections::BTreeMap;

use utoipa::openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Gateway;
use crate::http::edge::Hot;
use crate::http::openai::OpenAiErrorBody;

/// Every route of the service.
pub fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .routes(routes!(completion::create_chat_completion))
        .routes(routes!(completion::create_completion))
        .routes(routes!(completion::create_embedding))
        .routes(routes!(speech::create_speech))
        .routes(routes!(model::list_models))
        .routes(routes!(model::retrieve_model))
        .routes(routes!(usage::get_usage))
        .routes(routes!(model_admin::list_all_models, model_admin::create_model))
        .routes(routes!(model_admin::get_model, model_admin::replace_model, model_admin::delete_model))
        .routes(routes!(voice_admin::list_all_voices, voice_admin::create_voice))
        .routes(routes!(voice_admin::get_voice, voice_admin::update_voice, voice_admin::delete_voice))
}

/// The routes with most traffic. Speech is not among them: it starts programs, which an event loop should not do.
pub fn hot(gateway: &Gateway) -> Hot {
    Hot::default()
        .post::<completion::__path_create_chat_completion, _, _>(completion::create_chat_completion, gateway)
        .post::<completion::__path_create_completion, _, _>(completion::create_completion, gateway)
        .post::<completion::__path_create_embedding, _, _>(completion::create_embedding, gateway)
}

/// What any route below `/v1` may refuse with.
struct Refused;

impl utoipa::IntoResponses for Refused {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let statuses =
            ["400", "401", "403", "404", "408", "409", "413", "415", "422", "429", "500", "502", "503", "504"];
        let refusal = || {
            let schema = Ref::from_schema_name(<OpenAiErrorBody as utoipa::ToSchema>::name());
            let content = ContentBuilder::new().schema(Some(schema)).build();
            ResponseBuilder::new().content("application/json", content).build().into()
        };
        statuses.into_iter().map(|status| (status.to_owned(), refusal())).collect()
    }
}
