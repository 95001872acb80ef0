//! Pages of lists: bounds and totals.

/// A page of a list, within its bounds (specification, Limits; page at most 2,147,483,647).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// From 1.
    pub number: i64,
    /// Items per page, 1 to 100.
    pub limit: i64,
}

impl Default for Page {
    fn default() -> Self {
        Self { number: 1, limit: Self::DEFAULT_LIMIT }
    }
}

impl Page {
    /// Items per page when the caller does not say.
    pub const DEFAULT_LIMIT: i64 = 20;
    /// Most items per page.
    pub const MAX_LIMIT: i64 = 100;
    /// Highest page number.
    pub const MAX_NUMBER: i64 = 2_147_483_647;

    /// Rows to pass over before this page.
    pub const fn offset(self) -> i64 {
        (self.number - 1) * self.limit
    }

    /// Pages that `total` items fill; none for an empty list.
    pub const fn pages(self, total: i64) -> i64 {
        (total + self.limit - 1) / self.limit
    }

    /// Parses a query parameter as an integer within `1..=max`.
    pub fn bound(text: &str, max: i64) -> Result<i64, String> {
        let digits = !text.is_empty() && text.len() <= 10 && text.bytes().all(|b| b.is_ascii_digit());
        match text.parse::<i64>() {
            Ok(n) if digits && (1..=max).contains(&n) => Ok(n),
            _ => Err(format!("must be an integer from 1 to {max}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_have_two_sides() {
        assert_eq!(Page::bound("1", 100), Ok(1));
        assert_eq!(Page::bound("100", 100), Ok(100));
        assert_eq!(Page::bound("2147483647", Page::MAX_NUMBER), Ok(2_147_483_647));
        for bad in ["0", "101", "", "-1", "+1", " 1", "1.0", "a", "99999999999999999999"] {
            assert!(Page::bound(bad, 100).is_err(), "{bad:?}");
        }
        assert!(Page::bound("2147483648", Page::MAX_NUMBER).is_err());
    }

    #[test]
    fn pages_of_totals() {
        let page = Page { number: 3, limit: 20 };
        assert_eq!(page.offset(), 40);
        assert_eq!((page.pages(0), page.pages(1), page.pages(20), page.pages(21)), (0, 1, 1, 2));
    }
}
