//! Voices as administrators of the platform manage them.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use berth_domain::gateway::Voice;

use crate::http::auth::Administrator;
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::idempotency::{IdempotencyKey, KeyParam, Outcome};
use crate::http::list::{Asked, List, PageParams};
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::gateway::Gateway;
use crate::services::gateway::ops::voice;
use crate::services::gateway::wire::voice::{ChangeVoiceBody, VoiceBody, VoiceView};

/// Every voice at this moment, those that are built in or stand in the configuration too.
#[utoipa::path(get, path = "/api/v1/admin/voices", operation_id = "listAllVoices", tag = "administration",
    params(PageParams), responses((status = 200, body = List<VoiceView>), (status = 400, body = ErrorBody),
    (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_all_voices(
    State(gateway): State<Gateway>,
    _admin: Administrator,
    Asked(page): Asked,
) -> Reply<Json<List<VoiceView>>> {
    Ok(Json(List::of_all(voice::list(&gateway).await?, page)))
}

/// Adds a voice; speech knows it at once.
#[utoipa::path(post, path = "/api/v1/admin/voices", operation_id = "createVoice", tag = "administration",
    params(KeyParam), request_body = VoiceBody,
    responses((status = 201, body = VoiceView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody),
        (status = 415, body = ErrorBody), (status = 422, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn create_voice(
    State(gateway): State<Gateway>,
    Administrator(admin): Administrator,
    key: IdempotencyKey,
    body::Json(body): body::Json,
) -> Reply<Outcome<VoiceView>> {
    let wanted = Voice::addition(&body)?;
    Ok(voice::create(&gateway, &admin, wanted, key.bind(&admin.caller, &body).await?).await?)
}

/// One voice.
#[utoipa::path(get, path = "/api/v1/admin/voices/{voice_id}", operation_id = "getVoice", tag = "administration",
    params(("voice_id" = String, Path)),
    responses((status = 200, body = VoiceView), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn get_voice(
    State(gateway): State<Gateway>,
    _admin: Administrator,
    path: PathText,
) -> Reply<Json<VoiceView>> {
    Ok(Json(voice::get(&gateway, path.text("voice_id")).await?))
}

/// Changes a voice that was added through the API. Its id stays.
#[utoipa::path(patch, path = "/api/v1/admin/voices/{voice_id}", operation_id = "updateVoice", tag = "administration",
    params(("voice_id" = String, Path)), request_body = ChangeVoiceBody,
    responses((status = 200, body = VoiceView), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn update_voice(
    State(gateway): State<Gateway>,
    Administrator(admin): Administrator,
    path: PathText,
    body::Json(body): body::Json,
) -> Reply<Json<VoiceView>> {
    Ok(Json(voice::update(&gateway, &admin, path.text("voice_id"), &body).await?))
}

/// Removes a voice that was added through the API. What it speaks now comes to its end.
#[utoipa::path(delete, path = "/api/v1/admin/voices/{voice_id}", operation_id = "deleteVoice", tag = "administration",
    params(("voice_id" = String, Path)),
    responses((status = 204), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn delete_voice(
    State(gateway): State<Gateway>,
    Administrator(admin): Administrator,
    path: PathText,
) -> Reply<StatusCode> {
    voice::delete(&gateway, &admin, path.text("voice_id")).await?;
    Ok(StatusCode::NO_CONTENT)
}
