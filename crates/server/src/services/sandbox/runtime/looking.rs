//! Who may look how far into a sandbox.
//!
//! The workspace is for everybody who reads the project. The machine around it, seen as any account, and the variables of
//! processes, which hold secrets, are for who may work there.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use utoipa::IntoParams;

use super::flag::asks;
use super::inside::{Inside, Viewing, Working};
use super::state::Runtime;
use crate::http::envelope::ApiError;

/// Parameters with which a caller looks further than into the workspace.
const FURTHER: [&str; 2] = ["root", "env"];

/// A caller who may look into the sandbox, as far as the request asks.
pub(super) struct Looking(pub Inside);

impl FromRequestParts<Arc<Runtime>> for Looking {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, runtime: &Arc<Runtime>) -> Result<Self, ApiError> {
        if FURTHER.iter().any(|flag| asks(parts.uri.query(), flag)) {
            return Ok(Self(Working::from_request_parts(parts, runtime).await?.0));
        }
        Ok(Self(Viewing::from_request_parts(parts, runtime).await?.0))
    }
}

/// Where paths begin, for the document.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes the parameters; the agent reads them")]
pub(super) struct RootParam {
    /// takes paths from the machine's root, and relative ones from the account's home; needs the role of who may work in
    /// the sandbox; default false
    root: Option<bool>,
}

/// The same of files, and as whom.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes the parameters; the agent reads them")]
pub(super) struct RootParams {
    /// takes paths from the machine's root, and relative ones from the account's home; needs the role of who may work in
    /// the sandbox; default false
    root: Option<bool>,
    /// an account of the sandbox, as which the work is done; with `root` only; default the sandbox's own
    user: Option<String>,
    /// does the work whatever the permissions of files say; what is made is the account's all the same; with `root` only;
    /// default false
    privileged: Option<bool>,
}
