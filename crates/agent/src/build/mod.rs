//! A disk that a build is making: layers and copies unpacked onto it, programs run on it, and archives of what other
//! stages copy from it.
//!
//! Only the host asks for this, and root does it. The disk's author may put any link anywhere, so the kernel resolves
//! every path as if the disk were all there is ([`root`]), and nothing reaches file systems that are mounted over it.

pub mod pack;
mod remove;
mod root;
pub mod run;
pub mod unpack;
mod walk;

use berth_domain::agent::control::Found;
use http::StatusCode;
use rustix::fs::{FileType, OFlags};

use crate::body::{Answer, reply};
use crate::call::Call;
use crate::error::{Refusal, Result};
use root::Root;

/// `GET /control/stat`.
pub async fn stat(mut call: Call) -> Result<Answer> {
    let path = call.query.required("path");
    call.query.finish()?;
    let agent = call.agent.clone();
    let look = move || {
        let root = Root::of(&agent)?;
        let found = root.open(path.as_bytes(), OFlags::PATH)?;
        let stat = rustix::fs::fstat(&found)?;
        Ok::<_, Refusal>(Found { directory: FileType::from_raw_mode(stat.st_mode) == FileType::Directory })
    };
    let found = tokio::task::spawn_blocking(look).await.map_err(Refusal::internal)??;
    Ok(reply(StatusCode::OK, &found))
}
