//! State objects: what outlives a step. A state is not a node; ops name it by handle and take slot and page
//! numbers as data.

use firth_quant::Dtype;

/// Tokens of one page of keys and values, and of one block of attention (they must be equal, so that a block
/// never crosses a page).
pub const PAGE: usize = 64;

/// Layers whose pages live and die together: they share one page list per sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageGroup(pub u32);

/// One state object of a model, per layer.
#[derive(Clone, Debug, PartialEq)]
pub enum StateSpec {
    /// Keys and values of one attention layer, in pages of [`PAGE`] tokens.
    Kv(KvSpec),
}

/// Keys and values of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSpec {
    /// Values per key and head.
    pub key_dim: usize,
    /// Values per value and head.
    pub value_dim: usize,
    /// Heads that keep keys and values.
    pub n_heads: usize,
    /// F32, F16 or Q8_0. Rows of Q8_0 are blocks of 32 along the head.
    pub dtype: Dtype,
    /// The page list that this layer follows.
    pub group: PageGroup,
    /// Keys further back than this are never read (`pos_q - pos_k >= window`).
    pub window: Option<usize>,
}

impl KvSpec {
    /// Bytes of one page: [`PAGE`] keys and values of every head.
    pub fn page_bytes(&self) -> usize {
        let row = |n: usize| self.dtype.row_bytes(n).unwrap_or(0);
        (row(self.key_dim) + row(self.value_dim)) * self.n_heads * PAGE
    }
}

impl StateSpec {
    /// Bytes of one page or slot.
    pub fn page_bytes(&self) -> usize {
        match self {
            StateSpec::Kv(kv) => kv.page_bytes(),
        }
    }

    /// The page list that the state follows.
    pub fn group(&self) -> PageGroup {
        match self {
            StateSpec::Kv(kv) => kv.group,
        }
    }
}

/// The columns of the step table `[4, S]`: one row of four integers a sequence.
pub mod seq_table {
    /// First row of the sequence in the step.
    pub const FIRST_ROW: usize = 0;
    /// Rows of the sequence in the step.
    pub const N_ROWS: usize = 1;
    /// Index in the sequence of its first row.
    pub const FIRST_INDEX: usize = 2;
    /// Rows that are certain; the rest are guesses of a drafter.
    pub const N_CERTAIN: usize = 3;
    /// Columns.
    pub const WIDTH: usize = 4;
}
