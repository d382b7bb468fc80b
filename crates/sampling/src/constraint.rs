//! What the engine asks of a grammar or a stop rule, in token ids alone.

/// Why a constraint could not go on. The request that carries it fails; the others do not notice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// An id was accepted that the constraint does not allow after its prefix.
    #[error("token {id} is not allowed after {prefix} accepted tokens")]
    Forbidden {
        /// The id.
        id: u32,
        /// Tokens accepted before it.
        prefix: usize,
    },
    /// No id may follow, not even an end token.
    #[error("no token may follow after {prefix} accepted tokens")]
    NoContinuation {
        /// Tokens accepted so far.
        prefix: usize,
    },
    /// More tokens were to be taken back than were accepted.
    #[error("rollback of {n} tokens, {prefix} were accepted")]
    Rollback {
        /// Tokens to take back.
        n: usize,
        /// Tokens accepted so far.
        prefix: usize,
    },
    /// The constraint gave up for a reason of its own, such as a limit on its work.
    #[error("constraint failed: {0}")]
    Failed(String),
}

/// Which ids may follow the tokens accepted so far. The prefix is kept inside.
///
/// For a draft the engine calls `mask`, `accept`, `mask`, ... along the guesses and takes them back with
/// `rollback`; only tokens that were really sampled stay accepted.
pub trait Constraint: Send {
    /// Writes the mask for the present prefix: bit `id % 32` of word `id / 32` set = allowed.
    ///
    /// `out: [ceil(n_vocab/32)]`, every word is written. The present prefix itself is not changed.
    ///
    /// # Errors
    /// [`ConstraintError::NoContinuation`] when no bit would be set.
    fn mask(&mut self, out: &mut [u32]) -> Result<(), ConstraintError>;

    /// Appends `id` to the prefix.
    ///
    /// # Errors
    /// [`ConstraintError::Forbidden`]; the prefix is then as before.
    fn accept(&mut self, id: u32) -> Result<(), ConstraintError>;

    /// Takes the last `n` accepted ids back.
    ///
    /// # Errors
    /// [`ConstraintError::Rollback`] when fewer were accepted; the prefix is then as before.
    fn rollback(&mut self, n: usize) -> Result<(), ConstraintError>;
}

/// What a [`Watch`] says about the ids it was shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Keep all of them and go on.
    Go,
    /// Keep the first `n` of them and end the generation.
    Stop(usize),
}

/// Looks at sampled ids before they are committed and may end the generation.
pub trait Watch: Send {
    /// Shows the next sampled ids, in order. After [`Verdict::Stop`] it is not called again.
    fn push(&mut self, ids: &[u32]) -> Verdict;
}
