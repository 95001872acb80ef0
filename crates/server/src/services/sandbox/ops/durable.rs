//! What may be kept somewhere else than on its host, too.

use berth_domain::ids::LayerId;
use berth_domain::sandbox::durable::{DEEPEST, Place};
use berth_domain::{Code, Error, Result};

use super::admit_stored;
use crate::db::Tx;
use crate::http::auth::Scope;
use crate::services::depot::Depot;
use crate::services::placement::states;
use crate::services::sandbox::{Sandboxes, store};

/// Refuses to have a disk with this top, and the memory with it, outlive its host where nothing else can have it, where the disk lies
/// on too many layers, and where the project keeps as much as it may already.
pub(super) async fn admit(tx: &mut Tx, sandboxes: &Sandboxes, scope: &Scope, top: Option<LayerId>) -> Result<()> {
    let refused = |message: &str| Err(Error::new(Code::NotSupported, message));
    match sandboxes.config().durable_in {
        Place::Hosts if states(&mut *tx).await?.len() < 2 => {
            return refused(
                "Nothing outlives the one host that this platform has. Leave out 'durable', or have an administrator add another \
                 host (berth admin host add NAME) or keep such things with backups (durable_in = \"backups\" below [sandbox], and \
                 a place below [backups]).",
            );
        }
        Place::Backups if sandboxes.depot().is_some_and(Depot::is_gone) => {
            return refused(
                "The store that keeps what outlives its host is not in its place. Leave out 'durable', or have an administrator \
                 bring it back: the log of the service names it.",
            );
        }
        Place::Hosts | Place::Backups => {}
    }
    let layers = match top {
        Some(top) => frozen(tx, top).await?,
        None => 0,
    };
    if layers > DEEPEST {
        let message = format!(
            "Its disk would lie on {layers} layers, and one that is to outlive its host lies on {DEEPEST} at most: each snapshot \
             and each such pause adds one. Leave out 'durable'."
        );
        return Err(Error::new(Code::NotSupported, message));
    }
    admit_stored(tx, sandboxes, scope).await
}

/// On how many layers a disk lies once nobody writes to its top any more.
async fn frozen(tx: &mut Tx, top: LayerId) -> Result<usize> {
    let layers = store::layer_copy::chain(&mut *tx, top).await?.len();
    // One that is not made yet has nothing in it.
    let is_made = store::layer::find(tx, top).await?.is_some_and(|top| top.made);
    Ok(if is_made { layers } else { layers.saturating_sub(1) })
}
