//! What a drafter keeps for one request.

use firth_memory::Seq;

use crate::load::Engine;
use crate::spec::{Acceptance, Index, SpecMode};

/// The guesses of a request and what its drafter needs to make them.
pub(crate) struct Guesses {
    /// Guesses in the next step at most.
    pub room: usize,
    /// Guesses that follow the tokens known.
    pub draft: Vec<u32>,
    /// Guesses that the constraint takes for said while they are made.
    pub accepted: usize,
    /// How drafts fared.
    pub acceptance: Acceptance,
    /// Where runs of tokens occurred, for an n-gram drafter.
    pub index: Option<Index>,
    /// The hidden row that a drafting head goes on from; empty until a step has given one.
    pub hidden: Vec<f32>,
    /// The sequence that follows this one in a draft model.
    pub mirror: Option<Seq>,
    /// Rows in the next step of the draft model.
    pub mirrored: usize,
}

impl Guesses {
    /// For a request of `n` tokens at most.
    pub fn new(engine: &Engine, n: usize) -> Guesses {
        let spec = engine.spec();
        let width = engine.info().draft.filter(|_| spec.mode == SpecMode::Mtp).map_or(0, |d| d.width);
        Guesses {
            room: 0,
            draft: Vec::with_capacity(spec.longest()),
            accepted: 0,
            acceptance: Acceptance::default(),
            index: (spec.mode == SpecMode::Ngram).then(|| Index::new(n)),
            hidden: Vec::with_capacity(width),
            mirror: None,
            mirrored: 0,
        }
    }

    /// The normalised hidden row of the last token in memory.
    pub fn set_hidden(&mut self, row: &[f32]) {
        self.hidden.clear();
        self.hidden.extend_from_slice(row);
    }
}
