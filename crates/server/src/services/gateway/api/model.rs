//! The models that a project may use, as OpenAI lists them.

use axum::Json;
use axum::extract::State;
use berth_domain::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::Refused;
use super::inference::Inference;
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::gateway::{Gateway, LOCAL_SPEECH};

/// A model, as OpenAI describes it.
#[derive(Serialize, ToSchema)]
#[schema(as = OpenAIModel)]
pub(super) struct ModelView {
    /// Its name.
    id: String,
    /// `model`.
    object: &'static str,
    /// When it was added, in seconds since 1970.
    created: i64,
    /// Who made it: what stands before the first slash of its name.
    owned_by: String,
}

/// Models, as OpenAI lists them.
#[derive(Serialize, ToSchema)]
#[schema(as = OpenAIModelList)]
pub(super) struct ModelsView {
    /// `list`.
    object: &'static str,
    data: Vec<ModelView>,
}

impl ModelView {
    fn new(id: &str, created_at: Timestamp) -> Self {
        let owner = id.split_once('/').map_or("berth", |(owner, _)| owner);
        Self { id: id.to_owned(), object: "model", created: created_at.seconds(), owned_by: owner.to_owned() }
    }
}

/// The models that the project may use.
#[utoipa::path(get, path = "/v1/models", operation_id = "listModels", tag = "models",
    params(("X-Project-Id" = Option<String>, Header, description = "the project, with an access token")),
    responses((status = 200, body = ModelsView), Refused), security(("bearer" = [])))]
pub(super) async fn list_models(
    State(gateway): State<Gateway>,
    Inference(scope): Inference<false>,
) -> Reply<Json<ModelsView>> {
    let table = gateway.table();
    let open = table.models.iter().filter(|entry| entry.admits(scope.project));
    let mut data: Vec<_> = open.map(|entry| ModelView::new(&entry.name, entry.created_at)).collect();
    if table.find(LOCAL_SPEECH).is_none() {
        data.push(ModelView::new(LOCAL_SPEECH, gateway.began_at()));
    }
    Ok(Json(ModelsView { object: "list", data }))
}

/// A model by its name or another name of it; names may have slashes.
#[utoipa::path(get, path = "/v1/models/{*model_id}", operation_id = "retrieveModel", tag = "models",
    params(("model_id" = String, Path, description = "the name, slashes and all"),
        ("X-Project-Id" = Option<String>, Header, description = "the project, with an access token")),
    responses((status = 200, body = ModelView), Refused), security(("bearer" = [])))]
pub(super) async fn retrieve_model(
    State(gateway): State<Gateway>,
    Inference(scope): Inference<false>,
    path: PathText,
) -> Reply<Json<ModelView>> {
    let id = path.text("model_id");
    Ok(Json(match gateway.model(id, scope.project) {
        Ok(entry) => ModelView::new(&entry.name, entry.created_at),
        Err(_) if id == LOCAL_SPEECH => ModelView::new(LOCAL_SPEECH, gateway.began_at()),
        Err(error) => return Err(error.into()),
    }))
}
