//! What a memory is made for, and how it refuses.

/// Tokens of a page: a block of attention on every device.
pub const PAGE: usize = 64;

/// Layers of one lifetime, which share page tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    /// A key is visible iff its index is less than this below the query's; `None` sees all.
    pub window: Option<u32>,
    /// Pages in the pool.
    pub n_pages: u32,
    /// Bytes of a page in all layers of the group.
    pub page_bytes: u64,
}

/// The sizes of a [`Memory`](crate::Memory); all its own memory is taken from them when it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemorySpec {
    /// The page groups.
    pub groups: Vec<GroupSpec>,
    /// Sequences open at the same time.
    pub max_seqs: usize,
    /// Tokens of a sequence.
    pub max_ctx: usize,
    /// Tokens that can be taken back from the longest length a sequence had; windows keep their keys.
    pub max_rollback: usize,
    /// Bytes of pages that only the prefix tree holds.
    pub cache_bytes: u64,
}

/// Why something could not be reserved; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Full {
    /// All sequences are open.
    #[error("all {max_seqs} sequences are in use")]
    Sequences {
        /// How many there are.
        max_seqs: usize,
    },
    /// A sequence would grow longer than its limit.
    #[error("a sequence of {len} tokens exceeds the context of {max_ctx}")]
    Context {
        /// The length asked for.
        len: usize,
        /// The longest that is possible.
        max_ctx: usize,
    },
    /// A group has too few pages, even without the prefix tree.
    #[error("page group {group} needs {needed} more pages, and {available} of {n_pages} can be had")]
    Pages {
        /// The group.
        group: usize,
        /// Pages asked for.
        needed: usize,
        /// Pages that are free or that the prefix tree would give.
        available: usize,
        /// Pages in its pool.
        n_pages: usize,
    },
}

/// A rollback to where a window has already let go of keys; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "length {new_len} is out of reach of a sequence of {len} tokens: the window of page group {group} has moved on"
)]
pub struct OutOfReach {
    /// The group.
    pub group: usize,
    /// The sequence's length.
    pub len: usize,
    /// The length asked for.
    pub new_len: usize,
}

/// A snapshot that was dropped since it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the snapshot has been dropped")]
pub struct Stale;

/// The most pages a sequence holds in one group while a step appends `max_step` tokens to it, the copy of
/// a shared page included. A pool of less can never serve a full context.
pub fn pages_per_sequence(
    window: Option<u32>,
    max_ctx: usize,
    max_rollback: usize,
    max_step: usize,
) -> usize {
    let all = max_ctx.div_ceil(PAGE) + 1;
    window.map_or(all, |w| all.min((w as usize + max_rollback + max_step).div_ceil(PAGE) + 2))
}

impl GroupSpec {
    /// The first page that a query at index `len - slack` or later sees, or is written at `len`.
    pub(crate) fn first_needed(&self, len: usize, slack: usize) -> usize {
        self.window.map_or(0, |w| (len + 1).saturating_sub(w as usize + slack) / PAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page rule against the visibility of single keys.
    #[test]
    fn first_needed_is_the_first_page_with_a_visible_key() {
        for (w, slack) in [(1, 0), (64, 0), (64, 5), (100, 1), (200, 64)] {
            let group = GroupSpec { window: Some(w), n_pages: 1, page_bytes: 1 };
            for len in 0..1000usize {
                let query = len.saturating_sub(slack);
                let oldest = (0..=query).find(|k| query - k < w as usize).expect("a query sees itself");
                assert_eq!(
                    group.first_needed(len, slack),
                    oldest / PAGE,
                    "window {w}, slack {slack}, len {len}"
                );
            }
        }
    }
}
