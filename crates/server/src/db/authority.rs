//! Transactions of callers: a transaction that acts for a caller checks again that the caller may act.
//!
//! The service authorizes a request when it has read the head. The body may come much later, and the transaction then
//! waits for the writer. Meanwhile somebody may take the caller's role, revoke the credential or suspend the caller. So
//! code that acts for a caller begins with [`Db::begin_as`]: no one else writes until that transaction is over, so what
//! it read of the caller stays true. All tenants take turns at the writer ([`lane`](super::lane)), so that no tenant's
//! changes keep others from theirs.

use async_trait::async_trait;
use uuid::Uuid;

use super::leader::Asker;
use super::{Db, Tx};

/// Who acts, with what an extractor granted them.
#[async_trait]
pub trait Authority: Sync {
    /// The tenant whose transactions take turns with this one: the organization, else the person or the key.
    fn tenant(&self) -> Uuid;

    /// Refuses if the caller may not do it any more, by what the transaction reads.
    async fn confirm(&self, tx: &mut Tx) -> berth_domain::Result<()>;
}

impl Db {
    /// Begins a transaction for a caller, after checking that the caller still may act.
    pub async fn begin_as(&self, caller: &impl Authority) -> berth_domain::Result<Tx> {
        let turn = self.lanes.enter(caller.tenant(), self.wait).await?;
        let mut tx = self.begin_for(Asker::Caller).await?;
        turn.begun();
        tx.turn = Some(turn);
        caller.confirm(&mut tx).await?;
        Ok(tx)
    }
}
