//! As much of HTTP as both ends of a measurement need: both are cheap, so that the system between them dominates.

/// Position of a sequence of bytes.
pub fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// Size of a head, including its blank line, once it is complete.
pub fn head(bytes: &[u8]) -> Option<usize> {
    find(bytes, b"\r\n\r\n").map(|end| end + 4)
}

/// A header of a head.
pub fn header<'a>(head: &'a [u8], name: &str) -> Option<&'a str> {
    let text = std::str::from_utf8(head).ok()?;
    let mut headers = text.split("\r\n").filter_map(|line| line.split_once(':'));
    headers.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

/// Length of the body, according to a head.
pub fn length(head: &[u8]) -> Option<usize> {
    header(head, "content-length")?.parse().ok()
}

/// The bytes of a chat request; each of the `headers` has a line end.
pub fn request(headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n{headers}\
         content-length: {length}\r\n\r\n{body}"
    )
}

/// The end of a chunked body.
pub const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_whatever_their_letters() {
        let bytes = b"HTTP/1.1 200 OK\r\nDate: now\r\nContent-Length:  12\r\n\r\n{\"a\": 1}";
        let end = head(bytes).unwrap();
        assert_eq!(&bytes[end..], b"{\"a\": 1}");
        assert_eq!((length(&bytes[..end]), header(&bytes[..end], "a")), (Some(12), None));
        assert_eq!(head(&bytes[..end - 1]), None);
    }
}
