//! As much of HTTP as both ends of a measurement need: both are cheap, so that what stands between shows.

/// Where a sequence of bytes begins.
pub fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// Bytes of a head with the blank line that ends it, once it is whole.
pub fn head(bytes: &[u8]) -> Option<usize> {
    find(bytes, b"\r\n\r\n").map(|end| end + 4)
}

/// A header of a head.
pub fn header<'a>(head: &'a [u8], name: &str) -> Option<&'a str> {
    let text = std::str::from_utf8(head).ok()?;
    let mut headers = text.split("\r\n").filter_map(|line| line.split_once(':'));
    headers.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

/// Length of the body that a head announces.
pub fn length(head: &[u8]) -> Option<usize> {
    header(head, "content-length")?.parse().ok()
}

/// The bytes of a request to go on with a conversation; `headers` have a line end each.
pub fn request(headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n{headers}\
         content-length: {length}\r\n\r\n{body}"
    )
}

/// What ends a body in chunks.
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
