//! The screen: a picture of it, and a WebSocket onto it.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use berth_domain::identity::Action;
use berth_domain::{Code, Error};
use berth_host::EngineError;

use super::relay::{MaybeUpgrade, carry, running};
use crate::http::auth::{Editor, Reader, Watch};
use crate::http::envelope::ErrorBody;
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::vm::Vms;

/// Bytes of a picture that are sent at a time.
const PIECE: usize = 64 << 10;
/// What is spoken here: noVNC asks for `binary`, the platform's own clients for `berth`.
const PROTOCOLS: [&str; 2] = ["binary", "berth"];

/// A picture of a running VM's screen. What a guest says on its serial console alone is not there: the platform's own
/// images boot without a screen that their kernel knows, and show what the firmware wrote.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/vms/{vm_id}/screen",
    operation_id = "getVMScreen", tag = "vms",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("vm_id" = uuid::Uuid, Path)),
    responses((status = 200, content_type = "image/png", body = Vec<u8>), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn get_vm_screen(
    State(vms): State<Vms>,
    Reader(scope, ..): Reader<Vms>,
    path: PathText,
    watch: Watch,
) -> Reply<Response> {
    let machine = running(&vms, &scope, path.id("vm_id")?, "its screen is there").await?;
    let picture = Bytes::from(vms.engine_of(machine.host).map_err(engine)?.picture(machine.id).await.map_err(engine)?);
    let told = [
        (header::CONTENT_TYPE, HeaderValue::from_static("image/png")),
        (header::CONTENT_LENGTH, HeaderValue::from(picture.len())),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    let starts = (0..picture.len()).step_by(PIECE);
    let pieces = starts.map(move |at| {
        // Whoever is slow to take it has a place of those that last until it is taken.
        let _place = &watch;
        Ok::<_, Infallible>(picture.slice(at..picture.len().min(at + PIECE)))
    });
    Ok((told, Body::from_stream(futures::stream::iter(pieces))).into_response())
}

/// Connects to the screen of a running VM: the bytes of VNC (RFC 6143) in binary frames, in both directions, without a
/// password. noVNC names the subprotocol `binary`; browsers send the token as `bearer.<token>` beside it.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/vms/{vm_id}/screen/ws",
    operation_id = "connectVMScreen", tag = "vms",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("vm_id" = uuid::Uuid, Path)),
    responses((status = 101, description = "switching to WebSocket"), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn connect_vm_screen(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
    watch: Watch,
    upgrade: MaybeUpgrade,
) -> Reply<Response> {
    let machine = running(&vms, &scope, path.id("vm_id")?, "its screen is there").await?;
    let upgrade = upgrade.required()?;
    let screen = vms.engine_of(machine.host).map_err(engine)?.screen(machine.id).await.map_err(engine)?;
    let over = async move { watch.over(&scope, Action::ChangeResources).await };
    Ok(carry(upgrade.protocols(PROTOCOLS), screen, over))
}

/// What a machine or its host does not have is no mistake of the request.
fn engine(error: EngineError) -> Error {
    match error {
        EngineError::Permanent(reason) => Error::new(Code::NotSupported, sentence(reason)),
        EngineError::NoCapacity(missing) => Error::new(Code::Conflict, sentence(missing)),
        error => Error::unavailable(error.to_string()),
    }
}

fn sentence(mut reason: String) -> String {
    if let Some(first) = reason.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    format!("{reason}.")
}
