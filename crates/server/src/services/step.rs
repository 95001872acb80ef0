//! The steps of reconcilers: why one did not come to its end, and the points at which tests make it fail.

use berth_domain::Error;

use super::engine::EngineError;
use crate::db::DbError;

/// Why a step did not come to its end.
#[derive(Debug)]
pub(in crate::services) enum StepError {
    /// The engine could not do it.
    Engine(EngineError),
    /// It could not be recorded, or a defect of ours.
    Own(Error),
}

impl From<EngineError> for StepError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

impl From<Error> for StepError {
    fn from(error: Error) -> Self {
        Self::Own(error)
    }
}

impl From<DbError> for StepError {
    fn from(error: DbError) -> Self {
        Self::Own(error.into())
    }
}

/// Passes the fault point of this name.
pub(in crate::services) async fn fault(kind: &str, step: &str, moment: &str) -> Result<(), StepError> {
    crate::fault::point(&format!("{kind}.{step}.{moment}"))
        .await
        .map_err(|text| StepError::Engine(EngineError::Transient(text)))
}
