//! Tools for files.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_domain::agent::runtime::{Entry, Listing};
use berth_domain::mcp::file::{EDITED, ENTRIES, Edit, IMAGE, ListFiles, Read, Write, lines, text_of};
use berth_domain::{Code, Error, Result};
use bytes::Bytes;
use http_body_util::BodyExt;
use rmcp::model::ContentBlock;
use serde_json::json;
use tokio::time::timeout;

use super::answer::Answer;
use super::caller::{Caller, Inside};
use super::tool::{Call, Effect, Tool, invalid};
use crate::facade::api::{escaped, said};

/// The largest listing that is read, in bytes.
const LISTED: usize = 4 << 20;
/// Longest that a sandbox may take to send a part of a file.
const SLOWEST: Duration = Duration::from_mins(1);

/// The tools for files.
pub fn tools() -> Vec<Tool> {
    vec![
        Tool::new(
            "sandbox_read_file",
            "Read a file",
            "Answers a file of a sandbox: text 32 KiB at a time, pictures as pictures, of other bytes the size.",
            Effect::Reads,
            read,
        ),
        Tool::new(
            "sandbox_write_file",
            "Write a file",
            "Writes a file in a sandbox, whole, and makes the directories that are missing. To change a part of one use \
             sandbox_edit_file.",
            Effect::Changes,
            write,
        ),
        Tool::new(
            "sandbox_edit_file",
            "Edit a file",
            "Replaces a text that stands once in a file of a sandbox, or wherever it stands, by another.",
            Effect::Changes,
            edit,
        ),
        Tool::new(
            "sandbox_list_files",
            "List files",
            "Lists a directory of a sandbox, at most 200 entries: permissions, size in bytes, time and path below it.",
            Effect::Reads,
            list,
        ),
    ]
}

/// A file by its path, and the account that works on it.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The sandbox.
    pub sandbox: &'a str,
    /// The path.
    pub path: &'a str,
    /// The account, where somebody says.
    pub user: Option<&'a str>,
}

impl Place<'_> {
    /// The route of the runtime for its content.
    fn content(self) -> String {
        format!("files/content?root=true&path={}{}", escaped(self.path), by(self.user))
    }
}

/// The part of a query that names an account.
fn by(user: Option<&str>) -> String {
    user.map(|user| format!("&user={}", escaped(user))).unwrap_or_default()
}

/// A part of a file.
pub struct Part {
    /// Its bytes.
    pub bytes: Bytes,
    /// The length of the whole file, where it is known.
    pub total: Option<u64>,
    /// What the picture is that the whole file is.
    pub picture: Option<&'static str>,
}

/// Reads a part of a file; of a picture that is not too large, and asked for from its beginning, all of it.
pub async fn part(caller: &Caller, place: Place<'_>, (from, most): (u64, u64)) -> Result<Part> {
    let (bytes, total) = ranged(caller, place, (from, most)).await?;
    let fits = total.is_some_and(|total| total <= IMAGE);
    let picture = if from == 0 && fits { kind_of_picture(&bytes) } else { None };
    if picture.is_some() && total.is_some_and(|total| (bytes.len() as u64) < total) {
        let (bytes, total) = ranged(caller, place, (0, IMAGE)).await?;
        return Ok(Part { bytes, total, picture });
    }
    Ok(Part { bytes, total, picture })
}

/// So many bytes of a file, and its length.
async fn ranged(caller: &Caller, place: Place<'_>, (from, most): (u64, u64)) -> Result<(Bytes, Option<u64>)> {
    let range = format!("bytes={from}-{}", from.saturating_add(most.saturating_sub(1)));
    let range = HeaderValue::from_str(&range).map_err(Error::internal)?;
    match caller.inside(place.sandbox, Inside::get(&place.content()).with(header::RANGE, range)).await {
        Ok(answer) => {
            let total = total(&answer);
            // A file that grows meanwhile, or has no length, is read no further.
            let bytes = taken(answer, usize::try_from(most).unwrap_or(usize::MAX)).await?;
            Ok((bytes, total))
        }
        // Files of /proc say that they are empty, and are not.
        Err(error) if error.code.status() == 416 && from == 0 => {
            let answer = caller.inside(place.sandbox, Inside::get(&place.content())).await?;
            let bytes = taken(answer, usize::try_from(most).unwrap_or(usize::MAX)).await?;
            let total = ((bytes.len() as u64) < most).then_some(bytes.len() as u64);
            Ok((bytes, total))
        }
        // There is nothing behind the end of a file.
        Err(error) if error.code.status() == 416 => Ok((Bytes::new(), None)),
        Err(error) => Err(error),
    }
}

/// The length of the whole file that an answer has a part of.
fn total(answer: &Response) -> Option<u64> {
    let header = |name| answer.headers().get(name)?.to_str().ok();
    if answer.status() == StatusCode::PARTIAL_CONTENT {
        return header(header::CONTENT_RANGE)?.rsplit('/').next()?.parse().ok();
    }
    header(header::CONTENT_LENGTH)?.parse().ok()
}

/// The first bytes of a body, which the agent of a sandbox may be slow to send, but not for ever.
async fn taken(answer: Response, most: usize) -> Result<Bytes> {
    let mut body = answer.into_body();
    let whole = async {
        let mut bytes = Vec::new();
        while bytes.len() < most
            && let Some(frame) = body.frame().await
        {
            let frame = frame.map_err(|error| Error::unavailable(format!("the file broke off: {error}")))?;
            if let Ok(data) = frame.into_data() {
                bytes.extend_from_slice(&data);
            }
        }
        bytes.truncate(most);
        Ok(bytes.into())
    };
    timeout(SLOWEST, whole)
        .await
        .unwrap_or_else(|_| Err(Error::unavailable("the sandbox did not send the file in time")))
}

/// The kind of a picture that clients show, by its first bytes.
fn kind_of_picture(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [0xFF, 0xD8, 0xFF, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

async fn read(call: Call, asked: Read) -> Result<Answer> {
    let (from, most) = asked.range();
    let place = Place { sandbox: &asked.sandbox_id, path: &asked.path, user: asked.user.as_deref() };
    let part = part(&call.caller, place, (from, most)).await?;
    let end = from.saturating_add(part.bytes.len() as u64);
    if let Some(kind) = part.picture {
        let picture = ContentBlock::image(STANDARD.encode(&part.bytes), kind);
        return Ok(Answer::text(format!("{} bytes, {kind}", part.bytes.len())).and(picture));
    }
    let mut note = json!({});
    if let Some(total) = part.total {
        note["size"] = json!(total);
    }
    let goes_on = part.total.is_some_and(|total| end < total);
    let as_base64 = asked.base64 == Some(true);
    let (text, next) = match text_of(&part.bytes, from > 0 && !as_base64, goes_on) {
        Some((skipped, text)) => (text.to_owned(), from.saturating_add((skipped + text.len()) as u64)),
        None if as_base64 => {
            note["encoding"] = json!("base64");
            (STANDARD.encode(&part.bytes), end)
        }
        None => {
            let how =
                "This is no text. base64: true tells its bytes; file, xxd and others by sandbox_run_command tell more.";
            return Ok(Answer::text(how).and(ContentBlock::text(note.to_string())));
        }
    };
    if goes_on && next <= from {
        return Err(Error::unavailable("the sandbox says that the file goes on, and sends nothing of it"));
    }
    if goes_on {
        note["next_offset"] = json!(next);
    }
    Ok(Answer::text(text).and(ContentBlock::text(note.to_string())))
}

async fn write(call: Call, asked: Write) -> Result<Answer> {
    let content = if asked.base64 == Some(true) {
        STANDARD.decode(asked.content.trim()).map_err(|error| invalid(format!("content is no base64: {error}.")))?
    } else {
        asked.content.into_bytes()
    };
    let place = Place { sandbox: &asked.sandbox_id, path: &asked.path, user: asked.user.as_deref() };
    let content = Bytes::from(content);
    let written = put(&call.caller, place, content.clone(), asked.mode.as_deref()).await;
    let entry = match (written, asked.path.rsplit_once('/')) {
        (Err(error), Some((folder, _))) if error.code == Code::NotFound && !folder.is_empty() => {
            let mkdir = json!({"path": folder, "parents": true});
            let route = format!("files/mkdir?root=true{}", by(place.user));
            call.caller.inside(place.sandbox, Inside::post(&route, &mkdir)?).await?;
            put(&call.caller, place, content, asked.mode.as_deref()).await?
        }
        (written, _) => written?,
    };
    Ok(Answer::data(json!({"path": entry.path, "size": entry.size, "mode": entry.mode})))
}

/// Writes a file. One that is there keeps its permissions where nobody says.
async fn put(caller: &Caller, place: Place<'_>, content: Bytes, mode: Option<&str>) -> Result<Entry> {
    let mode = mode.map(|mode| format!("&mode={}", escaped(mode))).unwrap_or_default();
    let route = format!("{}{mode}", place.content());
    let question = Inside {
        method: Method::PUT,
        route: &route,
        body: Body::from(content),
        headers: vec![(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"))],
    };
    said(caller.inside(place.sandbox, question).await?, LISTED).await
}

async fn edit(call: Call, asked: Edit) -> Result<Answer> {
    let place = Place { sandbox: &asked.sandbox_id, path: &asked.path, user: asked.user.as_deref() };
    // Two edits of one file do not take each other's work back.
    let _alone = call.locks.hold(&[place.sandbox, place.path]).await;
    let (bytes, _) = ranged(&call.caller, place, (0, EDITED + 1)).await?;
    if bytes.len() as u64 > EDITED {
        return Err(invalid(format!(
            "Files of up to {EDITED} bytes are edited. sed by sandbox_run_command edits larger ones."
        )));
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| invalid("The file is no text."))?;
    let (text, count) = asked.applied(text).map_err(|wrong| invalid(format!("{wrong}.")))?;
    let entry = put(&call.caller, place, text.into(), None).await?;
    Ok(Answer::data(json!({"path": entry.path, "size": entry.size, "replaced": count})))
}

async fn list(call: Call, asked: ListFiles) -> Result<Answer> {
    Ok(Answer::text(lines(&listing(&call.caller, &asked).await?)))
}

/// What a directory holds.
pub async fn listing(caller: &Caller, asked: &ListFiles) -> Result<Listing> {
    let path = asked.path.as_deref().unwrap_or(".");
    let (depth, path, by) = (asked.depth.unwrap_or(1), escaped(path), by(asked.user.as_deref()));
    let route = format!("files/list?root=true&limit={ENTRIES}&depth={depth}&path={path}{by}");
    said(caller.inside(&asked.sandbox_id, Inside::get(&route)).await?, LISTED).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_known_by_its_first_bytes() {
        assert_eq!(kind_of_picture(b"\x89PNG\r\n"), Some("image/png"));
        assert_eq!(kind_of_picture(b"RIFF1234WEBPx"), Some("image/webp"));
        assert_eq!(kind_of_picture(b"RIFF1234WAVE"), None);
        assert_eq!(kind_of_picture(b""), None);
    }
}
