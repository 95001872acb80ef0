//! Tokens and their cost. Money has no currency here; an operator's price list has one.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

/// Number of tokens that a price is for.
const MILLION: i128 = 1_000_000;
/// Parts of a unit of money.
const PARTS: f64 = 1e9;
/// Highest price, in units.
const MOST_PRICE: f64 = 1e6;

/// An amount of money in billionths of a unit: exact in sums, and enough for nine billion units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nano(pub i64);

impl Nano {
    /// The nearest amount to a price in units.
    ///
    /// # Errors
    /// What a valid number must be.
    pub fn of_price(units: f64) -> Result<Self, &'static str> {
        #[expect(clippy::cast_possible_truncation, reason = "the range was checked")]
        let nano = (0.0..=MOST_PRICE).contains(&units).then(|| Self((units * PARTS).round() as i64));
        nano.ok_or("must be a number from 0 to 1000000")
    }

    /// So many whole units.
    pub const fn whole(units: i64) -> Self {
        Self(units.saturating_mul(1_000_000_000))
    }

    /// In units.
    pub fn units(self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "what is shown may be rounded")]
        let parts = self.0 as f64;
        parts / PARTS
    }
}

impl Add for Nano {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Nano {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Nano {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Sum for Nano {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::default(), Add::add)
    }
}

/// What a million tokens cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Price {
    /// Of a prompt.
    pub input: Nano,
    /// Of an answer.
    pub output: Nano,
}

impl Price {
    /// What these tokens cost, rounded to the nearest billionth.
    pub fn of(self, usage: Usage) -> Nano {
        let parts = i128::from(usage.prompt) * i128::from(self.input.0)
            + i128::from(usage.completion) * i128::from(self.output.0);
        Nano(i64::try_from((parts + MILLION / 2) / MILLION).unwrap_or(i64::MAX))
    }
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Of the prompt.
    pub prompt: u64,
    /// Of the answer.
    pub completion: u64,
}

impl Usage {
    /// All of them.
    pub const fn total(self) -> u64 {
        self.prompt.saturating_add(self.completion)
    }
}

/// Estimated tokens of a text that no upstream counted: one for four bytes, OpenAI's rule of thumb.
pub const fn estimate(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_exact() {
        let price = Price { input: Nano::of_price(0.15).unwrap(), output: Nano::of_price(0.60).unwrap() };
        assert_eq!(price.of(Usage { prompt: 1, completion: 0 }), Nano(150));
        assert_eq!(price.of(Usage { prompt: 1_000_000, completion: 2_000_000 }).units().to_string(), "1.35");
        assert_eq!(price.of(Usage::default()), Nano(0));
        assert_eq!(price.of(Usage { prompt: u64::MAX, completion: u64::MAX }), Nano(i64::MAX));
    }

    #[test]
    fn amounts_on_both_sides() {
        for (units, amount) in [(0.0, 0), (1e-9, 1), (1.5, 1_500_000_000), (1e6, 1_000_000_000_000_000)] {
            assert_eq!(Nano::of_price(units), Ok(Nano(amount)));
        }
        for bad in [-0.1, f64::NAN, f64::INFINITY, 1_000_000.1] {
            assert!(Nano::of_price(bad).is_err(), "{bad}");
        }
        assert_eq!(estimate(0), 0);
        assert_eq!((estimate(1), estimate(4), estimate(5)), (1, 1, 2));
    }
}
