//! How many pages each group gets.

use firth_graph::{Graph, PAGE};
use firth_memory::pages_per_sequence;
use firth_models::ModelInfo;

use crate::options::EngineOptions;

/// Tokens that a draft may hold: what a sequence can be rolled back by without losing a window's keys.
pub(crate) const MAX_ROLLBACK: usize = 32;

/// Pages of each group, and whether one whole sequence fits.
pub(crate) struct Pages {
    /// By group.
    pub counts: Vec<usize>,
    /// Bytes that one sequence of full length needs and that it may take, where it does not fit.
    pub short: Option<(u64, u64)>,
}

/// Pages of each group within `limit` bytes: every sequence at its full length, and as many again as the cache
/// budget buys. Where the limit is lower, first the cache gives way, then sequences share what there is; the
/// scheduler parks those that find no page. The system gives memory only to pages that are used.
pub(crate) fn pages(
    g: &Graph,
    info: &ModelInfo,
    (ctx, batch): (usize, usize),
    o: &EngineOptions,
    limit: Option<u64>,
) -> Pages {
    let bytes = group_page_bytes(g, info);
    let own_of =
        |window: Option<usize>| pages_per_sequence(window.map(|w| w as u32), ctx, MAX_ROLLBACK, batch);
    let own: Vec<usize> = info.groups.iter().map(|g| own_of(g.window)).collect();
    let size = |pages: &[usize]| pages.iter().zip(&bytes).map(|(n, b)| *n as u64 * b).sum::<u64>();
    let one = size(&own);
    let limit = limit.unwrap_or(u64::MAX);
    // Bytes beside one whole sequence: for the others first, then for the cache.
    let beside = limit.saturating_sub(one);
    let others = (one * (o.parallel as u64 - 1)).min(beside);
    let spare = (beside - others).min(o.cache_bytes) / size(&vec![1; own.len()]).max(1);
    let spare = spare.min(1 << 20) as usize;
    let count = |(own, bytes): (&usize, &u64)| {
        let others = (*own as u128 * u128::from(others) / u128::from(one.max(1))) as usize;
        own + others + if *bytes == 0 { 0 } else { spare }
    };
    let counts = own.iter().zip(&bytes).map(count).collect();
    Pages { counts, short: (one > limit).then_some((one, limit)) }
}

/// Bytes of a page of each group, in all its layers.
pub(crate) fn group_page_bytes(g: &Graph, info: &ModelInfo) -> Vec<u64> {
    let mut out = vec![0; info.groups.len()];
    for s in &g.states {
        let Some(group) = s.spec.group() else { continue };
        out[group.0 as usize] += s.spec.page_bytes() as u64;
    }
    out
}

/// A context that may fit where one of `ctx` tokens needs `needed` bytes and has `free`: whole pages, at least
/// about a half, because scratch shrinks with it and leaves more; `None` where no page is left.
pub(crate) fn smaller_ctx(ctx: usize, (needed, free): (u64, u64)) -> Option<usize> {
    let share = (ctx as u128 * u128::from(free) / u128::from(needed.max(1))) as usize;
    let next = share.max(ctx / 2).min(ctx - 1) / PAGE * PAGE;
    (next > 0).then_some(next)
}
