//! One token from one row of logits.

use crate::order::{drawn, id, logit, prefix};
use crate::weights::SPAN;
use crate::{Lists, MAX_WEIGHT, RowParams, purpose, random_u64, weight};

mod chain;
mod list;
mod scan;

pub use chain::{Before, Chain};

/// Why a row gave no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// A logit is NaN, as the model gave it or after penalties and biases, masked or not.
    #[error("logit of token {id} is NaN")]
    Nan {
        /// The first such token that was met.
        id: u32,
    },
    /// Every logit is minus infinity or masked.
    #[error("no token of {n_vocab} is allowed")]
    Empty {
        /// How many logits the row has.
        n_vocab: usize,
    },
}

/// What [`sample`] needs besides its inputs; it allocates when made and never again.
#[derive(Clone, Debug)]
pub struct Scratch {
    /// Bit per id: its logit was edited and lies in `edits`.
    edited: Vec<u32>,
    /// Edited logits by id; meaningful where the bit is set.
    edits: Vec<f32>,
    /// The ids of the set bits.
    ids: Vec<u32>,
    candidates: Vec<u64>,
}

impl Scratch {
    /// Scratch for rows of up to `n_vocab` logits.
    pub fn new(n_vocab: usize) -> Self {
        Self {
            edited: vec![0; n_vocab.div_ceil(32)],
            edits: vec![0.0; n_vocab],
            ids: Vec::with_capacity(n_vocab),
            candidates: Vec::with_capacity(n_vocab),
        }
    }

    /// The logit of `id`, edited or as the row has it, to be changed.
    fn edit(&mut self, row: &[f32], id: u32) -> Option<&mut f32> {
        let (i, bit) = (id as usize, 1 << (id % 32));
        let raw = *row.get(i)?;
        if self.edited[i / 32] & bit == 0 {
            self.edited[i / 32] |= bit;
            self.edits[i] = raw;
            self.ids.push(id);
        }
        Some(&mut self.edits[i])
    }

    fn forget_edits(&mut self) {
        for id in self.ids.drain(..) {
            self.edited[id as usize / 32] = 0;
        }
    }

    /// Penalties, then biases, each a rounding of its own.
    fn apply_edits(&mut self, p: &RowParams, lists: &Lists, row: &[f32]) {
        self.forget_edits();
        if p.has(RowParams::PENALTIES) {
            let penalties = [p.repeat, p.inv_repeat, p.frequency, p.presence].map(f32::from_bits);
            for &[id, count] in range("penalties", lists.penalties, p.penalty_start, p.penalty_len) {
                if let Some(z) = self.edit(row, id) {
                    *z = penalised(*z, count, penalties);
                }
            }
        }
        self.add_biases(range("biases", lists.biases, p.bias_start, p.bias_len), row);
    }

    fn add_biases(&mut self, biases: &[[u32; 2]], row: &[f32]) {
        for &[id, bias] in biases {
            if let Some(z) = self.edit(row, id) {
                *z += f32::from_bits(bias);
            }
        }
    }
}

/// A logit after the penalties: factors at or below 0 and above, then what is taken each time and once.
fn penalised(z: f32, count: u32, [repeat, inverse, frequency, presence]: [f32; 4]) -> f32 {
    z * if z <= 0.0 { repeat } else { inverse } - (count as f32 * frequency + presence)
}

fn range<'a>(what: &str, list: &'a [[u32; 2]], start: u32, len: u32) -> &'a [[u32; 2]] {
    let (start, len) = (start as usize, len as usize);
    assert!(start + len <= list.len(), "{what} {start} + {len} lie outside a list of {}", list.len());
    &list[start..start + len]
}

fn mask<'a>(p: &RowParams, lists: &Lists<'a>, n_vocab: usize) -> Option<&'a [u32]> {
    let (words, m) = (n_vocab.div_ceil(32), p.mask as usize);
    (p.mask != RowParams::NO_MASK).then(|| {
        assert!((m + 1) * words <= lists.masks.len(), "mask {m} of {words} words is not in the list");
        &lists.masks[m * words..(m + 1) * words]
    })
}

/// The token that the parameters `p` draw from `logits: [n_vocab]`.
///
/// Pairs of `lists` with ids outside the row are passed over. The order of stages is penalties,
/// biases, mask, top-k, top-p, min-p, temperature, draw.
///
/// # Errors
/// A NaN logit, or none above minus infinity.
///
/// # Panics
/// Where `p` points outside `lists`, or `scratch` is too small for the row.
pub fn sample(
    p: &RowParams,
    lists: &Lists,
    logits: &[f32],
    scratch: &mut Scratch,
) -> Result<u32, SampleError> {
    let n = logits.len();
    assert!(n <= scratch.edits.len(), "a row of {n} logits, scratch for {}", scratch.edits.len());
    scratch.apply_edits(p, lists, logits);
    let mask = mask(p, lists, n);
    if p.has(RowParams::GREEDY) {
        scratch.keep_highest(logits, mask, 1)?;
        return Ok(id(scratch.candidates[0]));
    }
    let k = if p.has(RowParams::TOP_K) { (p.top_k as usize).clamp(1, n.max(1)) } else { n };
    if k <= scan::MAX_KEPT {
        scratch.keep_highest(logits, mask, k)?;
    } else {
        scratch.keep_highest(logits, mask, 1)?;
        let z_max = logit(scratch.candidates[0]);
        let (scale, span) = reach(p);
        scratch.keep_weighty(logits, mask, z_max, scale, span);
        scratch.truncate(k);
    }
    Ok(draw(p, &mut scratch.candidates))
}

/// The factor on distances below the maximum and the bound from which on, so multiplied, candidates are dropped
/// unseen. A truncating stage gives them no part by its own weights, otherwise the draw by the tempered ones.
fn reach(p: &RowParams) -> (f32, f32) {
    let least = min_weight(p);
    if p.has(RowParams::TOP_P) || (1..1 << 16).contains(&least) {
        (1.0, SPAN)
    } else if least > 0 {
        // Min-p alone: e^-0.01 is far more than the tables are off by at weights of 2^16 and more, so nothing
        // that min-p keeps is dropped here, whatever the last bit of this logarithm.
        (1.0, (f64::from(MAX_WEIGHT) / f64::from(least)).ln() as f32 + 0.01)
    } else {
        (f32::from_bits(p.inv_temperature), SPAN)
    }
}

/// The least weight that min-p keeps. The best candidate's weight is that of distance 0.
fn min_weight(p: &RowParams) -> u32 {
    if p.has(RowParams::MIN_P) { ((u64::from(MAX_WEIGHT) * u64::from(p.min_p)) >> 32) as u32 } else { 0 }
}

/// Distance below the maximum; 0 for the maximum itself, infinite or not.
#[inline]
fn distance(z_max: f32, z: f32) -> f32 {
    if z == z_max { 0.0 } else { z_max - z }
}

/// Top-p, min-p, temperature and the draw over candidates that passed top-k; there is at least one.
fn draw(p: &RowParams, candidates: &mut [u64]) -> u32 {
    let z_max = logit(*candidates.iter().max().expect("a row without candidates is an error"));
    let plain = |c| u64::from(weight(distance(z_max, logit(c))));
    let mut n = candidates.len();
    if p.has(RowParams::TOP_P) {
        let total: u64 = candidates.iter().map(|c| plain(*c)).sum();
        let target = ((u128::from(total) * u128::from(p.top_p)) >> 32) as u64;
        n = prefix(candidates, plain, target);
    }
    let kept = &mut candidates[..n];
    let (least, inv_temperature) = (u64::from(min_weight(p)), f32::from_bits(p.inv_temperature));
    let tempered = |c| {
        let keep = least == 0 || plain(c) >= least;
        if keep { u64::from(weight(distance(z_max, logit(c)) * inv_temperature)) } else { 0 }
    };
    let total: u64 = kept.iter().map(|c| tempered(*c)).sum();
    let bits = random_u64([p.seed_lo, p.seed_hi], p.token_index, p.choice, purpose::DRAW);
    // The best candidate has weight, so the total is not 0.
    id(drawn(kept, tempered, total, bits))
}
