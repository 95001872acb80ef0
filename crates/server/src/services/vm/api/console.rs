//! The serial console: its log, and a WebSocket onto it.

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use berth_domain::identity::Action;
use berth_domain::ids::VmId;
use berth_domain::{Code, Error};
use berth_host::EngineError;

use super::relay::{MaybeUpgrade, carry, running};
use super::vm::not_found;
use crate::http::auth::{Editor, Reader, Watch};
use crate::http::envelope::ErrorBody;
use crate::http::list::Params;
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::vm::{Vms, store};

/// Most bytes of a log that are shown at once.
const MOST: i64 = 1 << 20;
/// Bytes shown when the caller does not say.
const USUAL: i64 = 64 << 10;

/// The last bytes a VM wrote to its serial console.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/vms/{vm_id}/console",
    operation_id = "getVMConsole", tag = "vms",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("vm_id" = uuid::Uuid, Path),
        ("bytes" = Option<i64>, Query, description = "default 65536", minimum = 1, maximum = 1_048_576)),
    responses((status = 200, content_type = "text/plain", body = String), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn get_vm_console(
    State(vms): State<Vms>,
    Reader(scope, ..): Reader<Vms>,
    path: PathText,
    mut params: Params,
) -> Reply<Response> {
    let id: VmId = path.id("vm_id")?;
    let bytes = params.integer("bytes", MOST).unwrap_or(USUAL);
    params.finish()?;
    let vm = store::vm::find(vms.db(), (&scope).into(), id).await?.ok_or_else(not_found)?;
    let asked = vms.engine_of(vm.machine.host).map_err(engine)?;
    let log = asked.console_log(vm.machine.id, usize::try_from(bytes).unwrap_or_default()).await.map_err(engine)?;
    let text = String::from_utf8_lossy(&log).into_owned();
    Ok(([(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"))], text).into_response())
}

/// Connects to the serial console of a running VM: binary frames are bytes, in both directions. Browsers
/// send the token as the subprotocols `berth` and `bearer.<token>`.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/vms/{vm_id}/console/ws",
    operation_id = "connectVMConsole", tag = "vms",
    params(("org_id" = String, Path), ("project_id" = String, Path), ("vm_id" = uuid::Uuid, Path)),
    responses((status = 101, description = "switching to WebSocket"), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn connect_vm_console(
    State(vms): State<Vms>,
    Editor(scope, ..): Editor<Vms>,
    path: PathText,
    watch: Watch,
    upgrade: MaybeUpgrade,
) -> Reply<Response> {
    let machine = running(&vms, &scope, path.id("vm_id")?, "its console is open").await?;
    let upgrade = upgrade.required()?;
    let console = vms.engine_of(machine.host).map_err(engine)?.console(machine.id).await.map_err(engine)?;
    let over = async move { watch.over(&scope, Action::ChangeResources).await };
    Ok(carry(upgrade.protocols(["berth"]), console, over))
}

fn engine(error: EngineError) -> Error {
    match error {
        EngineError::Transient(cause) => Error::unavailable(cause),
        error => Error::new(Code::InvalidStatus, error.to_string()),
    }
}
