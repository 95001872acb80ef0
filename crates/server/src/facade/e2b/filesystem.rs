//! Files by calls: `filesystem.Filesystem`.

use axum::http::Method;
use berth_domain::agent::runtime::{Entry, EntryType, Listing};
use berth_domain::e2b::connect::{Code, Refused, read};
use berth_domain::e2b::entry::{directory, told};
use berth_domain::{Code as Known, Error};
use serde::Deserialize;
use serde_json::{Value, json};

use super::room::{Failure, Room};
use super::watch;

/// Most entries of a list.
const MOST: usize = 30_000;
/// The largest list, in bytes: each entry with half a kilobyte.
const LIST: usize = MOST << 9;

/// What calls are about.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct About {
    path: String,
    depth: u32,
    source: String,
    destination: String,
}

/// Answers a single call.
pub async fn single(room: &Room, verb: &str, asked: &[u8]) -> Result<Value, Failure> {
    let about: About = read(asked)?;
    match verb {
        "Stat" => room.stat(&about.path).await.map(|entry| shown(&entry)),
        "ListDir" => list(room, &about).await,
        "MakeDir" => make_directory(room, &about.path).await.map(|entry| shown(&entry)),
        "Move" => rename(room, &about).await.map(|entry| shown(&entry)),
        "Remove" => remove(room, &about.path).await.map(|()| json!({})),
        "CreateWatcher" => watch::create(room, &read(asked)?).await,
        "GetWatcherEvents" => watch::events(room, &read(asked)?).await,
        "RemoveWatcher" => watch::remove(room, &read(asked)?).await,
        _ => Err(Error::new(Known::NotFound, format!("There is no call {verb} of files.")).into()),
    }
}

fn shown(entry: &Entry) -> Value {
    json!({"entry": told(entry)})
}

async fn list(room: &Room, about: &About) -> Result<Value, Failure> {
    let (depth, path) = (about.depth.max(1), room.about(&about.path));
    let route = format!("files/list?details=true&depth={depth}&limit={MOST}&{path}");
    let listed: Listing = room.read(Method::GET, &route, None, LIST).await?;
    if listed.truncated {
        let message = format!("There are more than {MOST} entries. List with a smaller depth, or a directory below.");
        return Err(Refused::new(Code::InvalidArgument, message).into());
    }
    let entries: Vec<Value> = listed.data.iter().map(told).collect();
    Ok(json!({"entries": entries}))
}

/// Makes a directory with those above it. One that is there already is refused as such.
async fn make_directory(room: &Room, path: &str) -> Result<Entry, Failure> {
    let route = format!("files/mkdir?{}", room.whole());
    let body = |parents: bool| json!({"path": path, "parents": parents});
    match room.act(Method::POST, &route, Some(&body(false))).await {
        Err(Failure::Refused(error)) if error.code == Known::NotFound => {
            room.act(Method::POST, &route, Some(&body(true))).await?;
        }
        Err(Failure::Refused(error)) if error.code == Known::AlreadyExists => {
            let there = room.stat(path).await?;
            if directory(&there).is_none() {
                return Err(wrong(format!("{path} is there already, and is no directory")));
            }
            return Err(error.into());
        }
        done => done?,
    }
    room.stat(path).await
}

fn wrong(message: String) -> Failure {
    Refused::new(Code::InvalidArgument, message).into()
}

/// Moves as the kernel renames: a file takes another one's place, a directory an empty one's, and nothing else is lost.
async fn rename(room: &Room, About { source, destination, .. }: &About) -> Result<Entry, Failure> {
    let moved = room.stat(source).await?;
    let is_directory = |entry: &Entry| entry.kind == EntryType::Directory;
    let overwrite = match room.stat(destination).await {
        Ok(there) if is_directory(&there) && is_directory(&moved) => {
            // One that is not empty stays, and says so.
            let body = json!({"path": destination, "recursive": false});
            room.act(Method::POST, &format!("files/remove?{}", room.whole()), Some(&body)).await?;
            false
        }
        Ok(there) if is_directory(&there) => return Err(wrong(format!("{destination} is a directory"))),
        Ok(_) if is_directory(&moved) => {
            return Err(wrong(format!("{destination} is there already, and is no directory")));
        }
        Ok(_) => true,
        Err(Failure::Refused(error)) if error.code == Known::NotFound => {
            let above = destination.trim_end_matches('/').rsplit_once('/').map_or(".", |(above, _)| above);
            let body = json!({"path": if above.is_empty() { "/" } else { above }, "parents": true});
            room.act(Method::POST, &format!("files/mkdir?{}", room.whole()), Some(&body)).await?;
            false
        }
        Err(failure) => return Err(failure),
    };
    let body = json!({"from": source, "to": destination, "overwrite": overwrite});
    room.act(Method::POST, &format!("files/move?{}", room.whole()), Some(&body)).await?;
    room.stat(destination).await
}

/// Removes a thing with all below it. What is not there is removed already.
async fn remove(room: &Room, path: &str) -> Result<(), Failure> {
    let body = json!({"path": path, "recursive": true});
    match room.act(Method::POST, &format!("files/remove?{}", room.whole()), Some(&body)).await {
        Err(Failure::Refused(error)) if error.code == Known::NotFound => Ok(()),
        done => done,
    }
}
