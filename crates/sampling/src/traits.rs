//! What a caller plugs into generation: which tokens may come, and when to stop.

/// Why a constraint gave no mask or took no token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// The token does not continue the prefix.
    #[error("token {id} is not allowed here")]
    Refused {
        /// The token.
        id: u32,
    },
    /// Nothing continues the prefix.
    #[error("no token is allowed here")]
    NoContinuation,
    /// The constraint's own failure, such as a limit on its work.
    #[error("constraint failed: {0}")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Which ids may follow, by the ids so far.
///
/// A draft is tried by [`accept`](Constraint::accept) id by id and taken back by
/// [`rollback`](Constraint::rollback), so an implementation keeps what it needs for the longest draft.
pub trait Constraint: Send {
    /// Writes the mask of the present prefix: bit `id % 32` of `out[id / 32]` set = allowed.
    ///
    /// `out` has `ceil(n_vocab / 32)` words; all of them are written.
    ///
    /// # Errors
    /// Where nothing may follow, or the constraint itself fails.
    fn mask(&mut self, out: &mut [u32]) -> Result<(), ConstraintError>;

    /// Extends the prefix by `id`. After an error the prefix is as before.
    ///
    /// # Errors
    /// Where `id` may not follow, or the constraint itself fails.
    fn accept(&mut self, id: u32) -> Result<(), ConstraintError>;

    /// Takes back the last `n` accepted ids.
    fn rollback(&mut self, n: usize);
}

/// What a [`Watch`] says of the ids it was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Generation goes on.
    Continue,
    /// Generation ends after this many of the ids just shown; the rest is dropped.
    StopAfter(usize),
}

/// Sees every id that is kept, in order, and may end the generation.
pub trait Watch: Send {
    /// Takes the next ids of the output, one step's worth.
    fn push(&mut self, ids: &[u32]) -> Verdict;
}
