//! Bytes as hexadecimal digits.

use std::fmt::Write;

/// Lower-case digits, two for each byte.
pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes that so many digits say, in either case; `None` where the text is something else.
pub fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        *byte = digit(0)? << 4 | digit(1)?;
    }
    Some(bytes)
}

/// The bytes that any even number of digits says; `None` where the text is something else.
pub fn bytes(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| decode::<1>(std::str::from_utf8(pair).ok()?).map(|[byte]| byte)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        assert_eq!(encode(&[0, 10, 255]), "000aff");
        assert_eq!(decode("000AfF"), Some([0, 10, 255]));
        for wrong in ["", "000af", "000aff0", "000a+f", "000afg", "00é0f"] {
            assert_eq!(decode::<3>(wrong), None, "{wrong}");
        }
        assert_eq!(bytes("000AfF"), Some(vec![0, 10, 255]));
        assert_eq!((bytes(""), bytes("000"), bytes("0g"), bytes("aé")), (Some(Vec::new()), None, None, None));
    }
}
