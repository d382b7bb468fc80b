//! One sequence's sampling: its parameters, what it said lately, what it may say.

use firth_sampling::{History, Params, RowParams};

/// State of a sequence's sampling.
pub struct Sampler {
    params: Params,
    history: History,
    pub(crate) biases: Vec<[u32; 2]>,
    /// Bits of allowed ids, when something constrains them.
    pub mask: Option<Vec<u32>>,
    choice: u32,
}

impl Sampler {
    /// For a request's choice number `choice`. `max_rollback` tokens can be taken back.
    pub fn new(params: Params, choice: u32, max_rollback: usize) -> Self {
        let history = History::new(params.penalty_last_n as usize, max_rollback);
        let biases = params.bias_list();
        Sampler { params, history, biases, mask: None, choice }
    }

    /// Notes a token of the sequence, prompt included.
    pub fn push(&mut self, id: u32) {
        self.history.push(id);
    }

    /// Takes back the last `n` tokens.
    pub fn rollback(&mut self, n: usize) {
        self.history.rollback(n);
    }

    /// Recent ids with their counts.
    pub(crate) fn counts(&self) -> &[[u32; 2]] {
        if self.params.has_penalties() { self.history.counts() } else { &[] }
    }

    /// The parameter row for the token at `index` of the sequence.
    pub(crate) fn row(&self, index: usize) -> RowParams {
        RowParams::new(&self.params, index as u32, self.choice)
    }

    /// The most pairs that [`Sampler::counts`] may come to have.
    pub(crate) fn most_counts(&self) -> usize {
        if self.params.has_penalties() { self.params.penalty_last_n as usize } else { 0 }
    }
}
