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

/// Why the books of a state file were not taken in; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// There is no room.
    #[error(transparent)]
    Full(#[from] Full),
    /// The model has another number of page groups.
    #[error("the saved sequence has {found} page groups, the model has {expected}")]
    Groups {
        /// The file's.
        found: usize,
        /// The model's.
        expected: usize,
    },
    /// Pages are missing that the next token sees.
    #[error("the saved sequence has page group {group} from page {first} on, page {needed} is needed")]
    Page {
        /// The group.
        group: usize,
        /// The first page that is there.
        first: usize,
        /// The first page that must be.
        needed: usize,
    },
    /// A slot where none belongs, or the other way round.
    #[error("the saved sequence has a state slot: {found}, it must have one: {expected}")]
    Slot {
        /// Whether there must be one.
        expected: bool,
        /// Whether there is one.
        found: bool,
    },
    /// The contents of a slot cannot be those of a sequence of this length.
    #[error(
        "a sequence of {len} tokens was saved with a state of {base} tokens and rows up to {top}, the longest draft is {longest_draft}"
    )]
    State {
        /// The sequence's length.
        len: usize,
        /// Tokens that the bases have taken in.
        base: usize,
        /// One more than the highest index written.
        top: usize,
        /// The most rows that are above a base.
        longest_draft: usize,
    },
}
