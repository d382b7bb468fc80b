//! The program of a model's own multi-token head: one guess for each of several sequences a run.
//!
//! The main program keeps the head's keys and values up to date for every row it computes, from the trunk's own
//! hidden rows. What the head writes here for its guesses lies above the sequence's length, in pages that the
//! plan of the verifying step reserved, and is written again by that step.

use firth_graph::{Extents, Lost, Runner};
use firth_models::{SamplerBounds, names};

use crate::ask::Ask;
use crate::error::EngineError;
use crate::sampler::Sampler;
use crate::tables::{Span, page_columns, put_pages, put_span};

/// The head's program and its host slots.
pub(crate) struct Head {
    runner: Runner,
    tokens: usize,
    hidden: usize,
    positions: usize,
    seqs: usize,
    pages: usize,
    out_rows: usize,
    sampled: usize,
    next: usize,
    /// The page group of its keys and values.
    pub group: usize,
    ask: Ask,
    width: usize,
    /// Columns of its page table.
    columns: usize,
    rows: usize,
}

impl Head {
    /// The head of a runner over the draft program, whose pages are those of `group`, for sequences of `ctx` tokens.
    pub fn new(runner: Runner, group: usize, width: usize, ctx: usize, bounds: SamplerBounds) -> Head {
        let input = |name: &str| runner.input(name).expect("the build names its inputs");
        let output = |name: &str| runner.output(name).expect("the build names its outputs");
        Head {
            tokens: input(names::TOKENS),
            hidden: input(names::HIDDEN),
            positions: input(names::POSITIONS),
            seqs: input(names::SEQS),
            pages: input(&names::pages(group)),
            out_rows: input(names::OUT_ROWS),
            sampled: output(names::SAMPLED),
            next: output(names::HIDDEN_NEXT),
            ask: Ask::find(&runner, bounds),
            group,
            width,
            columns: page_columns(ctx),
            rows: 0,
            runner,
        }
    }

    /// Begins a run.
    pub fn begin(&mut self) {
        self.rows = 0;
        self.ask.begin(self.runner.host_mut());
    }

    /// Asks what follows the token `id` at `index` of a sequence with these pages, where `hidden` is the
    /// normalised hidden row before it.
    ///
    /// # Errors
    /// [`EngineError::Room`]: the sampler's lists do not fit.
    pub fn feed(
        &mut self,
        id: u32,
        index: usize,
        pages: &[i32],
        hidden: &[f32],
        sampler: &Sampler,
    ) -> Result<(), EngineError> {
        let lists = self.ask.lists(self.runner.host_mut(), sampler)?;
        let row = self.rows;
        self.rows += 1;
        let host = self.runner.host_mut();
        host.i32_mut(self.tokens)[row] = id as i32;
        host.i32_mut(self.positions)[row] = index as i32;
        host.i32_mut(self.out_rows)[row] = row as i32;
        host.f32_mut(self.hidden)[row * self.width..(row + 1) * self.width].copy_from_slice(hidden);
        put_span(host, self.seqs, row, Span { row, rows: 1, certain: 1, first: index });
        put_pages(host, self.pages, row, self.columns, pages);
        self.ask.by(host, row, sampler, lists, index + 1);
        Ok(())
    }

    /// Runs what was fed; `false` where nothing was.
    pub fn run(&mut self) -> Result<bool, Lost> {
        let n = self.rows;
        if n > 0 {
            self.runner.run(Extents { t: n, o: n, p: 0, s: n })?;
        }
        Ok(n > 0)
    }

    /// The guess of a row, and its hidden row for the next guess; `None` where nothing could be drawn.
    pub fn guess(&self, row: usize) -> Option<(u32, &[f32])> {
        let host = self.runner.host();
        let id = u32::try_from(host.i32(self.sampled)[row]).ok()?;
        Some((id, &host.f32(self.next)[row * self.width..(row + 1) * self.width]))
    }

    /// Bytes of scratch.
    pub fn scratch_bytes(&self) -> u64 {
        self.runner.plan().scratch_bytes() as u64 + self.runner.program_bytes()
    }
}
