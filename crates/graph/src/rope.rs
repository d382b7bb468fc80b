//! Rope tables: cosines and sines by our own f64 polynomials, rounded to f32 once, the same on every device.

use crate::math;

/// YaRN's interpolation between scaled and unscaled angles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// Positions of the original context.
    pub original_context: usize,
    /// Rotations over the original context above which a pair is not scaled.
    pub beta_fast: f64,
    /// Rotations below which a pair is scaled in full.
    pub beta_slow: f64,
}

/// One rope specification; layers and devices with equal specifications share one table.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Rotated elements of a head, even.
    pub n_rot: usize,
    /// Base of the frequencies: pair `i` turns `base^(-2i / n_rot)` radians a token.
    pub base: f64,
    /// Factor of all angles (linear scaling), 1 for none.
    pub freq_scale: f64,
    /// Divisors of the frequencies, one a pair, or empty.
    pub factors: Vec<f32>,
    /// YaRN, if the model uses it.
    pub yarn: Option<Yarn>,
    /// Factor of cosines and sines.
    pub magnitude: f64,
    /// Positions in the table.
    pub n_positions: usize,
}

/// Pairs whose sines are taken at once.
const LANES: usize = 8;

impl RopeSpec {
    /// Plain rope over `n_positions`.
    pub fn new(n_rot: usize, base: f64, n_positions: usize) -> Self {
        RopeSpec {
            n_rot,
            base,
            freq_scale: 1.0,
            factors: Vec::new(),
            yarn: None,
            magnitude: 1.0,
            n_positions,
        }
    }

    /// The name for reports; different specifications have different names.
    pub fn name(&self) -> String {
        let mut name = format!("rope({}, base {}, {} positions", self.n_rot, self.base, self.n_positions);
        let mut add = |what: &str, on: bool| {
            if on {
                name.push_str(", ");
                name.push_str(what);
            }
        };
        add(&format!("angles times {}", self.freq_scale), self.freq_scale != 1.0);
        add(&format!("magnitude {}", self.magnitude), self.magnitude != 1.0);
        if let Some(y) = &self.yarn {
            add(&format!("yarn {} {} {}", y.original_context, y.beta_fast, y.beta_slow), true);
        }
        if !self.factors.is_empty() {
            let bits = self.factors.iter().flat_map(|f| f.to_bits().to_le_bytes());
            let hash = bits
                .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
            add(&format!("factors {hash:016x}"), true);
        }
        name + ")"
    }

    /// Radians a token, by pair, in f64.
    pub fn frequencies(&self) -> Vec<f64> {
        let pairs = self.n_rot / 2;
        let log2_base = math::log2(self.base);
        (0..pairs)
            .map(|i| {
                let plain = math::exp2(-(2.0 * i as f64) / self.n_rot as f64 * log2_base);
                let plain = self.factors.get(i).map_or(plain, |f| plain / f64::from(*f));
                let scaled = self.freq_scale * plain;
                let mix = self.yarn.map_or(0.0, |y| self.ramp(&y, i));
                scaled * (1.0 - mix) + plain * mix
            })
            .collect()
    }

    /// 1 where a pair keeps its angle, 0 where it is scaled in full.
    fn ramp(&self, y: &Yarn, pair: usize) -> f64 {
        let n = self.n_rot as f64;
        let turns = |beta: f64| {
            let ratio = y.original_context as f64 / (2.0 * std::f64::consts::PI * beta);
            n * math::log2(ratio) / (2.0 * math::log2(self.base))
        };
        let low = turns(y.beta_fast).floor().max(0.0);
        let high = turns(y.beta_slow).ceil().min(n - 1.0);
        1.0 - ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0)
    }

    /// Row `position` of the table: cosines of all pairs, then sines.
    pub fn row(&self, frequencies: &[f64], position: usize, out: &mut [f32]) {
        let (cos, sin) = out.split_at_mut(self.n_rot / 2);
        for ((cos, sin), f) in cos.chunks_mut(LANES).zip(sin.chunks_mut(LANES)).zip(frequencies.chunks(LANES))
        {
            let angle = |i: usize| f.get(i).map_or(0.0, |f| position as f64 * f);
            let (sines, cosines) = math::sin_cos::<LANES>(std::array::from_fn(angle));
            for (c, cosine) in cos.iter_mut().zip(cosines) {
                *c = (cosine * self.magnitude) as f32;
            }
            for (s, sine) in sin.iter_mut().zip(sines) {
                *s = (sine * self.magnitude) as f32;
            }
        }
    }

    /// The whole table `[n_rot, n_positions]`, rows made in parallel on `threads` threads.
    pub fn table(&self, threads: usize) -> Vec<f32> {
        let frequencies = self.frequencies();
        let mut out = vec![0.0; self.n_rot * self.n_positions];
        let rows = self.n_positions.div_ceil(threads.max(1)).max(1);
        std::thread::scope(|scope| {
            for (c, chunk) in out.chunks_mut(rows * self.n_rot.max(1)).enumerate() {
                let frequencies = &frequencies;
                scope.spawn(move || {
                    for (r, row) in chunk.chunks_mut(self.n_rot).enumerate() {
                        self.row(frequencies, c * rows + r, row);
                    }
                });
            }
        });
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_do_not_depend_on_threads() {
        let spec = RopeSpec::new(64, 1e6, 301);
        assert_eq!(spec.table(1), spec.table(3));
    }

    #[test]
    fn angles_agree_with_the_library_to_f32() {
        let spec = RopeSpec::new(128, 10000.0, 40_000);
        let table = spec.table(2);
        for p in [0, 1, 31, 300, 39_999] {
            for i in 0..64 {
                let angle = p as f64 * 10000f64.powf(-(i as f64) / 64.0);
                let (c, s) = (table[p * 128 + i], table[p * 128 + 64 + i]);
                assert!((f64::from(c) - angle.cos()).abs() < 1e-7, "cos at {p}, pair {i}");
                assert!((f64::from(s) - angle.sin()).abs() < 1e-7, "sin at {p}, pair {i}");
            }
        }
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_scales_slow_ones() {
        let mut spec = RopeSpec::new(64, 10000.0, 16);
        let plain = spec.frequencies();
        spec.freq_scale = 0.25;
        spec.yarn = Some(Yarn { original_context: 4096, beta_fast: 32.0, beta_slow: 1.0 });
        let f = spec.frequencies();
        assert_eq!(f[0], plain[0]);
        assert_eq!(f[31], plain[31] * 0.25);
    }
}
