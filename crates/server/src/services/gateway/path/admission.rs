//! Lets requests in before anything of a body is read. So many requests and so many bytes may be under way at a time:
//! in all, for each project, and for an organization no more than it leaves free. So a newcomer always finds some room,
//! however many projects somebody else made (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory
//! packet switches", 1998).
//!
//! The bytes of a body count as they arrive, because declared bytes need never come: a declared length without room is
//! refused before the body is read, and a body that is sent slowly holds only what arrived. Its bytes count until
//! nobody needs them any more, which is before a long answer ends. The first few are covered by the request's place, so
//! that an ordinary request is counted once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use berth_domain::ids::{OrgId, Owner, ProjectId};
use berth_domain::{Code, Error, Result};
use bytes::Bytes;
use futures::StreamExt;

use crate::http::body::read;

/// Bytes of a body that its place covers: with the default number of requests, 320 MB at most in all.
const SMALL: u64 = 16 << 10;
/// Seconds after which a refused client should try again: most requests are over by then.
const AGAIN: u64 = 1;

/// The most that may be under way.
#[derive(Clone, Copy, Debug)]
pub struct Most {
    /// Requests.
    pub requests: usize,
    /// Bytes of their bodies.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Load {
    requests: usize,
    bytes: u64,
}

#[derive(Debug, Default)]
struct UnderWay {
    all: Load,
    orgs: HashMap<OrgId, Load>,
    projects: HashMap<ProjectId, Load>,
}

impl UnderWay {
    fn add(&mut self, (org, project): Owner, requests: usize, bytes: u64) {
        let (org, project) = (self.orgs.entry(org).or_default(), self.projects.entry(project).or_default());
        for load in [&mut self.all, org, project] {
            load.requests += requests;
            load.bytes += bytes;
        }
    }

    /// Subtracts what was added, and drops entries that hold nothing.
    fn remove(&mut self, (org, project): Owner, requests: usize, bytes: u64) {
        let less = |load: &mut Load| {
            load.requests = load.requests.saturating_sub(requests);
            load.bytes = load.bytes.saturating_sub(bytes);
            load.requests == 0 && load.bytes == 0
        };
        less(&mut self.all);
        if self.orgs.get_mut(&org).is_some_and(less) {
            self.orgs.remove(&org);
        }
        if self.projects.get_mut(&project).is_some_and(less) {
            self.projects.remove(&project);
        }
    }

    /// What the organization and the project have under way.
    fn of(&self, (org, project): Owner) -> (Load, Load) {
        let (org, project) = (self.orgs.get(&org), self.projects.get(&project));
        (org.copied().unwrap_or_default(), project.copied().unwrap_or_default())
    }
}

/// What is under way, and what may be.
pub struct Admission {
    all: Most,
    each: Most,
    under_way: Mutex<UnderWay>,
}

/// A request's place. Dropping it gives it back.
pub struct Place {
    admission: Arc<Admission>,
    owner: Owner,
}

/// The bytes that a body holds. Dropping it gives them back.
pub struct Weight {
    admission: Arc<Admission>,
    owner: Owner,
    /// The bytes that arrived.
    bytes: u64,
}

impl Admission {
    /// Nothing is under way yet. `each` bounds a single project.
    pub fn new(all: Most, each: Most) -> Arc<Self> {
        Arc::new(Self { all, each, under_way: Mutex::default() })
    }

    fn under_way(&self) -> MutexGuard<'_, UnderWay> {
        lock(&self.under_way)
    }

    /// Gives a place to a request of a project, whose body has no bytes yet; 429 where there is no place, or no room
    /// for the declared bytes.
    pub fn admit(self: &Arc<Self>, owner: Owner, declared: u64) -> Result<(Place, Weight)> {
        let mut under_way = self.under_way();
        let (org, own) = under_way.of(owner);
        let free = self.all.requests.saturating_sub(under_way.all.requests);
        if free == 0 {
            return Err(refused("This service has as many requests to models as it takes."));
        }
        if org.requests >= free {
            return Err(refused("This organization has as many requests to models under way as are left to others."));
        }
        if own.requests >= self.each.requests {
            return Err(refused("This project has as many requests to models under way as it may."));
        }
        self.fits(&under_way, owner, declared.saturating_sub(SMALL))?;
        under_way.add(owner, 1, 0);
        drop(under_way);
        let weight = Weight { admission: self.clone(), owner, bytes: 0 };
        Ok((Place { admission: self.clone(), owner }, weight))
    }

    /// Whether there is room for more bytes of a project: afterwards its organization holds no more than is free.
    fn fits(&self, under_way: &UnderWay, owner: Owner, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let (org, own) = under_way.of(owner);
        if own.bytes.saturating_add(bytes) > self.each.bytes {
            return Err(refused("The requests to models that this project has under way are as large as they may be."));
        }
        let Some(free) = self.all.bytes.checked_sub(under_way.all.bytes.saturating_add(bytes)) else {
            return Err(refused("The requests to models under way are as large as this service takes."));
        };
        if org.bytes.saturating_add(bytes) > free {
            return Err(refused(
                "The requests to models that this organization has under way take what is left to others.",
            ));
        }
        Ok(())
    }

    /// Reads the body of a project's request. 413 if it has more than `limit` bytes; 429 if there is no room for it,
    /// before the body is read where its length is declared.
    pub async fn receive(self: &Arc<Self>, owner: Owner, request: Request, limit: usize) -> Result<Received> {
        let length = request.headers().get(header::CONTENT_LENGTH);
        let declared = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        // A body over the limit gets 413, whatever room there is.
        let bytes = declared.filter(|bytes| *bytes <= limit as u64);
        let (place, weight) = self.admit(owner, bytes.unwrap_or_default())?;
        if declared.is_some_and(|bytes| bytes <= SMALL || bytes > limit as u64) {
            let body = read(request, limit).await?;
            return Ok(Received { body, place, weight });
        }
        let scale = Arc::new(Mutex::new(Scale { weight, refusal: None }));
        let counting = scale.clone();
        let weigh = move |piece: Result<Bytes, axum::Error>| lock(&counting).weigh(piece?);
        let weighed = request.map(|body| Body::from_stream(body.into_data_stream().map(weigh)));
        let body = read(weighed, limit).await;
        let scale = Arc::into_inner(scale).ok_or_else(|| Error::internal("a body is read that has ended"))?;
        let Scale { weight, refusal } = scale.into_inner().unwrap_or_else(PoisonError::into_inner);
        match refusal {
            Some(refusal) => Err(refusal),
            None => Ok(Received { body: body?, place, weight }),
        }
    }
}

/// A body, and what its request holds.
pub struct Received {
    /// The body.
    pub body: Bytes,
    /// Held until the request ends.
    pub place: Place,
    /// Held as long as the body.
    pub weight: Weight,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused(why: &str) -> Error {
    Error::new(Code::TooMany, format!("{why} Try again when some have ended.")).retry_after(AGAIN)
}

impl Weight {
    /// Counts more bytes.
    fn grow(&mut self, more: u64) -> Result<()> {
        let bytes = self.bytes.saturating_add(more);
        let counted = bytes.saturating_sub(SMALL) - self.bytes.saturating_sub(SMALL);
        if counted > 0 {
            let mut under_way = self.admission.under_way();
            self.admission.fits(&under_way, self.owner, counted)?;
            under_way.add(self.owner, 0, counted);
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.admission.under_way().remove(self.owner, 1, 0);
    }
}

impl Drop for Weight {
    fn drop(&mut self) {
        let counted = self.bytes.saturating_sub(SMALL);
        if counted > 0 {
            self.admission.under_way().remove(self.owner, 0, counted);
        }
    }
}

/// What a body holds while it is read, and the refusal that stopped the reading.
struct Scale {
    weight: Weight,
    refusal: Option<Error>,
}

impl Scale {
    /// Counts a piece of the body.
    fn weigh(&mut self, piece: Bytes) -> Result<Bytes, axum::Error> {
        self.weight.grow(piece.len() as u64).map_err(|refusal| {
            self.refusal = Some(refusal);
            axum::Error::new(std::io::Error::other("there is no room for more of it"))
        })?;
        Ok(piece)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const A: Owner = owner(1, 1);
    /// Another project of the same organization.
    const A2: Owner = owner(1, 2);
    const B: Owner = owner(2, 3);
    const C: Owner = owner(3, 4);

    const fn owner(org: u128, project: u128) -> Owner {
        (OrgId(Uuid::from_u128(org)), ProjectId(Uuid::from_u128(project)))
    }

    fn admission() -> Arc<Admission> {
        Admission::new(Most { requests: 8, bytes: 1000 }, Most { requests: 3, bytes: 400 })
    }

    /// The size of a body of which so many bytes are counted.
    const fn counted(bytes: u64) -> u64 {
        SMALL + bytes
    }

    /// Admits a request whose body has arrived, with so many bytes counted.
    fn holds(admission: &Arc<Admission>, owner: Owner, bytes: u64) -> Result<(Place, Weight)> {
        let (place, mut weight) = admission.admit(owner, counted(bytes))?;
        weight.grow(counted(bytes))?;
        Ok((place, weight))
    }

    #[test]
    fn requests_on_both_sides() {
        let admission = admission();
        let mut places: Vec<_> = (0..3).map(|_| admission.admit(A, 0).unwrap()).collect();
        let refusal = admission.admit(A, 0).err().unwrap();
        assert_eq!((refusal.code, refusal.retry_after), (Code::TooMany, Some(1)), "the project has what it may");
        places.push(admission.admit(A2, 0).unwrap());
        assert!(admission.admit(A2, 0).is_err(), "the organization holds as many as it leaves");
        places.extend([B, B].map(|project| admission.admit(project, 0).unwrap()));
        assert!(admission.admit(B, 0).is_err());
        places.push(admission.admit(C, 0).unwrap());
        assert!(admission.admit(C, 0).is_err());
        let last = admission.admit(owner(4, 5), 0).unwrap();
        assert!(admission.admit(owner(5, 6), 0).is_err(), "the service has as many as it takes");
        drop(last);
        places.clear();
        assert!(admission.under_way().projects.is_empty() && admission.under_way().orgs.is_empty());
        assert_eq!(admission.under_way().all.requests, 0);
    }

    #[test]
    fn bytes_on_both_sides() {
        let admission = admission();
        let mut first = holds(&admission, A, 400).unwrap();
        assert!(admission.admit(A, counted(1)).is_err(), "the project has what it may");
        assert!(admission.admit(A, counted(0)).is_ok(), "small ones go with their place");
        assert!(admission.admit(A2, counted(101)).is_err(), "the organization would hold more than it leaves");
        let second = holds(&admission, A2, 100).unwrap();
        assert!(admission.admit(B, counted(251)).is_err());
        let third = holds(&admission, B, 250).unwrap();
        assert!(admission.admit(C, counted(251)).is_err());
        let fourth = holds(&admission, C, 125).unwrap();
        // The body is gone; its answer goes on.
        drop(std::mem::replace(&mut first.1, Weight { admission: admission.clone(), owner: A, bytes: 0 }));
        assert!(holds(&admission, A, 212).is_ok());
        drop((first, second, third, fourth));
        assert!(admission.under_way().projects.is_empty() && admission.under_way().orgs.is_empty());
        assert_eq!(admission.under_way().all.bytes, 0);
    }

    #[test]
    fn a_body_counts_as_it_comes_and_not_as_it_was_declared() {
        let admission = admission();
        let (_place, mut weight) = admission.admit(A, counted(400)).unwrap();
        assert_eq!(admission.under_way().all.bytes, 0, "nothing has come");
        weight.grow(SMALL - 1).unwrap();
        weight.grow(401).unwrap();
        assert_eq!(admission.under_way().all.bytes, 400);
        assert!(weight.grow(1).is_err());
        assert!(admission.admit(A, counted(1)).is_err());
        drop(weight);
        assert!(admission.admit(A, counted(400)).is_ok());
    }

    fn request(bytes: u64, declares: bool) -> Request {
        let piece = Bytes::from(vec![b'a'; usize::try_from(bytes).unwrap()]);
        let body = Body::from_stream(futures::stream::iter([Ok::<_, std::io::Error>(piece)]));
        let mut request = Request::new(body);
        if declares {
            request.headers_mut().insert(header::CONTENT_LENGTH, bytes.into());
        }
        request
    }

    #[tokio::test]
    async fn a_body_is_read_as_far_as_there_is_room() {
        for declares in [false, true] {
            let admission = admission();
            let received = admission.receive(A, request(counted(400), declares), 1 << 20).await.unwrap();
            assert_eq!(received.body.len() as u64, counted(400));
            assert_eq!(admission.under_way().all.bytes, 400);
            let refusal = admission.receive(A, request(counted(1), declares), 1 << 20).await.err().unwrap();
            assert_eq!(refusal.code, Code::TooMany);
            drop(received);
            let refusal = admission.receive(A, request(101, declares), 100).await.err().unwrap();
            assert_eq!(refusal.code, Code::PayloadTooLarge);
            assert!(admission.under_way().projects.is_empty());
        }
    }
}
