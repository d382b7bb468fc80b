//! One step: rows of several sequences through the model. Allocates nothing once warm.
//!
//! Rows that are all certain are fed and run: [`Engine::begin`], [`Engine::feed`], [`Engine::run`]. With guesses
//! among them a step is planned first, since a drafter may write into its pages: `begin`, [`Engine::reserve`]
//! for every sequence, [`Engine::plan`], [`Engine::feed_planned`], [`Engine::compute`], and [`Engine::keep`] with
//! what is to stay.

mod carried;

use firth_graph::{Extents, Runner, slot_table};
use firth_memory::{Append, Seq};
use firth_models::{SamplerBounds, names};

use crate::ask::Lists;
use crate::error::EngineError;
use crate::load::Engine;
use crate::sampler::Sampler;
use crate::tables::{Span, page_columns, put_pages, put_span};

/// Which rows of a feed give logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// None.
    None,
    /// The last.
    Last,
    /// So many of the last.
    Tail(usize),
    /// All.
    All,
    /// None, and all give the row behind the final norm.
    Hidden,
}

impl Want {
    /// Rows that give logits of `n`.
    fn of(self, n: usize) -> usize {
        match self {
            Want::None | Want::Hidden => 0,
            Want::Last => n.min(1),
            Want::Tail(tail) => n.min(tail),
            Want::All => n,
        }
    }

    /// Rows that are wanted as they are behind the final norm.
    fn hidden(self, n: usize) -> usize {
        if self == Want::Hidden { n } else { 0 }
    }
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
    /// Absent where the model keeps nothing besides pages.
    slots: Option<usize>,
    /// Absent where the model has no logits.
    of_logits: Option<LogitsSlots>,
    /// Rows wanted as embeddings, and those rows; absent where the model was loaded without.
    embedded: Option<(usize, usize)>,
    /// Absent where nothing drafts by a head of the model.
    hidden: Option<usize>,
}

/// Host slots of logits and what is sampled from them.
#[derive(Clone, Copy)]
struct LogitsSlots {
    out_rows: usize,
    logits: usize,
    sampled: usize,
}

impl Slots {
    /// Of logits and hidden rows only what is asked for comes back.
    pub fn find(r: &mut Runner, groups: usize) -> Slots {
        let most = r.plan().bounds;
        for (name, n) in [(names::LOGITS, most.o), (names::HIDDEN, most.s)] {
            if let Some(slot) = r.output(name) {
                r.want_parts(slot, n);
            }
        }
        let input = |name: &str| r.input(name).expect("the build names its inputs");
        let output = |name: &str| r.output(name).expect("the build names its outputs");
        Slots {
            tokens: input(names::TOKENS),
            embeds: input(names::EMBEDS),
            positions: input(names::POSITIONS),
            seqs: input(names::SEQS),
            pages: (0..groups).map(|g| input(&names::pages(g))).collect(),
            slots: r.input(names::SLOTS),
            of_logits: r.input(names::OUT_ROWS).map(|out_rows| LogitsSlots {
                out_rows,
                logits: output(names::LOGITS),
                sampled: output(names::SAMPLED),
            }),
            embedded: r.input(names::EMBED_ROWS).map(|rows| (rows, output(names::EMBEDDED))),
            hidden: r.output(names::HIDDEN),
        }
    }
}

/// What a feed put into the step.
#[derive(Clone, Copy)]
struct Fed {
    seq: Seq,
    /// Its first row, and how many.
    row: usize,
    rows: usize,
    /// Rows that are no guesses.
    certain: usize,
    /// Its first output row, and how many.
    out: usize,
    outs: usize,
    /// Its first row wanted as an embedding, and how many.
    hidden: usize,
    hiddens: usize,
    /// Where the sampler's lists lie.
    lists: Lists,
}

/// A step while it is fed; its lists are used again and again.
pub(crate) struct Scratch {
    appends: Vec<Append>,
    feeds: Vec<Fed>,
    /// Ids of all rows, for the commit.
    ids: Vec<u32>,
    /// Of each output row, whether its logits are read.
    shown: Vec<bool>,
}

impl Scratch {
    pub fn new(bounds: &Extents) -> Scratch {
        Scratch {
            appends: Vec::with_capacity(bounds.s),
            feeds: Vec::with_capacity(bounds.s),
            ids: Vec::with_capacity(bounds.t),
            shown: Vec::with_capacity(bounds.o),
        }
    }

    /// The step so far.
    fn extents(&self) -> Extents {
        let (o, p) = self.feeds.last().map_or((0, 0), |f| (f.out + f.outs, f.hidden + f.hiddens));
        Extents { t: self.ids.len(), o, p, s: self.feeds.len() }
    }
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

    /// Begins a step.
    pub fn begin(&mut self) {
        self.scratch.appends.clear();
        self.scratch.feeds.clear();
        self.scratch.ids.clear();
        self.scratch.shown.clear();
        if let Some(ask) = &mut self.ask {
            ask.begin(self.runner.host_mut());
        }
        self.runner.host_mut().give(self.slots.embeds, 0);
    }

    /// Adds rows of one sequence to the step; all of them stay.
    ///
    /// # Errors
    /// The sequence would outgrow its context, an id is outside the vocabulary, rows would follow others in a model that
    /// attends both ways, or the sampler's lists find no room beside those of other feeds ([`EngineError::Room`]); the step is as before.
    pub fn feed(&mut self, f: &Feed) -> Result<(), EngineError> {
        let found = self.memory.len(f.seq) + f.ids.len();
        if found > self.ctx {
            return Err(EngineError::Context { found, context: self.ctx });
        }
        self.put(f, 0)?;
        self.scratch.appends.push(Append::certain(f.seq, f.ids.len()));
        Ok(())
    }

    /// Runs the step that was fed and commits its tokens. On an error nothing has changed, unless a device is lost
    /// ([`Engine::compute`]).
    pub fn run(&mut self) -> Result<(), EngineError> {
        self.plan()?;
        self.compute()?;
        for i in 0..self.scratch.feeds.len() {
            self.keep(i, self.scratch.feeds[i].rows);
        }
        Ok(())
    }

    /// Asks for room for `certain` rows of a sequence and for `drafted` guesses behind them.
    pub fn reserve(&mut self, seq: Seq, certain: usize, drafted: usize) {
        self.scratch.appends.push(Append { seq, rows: certain + drafted, certain });
    }

    /// Reserves what was asked for. Every sequence asked for is then fed once, or closed, before
    /// [`Engine::compute`].
    ///
    /// # Errors
    /// Memory does not suffice or a context is exceeded, or a device is lost; nothing has changed.
    pub fn plan(&mut self) -> Result<(), EngineError> {
        let needed = self.scratch.appends.iter().map(|a| a.rows).sum();
        self.memory.plan(&self.scratch.appends).map_err(|e| match e {
            firth_memory::Full::Context { len, max_ctx } => {
                EngineError::Context { found: len, context: max_ctx }
            }
            _ => EngineError::Full { needed },
        })?;
        // At once, since a drafting head writes into these pages before the step does.
        let copied = self.copy_pages();
        if copied.is_err() {
            self.memory.abort();
        }
        copied
    }

    /// Gives up a plan that is not to be computed, and what steps under way compute.
    pub fn abandon(&mut self) {
        self.runner.give_up();
        self.memory.abort();
    }

    /// Adds rows of a planned sequence to the step, the last `drafted` of them guesses: as many as planned, or
    /// fewer guesses.
    ///
    /// # Errors
    /// As [`Engine::feed`], but for the context.
    pub fn feed_planned(&mut self, f: &Feed, drafted: usize) -> Result<(), EngineError> {
        self.put(f, drafted)?;
        self.memory.shrink(f.seq, f.ids.len());
        Ok(())
    }

    fn put(&mut self, f: &Feed, drafted: usize) -> Result<(), EngineError> {
        self.check(f)?;
        let (at, n) = (self.scratch.extents(), f.ids.len());
        let (outs, hiddens) = (f.want.of(n), f.want.hidden(n));
        if outs > 0 {
            self.require_logits()?;
        }
        if hiddens > 0 && self.slots.embedded.is_none() {
            return Err(EngineError::NoEmbeddings);
        }
        let x = Extents { t: at.t + n, o: at.o + outs, p: at.p + hiddens, s: at.s + 1 };
        assert!(x.within(&self.bounds), "a step of {x:?} exceeds {:?}", self.bounds);
        let lists = match (f.sampler, &mut self.ask) {
            (Some(s), Some(ask)) if outs > 0 => ask.lists(self.runner.host_mut(), s)?,
            _ => Lists::default(),
        };
        let (seq, row, out, hidden) = (f.seq, at.t, at.o, at.p);
        let certain = n - drafted;
        self.scratch.feeds.push(Fed { seq, row, rows: n, certain, out, outs, hidden, hiddens, lists });
        self.scratch.ids.extend_from_slice(f.ids);
        self.fill_rows(f, row);
        self.scratch.shown.resize(out + outs, f.sampler.is_none_or(Sampler::on_host));
        if let Some((rows, _)) = self.slots.embedded {
            let wanted = &mut self.runner.host_mut().i32_mut(rows)[hidden..hidden + hiddens];
            wanted.iter_mut().enumerate().for_each(|(i, w)| *w = (row + i) as i32);
        }
        self.ask_rows(f, self.scratch.feeds.len() - 1);
        Ok(())
    }

    /// Names the rows of feed `feed` that give logits, and who samples them.
    fn ask_rows(&mut self, f: &Feed, feed: usize) {
        let (Some(slots), Some(ask)) = (self.slots.of_logits, &self.ask) else { return };
        let Fed { row, rows: n, out, outs, lists, .. } = self.scratch.feeds[feed];
        let first = self.memory.len(f.seq) + n - outs;
        for o in 0..outs {
            let host = self.runner.host_mut();
            host.i32_mut(slots.out_rows)[out + o] = (row + n - outs + o) as i32;
            match f.sampler {
                Some(s) => ask.by(host, out + o, s, lists, first + o + 1),
                None => ask.nobody(host, out + o),
            }
        }
    }

    /// Whether `rows` rows of a sampler fit a step beside what `tally` counts; counts them if so.
    pub(crate) fn fits(&self, tally: &mut SamplerBounds, s: &Sampler, rows: usize) -> bool {
        self.ask.as_ref().is_none_or(|ask| ask.fits(tally, s, rows))
    }

    /// Output row `o` of feed `feed` is sampled by `sampler`, as it is now, for the token at `index` of the
    /// sequence. Rows in ascending order, within what [`Engine::fits`] counted.
    pub(crate) fn sample(&mut self, feed: usize, o: usize, sampler: &Sampler, index: usize) {
        let Some(ask) = &mut self.ask else { return };
        let f = &mut self.scratch.feeds[feed];
        let host = self.runner.host_mut();
        f.lists = match o {
            0 => ask.lists(host, sampler).expect("the rows were counted"),
            _ => ask.lists_after(host, sampler, f.lists),
        };
        ask.by(host, f.out + o, sampler, f.lists, index);
        self.scratch.shown[f.out + o] = sampler.on_host();
    }

    /// Logits of feed `feed` are read after this step, though its rows are sampled.
    pub fn show(&mut self, feed: usize) {
        let f = self.scratch.feeds[feed];
        self.scratch.shown[f.out..f.out + f.outs].fill(true);
    }

    /// Runs the step that was fed.
    ///
    /// # Errors
    /// A device is lost. Sequences whose state the step was writing are cut back to what a snapshot holds of
    /// them, or to nothing; the others are as before.
    pub fn compute(&mut self) -> Result<(), EngineError> {
        self.submit()?;
        self.finish()
    }

    /// Keeps the first `rows` rows of a feed: the certain ones and the guesses that were right.
    pub fn keep(&mut self, feed: usize, rows: usize) {
        let f = self.scratch.feeds[feed];
        assert!(
            (f.certain..=f.rows).contains(&rows),
            "{rows} rows kept of {}, {} certain",
            f.rows,
            f.certain
        );
        self.memory.commit(f.seq, &self.scratch.ids[f.row..f.row + rows]);
    }

    /// Asks for what is read of the step's results: logits that are shown, and hidden rows that a draft may go on from.
    fn want(&mut self) {
        let host = self.runner.host_mut();
        let row = 4 * self.info.n_vocab;
        if let Some(LogitsSlots { logits, .. }) = self.slots.of_logits {
            host.want_none(logits);
            for o in (0..self.scratch.shown.len()).filter(|o| self.scratch.shown[*o]) {
                host.want(logits, o * row..(o + 1) * row);
            }
        }
        if let (Some(slot), Some(draft)) = (self.slots.hidden, self.info.draft) {
            let row = 4 * draft.width;
            host.want_none(slot);
            for f in &self.scratch.feeds {
                host.want(slot, (f.row + f.rows - f.outs) * row..(f.row + f.rows) * row);
            }
        }
    }

    /// Logits of output row `o` of feed `feed` of the last step.
    ///
    /// # Panics
    /// Where the row was sampled on the device and its logits were not asked for ([`Engine::show`]): they stayed there.
    pub fn logits(&self, feed: usize, o: usize) -> &[f32] {
        let row = self.scratch.feeds[feed].out + o;
        assert!(self.scratch.shown[row], "the logits of row {o} of feed {feed} were asked for");
        let slot = self.slots.of_logits.expect("a feed that gave logits").logits;
        &self.runner.host().f32(slot)[row * self.info.n_vocab..(row + 1) * self.info.n_vocab]
    }

    /// The token sampled from output row `o` of feed `feed` of the last step.
    pub fn sampled(&self, feed: usize, o: usize) -> Result<u32, EngineError> {
        self.sampled_row(self.scratch.feeds[feed].out + o)
    }

    /// Row `i` of feed `feed` of the last step as it is behind the final norm, where the feed asked for [`Want::Hidden`].
    pub fn embedded(&self, feed: usize, i: usize) -> &[f32] {
        let (_, slot) = self.slots.embedded.expect("a feed that gave rows");
        let f = &self.scratch.feeds[feed];
        assert!(i < f.hiddens, "row {i} of {} that were asked for", f.hiddens);
        let at = (f.hidden + i) * self.info.width;
        &self.runner.host().f32(slot)[at..at + self.info.width]
    }

    /// Makes of the pooled row of a text what the model makes of it: products, or the scores of a classifier.
    ///
    /// # Errors
    /// A device is lost.
    pub fn project(&mut self, row: &mut Vec<f32>) -> Result<(), EngineError> {
        if let (Some(program), Some(kind)) = (&mut self.pooled, self.embedding) {
            let made = program.run(row)?;
            row.clear();
            row.extend_from_slice(&made[..kind.width]);
        }
        Ok(())
    }

    /// The normalised hidden row `row` of feed `feed` of the last step, which the drafting head goes on from.
    pub(crate) fn hidden(&self, feed: usize, row: usize) -> Option<&[f32]> {
        let width = self.info.draft?.width;
        let at = (self.scratch.feeds[feed].row + row) * width;
        Some(&self.runner.host().f32(self.slots.hidden?)[at..at + width])
    }

    /// The last step.
    pub(crate) fn extents(&self) -> Extents {
        self.scratch.extents()
    }

    fn check(&self, f: &Feed) -> Result<(), EngineError> {
        let (n_vocab, held, found) = (self.info.n_vocab, self.memory.len(f.seq), f.ids.len());
        if self.info.both_ways && held > 0 && found > 0 {
            return Err(EngineError::Whole { arch: self.info.arch.clone(), held, found });
        }
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
                host.give(self.slots.embeds, 4 * (row + n) * width);
            }
        }
        let positions = &mut host.i32_mut(self.slots.positions)[row..row + n];
        positions.iter_mut().enumerate().for_each(|(i, p)| *p = (first + i) as i32);
    }

    fn fill_tables(&mut self, s: usize) {
        let f = self.scratch.feeds[s];
        let first = self.memory.len(f.seq);
        let host = self.runner.host_mut();
        let span = Span { row: f.row, rows: f.rows, certain: f.certain, first };
        put_span(host, self.slots.seqs, s, span);
        let width = page_columns(self.ctx);
        for (g, slot) in self.slots.pages.iter().enumerate() {
            put_pages(host, *slot, s, width, self.memory.page_table(f.seq, g));
        }
        if let Some(slot) = self.slots.slots {
            let used = self.memory.slots(f.seq);
            let row = &mut host.i32_mut(slot)[s * slot_table::WIDTH..(s + 1) * slot_table::WIDTH];
            row[slot_table::READ] = used.read;
            row[slot_table::WRITE] = used.write;
            row[slot_table::N_LOG] = used.n_log as i32;
        }
    }

    /// Whether a sampler's lists fit a step of their own, now and whatever its sequence comes to say.
    ///
    /// # Errors
    /// [`EngineError::Room`].
    pub fn check_sampler(&self, s: &Sampler) -> Result<(), EngineError> {
        self.ask.as_ref().map_or(Ok(()), |ask| ask.check(s))
    }
}
