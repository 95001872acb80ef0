//! Looks whether a store is in its place, and searches it for what no row names.
//!
//! A database may be an older copy, so what it does not know goes only when it was not known for as long as what is lost is kept,
//! counted from when that was first seen.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use berth_domain::ids::HostId;
use berth_domain::{Error, Result};
use berth_host::EngineError;
use berth_host::clock::Clock;
use tokio_util::sync::CancellationToken;

use super::mark::sift;
use super::{Depot, DepotError, Id, Standing};
use crate::db::DbError;
use crate::work::lifecycle::StepError;

/// Between two looks whether the store is in its place.
const GLANCE: Duration = Duration::from_mins(1);
/// Between two searches of the store for what no row names.
const SEARCH: Duration = Duration::from_hours(6);

/// What a service's rows say of its place in the store.
#[async_trait]
pub trait Keeps<I: Id>: Send + Sync {
    /// Whether something is to be there for certain.
    async fn lies_in(&self, store: &str) -> Result<bool, DbError>;

    /// All that may be there.
    async fn named(&self, store: &str) -> Result<HashSet<I>, DbError>;

    /// All that is there whole, as far as rows know, if somebody else can send it again.
    async fn whole(&self, store: &str) -> Result<HashSet<I>, DbError> {
        let _ = store;
        Ok(HashSet::new())
    }

    /// Records that nothing is there of one of these.
    async fn doubt(&self, store: &str, id: I) -> Result<(), DbError> {
        let _ = (store, id);
        Ok(())
    }
}

/// A service's place in the store, and its rows.
pub struct Searcher<'a, I> {
    /// The place.
    pub depot: &'a Depot<I>,
    /// Whose it is.
    pub keeps: &'a dyn Keeps<I>,
    /// The service's own host, which marks the place.
    pub service: HostId,
}

impl<I: Id> Searcher<'_, I> {
    /// Fails where the store is not in its place.
    ///
    /// # Errors
    /// It is another one, or cannot be used.
    pub async fn in_place(&self) -> Result<Standing, StepError> {
        let has_things = self.keeps.lies_in(self.depot.name()).await?;
        let place = self.depot.mark();
        let away =
            |error: &DepotError| tracing::warn!(%error, place, "the store of backups cannot be used; trying again");
        match self.depot.look(self.service, has_things).await.inspect_err(away)? {
            Standing::Gone => Err(EngineError::Transient("the store of backups is not in its place".into()).into()),
            standing => Ok(standing),
        }
    }

    /// Looks and searches until told to stop; what no row named for so many days goes.
    pub async fn search(&self, clock: &Clock, days: i64, stop: &CancellationToken) {
        // Also in the middle of a call that does not answer.
        stop.run_until_cancelled(self.search_on(clock, days)).await;
    }

    async fn search_on(&self, clock: &Clock, days: i64) {
        let (mut times, mut searched, mut said) = (tokio::time::interval(GLANCE), None::<Instant>, None);
        loop {
            times.tick().await;
            let found = self.in_place().await.ok();
            let is_gone = self.depot.is_gone();
            if said != Some((found, is_gone)) {
                self.tell(found, is_gone);
                said = Some((found, is_gone));
            }
            if found != Some(Standing::Own) {
                // It may be another one once it is there again.
                searched = None;
                continue;
            }
            if searched.is_some_and(|at| at.elapsed() < SEARCH) {
                continue;
            }
            match self.sweep(clock, days).await {
                Ok(()) => searched = Some(Instant::now()),
                Err(error) => tracing::warn!(%error, "the store could not be searched; trying again later"),
            }
        }
    }

    /// Tells the operator how the store was found, where that is not as it should be.
    fn tell(&self, found: Option<Standing>, is_gone: bool) {
        let (store, mark) = (self.depot.name(), self.depot.mark());
        match found {
            Some(Standing::Others) => tracing::warn!(
                store,
                mark,
                "another service keeps things with this database there: nothing is searched for that no row names; where that \
                 service is gone, empty the file mark"
            ),
            None if is_gone => tracing::error!(
                store,
                mark,
                "things that rows name lie in this store, and it is empty: mount it; where this is its place from now on, make an \
                 empty file mark"
            ),
            Some(Standing::Own | Standing::Gone) | None => {}
        }
    }

    async fn sweep(&self, clock: &Clock, days: i64) -> Result<()> {
        let store = self.depot.name();
        // What is whole is asked for before it is listed, and what is named after that: what comes meanwhile is neither missing
        // nor nobody's.
        let whole = self.keeps.whole(store).await?;
        let there = self.depot.all().await.map_err(Error::unavailable)?;
        let missing: Vec<_> = whole.difference(&there).collect();
        if !missing.is_empty() && self.in_place().await.ok() != Some(Standing::Own) {
            // A share that was unmounted meanwhile has nothing.
            return Err(Error::unavailable("the store is not in its place"));
        }
        for id in missing {
            tracing::error!(%id, store, "it is not in the store any more");
            self.keeps.doubt(store, *id).await?;
        }
        let known = self.keeps.named(store).await?;
        let before = self.depot.unnamed().await.map_err(Error::unavailable)?;
        let (noted, go) = sift(&(&there - &known), &before, clock.now(), days);
        if noted != before {
            self.depot.note_unnamed(&noted).await.map_err(Error::unavailable)?;
        }
        for id in go {
            if self.keeps.named(store).await?.contains(&id) {
                continue;
            }
            tracing::warn!(%id, store, "removing from the store what no row names");
            self.depot.clear(id).await.map_err(Error::unavailable)?;
        }
        Ok(())
    }
}
