//! Where a sandbox stands, for requests to what is inside.

use berth_domain::ids::{HostId, MachineId, Owner, ProjectId, SandboxId};
use berth_domain::sandbox::Phase;

use crate::db::machine::Machine;
use crate::db::{Db, DbError, FromRow, Row, sql};
use crate::{machine_columns, with_machine};

/// Where a sandbox stands that is not gone.
#[derive(Clone, Debug)]
pub struct Standing {
    /// Its phase.
    pub phase: Phase,
    /// The step under way, or why it stands there.
    pub message: Option<String>,
    /// Whether requests to it resume it while it is paused.
    pub auto_resume: bool,
    /// Whether it is paused to go to another host, and goes on there.
    pub moves: bool,
    /// Its machine.
    pub machine: MachineId,
    /// The host of that, once it is on one.
    pub host: Option<HostId>,
    /// Whether that host does not answer.
    pub host_is_lost: bool,
}

impl FromRow for Standing {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        let machine = Machine::from_row(row)?;
        Ok(Self {
            phase: row.word("phase", Phase::parse)?,
            message: row.opt_text("message")?,
            auto_resume: row.flag("auto_resume")?,
            moves: row.flag("to_resumes")?,
            machine: machine.id,
            host: machine.host,
            host_is_lost: machine.host_is_lost,
        })
    }
}

/// Where a sandbox stands that is not gone.
pub async fn find(db: &Db, id: SandboxId) -> Result<Option<Standing>, DbError> {
    let standing = sql(concat!(
        "SELECT sandboxes.phase, sandboxes.message, sandboxes.auto_resume, sandboxes.to_resumes, ",
        machine_columns!(),
        " FROM ",
        with_machine!("sandboxes", "sandbox"),
        " WHERE sandboxes.id = $1 AND sandboxes.deleted_at IS NULL"
    ));
    standing.bind(id).fetch_optional(db).await
}

/// Where a sandbox that is not gone belongs: for routes that name it alone.
pub async fn place(db: &Db, id: SandboxId) -> Result<Option<Owner>, DbError> {
    let place = sql("SELECT org_id, project_id FROM sandboxes WHERE id = $1 AND deleted_at IS NULL");
    let place: Option<Option<Owner>> = place.bind(id).fetch_optional(db).await?;
    Ok(place.flatten())
}

/// A sandbox that is not gone, and its project.
#[derive(Clone, Copy, Debug)]
pub struct Living {
    /// Its id.
    pub id: SandboxId,
    /// Its project.
    pub project: ProjectId,
}

impl FromRow for Living {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self { id: row.parsed("id")?, project: row.parsed("project_id")? })
    }
}

/// Sandboxes that are not gone: this one, or all.
pub async fn living(db: &Db, only: Option<SandboxId>) -> Result<Vec<Living>, DbError> {
    match only {
        Some(id) => {
            sql("SELECT id, project_id FROM sandboxes WHERE deleted_at IS NULL AND id = $1")
                .bind(id)
                .fetch_all(db)
                .await
        }
        None => sql("SELECT id, project_id FROM sandboxes WHERE deleted_at IS NULL").fetch_all(db).await,
    }
}
