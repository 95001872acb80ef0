//! Events as they are written.

use super::cut::Lines;

/// A comment: it says that the stream is alive.
pub const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// Appends an event. `id` and `name` have no line breaks; each line of `data` is a line of its own.
pub fn write(out: &mut Vec<u8>, id: Option<&str>, name: Option<&str>, data: &str) {
    let mut field = |name: &str, value: &[u8]| {
        for part in [name.as_bytes(), b": ", value, b"\n"] {
            out.extend_from_slice(part);
        }
    };
    if let Some(id) = id {
        field("id", id.as_bytes());
    }
    if let Some(name) = name {
        field("event", name.as_bytes());
    }
    for line in Lines(data.as_bytes()) {
        field("data", line);
    }
    // What ends with a line break has one more line, and what is empty has one.
    if data.is_empty() || data.ends_with(['\n', '\r']) {
        field("data", b"");
    }
    out.push(b'\n');
}

/// An event of its own.
pub fn event(name: Option<&str>, data: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len() + 32);
    write(&mut out, None, name, data);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(id: Option<&str>, name: Option<&str>, data: &str) -> String {
        let mut out = Vec::new();
        write(&mut out, id, name, data);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn an_event_has_a_line_for_each_thing_that_it_says() {
        assert_eq!(written(None, None, "{}"), "data: {}\n\n");
        assert_eq!(written(None, Some("exit"), "{\"code\":0}"), "event: exit\ndata: {\"code\":0}\n\n");
        assert_eq!(written(Some("7"), Some("change"), "{}"), "id: 7\nevent: change\ndata: {}\n\n");
        assert_eq!(written(None, None, "a\nb\r\nc\rd"), "data: a\ndata: b\ndata: c\ndata: d\n\n");
        assert_eq!(written(None, None, ""), "data: \n\n");
        assert_eq!(written(None, None, "a\n"), "data: a\ndata: \n\n");
        assert_eq!(event(None, "[DONE]"), b"data: [DONE]\n\n");
    }
}
