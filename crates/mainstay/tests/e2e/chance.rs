//! Chance from a seed: the same seed chooses the same, and a failing test says which it was.

/// SplitMix64.
pub(crate) struct Chance {
    seed: u64,
    state: u64,
}

impl Chance {
    /// From `MAINSTAY_TEST_SEED` where it is set, else from `otherwise`.
    pub(crate) fn new(otherwise: u64) -> Self {
        let set = std::env::var("MAINSTAY_TEST_SEED").ok();
        let seed = set.map_or(otherwise, |seed| seed.parse().expect("a seed is a number"));
        Self { seed, state: seed }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).expect("small");
        usize::try_from(self.next() % end).expect("small")
    }

    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// True so many times of a hundred.
    pub(crate) fn percent(&mut self, of_hundred: usize) -> bool {
        self.below(100) < of_hundred
    }
}

impl Drop for Chance {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("MAINSTAY_TEST_SEED={} makes the same choices", self.seed);
        }
    }
}
