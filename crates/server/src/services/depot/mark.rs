//! What a service leaves in the store for itself: that it was there, and what it found there that no row names.
//!
//! ```text
//! <prefix>/<place>/berth.json    which service keeps things here: without it this is not the place where they are
//! <prefix>/<place>/unnamed.json  what no row names, and when that was first seen
//! ```
//!
//! A share that is not mounted is an empty folder, and a database may be a copy of one with which another service works: neither
//! is told from what it looks like otherwise.

use std::collections::{BTreeMap, HashSet};

use berth_domain::Timestamp;
use berth_domain::ids::HostId;
use serde_json::{Value, json};

use super::{Depot, DepotError, Id};

const MARK: &str = "berth.json";
const UNNAMED: &str = "unnamed.json";

/// What was found at the place of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The store, which this service marked.
    Own,
    /// The store, which another service with the same database marked.
    Others,
    /// Nothing, although rows name what lies in the store.
    Gone,
}

/// What no row names, by when that was first seen.
pub type Unnamed = BTreeMap<String, i64>;

impl<I: Id> Depot<I> {
    /// Looks for the mark. Where there is none, the place is marked if it is new: if rows name nothing that lies in the store.
    pub async fn look(&self, service: HostId, has_things: bool) -> Result<Standing, DepotError> {
        let mark = self.get_at(self.below.clone().join(MARK)).await;
        let by = match &mark {
            Ok(text) => {
                serde_json::from_slice::<Value>(text).ok().and_then(|mark| Some(mark["service"].as_str()?.to_owned()))
            }
            Err(error) if error.is_missing() => None,
            Err(_) => return mark.map(|_| Standing::Gone),
        };
        let standing = match by {
            Some(by) if by == service.to_string() => Standing::Own,
            Some(_) => Standing::Others,
            None if mark.is_err() && has_things => Standing::Gone,
            // Whoever marks that other place may not have come to it yet.
            None if mark.is_err() && !self.is_in_a_store().await? => return Ok(Standing::Gone),
            None => {
                let text = format!("{:#}\n", json!({"service": service.to_string()}));
                self.put_at(self.below.clone().join(MARK), text.into()).await?;
                Standing::Own
            }
        };
        *self.standing() = Some(standing);
        Ok(standing)
    }

    /// Whether the place in which this one lies has its mark.
    async fn is_in_a_store(&self) -> Result<bool, DepotError> {
        let Some(within) = &self.within else { return Ok(true) };
        match self.get_at(within.clone().join(MARK)).await {
            Err(error) if error.is_missing() => Ok(false),
            mark => mark.map(|_| true),
        }
    }

    /// Whether the last look found nothing where things are to lie.
    pub fn is_gone(&self) -> bool {
        *self.standing() == Some(Standing::Gone)
    }

    /// Where the mark is, as an operator finds it.
    pub fn mark(&self) -> String {
        let path = self.below.clone().join(MARK);
        match &self.store.config.s3 {
            Some(s3) => format!("{path} in the bucket {}", s3.bucket),
            None => self.store.config.folder.join(path.as_ref()).display().to_string(),
        }
    }

    /// What no row named when that was looked at last.
    pub async fn unnamed(&self) -> Result<Unnamed, DepotError> {
        match self.get_at(self.below.clone().join(UNNAMED)).await {
            Err(error) if error.is_missing() => Ok(Unnamed::new()),
            text => Ok(serde_json::from_slice(&text?).unwrap_or_default()),
        }
    }

    /// Writes down what no row names.
    pub async fn note_unnamed(&self, unnamed: &Unnamed) -> Result<(), DepotError> {
        self.put_at(self.below.clone().join(UNNAMED), format!("{:#}\n", json!(unnamed)).into()).await
    }
}

/// Of what no row names: what to note, and what was seen first so long ago that it goes.
pub(super) fn sift<I: Id>(unnamed: &HashSet<I>, noted: &Unnamed, now: Timestamp, days: i64) -> (Unnamed, Vec<I>) {
    let (mut note, mut go) = (Unnamed::new(), Vec::new());
    for &id in unnamed {
        let since = noted.get(&id.to_string()).copied().unwrap_or(now.0);
        note.insert(id.to_string(), since);
        if Timestamp(since).plus_seconds(86_400 * days) <= now {
            go.push(id);
        }
    }
    (note, go)
}

#[cfg(test)]
mod tests {
    use berth_domain::ids::BackupId;

    use super::super::tests::folder;
    use super::*;
    use crate::config::Backups;

    #[tokio::test]
    async fn an_empty_folder_is_not_the_place_of_what_rows_name() {
        let dir = tempfile::tempdir().unwrap();
        let [own, other] = [1, 2].map(|n| HostId(uuid::Uuid::from_u128(n)));
        let look = async |service, has_things| folder(dir.path()).look(service, has_things).await.unwrap();
        assert_eq!(look(own, true).await, Standing::Gone);
        assert_eq!(look(own, false).await, Standing::Own);
        assert_eq!(look(own, true).await, Standing::Own);
        assert_eq!(look(other, true).await, Standing::Others);
        // As the operator says that this is the place.
        std::fs::write(folder(dir.path()).mark(), "").unwrap();
        assert_eq!(look(other, true).await, Standing::Own);
    }

    #[tokio::test]
    async fn a_place_in_another_one_is_not_there_before_that() {
        let dir = tempfile::tempdir().unwrap();
        let config = Backups { folder: dir.path().to_owned(), ..Backups::default() };
        let inner = Depot::<BackupId>::inside(&config, "database", "inner").unwrap();
        let own = HostId(uuid::Uuid::from_u128(1));
        assert_eq!(inner.look(own, false).await.unwrap(), Standing::Gone);
        assert!(!dir.path().join("database/inner").exists());
        assert_eq!(folder(dir.path()).look(own, false).await.unwrap(), Standing::Own);
        assert_eq!(inner.look(own, false).await.unwrap(), Standing::Own);
        assert!(dir.path().join("database/inner/berth.json").exists());
    }

    #[test]
    fn days_count_from_when_it_was_first_seen() {
        let id = BackupId(uuid::Uuid::from_u128(1));
        let (all, day) = (HashSet::from([id]), |n: i64| Timestamp(0).plus_seconds(86_400 * n));
        let (noted, go) = sift(&all, &Unnamed::new(), day(100), 14);
        assert!(go.is_empty());
        for (at, gone) in [(100, vec![]), (113, vec![]), (114, vec![id])] {
            let (again, go) = sift(&all, &noted, day(at), 14);
            assert_eq!((again, go), (noted.clone(), gone), "{at}");
        }
        assert_eq!(
            sift(&HashSet::<BackupId>::new(), &noted, day(200), 14),
            (Unnamed::new(), vec![]),
            "a row names it again"
        );
    }
}
