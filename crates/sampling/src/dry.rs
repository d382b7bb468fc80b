//! DRY: a penalty on tokens that would make a repetition longer.

use std::collections::HashMap;

use crate::math::{ln, pow};

/// What ends a repetition: tokens that begin a breaker, each with the tokens that must follow it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Breakers(HashMap<u32, Vec<Vec<u32>>>);

impl Breakers {
    /// Adds a breaker: `head`, and after it `tail`.
    pub fn add(&mut self, head: u32, tail: Vec<u32>) {
        let tails = self.0.entry(head).or_default();
        if !tails.contains(&tail) {
            tails.push(tail);
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `id` alone is a breaker.
    fn alone(&self, id: u32) -> bool {
        self.0.get(&id).is_some_and(|tails| tails.iter().any(Vec::is_empty))
    }

    /// Tokens at the end of `recent` that lie behind its last breaker.
    fn behind_last(&self, recent: &[u32]) -> usize {
        let n = recent.len();
        for i in (0..n).rev() {
            let after = &recent[i + 1..];
            let fits = |tail: &&Vec<u32>| after.starts_with(tail);
            let longest = self.0.get(&recent[i]).and_then(|t| t.iter().filter(fits).map(Vec::len).max());
            if let Some(tail) = longest {
                return n - 1 - i - tail;
            }
        }
        n
    }
}

/// The parameters of DRY.
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// Strength; 0 = off.
    pub multiplier: f32,
    /// The penalty grows by this factor with each token of the repetition; below 1 = off.
    pub base: f32,
    /// Repetitions below this length are free.
    pub allowed_length: u32,
    /// How many of the last tokens, prompt included, are looked at; 0 = off.
    pub last_n: u32,
    /// Repetitions do not reach over these.
    pub breakers: std::sync::Arc<Breakers>,
}

impl Default for Dry {
    fn default() -> Self {
        Dry { multiplier: 0.0, base: 1.75, allowed_length: 2, last_n: 64, breakers: Default::default() }
    }
}

impl Dry {
    /// Whether it does something.
    pub fn is_on(&self) -> bool {
        self.multiplier != 0.0 && self.base >= 1.0 && self.last_n > 0
    }

    /// What is taken from the logit of a token that would go on with a repetition of `n` tokens.
    fn penalty(&self, n: u32) -> f32 {
        let base = f64::from(self.base);
        let mut e = n - self.allowed_length;
        if base > 1.000001 {
            // The largest power that an f32 holds.
            let most = (88.722_839_1 / ln(base)) as u32;
            e = if most > 0 { e.min(most) } else { e };
        }
        (f64::from(self.multiplier) * pow(base, f64::from(e))) as f32
    }
}

/// Memory of the search, made once.
#[derive(Clone, Debug)]
pub struct DryScratch {
    /// By distance k from the end: how far the tokens before the end equal those before k.
    z: Vec<u32>,
    /// (id, length of the repetition), ids ascending and unique.
    found: Vec<(u32, u32)>,
}

impl DryScratch {
    /// For windows of up to `last_n` tokens.
    pub fn new(last_n: usize) -> Self {
        DryScratch { z: vec![0; last_n], found: Vec::with_capacity(last_n) }
    }

    /// The tokens that are to be penalised after `tokens`, each once, by how much.
    pub fn penalties<'a>(
        &'a mut self,
        dry: &'a Dry,
        tokens: &[u32],
    ) -> impl Iterator<Item = (u32, f32)> + use<'a> {
        self.search(dry, &tokens[tokens.len().saturating_sub((dry.last_n as usize).min(self.z.len()))..]);
        self.found.iter().map(|(id, n)| (*id, dry.penalty(*n)))
    }

    fn search(&mut self, dry: &Dry, recent: &[u32]) {
        self.found.clear();
        let n = recent.len();
        let allowed = dry.allowed_length as usize;
        let limit = dry.breakers.behind_last(recent);
        if n <= allowed || limit < allowed {
            return;
        }
        let newest = |i: usize| recent[n - 1 - i];
        // The Z algorithm over the tokens read backwards: [left, right) is the last stretch known to equal the start.
        let (mut left, mut right) = (0, 0);
        for k in 1..n {
            let mut same = if k < right { (self.z[k - left] as usize).min(right - k) } else { 0 };
            while k + same < n && newest(same) == newest(k + same) {
                same += 1;
            }
            if k + same > right {
                (left, right) = (k, k + same);
            }
            self.z[k] = same as u32;
            let repeated = same.min(limit);
            if repeated >= allowed {
                self.found.push((newest(k - 1), repeated as u32));
            }
        }
        self.found.retain(|(id, _)| !dry.breakers.alone(*id));
        // The longest repetition of each id comes first and stays.
        self.found.sort_unstable_by_key(|(id, n)| (*id, !n));
        self.found.dedup_by_key(|f| f.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(dry: &Dry, tokens: &[u32]) -> Vec<(u32, u32)> {
        let mut scratch = DryScratch::new(dry.last_n as usize);
        let penalties: Vec<_> = scratch.penalties(dry, tokens).collect();
        let lengths = |p: f32| (f64::from(p).log2().round() as u32) + dry.allowed_length;
        penalties.into_iter().map(|(id, p)| (id, lengths(p))).collect()
    }

    /// The definition, quadratic.
    fn by_definition(dry: &Dry, tokens: &[u32]) -> Vec<(u32, u32)> {
        let t: Vec<u32> = tokens.iter().rev().take(dry.last_n as usize).copied().collect();
        let limit = dry.breakers.behind_last(&tokens[tokens.len().saturating_sub(t.len())..]);
        let mut best = std::collections::BTreeMap::new();
        for k in 1..t.len() {
            let n = (0..t.len() - k).take_while(|i| t[*i] == t[k + i]).count().min(limit) as u32;
            if n >= dry.allowed_length
                && t.len() > dry.allowed_length as usize
                && !dry.breakers.alone(t[k - 1])
            {
                let b = best.entry(t[k - 1]).or_insert(n);
                *b = n.max(*b);
            }
        }
        best.into_iter().collect()
    }

    #[test]
    fn repetitions_are_found() {
        let dry = Dry { multiplier: 1.0, base: 2.0, last_n: 40, ..Dry::default() };
        assert_eq!(found(&dry, &[1, 2, 3, 4, 9, 1, 2, 3]), [(4, 3)]);
        assert_eq!(found(&dry, &[1, 2, 5, 1, 2, 6, 7, 1, 2]), [(5, 2), (6, 2)]);
        assert_eq!(found(&dry, &[1, 2]), []);
        let mut breakers = Breakers::default();
        breakers.add(8, vec![]);
        breakers.add(2, vec![3]);
        let dry = Dry { breakers: breakers.into(), ..dry };
        // Behind the last breaker lie two tokens only, and a breaker is never penalised.
        assert_eq!(found(&dry, &[8, 1, 7, 5, 0, 8, 1, 7]), [(5, 2)]);
        assert_eq!(found(&dry, &[1, 7, 8, 0, 1, 7]), []);
        assert_eq!(found(&dry, &[1, 7, 5, 0, 2, 3, 7]), []);
        let mut state = 5u64;
        for case in 0..600 {
            let tokens: Vec<u32> = (0..case % 60)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                    (state >> 60) as u32 % (2 + case as u32 % 7)
                })
                .collect();
            assert_eq!(found(&dry, &tokens), by_definition(&dry, &tokens), "{tokens:?}");
        }
    }

    #[test]
    fn penalties_grow_and_stay_finite() {
        let dry = Dry { multiplier: 0.8, ..Dry::default() };
        assert_eq!(dry.penalty(2), 0.8);
        assert!((dry.penalty(4) - 0.8 * 1.75 * 1.75).abs() < 1e-6);
        assert!(dry.penalty(100_000).is_finite());
    }
}
