//! Drafts from text that was there before: the sequence's own tokens, then a pool of its cache domain.

/// Tokens that must repeat before what followed them is proposed.
pub const ORDER: usize = 3;

/// A domain's entry holds the whole key, so that a clash of hashes never shows one domain's text to another.
#[derive(Clone, Copy)]
struct Entry {
    domain: u64,
    key: [u32; ORDER],
    next: u32,
    used: bool,
}

/// What followed each run of [`ORDER`] tokens, over all sequences, by cache domain. Fixed in size: the newest wins.
pub struct Pool {
    entries: Box<[Entry]>,
}

impl Pool {
    /// A pool of `n` entries, rounded up to a power of two.
    pub fn new(n: usize) -> Pool {
        let empty = Entry { domain: 0, key: [0; ORDER], next: 0, used: false };
        Pool { entries: vec![empty; n.next_power_of_two()].into() }
    }

    fn place(&self, domain: u64, key: &[u32]) -> usize {
        (mix(key, domain) as usize) & (self.entries.len() - 1)
    }

    /// Notes that `ids[at]` followed the tokens before it.
    pub fn note(&mut self, domain: u64, ids: &[u32], at: usize) {
        if at < ORDER {
            return;
        }
        let key = &ids[at - ORDER..at];
        let place = self.place(domain, key);
        let key = key.try_into().expect("a key has ORDER tokens");
        self.entries[place] = Entry { domain, key, next: ids[at], used: true };
    }

    fn next(&self, domain: u64, key: &[u32]) -> Option<u32> {
        let e = &self.entries[self.place(domain, key)];
        (e.used && e.domain == domain && e.key == key).then_some(e.next)
    }
}

/// Where each run of [`ORDER`] tokens of one sequence occurred last.
pub struct Index {
    /// Index after the run, by hash; 0 where there was none.
    after: Box<[u32]>,
    /// Tokens noted so far.
    noted: usize,
}

impl Index {
    /// An index for sequences of about `n` tokens.
    pub fn new(n: usize) -> Index {
        Index { after: vec![0; (2 * n).next_power_of_two().clamp(64, 1 << 18)].into(), noted: 0 }
    }

    fn place(&self, key: &[u32]) -> usize {
        (mix(key, 0) as usize) & (self.after.len() - 1)
    }

    /// Notes the tokens that came since the last call, here and in the pool.
    pub fn note(&mut self, ids: &[u32], domain: u64, pool: &mut Pool) {
        for at in self.noted..ids.len() {
            if at >= ORDER {
                let place = self.place(&ids[at - ORDER..at]);
                self.after[place] = at as u32;
            }
            pool.note(domain, ids, at);
        }
        self.noted = ids.len();
    }

    /// Appends up to `n` tokens to `draft` that may follow `ids`.
    pub fn propose(&self, ids: &[u32], domain: u64, pool: &Pool, n: usize, draft: &mut Vec<u32>) {
        if ids.len() < ORDER {
            return;
        }
        let key = &ids[ids.len() - ORDER..];
        let at = self.after[self.place(key)] as usize;
        let known = at >= ORDER && at < ids.len() && ids[at - ORDER..at] == *key;
        for i in 0..n {
            // Past the end of the text the draft itself goes on: a loop is copied as a loop.
            let own = known.then(|| *ids.get(at + i).unwrap_or_else(|| &draft[at + i - ids.len()]));
            let Some(id) = own.or_else(|| pool.next(domain, &tail(ids, draft))) else { return };
            draft.push(id);
        }
    }
}

/// The last [`ORDER`] tokens of `ids` and `draft` in a row.
fn tail(ids: &[u32], draft: &[u32]) -> [u32; ORDER] {
    let n = ids.len() + draft.len();
    std::array::from_fn(|i| {
        let at = n - ORDER + i;
        if at < ids.len() { ids[at] } else { draft[at - ids.len()] }
    })
}

fn mix(key: &[u32], seed: u64) -> u64 {
    let step = |h: u64, id: &u32| (h ^ u64::from(*id)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let h = key.iter().fold(seed ^ 0x243f_6a88_85a3_08d3, step);
    h ^ (h >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafted(ids: &[u32], domain: u64, pool: &mut Pool, n: usize) -> Vec<u32> {
        let mut index = Index::new(64);
        index.note(ids, domain, pool);
        let mut draft = Vec::new();
        index.propose(ids, domain, pool, n, &mut draft);
        draft
    }

    #[test]
    fn what_followed_last_is_proposed() {
        let mut pool = Pool::new(64);
        assert_eq!(drafted(&[1, 2, 3, 9, 1, 2, 3, 4, 5, 6, 1, 2, 3], 0, &mut pool, 3), [4, 5, 6]);
        assert_eq!(drafted(&[7, 8, 7, 8, 7, 8], 0, &mut pool, 5), [7, 8, 7, 8, 7], "a loop goes on");
        assert!(drafted(&[1, 2], 0, &mut pool, 3).is_empty());
        assert!(drafted(&[11, 12, 13, 14], 0, &mut pool, 3).is_empty());
    }

    #[test]
    fn a_pool_serves_its_own_domain_only() {
        let mut pool = Pool::new(1024);
        drafted(&[21, 22, 23, 24, 25], 7, &mut pool, 1);
        assert_eq!(drafted(&[5, 21, 22, 23], 7, &mut pool, 4), [24, 25]);
        assert!(drafted(&[6, 21, 22, 23], 8, &mut pool, 4).is_empty());
    }

    /// With one entry for everything, every look-up clashes and none is believed.
    #[test]
    fn clashes_give_nothing_wrong() {
        let mut pool = Pool::new(1);
        drafted(&(100..200).collect::<Vec<_>>(), 0, &mut pool, 1);
        assert_eq!(drafted(&[1, 196, 197, 198], 0, &mut pool, 2), []);
    }
}
