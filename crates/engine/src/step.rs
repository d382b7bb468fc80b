//! One step: rows of several sequences through the model. Allocates nothing once warm.

use firth_graph::{Extents, Runner, seq_table};
use firth_memory::{Append, Seq};
use firth_models::names;
use firth_sampling::RowParams;

use crate::error::EngineError;
use crate::load::Engine;
use crate::sampler::Sampler;

/// Which rows of a feed give logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// None.
    None,
    /// The last.
    Last,
    /// All.
    All,
}

/// Rows of one sequence in a step.
pub struct Feed<'a> {
    /// The sequence.
    pub seq: Seq,
    /// Token ids. Where `embeds` is given, ids stand for the rows in caches: a hash of each row.
    pub ids: &'a [u32],
    /// Ready rows `[width, ids.len()]` in place of the ids' embeddings.
    pub embeds: Option<&'a [f32]>,
    /// Which rows give logits.
    pub want: Want,
    /// Samples every row that gives logits.
    pub sampler: Option<&'a Sampler>,
}

/// Host slots of the step's inputs and outputs.
pub(crate) struct Slots {
    tokens: usize,
    embeds: usize,
    positions: usize,
    seqs: usize,
    pages: Vec<usize>,
    out_rows: usize,
    sampler_rows: usize,
    penalties: usize,
    biases: usize,
    masks: usize,
    logits: usize,
    sampled: usize,
}

impl Slots {
    pub fn find(r: &Runner, groups: usize) -> Slots {
        let input = |name: &str| r.input(name).expect("the build names its inputs");
        let output = |name: &str| r.output(name).expect("the build names its outputs");
        Slots {
            tokens: input(names::TOKENS),
            embeds: input(names::EMBEDS),
            positions: input(names::POSITIONS),
            seqs: input(names::SEQS),
            pages: (0..groups).map(|g| input(&names::pages(g))).collect(),
            out_rows: input(names::OUT_ROWS),
            sampler_rows: input(names::SAMPLER_ROWS),
            penalties: input(names::SAMPLER_PENALTIES),
            biases: input(names::SAMPLER_BIASES),
            masks: input(names::SAMPLER_MASKS),
            logits: output(names::LOGITS),
            sampled: output(names::SAMPLED),
        }
    }
}

/// A step while it is fed; its lists are used again and again.
pub(crate) struct Scratch {
    appends: Vec<Append>,
    /// First output row of each feed, and one more.
    first_out: Vec<usize>,
    /// Ids of all rows, for the commit.
    ids: Vec<u32>,
    taken: Taken,
}

impl Scratch {
    pub fn new(bounds: &Extents, parallel: usize) -> Scratch {
        let n = parallel.max(bounds.s) + 1;
        Scratch {
            appends: Vec::with_capacity(n),
            first_out: Vec::with_capacity(n + 1),
            ids: Vec::with_capacity(bounds.t),
            taken: Taken::default(),
        }
    }

    fn outputs(&self) -> usize {
        self.first_out.last().copied().unwrap_or(0)
    }
}

/// How much of the shared sampler lists is taken.
#[derive(Default)]
struct Taken {
    penalties: usize,
    biases: usize,
    masks: usize,
}

impl Engine {
    /// Opens an empty sequence in a cache domain.
    pub fn open(&mut self, domain: u64) -> Result<Seq, EngineError> {
        self.memory.open(domain).map_err(|_| EngineError::Full { needed: 0 })
    }

    /// Ends a sequence.
    pub fn close(&mut self, seq: Seq) {
        self.memory.close(seq);
    }

    /// A second sequence with the same tokens; pages are shared until one of them writes.
    pub fn fork(&mut self, seq: Seq) -> Result<Seq, EngineError> {
        self.memory.fork(seq).map_err(|_| EngineError::Full { needed: 0 })
    }

    /// Shortens a sequence to its first `len` tokens.
    pub fn rollback(&mut self, seq: Seq, len: usize) -> Result<(), EngineError> {
        Ok(self.memory.rollback(seq, len)?)
    }

    /// Tokens of a sequence.
    pub fn len(&self, seq: Seq) -> usize {
        self.memory.len(seq)
    }

    /// Runs one step over all feeds and commits their tokens. On an error nothing has changed.
    ///
    /// At most [`Engine::bounds`] rows, outputs and sequences; each sequence once.
    pub fn step(&mut self, feeds: &[Feed]) -> Result<(), EngineError> {
        self.begin();
        for f in feeds {
            self.feed(f)?;
        }
        self.run()
    }

    /// Begins a step: [`Engine::feed`] adds rows to it, [`Engine::run`] runs it.
    pub fn begin(&mut self) {
        let b = &mut self.scratch;
        b.appends.clear();
        b.first_out.clear();
        b.first_out.push(0);
        b.ids.clear();
        b.taken = Taken::default();
    }

    /// Adds rows of one sequence to the step.
    ///
    /// # Errors
    /// The sequence would outgrow its context, an id is outside the vocabulary, or the sampler's lists find no
    /// room beside those of other feeds ([`EngineError::Room`]); the step is as before.
    pub fn feed(&mut self, f: &Feed) -> Result<(), EngineError> {
        self.check(f)?;
        let b = &self.scratch;
        let (row, out) = (b.ids.len(), b.outputs());
        let x = Extents { t: row + f.ids.len(), o: out + wanted(f), p: 0, s: b.appends.len() + 1 };
        assert!(x.within(&self.bounds), "a step of {x:?} exceeds {:?}", self.bounds);
        self.fill_rows(f, row);
        self.fill_outputs(f, row, out);
        self.scratch.appends.push(Append::certain(f.seq, f.ids.len()));
        self.scratch.ids.extend_from_slice(f.ids);
        self.scratch.first_out.push(x.o);
        Ok(())
    }

    /// Runs the step that was fed and commits its tokens. On an error nothing has changed.
    pub fn run(&mut self) -> Result<(), EngineError> {
        let b = &self.scratch;
        let x = Extents { t: b.ids.len(), o: b.outputs(), p: 0, s: b.appends.len() };
        self.memory.plan(&b.appends).map_err(|_| EngineError::Full { needed: x.t })?;
        let ran = self.compute(x);
        if ran.is_err() {
            self.memory.abort();
            return ran;
        }
        let mut row = 0;
        for &Append { seq, rows: n, .. } in &self.scratch.appends {
            self.memory.commit(seq, &self.scratch.ids[row..row + n]);
            row += n;
        }
        Ok(())
    }

    fn compute(&mut self, x: Extents) -> Result<(), EngineError> {
        self.copy_pages()?;
        let mut row = 0;
        for s in 0..self.scratch.appends.len() {
            self.fill_tables(s, row);
            row += self.scratch.appends[s].rows;
        }
        Ok(self.runner.run(x)?)
    }

    /// Logits of output row `o` of feed `feed` of the last step.
    pub fn logits(&self, feed: usize, o: usize) -> &[f32] {
        let row = self.scratch.first_out[feed] + o;
        &self.runner.host().f32(self.slots.logits)[row * self.info.n_vocab..(row + 1) * self.info.n_vocab]
    }

    /// The token sampled from output row `o` of feed `feed` of the last step.
    pub fn sampled(&self, feed: usize, o: usize) -> Result<u32, EngineError> {
        match self.runner.host().i32(self.slots.sampled)[self.scratch.first_out[feed] + o] {
            firth_graph::op::SAMPLE_NAN => Err(EngineError::Nan),
            id if id < 0 => Err(EngineError::NothingAllowed),
            id => Ok(id as u32),
        }
    }

    fn check(&self, f: &Feed) -> Result<(), EngineError> {
        let found = self.memory.len(f.seq) + f.ids.len();
        if found > self.ctx {
            return Err(EngineError::Context { found, context: self.ctx });
        }
        if let (Some(s), true) = (f.sampler, wanted(f) > 0) {
            self.check_lists(s)?;
        }
        let n_vocab = self.info.n_vocab;
        match f.embeds {
            Some(rows) => assert_eq!(rows.len(), f.ids.len() * self.info.width, "ready rows"),
            None => {
                if let Some(&id) = f.ids.iter().find(|id| **id as usize >= n_vocab) {
                    return Err(EngineError::Id { id, n_vocab });
                }
            }
        }
        Ok(())
    }

    fn copy_pages(&mut self) -> Result<(), EngineError> {
        for c in self.memory.copies() {
            for &(device, state) in &self.group_states[c.group] {
                let d = &self.resources.devices[device];
                d.copy_page(state, c.from as usize, c.to as usize, c.rows)?;
            }
        }
        Ok(())
    }

    fn fill_rows(&mut self, f: &Feed, row: usize) {
        let (first, n, width) = (self.memory.len(f.seq), f.ids.len(), self.info.width);
        let host = self.runner.host_mut();
        let tokens = &mut host.i32_mut(self.slots.tokens)[row..row + n];
        match f.embeds {
            None => tokens.iter_mut().zip(f.ids).for_each(|(t, id)| *t = *id as i32),
            Some(rows) => {
                tokens.fill(firth_graph::op::READY_ROW);
                host.f32_mut(self.slots.embeds)[row * width..(row + n) * width].copy_from_slice(rows);
            }
        }
        let positions = &mut host.i32_mut(self.slots.positions)[row..row + n];
        positions.iter_mut().enumerate().for_each(|(i, p)| *p = (first + i) as i32);
    }

    fn fill_tables(&mut self, s: usize, row: usize) {
        let Append { seq, rows: n, certain } = self.scratch.appends[s];
        let first = self.memory.len(seq);
        let host = self.runner.host_mut();
        let table = &mut host.i32_mut(self.slots.seqs)[s * seq_table::WIDTH..(s + 1) * seq_table::WIDTH];
        table[seq_table::FIRST_ROW] = row as i32;
        table[seq_table::N_ROWS] = n as i32;
        table[seq_table::FIRST_INDEX] = first as i32;
        table[seq_table::N_CERTAIN] = certain as i32;
        let width = self.ctx.div_ceil(firth_graph::PAGE).max(1);
        for (g, slot) in self.slots.pages.iter().enumerate() {
            let pages = self.memory.page_table(seq, g);
            let n = pages.len().min(width);
            host.i32_mut(*slot)[s * width..s * width + n].copy_from_slice(&pages[..n]);
        }
    }

    fn fill_outputs(&mut self, f: &Feed, row: usize, out: usize) {
        let first = self.memory.len(f.seq);
        // A row that nobody samples takes the highest logit: the cheapest that is defined.
        let greedy = RowParams { flags: RowParams::GREEDY, mask: RowParams::NO_MASK, ..RowParams::default() };
        let n = wanted(f);
        let lists = if n > 0 { f.sampler.map(|s| self.put_lists(s)) } else { None };
        for (o, offset) in (f.ids.len() - n..f.ids.len()).enumerate() {
            self.runner.host_mut().i32_mut(self.slots.out_rows)[out + o] = (row + offset) as i32;
            let params = match (f.sampler, lists) {
                (Some(s), Some(lists)) => lists.of(s.row(first + offset + 1)),
                _ => greedy,
            };
            let words = params.to_words();
            let at = (out + o) * RowParams::WORDS;
            let rows =
                &mut self.runner.host_mut().i32_mut(self.slots.sampler_rows)[at..at + RowParams::WORDS];
            rows.iter_mut().zip(words).for_each(|(r, w)| *r = w as i32);
        }
    }

    /// Puts a sampler's lists behind those already there; all rows of its feed share them.
    fn put_lists(&mut self, s: &Sampler) -> Lists {
        let words = self.info.n_vocab.div_ceil(32);
        let taken = &mut self.scratch.taken;
        let host = self.runner.host_mut();
        let penalties = put_pairs(host.i32_mut(self.slots.penalties), &mut taken.penalties, s.counts());
        let biases = put_pairs(host.i32_mut(self.slots.biases), &mut taken.biases, &s.biases);
        let mask = s.mask.as_ref().map(|mask| {
            let at = taken.masks * words;
            let to = &mut host.i32_mut(self.slots.masks)[at..at + words];
            to.iter_mut().zip(mask).for_each(|(t, m)| *t = *m as i32);
            taken.masks += 1;
            taken.masks as u32 - 1
        });
        Lists { penalties, biases, mask }
    }

    /// Whether a step has places for a sampler's lists beside those of the feeds before.
    fn check_lists(&self, s: &Sampler) -> Result<(), EngineError> {
        let (all, taken) = (&self.sampler_bounds, &self.scratch.taken);
        let needed = (s.counts().len(), s.biases.len(), usize::from(s.mask.is_some()));
        room("penalties", needed.0, taken.penalties, all.penalties)?;
        room("biases", needed.1, taken.biases, all.biases)?;
        room("masks", needed.2, taken.masks, all.masks)
    }

    /// Whether a sampler's lists fit a step of their own, now and whatever its sequence comes to say.
    ///
    /// # Errors
    /// [`EngineError::Room`].
    pub fn check_sampler(&self, s: &Sampler) -> Result<(), EngineError> {
        room("penalties", s.most_counts(), 0, self.sampler_bounds.penalties)?;
        room("biases", s.biases.len(), 0, self.sampler_bounds.biases)
    }
}

/// Where a feed's lists lie: (first, number) of pairs, and the mask.
#[derive(Clone, Copy)]
struct Lists {
    penalties: (u32, u32),
    biases: (u32, u32),
    mask: Option<u32>,
}

impl Lists {
    fn of(self, mut row: RowParams) -> RowParams {
        row.set_penalties(self.penalties.0, self.penalties.1);
        row.set_biases(self.biases.0, self.biases.1);
        if let Some(mask) = self.mask {
            row.set_mask(mask);
        }
        row
    }
}

fn room(list: &'static str, needed: usize, taken: usize, all: usize) -> Result<(), EngineError> {
    let free = all - taken;
    if needed > free { Err(EngineError::Room { list, needed, free, all }) } else { Ok(()) }
}

fn wanted(f: &Feed) -> usize {
    match f.want {
        Want::None => 0,
        Want::Last => f.ids.len().min(1),
        Want::All => f.ids.len(),
    }
}

/// Copies pairs behind the first `taken` of a list; returns where they begin and how many they are.
fn put_pairs(list: &mut [i32], taken: &mut usize, pairs: &[[u32; 2]]) -> (u32, u32) {
    let to = &mut list[*taken * 2..(*taken + pairs.len()) * 2];
    for (t, p) in to.chunks_exact_mut(2).zip(pairs) {
        t[0] = p[0] as i32;
        t[1] = p[1] as i32;
    }
    let first = *taken as u32;
    *taken += pairs.len();
    (first, pairs.len() as u32)
}
