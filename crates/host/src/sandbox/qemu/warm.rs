//! Machines that are started before anybody owns them.

use std::time::Duration;

use berth_domain::ids::MachineId;
use berth_qemu::machine;
use tokio::time::timeout;

use super::QemuSandboxes;
use super::captured::agent_failed;
use super::live::Incarnation;
use super::machine::identity;
use crate::Result;
use crate::error::transient;
use crate::sandbox::StartSpec;

/// How long making one may take: a guest that hangs keeps no start from others.
const PATIENCE: Duration = Duration::from_mins(1);
/// What one takes of the host's memory, in MiB: measured with a guest of 256 MiB, emulated.
const EACH_MB: u64 = 45;
/// More are not kept, however much memory there is: each takes half a per cent of a core.
const MOST: usize = 16;
/// What one has run before somebody gets it: the path of every command.
const REHEARSAL: &str = "true";

/// How many fit into a thirtieth of a host's memory.
pub(super) fn fitting(memory_mb: u64) -> usize {
    usize::try_from(memory_mb / 30 / EACH_MB).unwrap_or(MOST).clamp(1, MOST)
}

impl QemuSandboxes {
    pub(super) async fn make_warm(&self, spec: &StartSpec) -> Result<()> {
        let _turn = self.starting.take_idle().await.map_err(transient)?;
        let made = timeout(PATIENCE, self.start_warm(spec)).await;
        made.unwrap_or_else(|_| Err(transient("it did not begin in time")))
    }

    async fn start_warm(&self, spec: &StartSpec) -> Result<()> {
        let (incarnation, _) = self.launch(spec, None).await?;
        if !incarnation.from_memory {
            return Err(transient("the template has no memory that loads"));
        }
        let live = self.live(spec.id).ok_or_else(|| transient("the machine is gone"))?;
        let session = live.session().await.map_err(agent_failed)?;
        // Programs of the template go on only as somebody, unless they are made for it.
        let is_alone = session.metrics().await.map_err(agent_failed)?.processes == 0;
        let mut first = identity(spec, &incarnation, self.clock.now().0)?;
        let rehearsal = if is_alone { Some(REHEARSAL) } else { spec.rehearsal.as_deref() };
        first.thaw = rehearsal.is_some();
        session.identify(&first).await.map_err(agent_failed)?;
        match rehearsal {
            Some(rehearsal) if !self.run_within(spec.id, "commands", rehearsal, PATIENCE).await? => {
                Err(transient("what it was to run before somebody gets it failed"))
            }
            _ => Ok(()),
        }
    }

    /// Whether a machine runs that began with its memory and is nobody's.
    pub(super) fn is_nobodys(&self, id: MachineId) -> bool {
        let dir = self.places.machine(id);
        let began = Incarnation::read(&dir).is_some_and(|known| known.from_memory && !known.identified);
        began && machine::find(&dir, id.0).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_keeps_what_a_thirtieth_of_its_memory_holds() {
        assert_eq!([2 << 10, 8 << 10, 24 << 10, 256 << 10].map(fitting), [1, 6, 16, 16]);
    }
}
