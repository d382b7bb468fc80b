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

/// How many candidates, taken in order, it needs for their weights to reach `target`; all where they never do.
///
/// Afterwards that many lie in front, the last of them at its place. The slice is halved by selection and
/// only the part that holds the answer is looked at again, so the time is linear, sorted or not.
pub fn prefix(all: &mut [u64], weight: impl Fn(u64) -> u64, target: u64) -> usize {
    let (mut lo, mut hi, mut sum) = (0, all.len(), 0);
    while hi - lo > 64 {
        let half = (hi - lo) / 2;
        all[lo..hi].select_nth_unstable_by(half, |a, b| b.cmp(a));
        let front: u64 = all[lo..lo + half].iter().map(|c| weight(*c)).sum();
        if sum + front >= target {
            hi = lo + half;
        } else {
            (lo, sum) = (lo + half, sum + front);
        }
    }
    all[lo..hi].sort_unstable_by(|a, b| b.cmp(a));
    let reaches = |c: &u64| {
        sum += weight(*c);
        sum >= target
    };
    all[lo..hi].iter().position(reaches).map_or(hi, |i| lo + i + 1)
}

/// The candidate that random bits draw, each as likely as its part of `total`, the sum of all weights, which is not 0.
pub fn drawn(all: &mut [u64], weight: impl Fn(u64) -> u64, total: u64, bits: u64) -> u64 {
    // The first whose running sum exceeds x, which lies below the total.
    let x = ((u128::from(bits) * u128::from(total)) >> 64) as u64;
    let n = prefix(all, weight, x + 1);
    all[n - 1]
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
    fn prefixes_are_the_shortest() {
        for n in [1u64, 64, 65, 129, 3000] {
            let random = |i: u64| i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
            let weight = |c: u64| c % 5;
            let mut sorted: Vec<u64> = (0..n).map(random).collect();
            sorted.sort_unstable_by(|a, b| b.cmp(a));
            let total: u64 = sorted.iter().map(|c| weight(*c)).sum();
            for target in [0, 1, 2, total / 3, total / 2, total.saturating_sub(1), total, total + 1] {
                let mut sum = 0;
                let want = sorted.iter().position(|c| {
                    sum += weight(*c);
                    sum >= target
                });
                let want = want.map_or(sorted.len(), |i| i + 1);
                let mut v: Vec<u64> = (0..n).map(random).collect();
                assert_eq!(prefix(&mut v, weight, target), want, "{n} candidates, target {target}");
                assert_eq!(v[want - 1], sorted[want - 1]);
                v[..want].sort_unstable_by(|a, b| b.cmp(a));
                assert_eq!(v[..want], sorted[..want]);
            }
        }
    }
}
