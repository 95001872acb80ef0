//! Models as administrators of the platform manage them. An id may hold slashes.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use berth_domain::gateway::Model;

use crate::http::auth::Administrator;
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::idempotency::{IdempotencyKey, KeyParam, Outcome};
use crate::http::list::{Asked, List, PageParams};
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::gateway::Gateway;
use crate::services::gateway::ops::model;
use crate::services::gateway::wire::model::{ModelBody, ModelView};

/// Every model at this moment, those of the configuration too, and how its upstreams stand.
#[utoipa::path(get, path = "/api/v1/admin/models", operation_id = "listAllModels", tag = "administration",
    params(PageParams), responses((status = 200, body = List<ModelView>), (status = 400, body = ErrorBody),
    (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_all_models(
    State(gateway): State<Gateway>,
    _admin: Administrator,
    Asked(page): Asked,
) -> Reply<Json<List<ModelView>>> {
    Ok(Json(List::of_all(model::list(&gateway).await?, page)))
}

/// Adds a model.
#[utoipa::path(post, path = "/api/v1/admin/models", operation_id = "createModel", tag = "administration",
    params(KeyParam),
    request_body = ModelBody,
    responses((status = 201, body = ModelView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody),
        (status = 415, body = ErrorBody), (status = 422, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn create_model(
    State(gateway): State<Gateway>,
    Administrator(admin): Administrator,
    key: IdempotencyKey,
    body::Json(body): body::Json,
) -> Reply<Outcome<ModelView>> {
    let wanted = Model::try_from(&body)?;
    Ok(model::create(&gateway, &admin, wanted, key.bind(&admin.caller, &body).await?).await?)
}

/// One model, and how its upstreams stand.
#[utoipa::path(get, path = "/api/v1/admin/models/{*model_id}", operation_id = "getModel", tag = "administration",
    params(("model_id" = String, Path)),
    responses((status = 200, body = ModelView), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn get_model(
    State(gateway): State<Gateway>,
    _admin: Administrator,
    path: PathText,
) -> Reply<Json<ModelView>> {
    Ok(Json(model::get(&gateway, path.text("model_id")).await?))
}

/// Puts another model in the place of one that was added through the API. Its id stays.
#[utoipa::path(put, path = "/api/v1/admin/models/{*model_id}", operation_id = "replaceModel", tag = "administration",
    params(("model_id" = String, Path)), request_body = ModelBody,
    responses((status = 200, body = ModelView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn replace_model(
    State(gateway): State<Gateway>,
    Administrator(admin): Administrator,
    path: PathText,
    body::Json(body): body::Json,
) -> Reply<Json<ModelView>> {
    let wanted = Model::replacement(path.text("model_id"), body)?;
    Ok(Json(model::replace(&gateway, &admin, wanted).await?))
}

/// Removes a model that was added through the API. Answers under way come to their end.
#[utoipa::path(delete, path = "/api/v1/admin/models/{*model_id}", operation_id = "deleteModel",
    tag = "administration", params(("model_id" = String, Path)),
    responses((status = 204), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn delete_model(
    State(gateway): State<Gateway>,
    Administrator(admin): Administrator,
    path: PathText,
) -> Reply<StatusCode> {
    model::delete(&gateway, &admin, path.text("model_id")).await?;
    Ok(StatusCode::NO_CONTENT)
}
