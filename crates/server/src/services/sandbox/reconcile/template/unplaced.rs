//! Templates whose machines no host takes.
//!
//! A lack of room fails what needs it. A word of an operator that no new machine is taken passes: what waits for that keeps
//! its wish, since nothing would ever set it back.

use berth_domain::sandbox::TemplateStatus;
use berth_host::EngineError;

use super::{StepError, TemplateLife, enter};
use crate::services::placement::Refusal;
use crate::services::sandbox::store::template::TemplateRow;

impl TemplateLife {
    /// No host takes the machines of a build: it waits where that passes, else it cannot be built.
    pub(super) async fn refused(&self, template: &TemplateRow, refusal: Refusal) -> Result<(), StepError> {
        Self::log_refusal(template, &refusal);
        if refusal.passes {
            return self.await_a_host(template, &refusal).await;
        }
        Err(EngineError::NoCapacity(refusal.owner).into())
    }

    /// No host takes the machine that boots it, for now: meanwhile it is of use as far as its disk is enough.
    pub(super) async fn warm_later(&self, template: &TemplateRow, refusal: &Refusal) -> Result<(), StepError> {
        if Self::has_to_start(template) {
            return self.await_a_host(template, refusal).await;
        }
        let message = Some(begins_cold(refusal));
        self.change(template.id, |t, now| enter(t, TemplateStatus::Ready, message, now)).await
    }

    /// Waits until a host takes new machines again; its own time begins then.
    async fn await_a_host(&self, template: &TemplateRow, refusal: &Refusal) -> Result<(), StepError> {
        self.later(template, &awaits(refusal), |t, now| t.status_since = now).await.map(drop)
    }

    /// Whether it is not ready before its owner's command has worked.
    pub(super) fn has_to_start(template: &TemplateRow) -> bool {
        template.start_command.is_some() && template.status == TemplateStatus::Building
    }

    /// Has the service's log say which host refused a machine, and why; of one that waits, once.
    pub(super) fn log_refusal(template: &TemplateRow, refusal: &Refusal) {
        let is_told = |message: &String| [awaits(refusal), begins_cold(refusal)].contains(message);
        if !template.message.as_ref().is_some_and(is_told) {
            let (reason, hosts) = (&refusal.owner, &refusal.hosts);
            tracing::warn!(template = %template.id, reason, ?hosts, "no host takes a template's machine");
        }
    }
}

/// What a template that waits for a host says.
fn awaits(refusal: &Refusal) -> String {
    format!("it waits: {}", refusal.owner)
}

/// What one says that is ready before it was booted.
fn begins_cold(refusal: &Refusal) -> String {
    format!("until it was booted once, its sandboxes start from the disk: {}", refusal.owner)
}
