//! Passes over the vocabulary that pick candidates.

// Negated comparisons are meant: NaN has to pass the first sieve to be found.
#![allow(clippy::neg_cmp_op_on_partial_ord)]

use super::{SampleError, Scratch, distance};
use crate::order::{candidate, logit};

/// More candidates than this are picked by their distance from the maximum, not kept by a threshold.
///
/// Both ways give the same tokens; the tests' short rows have to go both.
pub const MAX_KEPT: usize = if cfg!(test) { 64 } else { 4096 };
/// Ids per mask word.
const BLOCK: usize = 32;

/// Bit per element of a block for which `f` holds. Blocks without one are the rule and cost no bits.
#[inline]
fn bits(block: &[f32], f: impl Fn(f32) -> bool) -> u32 {
    if !block.iter().fold(false, |any, z| any | f(*z)) {
        return 0;
    }
    block.iter().enumerate().fold(0, |bits, (i, z)| bits | u32::from(f(*z)) << i)
}

/// The ids of the set bits of a block's word.
fn each(mut bits: u32, block: usize, mut f: impl FnMut(u32)) {
    while bits != 0 {
        f((block * BLOCK) as u32 + bits.trailing_zeros());
        bits &= bits - 1;
    }
}

/// The first `k` candidates in order of those pushed, kept in a list that is cut when it is full.
struct Kept<'a> {
    list: &'a mut Vec<u64>,
    k: usize,
    full: usize,
    /// A candidate has to come before this one, once the list was cut.
    last: u64,
    /// Logits below this do not.
    least: f32,
}

impl Kept<'_> {
    #[inline]
    fn push(&mut self, z: f32, id: u32) {
        let c = candidate(z, id);
        if c > self.last && z != f32::NEG_INFINITY {
            self.list.push(c);
            if self.list.len() == self.full {
                self.cut();
            }
        }
    }

    fn cut(&mut self) {
        if self.list.len() > self.k {
            let (_, last, _) = self.list.select_nth_unstable_by(self.k - 1, |a, b| b.cmp(a));
            (self.last, self.least) = (*last, logit(*last));
            self.list.truncate(self.k);
        }
    }
}

impl Scratch {
    /// Leaves the `k` first candidates in order of all that are above minus infinity and allowed, or
    /// all where there are fewer; the list itself is in no order.
    ///
    /// # Errors
    /// A NaN logit, or no candidate.
    pub(super) fn keep_highest(
        &mut self,
        row: &[f32],
        mask: Option<&[u32]>,
        k: usize,
    ) -> Result<(), SampleError> {
        self.candidates.clear();
        let full = (2 * k).max(BLOCK);
        let mut kept = Kept { list: &mut self.candidates, k, full, last: 0, least: f32::NEG_INFINITY };
        for &id in &self.ids {
            let z = self.edits[id as usize];
            if z.is_nan() {
                return Err(SampleError::Nan { id });
            }
            if mask.is_none_or(|m| m[id as usize / BLOCK] >> (id % 32) & 1 == 1) {
                kept.push(z, id);
            }
        }
        for (b, block) in row.chunks(BLOCK).enumerate() {
            let reaching = bits(block, |z| !(z < kept.least));
            if reaching == 0 {
                continue;
            }
            let nan = bits(block, f32::is_nan);
            if nan != 0 {
                return Err(SampleError::Nan { id: (b * BLOCK) as u32 + nan.trailing_zeros() });
            }
            let open = mask.map_or(!0, |m| m[b]) & !self.edited[b];
            each(reaching & open, b, |id| kept.push(row[id as usize], id));
        }
        kept.cut();
        if kept.list.is_empty() { Err(SampleError::Empty { n_vocab: row.len() }) } else { Ok(()) }
    }

    /// Leaves every allowed candidate whose distance below `z_max`, times `scale`, is less than `span`.
    pub(super) fn keep_weighty(
        &mut self,
        row: &[f32],
        mask: Option<&[u32]>,
        z_max: f32,
        scale: f32,
        span: f32,
    ) {
        let Self { edited, edits, ids, candidates } = self;
        candidates.clear();
        let mut push = |z: f32, id: u32| {
            if distance(z_max, z) * scale < span {
                candidates.push(candidate(z, id));
            }
        };
        for &id in ids.iter() {
            if mask.is_none_or(|m| m[id as usize / BLOCK] >> (id % 32) & 1 == 1) {
                push(edits[id as usize], id);
            }
        }
        for (b, block) in row.chunks(BLOCK).enumerate() {
            // Infinity less infinity is not at or above the span either: `push` looks closer.
            let near = bits(block, |z| !((z_max - z) * scale >= span));
            let open = mask.map_or(!0, |m| m[b]) & !edited[b];
            each(near & open, b, |id| push(row[id as usize], id));
        }
    }

    /// Leaves the `k` first candidates in order.
    pub(super) fn truncate(&mut self, k: usize) {
        if self.candidates.len() > k {
            self.candidates.select_nth_unstable_by(k, |a, b| b.cmp(a));
            self.candidates.truncate(k);
        }
    }
}
