//! A project's key in the form that E2B's SDKs take.
//!
//! SDKs up to 2.45 send nothing but `e2b_` and lower-case hexadecimal digits. So a key of Berth is written as `e2b_` and the
//! hexadecimal of its own text; later SDKs take that, and the key as it is.

use crate::hex;
use crate::identity::api_key::PREFIX;

/// The beginning of a key in E2B's form.
pub const E2B: &str = "e2b_";
/// The longest text that is looked at, in bytes: a key has 66.
const LONGEST: usize = 512;

/// The key that a text in E2B's form is; none where it is no such text.
pub fn read(text: &str) -> Option<String> {
    let digits = text.strip_prefix(E2B).filter(|digits| digits.len() <= LONGEST)?;
    let key = String::from_utf8(hex::bytes(digits)?).ok()?;
    (key.starts_with(PREFIX) && key.bytes().all(|b| b.is_ascii_graphic())).then_some(key)
}

/// A key in E2B's form.
pub fn written(key: &str) -> String {
    format!("{E2B}{}", hex::encode(key.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_out_as_it_went_in() {
        let key = "brt_abcdefghijkl_0123456789";
        assert_eq!(read(&written(key)).as_deref(), Some(key));
        assert!(written(key)[E2B.len()..].bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)));
        for wrong in ["", "e2b_", "e2b_0", "e2b_zz", key, "e2b_6162", &written("brt_\n"), &written("other")] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        assert!(read(&written(&format!("brt_{}", "x".repeat(252)))).is_some());
        assert!(read(&written(&format!("brt_{}", "x".repeat(253)))).is_none());
    }
}
