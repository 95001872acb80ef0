//! Tools for files.

use axum::body::Body;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_domain::agent::runtime::{Entry, Listing};
use berth_domain::mcp::file::{ENTRIES, IMAGE, ListFiles, Read, Write, lines};
use berth_domain::{Code, Error, Result};
use bytes::Bytes;
use http_body_util::BodyExt;
use rmcp::model::ContentBlock;
use serde_json::json;

use super::answer::Answer;
use super::caller::{Caller, Inside};
use super::tool::{Call, Effect, Tool, invalid};
use crate::facade::api::{escaped, said};

/// The largest listing that is read, in bytes.
const LISTED: usize = 4 << 20;

/// They.
pub fn tools() -> Vec<Tool> {
    vec![
        Tool::new(
            "sandbox_read_file",
            "Read a file",
            "Answers a file of a sandbox: text as text, 32 KiB at a time, pictures as pictures, other bytes as base64.",
            Effect::Reads,
            read,
        ),
        Tool::new(
            "sandbox_write_file",
            "Write a file",
            "Writes a file in a sandbox, whole, and makes the directories that are missing.",
            Effect::Changes,
            write,
        ),
        Tool::new(
            "sandbox_list_files",
            "List files",
            "Lists a directory of a sandbox: permissions, size in bytes, time and path of each entry.",
            Effect::Reads,
            list,
        ),
    ]
}

/// A part of a file.
pub struct Part {
    /// Its bytes.
    pub bytes: Bytes,
    /// The length of the whole file.
    pub total: u64,
    /// What the picture is that the whole file is.
    pub picture: Option<&'static str>,
}

/// Reads a part of a file; of a picture that is not too large, and asked for from its beginning, all of it.
pub async fn part(caller: &Caller, sandbox: &str, path: &str, (from, most): (u64, u64)) -> Result<Part> {
    let (bytes, total) = ranged(caller, sandbox, path, (from, most)).await?;
    let picture = if from == 0 && total <= IMAGE { kind_of_picture(&bytes) } else { None };
    if picture.is_some() && (bytes.len() as u64) < total {
        let (bytes, total) = ranged(caller, sandbox, path, (0, IMAGE)).await?;
        return Ok(Part { bytes, total, picture });
    }
    Ok(Part { bytes, total, picture })
}

/// So many bytes of a file, and its length.
async fn ranged(caller: &Caller, sandbox: &str, path: &str, (from, most): (u64, u64)) -> Result<(Bytes, u64)> {
    let route = format!("files/content?root=true&path={}", escaped(path));
    let range = format!("bytes={from}-{}", from.saturating_add(most - 1));
    let range = HeaderValue::from_str(&range).map_err(Error::internal)?;
    match caller.inside(sandbox, Inside::get(&route).with(header::RANGE, range)).await {
        Ok(answer) => {
            let total = total(&answer);
            // A file that grows meanwhile, or has no length, is read no further.
            let bytes = taken(answer, usize::try_from(most).unwrap_or(usize::MAX)).await?;
            let total = total.unwrap_or(from + bytes.len() as u64);
            Ok((bytes, total))
        }
        // There is nothing at the end of a file.
        Err(error) if error.code.status() == 416 => Ok((Bytes::new(), from)),
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

/// The first bytes of a body.
async fn taken(answer: Response, most: usize) -> Result<Bytes> {
    let mut body = answer.into_body();
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

/// Bytes as text, if they are: without the part of a character at either end.
pub fn text_of(bytes: &[u8]) -> Option<&str> {
    let start = bytes.iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count();
    let bytes = &bytes[start..];
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => std::str::from_utf8(&bytes[..error.valid_up_to()]).ok()?,
        Err(_) => return None,
    };
    (!text.contains('\0')).then_some(text)
}

async fn read(call: Call, asked: Read) -> Result<Answer> {
    let range = asked.range();
    let part = part(&call.caller, &asked.sandbox_id, &asked.path, range).await?;
    let end = range.0 + part.bytes.len() as u64;
    if let Some(kind) = part.picture {
        let picture = ContentBlock::image(STANDARD.encode(&part.bytes), kind);
        return Ok(Answer::text(format!("{} bytes, {kind}", part.total)).and(picture));
    }
    let mut note = json!({"size": part.total});
    let text = if let Some(text) = text_of(&part.bytes) {
        text.to_owned()
    } else {
        note["encoding"] = json!("base64");
        STANDARD.encode(&part.bytes)
    };
    if end < part.total {
        note["next_offset"] = json!(end);
    }
    Ok(Answer::text(text).and(ContentBlock::text(note.to_string())))
}

async fn write(call: Call, asked: Write) -> Result<Answer> {
    let content = if asked.base64 == Some(true) {
        STANDARD.decode(asked.content.trim()).map_err(|error| invalid(format!("content is no base64: {error}.")))?
    } else {
        asked.content.into_bytes()
    };
    let mut route = format!("files/content?root=true&path={}", escaped(&asked.path));
    if let Some(mode) = &asked.mode {
        route.push_str(&format!("&mode={}", escaped(mode)));
    }
    let put = |content: Bytes| Inside {
        method: Method::PUT,
        route: &route,
        body: Body::from(content),
        headers: vec![(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"))],
    };
    let content = Bytes::from(content);
    let written = call.caller.inside(&asked.sandbox_id, put(content.clone())).await;
    let written = match (written, asked.path.rsplit_once('/')) {
        (Err(error), Some((folder, _))) if error.code == Code::NotFound && !folder.is_empty() => {
            let mkdir = json!({"path": folder, "parents": true});
            call.caller.inside(&asked.sandbox_id, Inside::post("files/mkdir?root=true", &mkdir)?).await?;
            call.caller.inside(&asked.sandbox_id, put(content)).await?
        }
        (written, _) => written?,
    };
    let entry: Entry = said(written, LISTED).await?;
    Ok(Answer::data(json!({"path": entry.path, "size": entry.size, "mode": entry.mode})))
}

async fn list(call: Call, asked: ListFiles) -> Result<Answer> {
    Ok(Answer::text(lines(&listing(&call.caller, &asked).await?)))
}

/// What a directory holds.
pub async fn listing(caller: &Caller, asked: &ListFiles) -> Result<Listing> {
    let path = asked.path.as_deref().unwrap_or(".");
    let route =
        format!("files/list?root=true&limit={ENTRIES}&depth={}&path={}", asked.depth.unwrap_or(1), escaped(path));
    said(caller.inside(&asked.sandbox_id, Inside::get(&route)).await?, LISTED).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_told_without_the_parts_of_characters() {
        assert_eq!(text_of("aä".as_bytes()), Some("aä"));
        assert_eq!(text_of(&"äb".as_bytes()[1..]), Some("b"));
        assert_eq!(text_of(&"bä".as_bytes()[..2]), Some("b"));
        for binary in [&b"a\0b"[..], b"\xff\xfe", b"a\xffb"] {
            assert_eq!(text_of(binary), None);
        }
        assert_eq!(text_of(b""), Some(""));
    }

    #[test]
    fn a_picture_is_known_by_its_first_bytes() {
        assert_eq!(kind_of_picture(b"\x89PNG\r\n"), Some("image/png"));
        assert_eq!(kind_of_picture(b"RIFF1234WEBPx"), Some("image/webp"));
        assert_eq!(kind_of_picture(b"RIFF1234WAVE"), None);
        assert_eq!(kind_of_picture(b""), None);
    }
}
