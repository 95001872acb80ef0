//! Turns at the writer: one transaction writes at a time, and a tenant with many transactions waits for its own first.
//!
//! In a queue in the order of arrival, one tenant could fill the queue, and after five seconds the others would be
//! refused. So a tenant has at most [`AHEAD`] transactions at or before the writer, and its others wait behind those: a
//! newcomer waits for two of each other tenant at most. Nobody has to choose a rate, and a tenant alone writes as fast
//! as the database does.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_domain::{Code, Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use uuid::Uuid;

/// Transactions of a tenant that write or wait for the writer: while one writes, the next is ready.
pub const AHEAD: usize = 2;
/// Seconds after which a refused client should try again: some of the tenant's transactions are over then.
const COME_AGAIN: u64 = 1;

/// The lanes of the tenants that write or want to.
#[derive(Debug, Default)]
pub struct Lanes(Mutex<HashMap<Uuid, Entry>>);

#[derive(Debug)]
struct Entry {
    turns: Arc<Semaphore>,
    /// Transactions that wait or write.
    count: usize,
    /// Transactions that the writer took since the lane was opened.
    begun: u64,
}

/// A transaction's stay in a lane. The last one to leave closes the lane.
#[derive(Debug)]
struct Inside {
    lanes: Arc<Lanes>,
    whose: Uuid,
}

/// A turn of a lane, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    // Dropped first: it returns the turn before the lane may close.
    _turn: OwnedSemaphorePermit,
    inside: Inside,
}

impl Turn {
    /// Notes that the writer took the transaction of this turn.
    pub fn begun(&self) {
        let Inside { lanes, whose } = &self.inside;
        if let Some(entry) = lanes.lanes().get_mut(whose) {
            entry.begun += 1;
        }
    }
}

impl Lanes {
    fn lanes(&self) -> MutexGuard<'_, HashMap<Uuid, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn in a tenant's lane, at most `patience`.
    ///
    /// # Errors
    /// 429 where the tenant's own transactions took that long; 503 where the writer took none of them in that time.
    pub async fn enter(self: &Arc<Self>, whose: Uuid, patience: Duration) -> Result<Turn> {
        let (turns, before) = {
            let mut lanes = self.lanes();
            let new = || Entry { turns: Semaphore::new(AHEAD).into(), count: 0, begun: 0 };
            let entry = lanes.entry(whose).or_insert_with(new);
            entry.count += 1;
            (entry.turns.clone(), entry.begun)
        };
        let inside = Inside { lanes: self.clone(), whose };
        let Ok(turn) = timeout(patience, turns.acquire_owned()).await else {
            let begun = self.lanes().get(&whose).map_or(before, |entry| entry.begun);
            return Err(if begun == before {
                Error::unavailable("the writer takes no transactions")
            } else {
                too_many()
            });
        };
        Ok(Turn { _turn: turn.map_err(Error::internal)?, inside })
    }

    /// Transactions of a tenant that wait or write.
    #[cfg(test)]
    pub fn count(&self, whose: Uuid) -> usize {
        self.lanes().get(&whose).map_or(0, |entry| entry.count)
    }
}

fn too_many() -> Error {
    let message = "Too many changes of yours, or of your organization, are under way. Send fewer at once, or try again \
                   shortly.";
    Error::new(Code::TooMany, message).retry_after(COME_AGAIN)
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut lanes = self.lanes.lanes();
        if let Some(entry) = lanes.get_mut(&self.whose) {
            entry.count -= 1;
            if entry.count == 0 {
                lanes.remove(&self.whose);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use tokio::task::JoinSet;

    use super::*;
    use crate::db::{Authority, CONNECTIONS, Db, Tx};

    struct Of(u128);

    #[async_trait]
    impl Authority for Of {
        fn tenant(&self) -> Uuid {
            Uuid::from_u128(self.0)
        }

        async fn confirm(&self, _: &mut Tx) -> berth_domain::Result<()> {
            Ok(())
        }
    }

    /// Begins a transaction for a tenant and waits until it is in its lane.
    async fn begins(db: &Db, tasks: &mut JoinSet<()>, order: &Arc<Mutex<Vec<u128>>>, whose: u128) {
        let before = db.lanes.count(Of(whose).tenant());
        let (own, order) = (db.clone(), order.clone());
        tasks.spawn(async move {
            let tx = own.begin_as(&Of(whose)).await.unwrap();
            order.lock().unwrap().push(whose);
            tx.commit().await.unwrap();
        });
        while db.lanes.count(Of(whose).tenant()) == before {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn who_wants_many_transactions_waits_for_their_own_first() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("db").display());
        let db = Db::connect(&url, Duration::from_mins(10), CONNECTIONS).await.unwrap();
        db.migrate().await.unwrap();
        let (order, mut tasks) = (Arc::<Mutex<Vec<u128>>>::default(), JoinSet::new());
        let writer = db.begin().await.unwrap();
        for _ in 0..20 {
            begins(&db, &mut tasks, &order, 1).await;
        }
        begins(&db, &mut tasks, &order, 2).await;
        drop(writer);
        tasks.join_all().await;
        let order = order.lock().unwrap();
        let place = order.iter().position(|whose| *whose == 2).unwrap();
        assert_eq!((place, order.len()), (AHEAD, 21), "{order:?}");
        assert!(db.lanes.lanes().is_empty(), "who wants nothing is forgotten");
    }

    #[tokio::test]
    async fn who_waits_too_long_is_told_why_and_others_are_not() {
        let lanes = Arc::<Lanes>::default();
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let mut held = Vec::new();
        for _ in 0..AHEAD {
            held.push(lanes.enter(one, Duration::from_mins(1)).await.unwrap());
        }
        let stuck = lanes.enter(one, Duration::ZERO).await.unwrap_err();
        assert_eq!(stuck.code, Code::Unavailable, "nobody's changes are made");
        // It enters the lane before one of the others begins.
        let (refused, ()) = tokio::join!(lanes.enter(one, Duration::from_millis(1)), async { held[0].begun() });
        let refused = refused.unwrap_err();
        assert_eq!((refused.code, refused.retry_after), (Code::TooMany, Some(COME_AGAIN)));
        assert!(lanes.enter(other, Duration::from_mins(1)).await.is_ok());
        assert_eq!((lanes.count(one), lanes.count(other)), (AHEAD, 0));
        held.pop();
        assert!(lanes.enter(one, Duration::from_mins(1)).await.is_ok());
    }
}
