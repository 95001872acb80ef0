//! The generations of machines that a simulated host acted on.

use std::collections::HashMap;

use berth_domain::host::Aim;
use berth_domain::host::aim::{Act, Noted};
use berth_domain::ids::MachineId;
use berth_host::{EngineError, Result};

/// What was acted on last, of each machine.
#[derive(Default)]
pub struct Generations(HashMap<MachineId, Noted>);

impl Generations {
    /// Acts on a machine, if that was not decided too early.
    ///
    /// # Errors
    /// `Outdated` where it was.
    pub fn admit(&mut self, aim: Aim, act: Act) -> Result<()> {
        if let Some(next) = aim.admit(act, self.0.get(&aim.id).copied()).map_err(EngineError::Outdated)? {
            self.0.insert(aim.id, next);
        }
        Ok(())
    }

    /// Whether a machine was ended, or a start of it called off, later than it was asked to start.
    pub fn has_ended(&self, id: MachineId) -> bool {
        self.0.get(&id).is_some_and(|noted| noted.ended)
    }

    /// Somebody else has acted on this generation of a machine.
    pub fn overtake(&mut self, id: MachineId, generation: i64) {
        self.0.insert(id, Noted { generation, ended: false });
    }
}
