//! How long a draft is worth making. Nothing here reaches the output: every draft is verified.

use firth_sampling::random_u64;

/// How draft lengths are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftLength {
    /// By measured acceptance and cost, up to the longest.
    Adaptive,
    /// Always the longest that fits.
    Fixed,
    /// At random up to the longest: what a test does in place of a clock.
    Random(u64),
}

/// Seconds of a step by its rows: a line through what was measured, older steps counting less.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepCost {
    n: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl StepCost {
    const KEEP: f64 = 0.98;

    /// Notes a step of `rows` rows.
    pub fn note(&mut self, rows: usize, seconds: f64) {
        let x = rows as f64;
        let add = |sum: &mut f64, v: f64| *sum = *sum * Self::KEEP + v;
        add(&mut self.n, 1.0);
        add(&mut self.x, x);
        add(&mut self.y, seconds);
        add(&mut self.xx, x * x);
        add(&mut self.xy, x * seconds);
    }

    /// Base and slope; 1 and a quarter, in no unit, while nothing is known.
    fn line(&self) -> (f64, f64) {
        if self.n == 0.0 {
            return (1.0, 0.25);
        }
        let (mx, my) = (self.x / self.n, self.y / self.n);
        let spread = self.xx / self.n - mx * mx;
        let slope = match spread > 0.05 {
            true => (self.xy / self.n - mx * my) / spread,
            false => my * 0.2,
        };
        let slope = slope.clamp(my * 0.01, my / mx.max(1.0));
        (my - slope * mx, slope)
    }

    /// Seconds of a step of `rows` rows.
    pub fn of(&self, rows: f64) -> f64 {
        let (base, slope) = self.line();
        base + slope * rows
    }
}

/// Depths whose acceptance is kept apart.
const DEPTHS: usize = 16;

/// What a sequence's drafts came to.
#[derive(Clone, Debug)]
pub struct Acceptance {
    tried: [f32; DEPTHS],
    kept: [f32; DEPTHS],
    /// Steps without a draft until one is tried again.
    rest: u32,
    interval: u32,
    choices: u32,
}

impl Default for Acceptance {
    fn default() -> Self {
        // One imagined try, kept by more than half: a start that the first real ones outweigh.
        Acceptance { tried: [1.0; DEPTHS], kept: [0.6; DEPTHS], rest: 0, interval: 16, choices: 0 }
    }
}

impl Acceptance {
    const KEEP: f32 = 0.96;

    /// Notes that of `drafted` tokens the first `accepted` were right.
    pub fn note(&mut self, drafted: usize, accepted: usize) {
        for depth in 0..drafted.min(accepted + 1).min(DEPTHS) {
            self.tried[depth] = self.tried[depth] * Self::KEEP + 1.0;
            self.kept[depth] = self.kept[depth] * Self::KEEP + f32::from(depth < accepted);
        }
        if drafted > 0 && accepted > 0 {
            self.interval = 16;
        }
    }

    fn rate(&self, depth: usize) -> f64 {
        let d = depth.min(DEPTHS - 1);
        f64::from(self.kept[d] / self.tried[d])
    }

    /// How many tokens to draft: `max` at most, where a step serves `sequences` others alike and a drafted
    /// token costs `draft` seconds.
    pub fn choose(
        &mut self,
        how: DraftLength,
        max: usize,
        step: &StepCost,
        sequences: usize,
        draft: f64,
    ) -> usize {
        match how {
            DraftLength::Fixed => max,
            DraftLength::Random(seed) => {
                self.choices += 1;
                (random_u64([seed as u32, (seed >> 32) as u32], self.choices, 0, 0) % (max as u64 + 1))
                    as usize
            }
            DraftLength::Adaptive => {
                let best = self.best(max, step, sequences.max(1) as f64, draft);
                self.rested(best, max)
            }
        }
    }

    /// The length of most tokens per second.
    fn best(&self, max: usize, step: &StepCost, sequences: f64, draft: f64) -> usize {
        let (mut tokens, mut reach) = (1.0, 1.0);
        let mut best = (0, 1.0 / (step.of(sequences) / sequences));
        for n in 1..=max {
            reach *= self.rate(n - 1);
            tokens += reach;
            let seconds = step.of(sequences * (n + 1) as f64) / sequences + draft * n as f64;
            if tokens / seconds > best.1 {
                best = (n, tokens / seconds);
            }
        }
        best.0
    }

    /// A drafter that is not worth its cost is tried again after a rest that grows while it stays so.
    fn rested(&mut self, best: usize, max: usize) -> usize {
        if best > 0 {
            return best;
        }
        if self.rest > 0 {
            self.rest -= 1;
            return 0;
        }
        self.rest = self.interval;
        self.interval = (self.interval * 2).min(1024);
        max.min(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(base: f64, slope: f64) -> StepCost {
        let mut cost = StepCost::default();
        (0..200).for_each(|i| cost.note(1 + i % 4, base + slope * (1 + i % 4) as f64));
        cost
    }

    #[test]
    fn a_line_is_found_again() {
        let cost = measured(0.9, 0.1);
        assert!((cost.of(1.0) - 1.0).abs() < 1e-6 && (cost.of(8.0) - 1.7).abs() < 1e-6, "{}", cost.of(8.0));
    }

    #[test]
    fn good_drafts_grow_and_bad_ones_end() {
        let cost = measured(0.9, 0.1);
        let mut good = Acceptance::default();
        (0..50).for_each(|_| good.note(8, 8));
        assert_eq!(good.choose(DraftLength::Adaptive, 8, &cost, 1, 0.05), 8);
        let mut bad = Acceptance::default();
        let drafted: usize = (0..1000)
            .map(|_| {
                let n = bad.choose(DraftLength::Adaptive, 8, &cost, 1, 0.05);
                bad.note(n, 0);
                n
            })
            .sum();
        assert!((1..60).contains(&drafted), "{drafted} drafted in 1000 steps");
    }

    #[test]
    fn random_lengths_cover_their_range() {
        let mut a = Acceptance::default();
        let cost = StepCost::default();
        let mut seen = [0; 5];
        (0..200).for_each(|_| seen[a.choose(DraftLength::Random(3), 4, &cost, 1, 0.0)] += 1);
        assert!(seen.iter().all(|n| *n > 10), "{seen:?}");
    }
}
