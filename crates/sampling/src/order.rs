//! The order of candidates: bits of the logit as ordered integers, descending, then id ascending.

/// A candidate as one integer whose descending order is the order of candidates.
#[inline]
pub fn candidate(z: f32, id: u32) -> u64 {
    let b = z.to_bits();
    let ordered = if b >> 31 == 1 { !b } else { b | 1 << 31 };
    u64::from(ordered) << 32 | u64::from(!id)
}

/// The logit of a candidate.
#[inline]
pub fn logit(c: u64) -> f32 {
    let ordered = (c >> 32) as u32;
    f32::from_bits(if ordered >> 31 == 1 { ordered & !(1 << 31) } else { !ordered })
}

/// The id of a candidate.
#[inline]
pub fn id(c: u64) -> u32 {
    !(c as u32)
}

/// Candidates that are put in order from the front, as far as they are read: most walks end early.
pub struct Ordered<'a> {
    all: &'a mut [u64],
    sorted: usize,
}

impl<'a> Ordered<'a> {
    /// Takes candidates in any order.
    pub fn new(all: &'a mut [u64]) -> Self {
        Self { all, sorted: 0 }
    }

    /// Every candidate once; only the front is in order.
    pub fn all(&self) -> &[u64] {
        self.all
    }

    /// The `i`-th candidate in order.
    #[inline]
    pub fn get(&mut self, i: usize) -> u64 {
        while i >= self.sorted {
            self.sort_more();
        }
        self.all[i]
    }

    fn sort_more(&mut self) {
        let rest = &mut self.all[self.sorted..];
        let n = (self.sorted * 3).max(128);
        if n < rest.len() {
            rest.select_nth_unstable_by(n, |a, b| b.cmp(a));
        }
        let n = n.min(rest.len());
        rest[..n].sort_unstable_by(|a, b| b.cmp(a));
        self.sorted += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_keep_their_parts_and_order() {
        let zs = [f32::INFINITY, 3.5, 1e-40, 0.0, -0.0, -1e-40, -2.0, f32::MIN];
        for w in zs.windows(2) {
            assert!(candidate(w[0], 9) > candidate(w[1], 0), "{w:?}");
        }
        assert!(candidate(1.0, 3) > candidate(1.0, 4));
        for z in zs {
            let c = candidate(z, 262_143);
            assert_eq!((logit(c).to_bits(), id(c)), (z.to_bits(), 262_143));
        }
    }

    #[test]
    fn ordered_gives_the_sorted_list() {
        for n in [1u64, 127, 128, 129, 5000] {
            let mut v: Vec<u64> = (0..n).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40).collect();
            let mut want = v.clone();
            want.sort_unstable_by(|a, b| b.cmp(a));
            let mut ordered = Ordered::new(&mut v);
            assert_eq!((0..n as usize).map(|i| ordered.get(i)).collect::<Vec<_>>(), want);
        }
    }
}
