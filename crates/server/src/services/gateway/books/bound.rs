//! The bounds of what is booked. An upstream that reports nonsense must neither make a sum overflow nor hold up the
//! meter.

use berth_domain::gateway::Nano;

/// Most tokens that count for a request, and most billionths of money.
const REQUEST: i64 = 1_000_000_000_000_000;
/// Most that a number of a row adds up to.
pub const SUM: i64 = 4_000_000_000_000_000_000;

const _: () = assert!(SUM <= i64::MAX - REQUEST, "a full row takes one more request without an overflow");

/// Tokens of a request, as far as they count.
pub fn tokens(tokens: u64) -> i64 {
    i64::try_from(tokens).map_or(REQUEST, |tokens| tokens.min(REQUEST))
}

/// What a request costs, as far as it counts.
pub fn cost(cost: Nano) -> Nano {
    cost.clamp(Nano(0), Nano(REQUEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_has_a_most() {
        let most = REQUEST.unsigned_abs();
        assert_eq!([0, most - 1, most, most + 1, u64::MAX].map(tokens), [0, REQUEST - 1, REQUEST, REQUEST, REQUEST]);
        let money = [i64::MIN, -1, 0, REQUEST, REQUEST + 1, i64::MAX].map(|money| cost(Nano(money)).0);
        assert_eq!(money, [0, 0, 0, REQUEST, REQUEST, REQUEST]);
    }
}
