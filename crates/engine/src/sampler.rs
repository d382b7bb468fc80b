//! One sequence's sampling: its parameters, what it said lately, what it may say.

use firth_sampling::{Before, Chain, History, Params, RowParams, SampleError};

/// State of a sequence's sampling.
pub struct Sampler {
    params: Params,
    history: History,
    pub(crate) biases: Vec<[u32; 2]>,
    /// Bits of allowed ids, when something constrains them.
    pub mask: Option<Vec<u32>>,
    choice: u32,
    /// Draws on the host, where the device's op does not know what is asked.
    chain: Option<Box<Chain>>,
}

impl Sampler {
    /// For a request's choice number `choice`. `max_rollback` tokens can be taken back.
    pub fn new(params: Params, choice: u32, max_rollback: usize) -> Self {
        let history = History::new(params.penalty_last_n as usize, max_rollback);
        let biases = params.bias_list();
        Sampler { params, history, biases, mask: None, choice, chain: None }
    }

    /// Takes the memory for drawing on the host, where the parameters ask for what devices do not know
    /// ([`Params::needs_host`]): for `n_vocab` logits and sequences of up to `context` tokens.
    pub fn prepare_host(&mut self, n_vocab: usize, context: usize) {
        if self.params.needs_host() {
            self.chain = Some(Box::new(Chain::new(self.params.clone(), self.choice, n_vocab, context)));
        }
    }

    /// Whether tokens are drawn by [`draw`](Self::draw); the device's op then only proposes what a drafter may say.
    pub fn on_host(&self) -> bool {
        self.chain.is_some()
    }

    /// Whether what it draws depends on more than logits and the token's index.
    pub(crate) fn looks_back(&self) -> bool {
        self.on_host() || self.params.has_penalties() || self.mask.is_some()
    }

    /// Draws the token that follows `tokens`, the whole sequence, on the host. Each token is to be asked for once
    /// and in order: some stages learn from what they drew.
    ///
    /// # Errors
    /// A NaN logit, or nothing that may be said.
    ///
    /// # Panics
    /// Where [`on_host`](Self::on_host) is false.
    pub fn draw(&mut self, tokens: &[u32], logits: &[f32]) -> Result<u32, SampleError> {
        let counts = if self.params.has_penalties() { self.history.counts() } else { &[] };
        let before = Before { tokens, counts, mask: self.mask.as_deref() };
        self.chain.as_mut().expect("a sampler that draws on the host").sample(&before, logits)
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
