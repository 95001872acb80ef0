//! Removes layers and memories that nobody needs any more, and uploads whose time is over: first the file, then the row.
//!
//! The row of a layer or memory comes here when something that named it does not any more. Whether anything still does
//! is asked in the transaction that marks it, and what is marked can be named by nobody: new names come only from rows
//! that have it already.

use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::marker::PhantomData;

use berth_domain::ids::{HostId, LayerId, MemoryId, UploadId};
use berth_domain::{Result, Timestamp};
use berth_host::EngineError;
use berth_host::sandbox::SandboxEngine;

use super::{StepError, archive, fault};
use crate::db::{Db, DbError, Tx};
use crate::services::sandbox::Sandboxes;
use crate::services::sandbox::store::archive::Thing;
use crate::services::sandbox::store::layer::LayerRow;
use crate::services::sandbox::store::memory::MemoryRow;
use crate::services::sandbox::store::{layer, layer_copy, memory, upload};
use crate::work::Due;
use crate::work::lifecycle::{Life, Next};

/// What is kept for several, and removed once nobody needs it.
pub trait Shared: Sized + Send + Sync + 'static {
    /// What names it.
    type Id: Copy + Eq + Hash + Send + Sync + Debug + Display + 'static;
    /// Its table.
    const TABLE: &'static str;
    /// What it is, in logs and in the names of fault points.
    const KIND: &'static str;

    /// Those that are to be looked at, longest due first, and when.
    fn with_work(db: &Db, limit: usize) -> impl Future<Output = Result<Vec<(Self::Id, Timestamp)>, DbError>> + Send;

    /// One of them, as far as it may be removed at `now`.
    fn find(db: &Db, id: Self::Id, now: Timestamp) -> impl Future<Output = Result<Option<Self>, DbError>> + Send;

    /// What names it.
    fn id(&self) -> Self::Id;

    /// The host that it lies on.
    fn host(&self) -> Option<HostId>;

    /// Other hosts that may have it, too.
    fn elsewhere(&self, db: &Db) -> impl Future<Output = Result<Vec<HostId>, DbError>> + Send {
        let _ = db;
        async { Ok(Vec::new()) }
    }

    /// What the store of backups may have of it, by its name there.
    fn archive(&self) -> Option<Thing> {
        None
    }

    /// Marks it as to be removed where nobody needs it; else has it rest.
    fn condemn(tx: &mut Tx, id: Self::Id) -> impl Future<Output = Result<bool, DbError>> + Send;

    /// Removes its file.
    fn remove_file(engine: &dyn SandboxEngine, id: Self::Id) -> impl Future<Output = Result<(), EngineError>> + Send;

    /// Removes its row.
    fn remove(&self, tx: &mut Tx, now: Timestamp) -> impl Future<Output = Result<(), DbError>> + Send;

    /// Has it looked at then.
    fn look_at(tx: &mut Tx, id: Self::Id, at: Timestamp) -> impl Future<Output = Result<(), DbError>> + Send;
}

impl Shared for LayerRow {
    type Id = LayerId;
    const TABLE: &'static str = layer::TABLE;
    const KIND: &'static str = "layer";

    async fn with_work(db: &Db, limit: usize) -> Result<Vec<(LayerId, Timestamp)>, DbError> {
        layer::with_work(db, limit).await
    }

    async fn find(db: &Db, id: LayerId, _: Timestamp) -> Result<Option<Self>, DbError> {
        layer::find(db, id).await
    }

    fn id(&self) -> LayerId {
        self.id
    }

    fn host(&self) -> Option<HostId> {
        self.host
    }

    async fn elsewhere(&self, db: &Db) -> Result<Vec<HostId>, DbError> {
        layer_copy::hosts(db, self.id).await
    }

    fn archive(&self) -> Option<Thing> {
        Some(Thing::Layer(self.id))
    }

    async fn condemn(tx: &mut Tx, id: LayerId) -> Result<bool, DbError> {
        let condemned = layer::condemn(tx, id).await?;
        if !condemned {
            layer::rest(tx, id).await?;
        }
        Ok(condemned)
    }

    async fn remove_file(engine: &dyn SandboxEngine, id: LayerId) -> Result<(), EngineError> {
        engine.remove_layer(id).await
    }

    async fn remove(&self, tx: &mut Tx, now: Timestamp) -> Result<(), DbError> {
        layer::remove(tx, self, now).await
    }

    async fn look_at(tx: &mut Tx, id: LayerId, at: Timestamp) -> Result<(), DbError> {
        layer::look_at(tx, id, at).await
    }
}

impl Shared for MemoryRow {
    type Id = MemoryId;
    const TABLE: &'static str = memory::TABLE;
    const KIND: &'static str = "memory";

    async fn with_work(db: &Db, limit: usize) -> Result<Vec<(MemoryId, Timestamp)>, DbError> {
        memory::with_work(db, limit).await
    }

    async fn find(db: &Db, id: MemoryId, _: Timestamp) -> Result<Option<Self>, DbError> {
        memory::find(db, id).await
    }

    fn id(&self) -> MemoryId {
        self.id
    }

    fn host(&self) -> Option<HostId> {
        self.host
    }

    async fn elsewhere(&self, _: &Db) -> Result<Vec<HostId>, DbError> {
        Ok(self.other_host.into_iter().collect())
    }

    fn archive(&self) -> Option<Thing> {
        Some(Thing::Memory(self.id))
    }

    async fn condemn(tx: &mut Tx, id: MemoryId) -> Result<bool, DbError> {
        let condemned = memory::condemn(tx, id).await?;
        if !condemned {
            memory::rest(tx, id).await?;
        }
        Ok(condemned)
    }

    async fn remove_file(engine: &dyn SandboxEngine, id: MemoryId) -> Result<(), EngineError> {
        engine.remove_memory(id).await
    }

    async fn remove(&self, tx: &mut Tx, _: Timestamp) -> Result<(), DbError> {
        memory::remove(tx, self.id).await
    }

    async fn look_at(tx: &mut Tx, id: MemoryId, at: Timestamp) -> Result<(), DbError> {
        memory::look_at(tx, id, at).await
    }
}

/// An upload whose time is over.
#[derive(Clone, Copy, Debug)]
pub struct ExpiredUpload(UploadId);

impl Shared for ExpiredUpload {
    type Id = UploadId;
    const TABLE: &'static str = upload::TABLE;
    const KIND: &'static str = "upload";

    async fn with_work(db: &Db, limit: usize) -> Result<Vec<(UploadId, Timestamp)>, DbError> {
        upload::with_work(db, limit).await
    }

    async fn find(db: &Db, id: UploadId, now: Timestamp) -> Result<Option<Self>, DbError> {
        Ok(upload::is_over(db, id, now).await?.then_some(Self(id)))
    }

    fn id(&self) -> UploadId {
        self.0
    }

    /// Uploads are received by the service's own host, and whoever takes one elsewhere leaves none there.
    fn host(&self) -> Option<HostId> {
        None
    }

    /// Its time alone decides.
    async fn condemn(_: &mut Tx, _: UploadId) -> Result<bool, DbError> {
        Ok(true)
    }

    async fn remove_file(engine: &dyn SandboxEngine, id: UploadId) -> Result<(), EngineError> {
        engine.remove_upload(id).await
    }

    async fn remove(&self, tx: &mut Tx, _: Timestamp) -> Result<(), DbError> {
        upload::remove(tx, self.0).await
    }

    async fn look_at(tx: &mut Tx, id: UploadId, at: Timestamp) -> Result<(), DbError> {
        upload::look_at(tx, id, at).await
    }
}

/// The lives of what is shared.
pub struct SharedLife<S> {
    sandboxes: Sandboxes,
    kind: PhantomData<S>,
}

impl<S: Shared> SharedLife<S> {
    /// Those of the service.
    pub const fn new(sandboxes: Sandboxes) -> Self {
        Self { sandboxes, kind: PhantomData }
    }
}

impl<S: Shared> Life for SharedLife<S> {
    type Key = S::Id;
    type Seen = S;
    /// There is one: to remove it.
    type Step = ();
    const TABLE: &'static str = S::TABLE;
    const KIND: &'static str = S::KIND;

    async fn due(&self, now: Timestamp, limit: usize) -> Result<Due<S::Id>> {
        Ok(Due::at(now, S::with_work(self.sandboxes.db(), limit).await?))
    }

    async fn look(&self, id: &S::Id) -> Result<Option<S>, StepError> {
        Ok(S::find(self.sandboxes.db(), *id, self.sandboxes.clock().now()).await?)
    }

    /// Whether anything needs it is asked in the transaction that marks it.
    async fn plan(&self, seen: &S) -> Result<Next<()>, StepError> {
        let mut tx = self.sandboxes.db().begin().await?;
        let condemned = S::condemn(&mut tx, seen.id()).await?;
        tx.commit().await?;
        Ok(if condemned { Next::Take(()) } else { Next::Rest(None) })
    }

    fn name((): &()) -> &'static str {
        "remove"
    }

    async fn take(&self, seen: &S, (): ()) -> Result<(), StepError> {
        S::remove_file(&*self.sandboxes.engine_of(seen.host())?, seen.id()).await?;
        for host in seen.elsewhere(self.sandboxes.db()).await? {
            // On a host that is away it is nobody's, and is set aside once that is back: nobody waits for it.
            let removed = async { S::remove_file(&*self.sandboxes.engine_of(Some(host))?, seen.id()).await };
            if let Err(error) = removed.await {
                tracing::warn!(kind = S::KIND, %host, %error, "a copy stays on its host, where nobody owns it any more");
            }
        }
        if let Some(thing) = seen.archive() {
            archive::clear(&self.sandboxes, thing).await?;
        }
        fault(S::KIND, "remove", "done").await?;
        let mut tx = self.sandboxes.db().begin().await?;
        seen.remove(&mut tx, self.sandboxes.clock().now()).await?;
        Ok(tx.commit().await?)
    }

    /// What is needed rests since that was found.
    async fn rest(&self, _: &S, _: Option<Timestamp>) -> Result<(), StepError> {
        Ok(())
    }

    async fn postpone(&self, seen: &S, until: Timestamp) -> Result<(), StepError> {
        let mut tx = self.sandboxes.db().begin().await?;
        S::look_at(&mut tx, seen.id(), until).await?;
        Ok(tx.commit().await?)
    }

    /// What nobody needs is never given up.
    async fn give_up(&self, _: &S, _: &EngineError) -> Result<bool, StepError> {
        Ok(false)
    }
}
