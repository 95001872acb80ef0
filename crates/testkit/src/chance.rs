//! Chance that a number repeats.

/// Numbers that follow from a first one (splitmix64), so that a run is done again by its seed.
pub struct Chance(u64);

impl Chance {
    /// The chance that follows from a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below another one.
    ///
    /// # Panics
    /// There is none below 0.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % end as u64).expect("a small number")
    }
}
