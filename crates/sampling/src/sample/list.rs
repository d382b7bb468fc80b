//! The candidates on their way through a chain.

use super::distance;
use crate::math::{exp, ln, pow};
use crate::order::{candidate, drawn, id, logit, prefix};
use crate::row::fixed;
use crate::{Params, weight};

/// One in the fixed point of entropies.
const ONE: f64 = (1u64 << 40) as f64;
/// One in the fixed point of logits.
const LOGIT_ONE: f64 = (1u64 << 20) as f64;

/// Candidates with one factor on all distances below the best.
#[derive(Clone, Debug)]
pub struct List {
    all: Vec<u64>,
    scale: f32,
    sorted: bool,
    /// (key, candidate) of a stage that orders by something else.
    keyed: Vec<(u64, u64)>,
}

impl List {
    /// For up to `n` candidates.
    pub fn new(n: usize, keyed: bool) -> Self {
        let keyed = Vec::with_capacity(if keyed { n } else { 0 });
        List { all: Vec::with_capacity(n), scale: 1.0, sorted: false, keyed }
    }

    /// Takes the candidates of a row; there is at least one.
    pub fn begin(&mut self, candidates: &[u64]) {
        self.all.clear();
        self.all.extend_from_slice(candidates);
        (self.scale, self.sorted) = (1.0, false);
    }

    fn z_max(&self) -> f32 {
        logit(*self.all.iter().max().expect("no stage drops all candidates"))
    }

    /// Weights of candidates as they are now.
    fn weights(&self) -> impl Fn(u64) -> u64 + use<> {
        let (z_max, scale) = (self.z_max(), self.scale);
        move |c| u64::from(weight(distance(z_max, logit(c)) * scale))
    }

    fn total(&self) -> u64 {
        let w = self.weights();
        self.all.iter().map(|c| w(*c)).sum()
    }

    fn sort(&mut self) {
        if !self.sorted {
            self.all.sort_unstable_by(|a, b| b.cmp(a));
            self.sorted = true;
        }
    }

    /// Drops candidates without weight; they have no part in what is about probabilities.
    fn drop_weightless(&mut self) {
        let w = self.weights();
        self.all.retain(|c| w(*c) > 0);
    }

    /// Changes logits by id. One that becomes NaN is minus infinity, which has no weight beside others.
    pub fn edit(&mut self, f: impl Fn(u32, f32) -> f32) {
        let scale = self.scale;
        for c in &mut self.all {
            let z = f(id(*c), logit(*c) * scale);
            *c = candidate(if z.is_nan() { f32::NEG_INFINITY } else { z }, id(*c));
        }
        (self.scale, self.sorted) = (1.0, false);
    }

    /// The first `k` in order.
    pub fn top_k(&mut self, k: usize) {
        let k = k.max(1);
        if self.all.len() > k {
            if !self.sorted {
                self.all.select_nth_unstable_by(k, |a, b| b.cmp(a));
            }
            self.all.truncate(k);
        }
    }

    /// The shortest prefix that reaches a share of the weight.
    pub fn top_p(&mut self, p: f32) {
        let target = share(self.total(), p);
        let w = self.weights();
        let n = prefix(&mut self.all, w, target);
        self.all.truncate(n);
        self.sorted = false;
    }

    /// Those with a share of the best one's weight; the best always.
    pub fn min_p(&mut self, p: f32) {
        let (w, best) = (self.weights(), *self.all.iter().max().expect("no stage drops all candidates"));
        let least = share(w(best), p);
        self.all.retain(|c| *c == best || w(*c) >= least);
    }

    /// Those at most `n` standard deviations below the best.
    pub fn top_n_sigma(&mut self, n: f32) {
        if self.all.len() < 2 {
            return;
        }
        let fixed = |c: u64| {
            let z = (f64::from(logit(c)) * LOGIT_ONE).clamp(-1.1e12, 1.1e12);
            (if z < 0.0 { z - 0.5 } else { z + 0.5 }) as i64
        };
        let count = self.all.len() as i128;
        let mean = self.all.iter().map(|c| i128::from(fixed(*c))).sum::<i128>().div_euclid(count);
        let squares: i128 = self.all.iter().map(|c| (i128::from(fixed(*c)) - mean).pow(2)).sum();
        let sigma = (squares as f64 / count as f64).sqrt();
        let best = fixed(*self.all.iter().max().expect("at least two"));
        let least = best as f64 - f64::from(n) * sigma;
        self.all.retain(|c| fixed(*c) == best || fixed(*c) as f64 >= least);
    }

    /// The entropy of the weights, in nats and fixed point: each term `-p ln p` is rounded by itself.
    fn entropy(&self) -> i64 {
        let (w, total) = (self.weights(), self.total() as f64);
        let ln_total = ln(total);
        let term = |c: &u64| match w(*c) {
            0 => 0,
            w => (w as f64 / total * (ln_total - ln(w as f64)) * ONE + 0.5) as i64,
        };
        self.all.iter().map(term).sum()
    }

    /// Those whose surprise is nearest to the entropy, until their weight exceeds a share of all.
    ///
    /// Source: Meister et al. 2022, "Locally typical sampling".
    pub fn typical(&mut self, p: f32) {
        self.drop_weightless();
        let (entropy, total, w) = (self.entropy(), self.total(), self.weights());
        let ln_total = ln(total as f64);
        self.keyed.clear();
        self.keyed.extend(self.all.iter().map(|c| {
            let surprise = ((ln_total - ln(w(*c) as f64)) * ONE + 0.5) as i64;
            (surprise.abs_diff(entropy), *c)
        }));
        self.keyed.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        let (target, mut sum) = (share(total, p), 0);
        let exceeds = |(_, c): &(u64, u64)| {
            sum += w(*c);
            sum > target
        };
        let n = self.keyed.iter().position(exceeds).map_or(self.keyed.len(), |i| i + 1);
        self.all.clear();
        self.all.extend(self.keyed[..n].iter().map(|(_, c)| *c));
        self.sorted = false;
    }

    /// Drops all but the last of those that lead and have at least a share of the weight.
    pub fn xtc(&mut self, threshold: f32) {
        if self.all.len() < 2 {
            return;
        }
        let least = share(self.total(), threshold);
        self.sort();
        let w = self.weights();
        let likely = self.all.iter().take_while(|c| w(**c) >= least).count();
        self.all.drain(..likely.saturating_sub(1));
    }

    /// Temperature, fixed or by the entropy; at 0 and below the best alone stays.
    pub fn temper(&mut self, p: &Params) {
        let mut t = p.temperature;
        if p.dynatemp_range > 0.0 {
            if self.all.len() < 2 {
                return;
            }
            let (low, high) = (f64::from((t - p.dynatemp_range).max(0.0)), f64::from(t + p.dynatemp_range));
            let share = self.entropy() as f64 / ONE / ln(self.all.len() as f64);
            t = (low + (high - low) * pow(share, f64::from(p.dynatemp_exponent))) as f32;
        }
        match t > 0.0 && (1.0 / t).is_finite() {
            true => self.scale *= 1.0 / t,
            false => self.top_k(1),
        }
    }

    /// Those whose surprise is at most `bits`; the best always.
    pub fn least_surprising(&mut self, bits: f64) {
        self.drop_weightless();
        self.sort();
        let (w, ln_total) = (self.weights(), ln(self.total() as f64));
        let most = bits * std::f64::consts::LN_2;
        let n = self.all.iter().take_while(|c| ln_total - ln(w(**c) as f64) <= most).count();
        self.all.truncate(n.max(1));
    }

    /// Mirostat's number of candidates for a surprise of `mu` bits, by Zipf's law fitted to the best hundred.
    pub fn zipf_k(&mut self, mu: f64, n_vocab: usize) -> usize {
        self.drop_weightless();
        self.sort();
        let w = self.weights();
        let (mut tb, mut tt) = (0.0, 0.0);
        for (i, pair) in self.all.windows(2).take(99).enumerate() {
            let t = ln((i + 2) as f64 / (i + 1) as f64);
            tb += t * (ln(w(pair[0]) as f64) - ln(w(pair[1]) as f64));
            tt += t * t;
        }
        let s = if tt > 0.0 { tb / tt } else { 0.0 };
        let eps = s - 1.0;
        // Even weights, or the exponent at which the formula has no value: all candidates.
        if s <= 1e-9 || eps.abs() <= 1e-9 {
            return self.all.len();
        }
        let most = eps * exp(mu * std::f64::consts::LN_2) / (1.0 - pow(n_vocab as f64, -eps));
        pow(most.max(0.0), 1.0 / s).min(self.all.len() as f64) as usize
    }

    /// Draws by the weights; the id and the probability that it had.
    pub fn draw(&mut self, bits: u64) -> (u32, f64) {
        let (w, total) = (self.weights(), self.total());
        self.sorted = false;
        let drawn = drawn(&mut self.all, &w, total, bits);
        (id(drawn), w(drawn) as f64 / total as f64)
    }

    /// Draws by how near probabilities are to `aim`; the id and the probability that it had before.
    pub fn draw_near(&mut self, aim: f64, bits: u64) -> (u32, f64) {
        let (w, total) = (self.weights(), self.total() as f64);
        let p = |c: u64| w(c) as f64 / total;
        let near = |c: u64| {
            let d = (p(c) - aim).abs() / 0.3;
            (5.0 - 10.0 * d * d / (1.0 + d)) as f32
        };
        let highest = self.all.iter().map(|c| near(*c)).fold(f32::NEG_INFINITY, f32::max);
        let by_nearness = |c: u64| u64::from(weight(distance(highest, near(c))));
        let sum: u64 = self.all.iter().map(|c| by_nearness(*c)).sum();
        self.sorted = false;
        let drawn = drawn(&mut self.all, by_nearness, sum, bits);
        (id(drawn), p(drawn))
    }
}

/// `floor(total * round(p * 2^32) / 2^32)`; 0 for a `p` at or below 0.
fn share(total: u64, p: f32) -> u64 {
    ((u128::from(total) * u128::from(fixed(p))) >> 32) as u64
}
