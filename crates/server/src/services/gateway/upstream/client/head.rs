//! The head of an answer: its status, and the few fields that the gateway uses.

use axum::http::{HeaderValue, StatusCode};
use berth_domain::gateway::framing::Framing;

use super::ClientError;

/// Most bytes of a head.
const MOST: usize = 64 << 10;
/// Most fields of a head, the same as in hyper's client.
const FIELDS: usize = 100;

/// The used parts of an answer's head.
#[derive(Debug)]
pub struct Head {
    /// Its bytes.
    pub length: usize,
    /// The status.
    pub status: StatusCode,
    /// The type of the body.
    pub content_type: Option<HeaderValue>,
    /// The seconds after which to ask again.
    pub retry_after: Option<u64>,
    /// How the body ends.
    pub framing: Framing,
    /// Whether the connection serves another request afterwards.
    pub keeps: bool,
}

/// Reads the head at the beginning of these bytes; `None` while it is not whole. Interim answers are heads of their
/// own (status 1xx).
pub fn read(bytes: &[u8]) -> Result<Option<Head>, ClientError> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut parsed = httparse::Response::new(&mut fields);
    let length = match parsed.parse(bytes).map_err(|_| ClientError::Malformed)? {
        httparse::Status::Complete(length) if length <= MOST => length,
        httparse::Status::Partial if bytes.len() <= MOST => return Ok(None),
        _ => return Err(ClientError::Malformed),
    };
    let is_old = parsed.version != Some(1);
    let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or(ClientError::Malformed)?;
    let mut head =
        Head { length, status, content_type: None, retry_after: None, framing: Framing::Close, keeps: !is_old };
    let mut body = Announced::default();
    for field in parsed.headers.iter() {
        head.note(field, &mut body)?;
    }
    head.frame(&body, is_old);
    Ok(Some(head))
}

/// What the fields say of the body's end.
#[derive(Default)]
struct Announced {
    length: Option<u64>,
    encoded: bool,
    chunked: bool,
    closes: bool,
}

impl Head {
    fn note(&mut self, field: &httparse::Header<'_>, body: &mut Announced) -> Result<(), ClientError> {
        let is = |name: &str| field.name.eq_ignore_ascii_case(name);
        let text = || std::str::from_utf8(field.value).unwrap_or_default().trim();
        if is("content-length") {
            let length = length(text()).ok_or(ClientError::Malformed)?;
            if body.length.replace(length).is_some_and(|other| other != length) {
                return Err(ClientError::Malformed);
            }
        } else if is("transfer-encoding") {
            body.encoded = true;
            body.chunked = text().rsplit(',').next().is_some_and(|last| last.trim().eq_ignore_ascii_case("chunked"));
        } else if is("connection") {
            for option in text().split(',').map(str::trim) {
                self.keeps |= option.eq_ignore_ascii_case("keep-alive");
                body.closes |= option.eq_ignore_ascii_case("close");
            }
        } else if is("content-type") {
            self.content_type = HeaderValue::from_bytes(field.value).ok();
        } else if is("retry-after") {
            self.retry_after = text().parse().ok();
        }
        Ok(())
    }

    /// RFC 9112, section 6. A head with both a length and an encoding, or with an encoding in a version that had none,
    /// may have fooled a proxy on the way, so that the client reads nothing after this body from the connection.
    fn frame(&mut self, body: &Announced, is_old: bool) {
        let bodiless = self.status.is_informational() || matches!(self.status.as_u16(), 204 | 304);
        self.framing = match (body.length, body.encoded) {
            _ if bodiless => Framing::Length(0),
            (_, true) if body.chunked => Framing::Chunked,
            (Some(length), false) => Framing::Length(length),
            _ => Framing::Close,
        };
        let doubtful = body.encoded && (is_old || body.length.is_some());
        self.keeps &= self.framing != Framing::Close && !doubtful && !body.closes;
    }
}

/// A length, which a head may repeat (RFC 9110, section 8.6).
fn length(text: &str) -> Option<u64> {
    let mut told = text.split(',').map(str::trim);
    let first = told.next()?;
    let is_number = !first.is_empty() && first.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && told.all(|other| other == first)).then(|| first.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> Option<Head> {
        read(text.replace('\n', "\r\n").as_bytes()).ok().flatten()
    }

    #[test]
    fn how_the_end_is_told() {
        for (fields, framing, keeps) in [
            ("Content-Length: 3\n", Framing::Length(3), true),
            ("content-length: 3\nContent-Length: 3, 3\n", Framing::Length(3), true),
            ("Transfer-Encoding: gzip, Chunked\n", Framing::Chunked, true),
            ("Transfer-Encoding: chunked\nContent-Length: 3\n", Framing::Chunked, false),
            ("Transfer-Encoding: chunked, gzip\n", Framing::Close, false),
            ("", Framing::Close, false),
            ("Content-Length: 3\nConnection: x, Close\n", Framing::Length(3), false),
            ("Content-Length: 3\nConnection: close\nConnection: keep-alive\n", Framing::Length(3), false),
        ] {
            let head = head(&format!("HTTP/1.1 200 OK\n{fields}\n")).unwrap();
            assert_eq!((head.framing, head.keeps), (framing, keeps), "{fields}");
        }
        for wrong in ["-3", "+3", "3, 4", "3,", "99999999999999999999", ""] {
            assert!(head(&format!("HTTP/1.1 200 OK\nContent-Length: {wrong}\n\n")).is_none(), "{wrong}");
        }
        assert!(head("HTTP/1.1 200 OK\nContent-Length: 3\nContent-Length: 4\n\n").is_none());
    }

    #[test]
    fn versions_and_statuses() {
        assert!(!head("HTTP/1.0 200 OK\nContent-Length: 3\n\n").unwrap().keeps);
        assert!(head("HTTP/1.0 200 OK\nContent-Length: 3\nConnection: Keep-Alive\n\n").unwrap().keeps);
        let old = "HTTP/1.0 200 OK\nTransfer-Encoding: chunked\nConnection: keep-alive\n\n";
        assert!(!head(old).unwrap().keeps);
        for bodiless in [100, 103, 204, 304] {
            let head = head(&format!("HTTP/1.1 {bodiless} x\nContent-Length: 3\n\n")).unwrap();
            assert_eq!(head.framing, Framing::Length(0));
        }
        let head = head("HTTP/1.1 429 Busy\nRetry-After: 7\nContent-Type: text/html\n\n").unwrap();
        assert_eq!((head.status.as_u16(), head.retry_after, head.content_type.unwrap().len()), (429, Some(7), 9));
    }

    #[test]
    fn how_much_it_may_be() {
        let of = |length: usize| {
            let begin = "HTTP/1.1 200 OK\r\nx: ";
            format!("{begin}{}\r\n\r\n", "y".repeat(length - begin.len() - 4))
        };
        assert_eq!(read(of(MOST).as_bytes()).unwrap().unwrap().length, MOST);
        assert!(read(of(MOST + 1).as_bytes()).is_err());
        assert!(read(&of(MOST + 9).as_bytes()[..MOST]).unwrap().is_none());
        assert!(read(&of(MOST + 9).as_bytes()[..=MOST]).is_err());
        let fields = |count: usize| format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(count));
        assert!(read(fields(FIELDS).as_bytes()).unwrap().is_some());
        assert!(read(fields(FIELDS + 1).as_bytes()).is_err());
        assert!(read(b"<html>").is_err() && read(b"HTTP/1.1 2").unwrap().is_none());
    }
}
