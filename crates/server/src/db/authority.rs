//! Transactions of callers: who may is asked again inside the transaction that acts.
//!
//! A request is authorized when its head is read; its body may come much later, and what it asks for waits for the
//! writer. Between the two a role may be taken, a credential revoked, somebody suspended. So whoever acts for a caller
//! begins with [`Db::begin_as`]: nobody else writes until it is over, and what it was told of the caller holds. There
//! everybody takes turns at the writer ([`lane`](super::lane)), so that nobody's changes keep others from theirs.

use async_trait::async_trait;
use uuid::Uuid;

use super::{Db, Tx};

/// Who acts, with what was granted to them.
#[async_trait]
pub trait Authority: Sync {
    /// With whose transactions this one takes turns: the organization's, else the person's or the key's.
    fn tenant(&self) -> Uuid;

    /// Refuses what the caller may not do any more, by what the transaction sees.
    async fn confirm(&self, tx: &mut Tx) -> berth_domain::Result<()>;
}

impl Db {
    /// Begins a transaction that acts for a caller, who still may.
    pub async fn begin_as(&self, caller: &impl Authority) -> berth_domain::Result<Tx> {
        let turn = self.lanes.enter(caller.tenant(), self.wait).await?;
        let mut tx = self.begin().await?;
        turn.begun();
        tx.turn = Some(turn);
        caller.confirm(&mut tx).await?;
        Ok(tx)
    }
}
