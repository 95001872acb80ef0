//! Images inside a message: `data:image/png;base64,…` as the `url` of an `image_url` (OpenAI's chat).
//!
//! A server makes as many tokens of an image as it cuts pieces, whatever its bytes: counted as text, a photograph would
//! exceed most limits. So an image counts at most as much as can be made of one. This holds only where every server
//! takes it for an image: in a part of a message's content. The same text elsewhere counts as text.

use std::ops::Range;

use crate::json::scan::Scan;

/// Bytes of an image that count. They stand for 16,384 tokens, the largest default of any model (Qwen2.5-VL).
pub(super) const MOST: usize = 4 * 16_384;

/// Skips the content of a message, and adds to `spare` the bytes of its images that do not count.
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

/// Whether the value of a `url` is the image itself. Some clients escape every slash.
fn stands_here(url: &str) -> bool {
    let kind = url.strip_prefix("\"data:image");
    kind.is_some_and(|kind| kind.starts_with('/') || kind.starts_with("\\/"))
}
