//! Chance from a seed, the same everywhere.

/// A generator (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to 1.
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A count of this mean.
    pub(crate) fn poisson(&mut self, mean: f64) -> u64 {
        if mean > 50.0 {
            return (mean + mean.sqrt() * self.normal()).round().max(0.0) as u64;
        }
        let (least, mut product, mut count) = ((-mean).exp(), self.uniform(), 0);
        while product > least {
            product *= self.uniform();
            count += 1;
        }
        count
    }

    /// One by weight.
    pub(crate) fn pick(&mut self, weights: &[(usize, f64)]) -> usize {
        let all: f64 = weights.iter().map(|(_, weight)| weight).sum();
        let mut left = self.uniform() * all;
        for (one, weight) in weights {
            left -= weight;
            if left < 0.0 {
                return *one;
            }
        }
        weights.iter().rfind(|(_, w)| *w > 0.0).expect("weights").0
    }

    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().max(1e-300).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}
