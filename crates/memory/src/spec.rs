//! What a memory is made for.

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

/// Slots for what sequences keep besides pages: bases and logs of recurrences, and rings. Slot `i` of
/// every such state belongs to the same holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotSpec {
    /// Slots in the pool; [`slots_per_sequence`] of them for each sequence are never too few.
    pub n_slots: u32,
    /// Bytes of a slot in all states.
    pub slot_bytes: u64,
    /// The most rows of a step that are not certain: rows of a log, and spare rows of a ring.
    pub longest_draft: usize,
    /// Whether there are recurrences, which go back as far as their log; rings alone go back
    /// `longest_draft` rows from the highest that was ever written.
    pub log: bool,
}

impl SlotSpec {
    /// The shortest length that a slot can go on from.
    pub(crate) fn lowest(&self, base: usize, top: usize) -> usize {
        if self.log { base } else { top.saturating_sub(self.longest_draft) }
    }
}

/// The sizes of a [`Memory`](crate::Memory); all its own memory is taken from them when it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemorySpec {
    /// The page groups.
    pub groups: Vec<GroupSpec>,
    /// Slots, where the model keeps more than pages.
    pub slots: Option<SlotSpec>,
    /// Sequences open at the same time.
    pub max_seqs: usize,
    /// Tokens of a sequence.
    pub max_ctx: usize,
    /// Tokens that can be taken back from the longest length a sequence had; windows keep their keys.
    pub max_rollback: usize,
    /// Bytes of pages and slots that only the prefix tree holds.
    pub cache_bytes: u64,
}

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

/// The most slots a sequence holds: the one it reads, and the one a step writes when others hold the first.
pub fn slots_per_sequence() -> usize {
    2
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
