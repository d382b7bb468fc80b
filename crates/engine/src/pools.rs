//! How many pages each group gets, and how many slots there are.

use firth_graph::{Graph, PAGE, StateDecl, StateSpec};
use firth_memory::{GroupSpec, MemorySpec, SlotSpec, pages_per_sequence, slots_per_sequence};
use firth_models::GroupInfo;

use crate::options::EngineOptions;

/// Tokens that a sequence can be rolled back by without losing a window's keys, where no draft is longer.
const MAX_ROLLBACK: usize = 32;

/// The largest number of tokens, rows and guesses that the pools serve.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Largest {
    /// Tokens of a sequence.
    pub ctx: usize,
    /// Rows of a step.
    pub batch: usize,
    /// Guesses for a sequence.
    pub draft: usize,
}

/// What there is room for.
pub(crate) struct Limits<'a> {
    /// Bytes of all pages and slots.
    pub bytes: Option<u64>,
    /// Bytes of one state, where its device says so.
    pub state: &'a dyn Fn(&StateDecl) -> Option<u64>,
}

impl Limits<'_> {
    /// Pages of a group, or slots where there is none, that the smallest of its states can have.
    fn pages(&self, g: &Graph, group: Option<usize>) -> u64 {
        let of_group = g.states.iter().filter(|s| s.spec.group().map(|g| g.0 as usize) == group);
        let pages = of_group.filter_map(|s| Some((self.state)(s)? / (s.spec.page_bytes() as u64).max(1)));
        pages.min().unwrap_or(u64::MAX)
    }
}

/// Pages of each group, and slots.
#[derive(Clone, Debug)]
pub(crate) struct Pools {
    spec: MemorySpec,
    /// Bytes of all sequences at full length and of the cache: pages and slots have one budget, so the pools hold
    /// more than can be in use at a time.
    pub bytes: u64,
    /// Bytes that one sequence of full length needs and that it may take, where it does not fit.
    pub short: Option<(u64, u64)>,
}

impl Pools {
    /// Pools within limits: every sequence at its full length, and as much again as the cache budget buys.
    /// Where the limit is lower, first the cache gives way, then sequences share what there is; the scheduler
    /// parks those that find no page. The system gives memory only to what is used.
    pub fn new(g: &Graph, groups: &[GroupInfo], n: Largest, o: &EngineOptions, limits: &Limits) -> Pools {
        let max_rollback = MAX_ROLLBACK.max(n.draft);
        let (bytes, slot_bytes) = sizes(g, groups.len());
        let window = |g: &GroupInfo| g.window.map(|w| w as u32);
        let own_of = |g: &GroupInfo| pages_per_sequence(window(g), n.ctx, max_rollback, n.batch);
        let own: Vec<usize> = groups.iter().map(own_of).collect();
        let size = |pages: &[usize]| pages.iter().zip(&bytes).map(|(n, b)| *n as u64 * b).sum::<u64>();
        let slots = (o.parallel * slots_per_sequence()) as u64;
        let one = size(&own) + slots * slot_bytes;
        let limit = limits.bytes.unwrap_or(u64::MAX);
        // Bytes beside one whole sequence: for the others first, then for the cache.
        let beside = limit.saturating_sub(one);
        let others = (size(&own) * (o.parallel as u64 - 1)).min(beside);
        let cache = (beside - others).min(o.cache_bytes);
        let spare = (cache / size(&vec![1; own.len()]).max(1)).min(1 << 20);
        let whole = u128::from(size(&own).max(1));
        let pages = |own: usize, bytes: u64| {
            let others = own as u128 * u128::from(others) / whole;
            own as u64 + others as u64 + if bytes == 0 { 0 } else { spare }
        };
        let most: Vec<u64> = (0..own.len()).map(|i| limits.pages(g, Some(i))).collect();
        let most_slots = if slot_bytes > 0 { limits.pages(g, None) } else { u64::MAX };
        let group = |(i, info): (usize, &GroupInfo)| GroupSpec {
            window: window(info),
            n_pages: pages(own[i], bytes[i]).min(most[i]) as u32,
            page_bytes: bytes[i],
        };
        let spec = MemorySpec {
            groups: groups.iter().enumerate().map(group).collect(),
            slots: (slot_bytes > 0).then(|| SlotSpec {
                n_slots: (slots + (cache / slot_bytes).min(1 << 14)).min(most_slots) as u32,
                slot_bytes,
                longest_draft: n.draft,
                log: g.states.iter().any(|s| matches!(s.spec, StateSpec::Recurrent(_))),
            }),
            max_seqs: o.parallel,
            max_ctx: n.ctx,
            max_rollback,
            cache_bytes: cache,
        };
        let seen = own.iter().zip(&most).map(|(own, most)| (*own as u64, *most)).chain([(slots, most_slots)]);
        // A state that its device cannot hold is short by the same part of the whole.
        let narrow = seen.filter(|(own, most)| own > most).map(|(own, most)| one / own.max(1) * most).min();
        let room = narrow.unwrap_or(u64::MAX).min(limit);
        Pools { spec, bytes: one + others + cache, short: (one > room).then_some((one, room)) }
    }

    /// Pages or slots of a state.
    pub fn count(&self, s: &StateDecl) -> usize {
        let slots = || self.spec.slots.map_or(0, |s| s.n_slots);
        s.spec.group().map_or_else(slots, |g| self.spec.groups[g.0 as usize].n_pages) as usize
    }

    /// Bytes that one sequence keeps in slots.
    pub fn slot_bytes(&self) -> u64 {
        self.spec.slots.map_or(0, |s| s.slot_bytes)
    }

    /// What the books are made from.
    pub fn memory(&self) -> MemorySpec {
        self.spec.clone()
    }
}

/// Bytes of a page of each group, in all its layers, and of a slot in all states.
fn sizes(g: &Graph, groups: usize) -> (Vec<u64>, u64) {
    let (mut pages, mut slot) = (vec![0; groups], 0);
    for s in &g.states {
        let bytes = s.spec.page_bytes() as u64;
        match s.spec.group() {
            Some(group) => pages[group.0 as usize] += bytes,
            None => slot += bytes,
        }
    }
    (pages, slot)
}

/// A context that may fit where one of `ctx` tokens needs `needed` bytes and has `free`: whole pages, at least
/// about a half, because scratch shrinks with it and leaves more; `None` where no page is left.
pub(crate) fn smaller_ctx(ctx: usize, (needed, free): (u64, u64)) -> Option<usize> {
    let share = (ctx as u128 * u128::from(free) / u128::from(needed.max(1))) as usize;
    let next = share.max(ctx / 2).min(ctx - 1) / PAGE * PAGE;
    (next > 0).then_some(next)
}
