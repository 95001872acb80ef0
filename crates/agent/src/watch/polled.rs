//! The routes of watches that are polled ([`super::polls`]).

use berth_domain::agent::runtime::{WatchCreated, WatchRequest};
use berth_domain::fields::{Fields, boolean};
use http::{HeaderValue, StatusCode, header};

use crate::body::{Answer, nothing, reply};
use crate::call::Call;
use crate::error::{Refusal, Result};
use crate::files::change::path;
use crate::watch::{Subject, inotify};

/// `POST files/watches`.
pub async fn open(mut call: Call) -> Result<Answer> {
    let agent = call.agent.clone();
    let (acting, worker) = call.acting()?;
    let body = call.json().await?;
    let mut fields = Fields::of(&body);
    let recursive = fields.optional("recursive", boolean).unwrap_or_default();
    let wanted = fields.required("path", path).map(|path| WatchRequest { path, recursive });
    let wanted = fields.finish(wanted)?;
    let path = worker.base().locate_required(&wanted.path)?.shown();
    let subject = Subject { path, recursive: wanted.recursive, acting };
    // In a task of its own: a client that leaves meanwhile must not leave the watch half made.
    let opening = tokio::spawn(async move {
        let watch = inotify::open(worker, subject).await?;
        agent.polls.add(watch.clone());
        Ok::<_, Refusal>(format!("{:016x}", watch.id))
    });
    let id = opening.await.map_err(Refusal::internal)??;
    let place = HeaderValue::try_from(format!("files/watches/{id}"));
    let mut answer = reply(StatusCode::CREATED, &WatchCreated { id });
    if let Ok(place) = place {
        answer.headers_mut().insert(header::LOCATION, place);
    }
    Ok(answer)
}

/// `GET files/watches/{id}`: what happened since the last such request.
pub async fn poll(call: Call) -> Result<Answer> {
    let id = id(&call)?;
    let polls = &call.agent.polls;
    // What a caller has done before it asks is told, however busy the machine is.
    polls.get(id).ok_or_else(unknown)?.catch_up().await;
    Ok(reply(StatusCode::OK, &polls.take(id).ok_or_else(unknown)?))
}

/// `DELETE files/watches/{id}`.
pub fn close(call: &Call) -> Result<Answer> {
    call.agent.polls.remove(id(call)?).ok_or_else(unknown)?;
    Ok(nothing())
}

fn id(call: &Call) -> Result<u64> {
    u64::from_str_radix(&call.parameter, 16).map_err(|_| unknown())
}

fn unknown() -> Refusal {
    Refusal::not_found("There is no such watch; it may have made room for others. Open a new one.")
}
