//! How many exports, and how many imports, go on at a time, and whose.
//!
//! Each takes the host's disk and the service's connection for as long as its client likes, so few go on at a time, and
//! neither one project nor one organization with many has all of them. Who finds no place is told when to come again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_domain::ids::{OrgId, ProjectId};
use berth_domain::{Code, Error, Result};

/// Most of one kind that go on at a time.
const MOST: usize = 8;
/// Most of one project.
const MOST_OF_PROJECT: usize = 2;
/// Most of the projects of one organization.
const MOST_OF_ORG: usize = 4;
/// Seconds after which a refused caller should try again.
const COME_AGAIN: u64 = 10;

/// The exports, or the imports, that go on.
pub(super) struct Carrying {
    /// What a project does with a disk, as in "exports".
    verb: &'static str,
    of: Mutex<HashMap<(OrgId, ProjectId), usize>>,
}

/// A place for one of them. Dropping it frees the place.
pub(super) struct Place {
    carrying: Arc<Carrying>,
    owner: (OrgId, ProjectId),
}

impl Carrying {
    /// Nothing goes on yet of what a project does.
    pub(super) fn new(verb: &'static str) -> Arc<Self> {
        Arc::new(Self { verb, of: Mutex::default() })
    }

    /// Takes a place for one of a project.
    ///
    /// # Errors
    /// 429 where the project, its organization, or all together have as many as they may.
    pub(super) fn enter(self: &Arc<Self>, owner: (OrgId, ProjectId)) -> Result<Place> {
        let (mut of, verb) = (self.of(), self.verb);
        let own = of.get(&owner).copied().unwrap_or_default();
        let of_org: usize = of.iter().filter(|((org, _), _)| *org == owner.0).map(|(_, count)| count).sum();
        let message = if own >= MOST_OF_PROJECT {
            format!("The project {verb} {own} disks already. Wait until one of them is over.")
        } else if of_org >= MOST_OF_ORG {
            format!("The organization {verb} {of_org} disks already. Wait until one of them is over.")
        } else if of.values().sum::<usize>() >= MOST {
            format!("The platform {verb} as many disks as it can at a time. Try again shortly.")
        } else {
            of.insert(owner, own + 1);
            return Ok(Place { carrying: self.clone(), owner });
        };
        Err(Error::new(Code::TooMany, message).retry_after(COME_AGAIN))
    }

    fn of(&self) -> MutexGuard<'_, HashMap<(OrgId, ProjectId), usize>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut of = self.carrying.of();
        match of.get_mut(&self.owner) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(of.remove(&self.owner)),
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_project_has_a_few_of_a_bounded_number() {
        let exporting = Carrying::new("exports");
        let enter = |n: u128| exporting.enter((OrgId(Uuid::from_u128(n)), ProjectId(Uuid::from_u128(n))));
        let mut places: Vec<_> = (0..2).map(|_| enter(1).unwrap()).collect();
        let refused = enter(1).err().unwrap();
        assert!(refused.code == Code::TooMany && refused.retry_after == Some(COME_AGAIN));
        places.extend((2..5).flat_map(|project| [enter(project).unwrap(), enter(project).unwrap()]));
        assert_eq!(enter(5).err().unwrap().code, Code::TooMany, "all of them are taken");
        places.remove(0);
        places.push(enter(5).unwrap());
        assert_eq!(enter(1).err().unwrap().code, Code::TooMany);
        drop(places);
        assert!(exporting.of().is_empty());
    }

    #[test]
    fn an_organization_leaves_places_to_others_however_many_projects_it_has() {
        let exporting = Carrying::new("exports");
        let enter = |org: u128, n: u128| exporting.enter((OrgId(Uuid::from_u128(org)), ProjectId(Uuid::from_u128(n))));
        let _places: Vec<_> = (1..5).map(|project| enter(1, project).unwrap()).collect();
        assert_eq!(enter(1, 5).err().unwrap().code, Code::TooMany);
        assert!(enter(2, 6).is_ok());
    }
}
