//! Ranges of a file (RFC 9110, section 14). Pure.

/// What a `Range` header asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Everything: there is no header, or it has another unit.
    All,
    /// From a byte, to a byte or the end.
    From(u64, Option<u64>),
    /// The last bytes.
    Last(u64),
    /// Not a single valid range.
    Nonsense,
}

/// The bytes to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first.
    pub start: u64,
    /// The one behind the last.
    pub end: u64,
    /// Whether the client asked for a range.
    pub partial: bool,
}

impl Wanted {
    /// Parses a header.
    pub fn parse(header: Option<&str>) -> Self {
        let Some(range) = header.and_then(|text| text.trim().strip_prefix("bytes=")) else { return Self::All };
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            // A number beyond any file's size counts as the largest.
            digits.then(|| text.parse().unwrap_or(u64::MAX))
        };
        match range.trim().split_once('-') {
            Some(("", last)) => number(last).map_or(Self::Nonsense, Self::Last),
            Some((first, "")) => number(first).map_or(Self::Nonsense, |first| Self::From(first, None)),
            Some((first, last)) => match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => Self::From(first, Some(last)),
                _ => Self::Nonsense,
            },
            None => Self::Nonsense,
        }
    }

    /// The range in a file of this size; none if it has no such bytes.
    pub fn within(self, size: u64) -> Option<Range> {
        let (start, end) = match self {
            Self::All => return Some(Range { start: 0, end: size, partial: false }),
            Self::From(first, last) => (first, last.map_or(size, |last| last.saturating_add(1).min(size))),
            Self::Last(count) => (size.saturating_sub(count), size),
            Self::Nonsense => return None,
        };
        (start < end).then_some(Range { start, end, partial: true })
    }
}

impl Range {
    /// The header that says which bytes are sent.
    pub fn content_range(self, size: u64) -> Option<String> {
        self.partial.then(|| format!("bytes {}-{}/{size}", self.start, self.end - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sent(header: &str, size: u64) -> Option<(u64, u64)> {
        Wanted::parse(Some(header)).within(size).map(|range| (range.start, range.end))
    }

    #[test]
    fn one_range_is_understood() {
        assert_eq!(sent("bytes=0-0", 10), Some((0, 1)));
        assert_eq!(sent("bytes=2-", 10), Some((2, 10)));
        assert_eq!(sent("bytes=-3", 10), Some((7, 10)));
        assert_eq!(sent("bytes=-30", 10), Some((0, 10)));
        assert_eq!(sent("bytes=5-99999999999999999999999", 10), Some((5, 10)));
        for bad in ["bytes=10-", "bytes=-0", "bytes=3-2", "bytes=", "bytes=a-b", "bytes=0-1,4-5", "bytes=--1"] {
            assert_eq!(sent(bad, 10), None, "{bad}");
        }
        assert_eq!(Wanted::parse(Some("lines=1-2")), Wanted::All);
        assert_eq!(Wanted::parse(None).within(0), Some(Range { start: 0, end: 0, partial: false }));
    }

    proptest! {
        #[test]
        fn what_is_sent_is_there(header in "bytes=[0-9]{0,3}-[0-9]{0,3}", size in 0_u64..200) {
            if let Some(range) = Wanted::parse(Some(&header)).within(size) {
                prop_assert!(range.start < range.end && range.end <= size);
                prop_assert!(range.content_range(size).is_some());
            }
        }
    }
}
