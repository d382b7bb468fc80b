//! What a model thought of a token before any sampling: logarithms of the softmax of its raw logits.

/// A token among others: `ln p` of it, and the likeliest at its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// The token.
    pub id: u32,
    /// Its `ln p`; never NaN, `f32::MIN` in place of minus infinity.
    pub logprob: f32,
    /// The likeliest tokens with their `ln p`, best first; ties go to the lower id.
    pub top: Vec<(u32, f32)>,
}

impl Logprobs {
    /// Of `id` by logits `[n_vocab]`, with the `n` likeliest.
    pub fn new(logits: &[f32], id: u32, n: usize) -> Logprobs {
        let (max, ln_sum) = ln_sum(logits);
        let ln = |z: f32| ((f64::from(z) - max - ln_sum) as f32).max(f32::MIN);
        let top = likeliest(logits, n).into_iter().map(|(id, z)| (id, ln(z))).collect();
        Logprobs { id, logprob: ln(logits[id as usize]), top }
    }
}

/// The `n` highest logits with their ids, best first. It allocates what it returns, twice as large, and nothing for 0.
fn likeliest(logits: &[f32], n: usize) -> Vec<(u32, f32)> {
    if n == 0 {
        return Vec::new();
    }
    let best = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    let most = n.saturating_mul(2).min(logits.len());
    let mut top = Vec::with_capacity(most);
    for candidate in (0..).zip(logits.iter().copied()) {
        if top.len() == most {
            top.select_nth_unstable_by(n - 1, best);
            top.truncate(n);
        }
        top.push(candidate);
    }
    top.sort_unstable_by(best);
    top.truncate(n);
    top
}

/// The highest logit, and the logarithm of the sum of `exp(z - highest)`, in f64.
fn ln_sum(logits: &[f32]) -> (f64, f64) {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|z| (f64::from(*z) - max).exp()).sum();
    (max, sum.ln())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_logarithms_of_a_distribution() {
        let logits = [1.0, f32::NEG_INFINITY, 3.0, 3.0, -2.0];
        let all = Logprobs::new(&logits, 1, 5);
        assert_eq!(all.logprob, f32::MIN);
        assert_eq!(all.top.iter().map(|t| t.0).collect::<Vec<_>>(), [2, 3, 0, 4, 1]);
        let sum: f64 = all.top.iter().map(|t| f64::from(t.1).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        let two = Logprobs::new(&logits, 0, 2);
        assert_eq!(two.top, all.top[..2]);
        assert_eq!(two.logprob, all.top[2].1);
        assert!(Logprobs::new(&logits, 0, 0).top.is_empty());
    }

    #[test]
    fn the_likeliest_are_the_first_of_all_sorted() {
        let logits: Vec<f32> = (0..1000u32).map(|i| (i * 7919 % 257) as f32).collect();
        let all = likeliest(&logits, logits.len());
        assert!(all.windows(2).all(|w| w[0].1 > w[1].1 || w[0].1 == w[1].1 && w[0].0 < w[1].0));
        for n in [1, 2, 3, 20, 499, 500, 501, 999, 1000, 5000] {
            assert_eq!(likeliest(&logits, n), all[..n.min(1000)], "{n}");
        }
    }
}
