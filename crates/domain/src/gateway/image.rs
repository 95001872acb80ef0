//! Images that stand in a message: `data:image/png;base64,…` as the `url` of an `image_url` (OpenAI's chat).
//!
//! A server makes of an image as many tokens as it has pieces, whatever its bytes: taken for text, a photograph would be
//! more than most limits. So no more of an image counts than what can be made of one. That holds where every server
//! takes it for an image alone: in a part of a message's content. The same words elsewhere are text.

use std::ops::Range;

use crate::json::scan::Scan;

/// Bytes of an image that count. They stand for 16,384 tokens, the most that is made of one by default where most is
/// made of it (Qwen2.5-VL).
pub(super) const MOST: usize = 4 * 16_384;

/// Goes behind the content of a message. Adds to `spare` the bytes of its images that do not count.
pub(super) fn content<'a>(scan: &mut Scan<'a>, body: &'a str, spare: &mut usize) -> Option<Range<usize>> {
    if scan.peek()? != b'[' {
        return scan.value();
    }
    scan.list(|scan| {
        if scan.peek()? != b'{' {
            return scan.value().map(|_| ());
        }
        let part = scan.object(|scan, key| match key {
            "image_url" => image(scan, body, spare),
            _ => scan.value().map(|_| ()),
        });
        part.map(|_| ())
    })
}

fn image<'a>(scan: &mut Scan<'a>, body: &'a str, spare: &mut usize) -> Option<()> {
    if scan.peek()? != b'{' {
        return scan.value().map(|_| ());
    }
    let found = scan.object(|scan, key| {
        let at = scan.value()?;
        if key == "url" && stands_here(body.get(at.clone())?) {
            *spare += at.len().saturating_sub(MOST);
        }
        Some(())
    });
    found.map(|_| ())
}

/// Whether the value of a `url` is the image itself. Some write every slash with an escape.
fn stands_here(url: &str) -> bool {
    let kind = url.strip_prefix("\"data:image");
    kind.is_some_and(|kind| kind.starts_with('/') || kind.starts_with("\\/"))
}
