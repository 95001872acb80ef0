//! What machines of sandboxes and of builds say on the host is kept within bounds while they run, as it is of VMs.

use std::path::PathBuf;
use std::time::Duration;

use berth_qemu::machine;
use tokio_util::sync::CancellationToken;

use super::QemuSandboxes;
use super::places::Places;

/// Between two looks: QEMU writes little unless its guest has taken it over.
const LOOK: Duration = Duration::from_secs(15);

impl QemuSandboxes {
    /// Keeps the logs of machines within their bounds, until told to stop.
    pub(super) async fn bound_logs(&self, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
            bound(&self.places);
        }
    }
}

fn bound(places: &Places) {
    for dir in folders(places) {
        if let Err(error) = machine::bound_logs(&dir) {
            tracing::debug!(%error, dir = %dir.display(), "a machine's logs cannot be bounded now");
        }
    }
}

/// The folders of all machines: of sandboxes, and of stages of builds.
fn folders(places: &Places) -> impl Iterator<Item = PathBuf> {
    let builds = std::fs::read_dir(places.builds()).into_iter().flatten().flatten().map(|entry| entry.path());
    let parents = std::iter::once(places.machines()).chain(builds);
    parents.flat_map(|parent| machine::scan(&parent)).map(|found| found.dir)
}

#[cfg(test)]
mod tests {
    use berth_domain::ids::{MachineId, TemplateId};
    use uuid::Uuid;

    use super::*;

    #[test]
    fn what_machines_of_sandboxes_and_builds_say_is_bounded() {
        let data = tempfile::tempdir().unwrap();
        let places = Places::new(data.path());
        let (machine, template) = (MachineId(Uuid::now_v7()), TemplateId(Uuid::now_v7()));
        for dir in [places.machine(machine), places.build(template).join(machine.to_string())] {
            std::fs::create_dir_all(&dir).unwrap();
            let log = dir.join("qemu.log");
            let length = || std::fs::metadata(&log).unwrap().len();
            std::fs::write(&log, vec![b'x'; 256 << 10]).unwrap();
            bound(&places);
            assert_eq!(length(), 256 << 10);
            std::fs::write(&log, vec![b'x'; (256 << 10) + 1]).unwrap();
            bound(&places);
            assert_eq!(length(), 0, "{}", log.display());
        }
    }
}
