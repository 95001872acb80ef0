//! Sizes as people type them: a number in the option's own unit, or with a unit of its own, as `20G`.

/// GiB in a number: `20`, `20G`, `20GiB`, `1T`.
pub fn gib(text: &str) -> Result<u64, String> {
    parse(text, 1 << 30, "20, 20G or 1T")
}

/// MiB in a number: `512`, `512M`, `2G`.
pub fn mib(text: &str) -> Result<u64, String> {
    parse(text, 1 << 20, "512, 512M or 2G")
}

/// A number of `unit` bytes each; the size must be a multiple of the unit.
fn parse(text: &str, unit: u64, like: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no size; it looks like {like}");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let count: u64 = digits.parse().map_err(|_| wrong())?;
    let scale = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => unit,
        "m" | "mb" | "mi" | "mib" => 1 << 20,
        "g" | "gb" | "gi" | "gib" => 1 << 30,
        "t" | "tb" | "ti" | "tib" => 1 << 40,
        _ => return Err(wrong()),
    };
    let bytes = count.checked_mul(scale).filter(|bytes| bytes.is_multiple_of(unit)).ok_or_else(wrong)?;
    Ok(bytes / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_and_without_a_unit() {
        for (text, expected) in [("20", 20), ("20G", 20), ("20GiB", 20), ("1t", 1024), ("0", 0), ("2048M", 2)] {
            assert_eq!(gib(text), Ok(expected), "{text}");
        }
        for (text, expected) in [("512", 512), ("512M", 512), ("512mib", 512), ("2G", 2048)] {
            assert_eq!(mib(text), Ok(expected), "{text}");
        }
        for text in ["", "G", "-1", "1.5G", "20 G", "20X", "1M", "99999999999T", "1Gä"] {
            assert!(gib(text).is_err(), "{text}");
        }
    }
}
