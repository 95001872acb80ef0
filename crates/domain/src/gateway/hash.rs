//! A hash that distinguishes conversations: it spreads them, is the same on every machine, and protects nothing.

/// A hash that takes eight bytes a step.
#[derive(Default)]
pub(super) struct Hash(pub(super) u64);

impl Hash {
    /// Adds a part with its length, so that parts cannot run together.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.mix(u64::from_le_bytes(last));
        self.mix(bytes.len() as u64);
    }

    /// A step that loses no information: the factor is odd (2^64 divided by the golden ratio).
    const fn mix(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}
