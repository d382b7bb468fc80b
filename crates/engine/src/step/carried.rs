//! Two steps under way: the rows of one take the ids that the step before it samples, which nobody has read yet.
//!
//! The step before is kept first ([`Engine::keep`]), though not finished: that its rows will be there when the next step
//! reads them is the device's order. So there is one plan of memory at a time as ever, and a step that fails takes the
//! rows with it that were kept too early.

use std::time::Instant;

use firth_graph::{Carry, Runner};
use firth_memory::Seq;

use super::{Feed, Slots, Want};
use crate::error::EngineError;
use crate::load::Engine;
use crate::sampler::Sampler;

impl Slots {
    /// Whether a step may take what the step before it sampled.
    ///
    /// # Errors
    /// Memory of the device does not suffice.
    pub fn carries(&self, r: &mut Runner) -> Result<bool, firth_graph::LoadError> {
        let n = r.plan().bounds.o;
        self.of_logits.map_or(Ok(false), |l| r.carries(l.sampled, self.tokens, n))
    }
}

impl Engine {
    /// Whether a step may be started before the one before it is finished.
    pub(crate) fn runs_ahead(&self) -> bool {
        self.runs_ahead
    }

    /// Starts the step that was fed; [`finish`](Self::finish) waits for it.
    ///
    /// # Errors
    /// As [`Engine::compute`]. No step is under way any more.
    pub(crate) fn submit(&mut self) -> Result<(), EngineError> {
        for s in 0..self.scratch.feeds.len() {
            self.fill_tables(s);
        }
        self.want();
        // As long as a step took: so the next is late by no more than that.
        if let Some(took) = self.unsettled.filter(|took| !took.is_zero()) {
            self.settle(took);
        }
        let start = Instant::now();
        let submitted = self.runner.submit(self.scratch.extents());
        if let Some(took) = &mut self.unsettled {
            *took = start.elapsed();
        }
        self.or_fail(submitted)
    }

    /// Waits for the oldest step that is under way.
    ///
    /// # Errors
    /// As [`Engine::compute`]. No step is under way any more.
    pub(crate) fn finish(&mut self) -> Result<(), EngineError> {
        let finished = self.runner.finish();
        self.or_fail(finished)
    }

    fn or_fail(&mut self, ran: Result<(), firth_graph::Lost>) -> Result<(), EngineError> {
        if ran.is_err() {
            self.memory.fail();
        }
        Ok(ran?)
    }

    /// Adds one row of a planned sequence to the step: the id that output row `from` of the step before samples. What
    /// follows is sampled by `sampler`, whose parameters do not look at tokens, for the token at `index`.
    ///
    /// # Errors
    /// As [`Engine::feed_planned`].
    pub(crate) fn feed_carried(
        &mut self,
        seq: Seq,
        from: usize,
        sampler: &Sampler,
        index: usize,
    ) -> Result<(), EngineError> {
        let feed = self.scratch.feeds.len();
        let row = self.scratch.extents().t;
        // Some id, until it is known which ([`Engine::name`]).
        self.feed_planned(&Feed { seq, ids: &[0], embeds: None, want: Want::Last, sampler: None }, 0)?;
        self.sample(feed, 0, sampler, index);
        let sampled = self.slots.of_logits.expect("a row was sampled").sampled;
        let carry = Carry { from: (sampled, 4 * from), to: (self.slots.tokens, 4 * row), bytes: 4 };
        self.runner.host_mut().carry(carry);
        Ok(())
    }

    /// Says which id a carried feed of the present step has.
    pub(crate) fn name(&mut self, feed: usize, id: u32) {
        let row = self.scratch.feeds[feed].row;
        self.scratch.ids[row] = id;
    }

    /// The token sampled from output row `o` of the step finished last.
    pub(crate) fn sampled_row(&self, o: usize) -> Result<u32, EngineError> {
        let slot = self.slots.of_logits.expect("a step that gave logits").sampled;
        match self.runner.host().i32(slot)[o] {
            firth_graph::op::SAMPLE_NAN => Err(EngineError::Nan),
            id if id < 0 => Err(EngineError::NothingAllowed),
            id => Ok(id as u32),
        }
    }
}
