//! How a memory refuses.

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
    /// There are too few slots, even without the prefix tree.
    #[error("{needed} more state slots are needed, and {available} of {n_slots} can be had")]
    Slots {
        /// Slots asked for.
        needed: usize,
        /// Slots that are free or that the prefix tree would give.
        available: usize,
        /// Slots in the pool.
        n_slots: usize,
    },
}

/// A rollback to where a sequence no longer keeps what it would go on from; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("length {new_len} is out of reach of a sequence of {len} tokens: {limit}")]
pub struct OutOfReach {
    /// The sequence's length.
    pub len: usize,
    /// The length asked for.
    pub new_len: usize,
    /// What holds it back.
    pub limit: Limit,
}

/// What keeps a sequence from going further back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Limit {
    /// The keys that the next token would see are freed.
    #[error("the window of page group {group} has moved on")]
    Window {
        /// The group.
        group: usize,
    },
    /// A recurrent state has taken the tokens in, or rows of a ring are overwritten.
    #[error("its recurrent states and rings go back to {lowest} tokens")]
    State {
        /// The shortest length that can be reached, besides 0.
        lowest: usize,
    },
}

/// A snapshot that was dropped since it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the snapshot has been dropped")]
pub struct Stale;
