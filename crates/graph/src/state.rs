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
    /// The state of a recurrence, in slots.
    Recurrent(RecurrentSpec),
    /// The last rows of a sequence, in slots.
    Ring(RingSpec),
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
    /// The value of a head is the first `value_dim` numbers of its key, and no values are stored (multi-head
    /// latent attention: the latent is both).
    pub value_in_key: bool,
}

impl KvSpec {
    /// Bytes of one page: [`PAGE`] keys and values of every head.
    pub fn page_bytes(&self) -> usize {
        let row = |n: usize| self.dtype.row_bytes(n).unwrap_or(0);
        (row(self.key_dim) + row(self.stored_value_dim())) * self.n_heads * PAGE
    }

    /// Numbers per value that a page stores besides its keys.
    pub fn stored_value_dim(&self) -> usize {
        if self.value_in_key { 0 } else { self.value_dim }
    }
}

/// A recurrence of one layer. A slot holds a base, which is the state after some token of the sequence, and a
/// log: the inputs of the recurrence at the tokens after it, in f32. Its layout is the device's own.
///
/// A step reads the base (zeros for an empty sequence), applies the logged rows that still count and its own
/// certain rows, stores the base, and runs on through its drafted rows, whose inputs become the log. So rolling
/// back shortens the log and writes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentSpec {
    /// Axes of the base, fastest first: `[key_dim, value_dim, heads]` for the delta rule.
    pub base: [usize; 3],
    /// Numbers of one logged row.
    pub log_row: usize,
    /// Rows of the log: the longest draft, 0 for none.
    pub log_rows: usize,
}

impl RecurrentSpec {
    /// Numbers of a base.
    pub fn base_len(&self) -> usize {
        self.base.iter().product()
    }

    /// Bytes of one slot.
    pub fn slot_bytes(&self) -> usize {
        (self.base_len() + self.log_row * self.log_rows) * 4
    }
}

/// The last rows of a sequence: the row of token index `i` lies at `i mod rows`. A step writes its own rows and,
/// where it writes another slot than it reads, carries the others over. Rows of indexes below 0 are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSpec {
    /// Numbers of a row.
    pub width: usize,
    /// Rows: as many as the ops look back, and the longest draft.
    pub rows: usize,
    /// F32 or I32.
    pub dtype: Dtype,
}

impl RingSpec {
    /// Bytes of one slot.
    pub fn slot_bytes(&self) -> usize {
        self.width * self.rows * 4
    }
}

impl StateSpec {
    /// Bytes of one page or slot.
    pub fn page_bytes(&self) -> usize {
        match self {
            StateSpec::Kv(kv) => kv.page_bytes(),
            StateSpec::Recurrent(r) => r.slot_bytes(),
            StateSpec::Ring(r) => r.slot_bytes(),
        }
    }

    /// The page list that the state follows; `None` where it lies in slots.
    pub fn group(&self) -> Option<PageGroup> {
        match self {
            StateSpec::Kv(kv) => Some(kv.group),
            StateSpec::Recurrent(_) | StateSpec::Ring(_) => None,
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

/// The columns of the slot table `[4, S]` of a step: which slot of every slot state a sequence reads and which it
/// writes, as data. The same slot when the sequence is its only holder.
pub mod slot_table {
    /// Slot read, -1 when the sequence is empty: states and rings are zero.
    pub const READ: usize = 0;
    /// Slot written.
    pub const WRITE: usize = 1;
    /// Logged rows of the slot read that are accepted and not yet in its base. The base is the state before token
    /// `FIRST_INDEX - N_LOG`.
    pub const N_LOG: usize = 2;
    /// Columns; the last is 0.
    pub const WIDTH: usize = 4;
}
