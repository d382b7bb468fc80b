//! A request at work: its tokens, its sampling, its drafts, its place in memory. Made when it is submitted, with
//! room for all that it may come to say, so that no later step allocates for it.

use std::time::Instant;

use firth_memory::{Seq, snapshot_points};
use firth_sampling::{Constraint, Verdict, Watch};

use crate::error::EngineError;
use crate::load::Engine;
use crate::pool::Pool;
use crate::request::{Finished, JobId, Request, StopReason, Timings};
use crate::sampler::Sampler;
use crate::spec::Guesses;
use crate::step::{Feed, Want};

/// Tokens that a shared beginning has at least for a step to end with it.
const WORTH_A_STEP: usize = 32;

/// A sequence of the engine and how much of its job it holds.
#[derive(Clone, Copy)]
pub(crate) struct Running {
    pub seq: Seq,
    /// How many of the job's tokens are in the sequence's memory.
    pub done: usize,
    /// Where the prefill stops next for a snapshot.
    cut: Option<usize>,
}

/// A request, waiting or at work. A job that is parked loses its sequence and nothing else.
pub(crate) struct Job {
    pub id: JobId,
    pub domain: u64,
    pub cache: bool,
    /// Prompt and text so far.
    pub ids: Vec<u32>,
    n_prompt: usize,
    /// Lengths of the prompt at which its prefix is likely to come again.
    marks: Vec<usize>,
    /// Where the prompt departs from what the cache knows, further than it could be served: others share that far.
    fork: Option<usize>,
    /// The length of prompt and text at which the request has what it asked for; it may lie past the context.
    limit: usize,
    pub logprobs: Option<usize>,
    pub prompt_logprobs: bool,
    /// The prompt's rows so far, where its embedding is asked for.
    pool: Option<Pool>,
    end_ids: Vec<u32>,
    constraint: Option<Box<dyn Constraint>>,
    watch: Option<Box<dyn Watch>>,
    pub sampler: Sampler,
    timings: Timings,
    submitted: Instant,
    admitted: Option<Instant>,
    first_token: Option<Instant>,
    pub running: Option<Running>,
    /// Certain rows in the next step.
    pub share: usize,
    /// Which feed of the step they are.
    pub feed: usize,
    /// What a step sampled that was finished before its time, until it is told.
    pub sampled: Option<Result<u32, EngineError>>,
    /// Whether the last of those rows goes into the log as guesses do, so that a snapshot serves the length before
    /// it too.
    open_end: bool,
    /// What a drafter guesses and how it fared.
    pub guesses: Guesses,
}

/// What a sampled token means for its job.
pub(crate) enum Taken {
    /// A token of the text.
    Token,
    /// A token of the text, the last.
    Last(StopReason),
    /// Not of the text, which ends before it.
    Before(StopReason),
}

impl Job {
    /// Checks a request against an engine and takes all memory that it will need.
    ///
    /// # Errors
    /// A text of a model that attends both ways or has no logits, an embedding of one loaded without, a prompt that is empty or does not leave room for one token, an id outside the vocabulary, parameters
    /// without meaning or with more penalties or biases than a step holds.
    pub fn new(id: JobId, mut request: Request, engine: &Engine) -> Result<Job, EngineError> {
        request.params.validate()?;
        let info = engine.info();
        if !request.embed {
            engine.require_logits()?;
            if info.both_ways {
                return Err(EngineError::NoText { arch: info.arch.clone() });
            }
        }
        let (n_prompt, context) = (request.ids.len(), engine.ctx());
        if n_prompt == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        let needed = n_prompt + usize::from(!request.embed);
        if needed > context {
            return Err(EngineError::Context { found: needed, context });
        }
        let rows = engine.bounds().t;
        if request.embed && info.both_ways && n_prompt > rows {
            return Err(EngineError::Whole { arch: info.arch.clone(), held: rows, found: n_prompt - rows });
        }
        let pool = match request.embed {
            true => {
                let kind = engine.embedding().ok_or(EngineError::NoEmbeddings)?;
                Some(Pool::new(kind, info.width, n_prompt))
            }
            false => None,
        };
        let n_vocab = engine.info().n_vocab;
        if let Some(&id) = request.ids.iter().find(|id| **id as usize >= n_vocab) {
            return Err(EngineError::Id { id, n_vocab });
        }
        // No sequence has more tokens than the context, so a longer window sees the same.
        request.params.penalty_last_n = request.params.penalty_last_n.min(context as u32);
        let longest = engine.longest_draft();
        let mut sampler = Sampler::new(request.params, request.choice, longest);
        engine.check_sampler(&sampler)?;
        sampler.prepare_host(n_vocab, context);
        if request.constraint.is_some() {
            sampler.mask = Some(vec![0; n_vocab.div_ceil(32)]);
        }
        request.ids.iter().for_each(|id| sampler.push(*id));
        let limit = n_prompt.saturating_add(request.max_tokens);
        let mut ids = request.ids;
        // A draft lies behind the tokens while it is fed.
        ids.reserve_exact(limit.min(context) - n_prompt + longest);
        let guesses = Guesses::new(engine, limit.min(context));
        Ok(Job {
            id,
            domain: request.domain,
            cache: request.cache,
            ids,
            n_prompt,
            marks: request.marks,
            fork: None,
            limit,
            logprobs: request.logprobs.or(request.prompt_logprobs.then_some(0)),
            prompt_logprobs: request.prompt_logprobs,
            pool,
            end_ids: request.end_ids,
            constraint: request.constraint,
            watch: request.watch,
            sampler,
            timings: Timings::default(),
            submitted: Instant::now(),
            admitted: None,
            first_token: None,
            running: None,
            share: 0,
            feed: 0,
            sampled: None,
            open_end: false,
            guesses,
        })
    }

    /// Opens the job's sequence, from the longest cached prefix where there is one.
    pub fn start(&mut self, engine: &mut Engine) -> Result<(), EngineError> {
        let seq = engine.open(self.domain)?;
        let mut done = 0;
        // At least the last token is computed: its logits are what the cache does not hold.
        let prefix = &self.ids[..self.ids.len() - 1];
        // Where the prompt's own log probabilities are told, or its embedding, all its rows are computed.
        let told = !self.embeds() && (!self.prompt_logprobs || self.has_said());
        if self.cache
            && told
            && let Some((snapshot, len)) = engine.memory().find(self.domain, prefix)
        {
            engine.memory().attach(seq, snapshot, len).expect("a snapshot just found is there");
            done = len;
        }
        let known = engine.memory().known(self.domain, prefix);
        let cuts = self.cache && !engine.memory().spec().serves_all_prefixes();
        self.fork = (known >= done + WORTH_A_STEP).then_some(known);
        let cut = if cuts { self.cut_behind(done) } else { None };
        self.running = Some(Running { seq, done, cut });
        if let Some(pool) = &mut self.pool {
            pool.clear();
        }
        if self.admitted.is_none() {
            self.admitted = Some(Instant::now());
            self.timings.queue_seconds = self.submitted.elapsed().as_secs_f64();
        }
        if self.first_token.is_none() {
            self.timings.known_n = known;
            self.timings.cached_n = done;
        }
        Ok(())
    }

    /// Where the prefill stops for a snapshot next.
    fn cut_behind(&self, done: usize) -> Option<usize> {
        let fork = self.fork.filter(|n| done < *n && *n < self.n_prompt);
        snapshot_points(done, self.n_prompt, &self.marks).next().into_iter().chain(fork).min()
    }

    /// Ends the job's sequence; `keep` puts it into the cache where the request allows it.
    pub fn stop(&mut self, engine: &mut Engine, keep: bool) {
        let Some(r) = self.running.take() else { return };
        if self.cache && keep {
            engine.memory().snapshot(r.seq);
        }
        engine.close(r.seq);
    }

    /// After a step that failed: its sequence holds what it holds, and the rest is computed again.
    pub fn look_back(&mut self, engine: &mut Engine) {
        if let Some(r) = &mut self.running {
            let held = engine.len(r.seq);
            // An embedding that misses rows begins anew.
            if let Some(pool) = self.pool.as_mut().filter(|_| held < r.done) {
                pool.clear();
                engine.close(r.seq);
                self.running = None;
            } else {
                r.done = held;
            }
        }
        self.guesses.hidden.clear();
    }

    /// The last row that memory holds was never computed.
    pub fn take_back(&mut self, engine: &mut Engine) {
        let Some(r) = &self.running else { return };
        let n = r.done - 1;
        if engine.len(r.seq) > n && engine.rollback(r.seq, n).is_err() {
            engine.close(r.seq);
            self.running = None;
        }
    }

    /// Whether the step after the next can be made without what the next one samples: it decodes, goes on whatever the
    /// token is but for an end of its own, and the host has no say in what follows. Without `whole` a cached sequence serves no
    /// shorter text, so where a watch may cut the text it is not run ahead of.
    pub fn may_run_ahead(&self, ctx: usize, whole: bool) -> bool {
        self.decodes()
            && self.share == 1
            && self.has_said()
            && self.guesses.draft.is_empty()
            && self.ids.len() + 1 < self.limit.min(ctx)
            && self.logprobs.is_none()
            && self.constraint.is_none()
            && (whole || self.watch.is_none())
            && !self.sampler.looks_back()
    }

    /// The sequence of an active job.
    pub fn seq(&self) -> Seq {
        self.running.expect("an active job has a sequence").seq
    }

    /// Tokens that are not in memory yet.
    pub fn left(&self) -> usize {
        self.running.map_or(0, |r| self.ids.len() - r.done)
    }

    /// Whether it has said something.
    pub fn has_said(&self) -> bool {
        self.ids.len() > self.n_prompt
    }

    /// Whether rows of its prompt give logits.
    pub fn wants_prompt_logprobs(&self) -> bool {
        self.prompt_logprobs && !self.has_said()
    }

    /// Tokens in memory.
    pub fn done(&self) -> usize {
        self.running.map_or(0, |r| r.done)
    }

    /// The longest draft that makes sense: tokens left to the limit, after the one that a step gives anyway.
    pub fn draft_limit(&self, context: usize) -> usize {
        self.limit.saturating_sub(self.ids.len() + 1).min(context - self.ids.len())
    }

    /// Whether the next rows are those of a prompt: none of them gives a token, but for the last where a text follows.
    pub fn is_prompt(&self) -> bool {
        self.left() > 1 || self.embeds()
    }

    /// Whether the prompt's embedding is asked for.
    pub fn embeds(&self) -> bool {
        self.pool.is_some()
    }

    /// Takes the rows of feed `feed` of the step to the embedding.
    pub fn pool_rows(&mut self, engine: &Engine, feed: usize) {
        let Some(pool) = &mut self.pool else { return };
        (0..self.share).for_each(|i| pool.push(engine.embedded(feed, i)));
    }

    /// The embedding, once all rows are taken.
    ///
    /// # Errors
    /// A number of it is none, or a device is lost.
    pub fn embedding(&mut self, engine: &mut Engine) -> Result<Option<Vec<f32>>, EngineError> {
        if self.left() > 0 {
            return Ok(None);
        }
        let Some(pool) = &mut self.pool else { return Ok(None) };
        let mut embedding = pool.finish();
        engine.project(&mut embedding)?;
        self.note_time();
        match embedding.iter().all(|x| x.is_finite()) {
            true => Ok(Some(embedding)),
            false => Err(EngineError::Nan),
        }
    }

    /// Takes `rows` at most of a prompt for the next step: up to where a snapshot is to be taken. One that must be in one step
    /// waits for the room.
    pub fn take_prompt(&mut self, rows: usize, log: bool, whole: bool) {
        if whole && self.left() > rows {
            self.share = 0;
            return;
        }
        let r = self.running.expect("an active job has a sequence");
        let to_cut = r.cut.map_or(usize::MAX, |cut| cut - r.done);
        // The last row is sampled, in a step of its own where the others tell of the prompt.
        let left = self.left() - usize::from(self.wants_prompt_logprobs());
        self.share = left.min(rows).min(to_cut);
        self.open_end = log && self.share > 1 && self.share == self.left() && !self.embeds();
    }

    /// Takes the one row of a job that decodes.
    pub fn take_one(&mut self) {
        (self.share, self.open_end) = (1, false);
    }

    /// Rows to reserve: certain ones, and others.
    pub fn rows(&self) -> (usize, usize) {
        let open = usize::from(self.open_end);
        (self.share - open, self.guesses.room + open)
    }

    /// Whether the next step gives this job a token.
    pub fn decodes(&self) -> bool {
        self.share > 0 && self.share == self.left() && !self.embeds()
    }

    /// Adds the job's rows to the planned step: its share, and behind it the draft, as far as the constraint
    /// allows it.
    pub fn feed(&mut self, engine: &mut Engine) -> Result<(), EngineError> {
        let Running { seq, done, .. } = self.running.expect("an active job has a sequence");
        if !self.decodes() {
            let ids = &self.ids[done..done + self.share];
            let want = match () {
                () if self.embeds() => Want::Hidden,
                () if self.wants_prompt_logprobs() => Want::All,
                () => Want::None,
            };
            let rows = Feed { seq, ids, embeds: None, want, sampler: None };
            return engine.feed_planned(&rows, 0);
        }
        self.cut_draft();
        if let (Some(c), Some(mask)) = (&mut self.constraint, &mut self.sampler.mask) {
            c.mask(mask)?;
        }
        let (n, drafted) = (self.ids.len(), self.guesses.draft.len());
        self.ids.extend_from_slice(&self.guesses.draft);
        let want = Want::Tail(1 + drafted);
        let rows = Feed { seq, ids: &self.ids[done..], embeds: None, want, sampler: None };
        let fed = engine.feed_planned(&rows, drafted + usize::from(self.open_end));
        self.ids.truncate(n);
        fed?;
        self.sample_rows(engine, self.feed);
        Ok(())
    }

    /// Makes the mask of the next guess; `false` where nothing may be guessed.
    pub fn may_guess(&mut self) -> bool {
        let g = &mut self.guesses;
        if let (Some(c), Some(mask)) = (&mut self.constraint, &mut self.sampler.mask)
            && c.mask(mask).is_err()
        {
            g.room = g.draft.len();
        }
        g.room > g.draft.len()
    }

    /// Notes a guess. Until [`settle`](Self::settle) sampler and constraint take it for said.
    pub fn guess(&mut self, id: u32) {
        let g = &mut self.guesses;
        let end = self.end_ids.contains(&id);
        if let (Some(c), false) = (&mut self.constraint, end) {
            if c.accept(id).is_err() {
                g.room = g.draft.len();
                return;
            }
            g.accepted += 1;
        }
        g.draft.push(id);
        self.sampler.push(id);
        if end {
            g.room = g.draft.len();
        }
    }

    /// Ends guessing: sampler and constraint forget the guesses again.
    pub fn settle(&mut self) {
        self.sampler.rollback(self.guesses.draft.len());
        if let Some(c) = &mut self.constraint {
            c.rollback(std::mem::take(&mut self.guesses.accepted));
        }
    }

    /// Shortens the draft to what the constraint allows, and ends it behind an end token.
    fn cut_draft(&mut self) {
        let draft = &mut self.guesses.draft;
        if let Some(end) = draft.iter().position(|id| self.end_ids.contains(id)) {
            draft.truncate(end + 1);
        }
        let (Some(c), Some(mask)) = (&mut self.constraint, &mut self.sampler.mask) else { return };
        let mut fits = |id: u32| {
            c.mask(mask).is_ok()
                && mask.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
                && c.accept(id).is_ok()
        };
        let allowed = draft.iter().take_while(|id| fits(**id)).count();
        c.rollback(allowed);
        draft.truncate(allowed);
    }

    /// Row i of a draft is sampled with the history and the mask it would have had without speculation; the mask of
    /// the first row is there already.
    fn sample_rows(&mut self, engine: &mut Engine, feed: usize) {
        let (n, drafted) = (self.ids.len(), self.guesses.draft.len());
        engine.sample(feed, 0, &self.sampler, n);
        let mut accepted = 0;
        for o in 1..=drafted {
            let id = self.guesses.draft[o - 1];
            self.sampler.push(id);
            if let (Some(c), Some(mask)) = (&mut self.constraint, &mut self.sampler.mask) {
                // Behind an end token, a draft's last, the row is never looked at. Where nothing may follow a guess
                // and it is right after all, the next step asks again and says so.
                let goes_on = accepted + 1 == o && !self.end_ids.contains(&id) && c.accept(id).is_ok();
                accepted += usize::from(goes_on);
                if !goes_on || c.mask(mask).is_err() {
                    mask.fill(0);
                }
            }
            engine.sample(feed, o, &self.sampler, n + o);
        }
        if self.logprobs.is_some() {
            engine.show(feed);
        }
        self.sampler.rollback(drafted);
        if let Some(c) = &mut self.constraint {
            c.rollback(accepted);
        }
    }

    /// The token that output row `o` of feed `feed` gives, with what was taken before it. Where the device's op does
    /// not know what the request asks, it is drawn here, row by row as the tokens before it turned out.
    ///
    /// # Errors
    /// A logit that is no number, nothing that may be said, or the constraint's own.
    pub fn draw(&mut self, engine: &Engine, feed: usize, o: usize) -> Result<u32, EngineError> {
        if !self.sampler.on_host() {
            return engine.sampled(feed, o);
        }
        if let (Some(c), Some(mask)) = (&mut self.constraint, &mut self.sampler.mask) {
            c.mask(mask)?;
        }
        Ok(self.sampler.draw(&self.ids, engine.logits(feed, o))?)
    }

    /// Notes that `n` more tokens are in memory, and takes a snapshot where one is due.
    pub fn advance(&mut self, engine: &mut Engine, n: usize) {
        let mut r = self.running.expect("an active job has a sequence");
        let before = r.done;
        r.done += n;
        let cut = r.cut.is_some_and(|cut| cut <= r.done);
        if self.cache && (cut || (before < self.n_prompt && r.done >= self.n_prompt)) {
            engine.memory().snapshot(r.seq);
        }
        if cut {
            r.cut = self.cut_behind(r.done);
        }
        self.running = Some(r);
    }

    /// Notes that of `drafted` guesses the first `right` were right.
    pub fn note_draft(&mut self, drafted: usize, right: usize) {
        self.guesses.acceptance.note(drafted, right);
        let t = &mut self.timings;
        t.draft_n += drafted;
        t.draft_n_accepted += right;
        t.drafts += usize::from(drafted > 0);
        t.accepted_at.iter_mut().take(right).for_each(|n| *n += 1);
    }

    /// Takes a sampled token.
    ///
    /// # Errors
    /// The constraint refuses it.
    pub fn take(&mut self, id: u32, context: usize) -> Result<Taken, EngineError> {
        self.note_time();
        if self.ids.len() >= self.limit {
            return Ok(Taken::Before(StopReason::Limit));
        }
        if self.end_ids.contains(&id) {
            return Ok(Taken::Before(StopReason::Eos));
        }
        if let Some(c) = &mut self.constraint {
            c.accept(id)?;
        }
        let verdict = self.watch.as_mut().map_or(Verdict::Continue, |w| w.push(&[id]));
        if verdict == Verdict::StopAfter(0) {
            return Ok(Taken::Before(StopReason::Word));
        }
        self.ids.push(id);
        self.sampler.push(id);
        self.timings.predicted_n += 1;
        Ok(match verdict {
            Verdict::StopAfter(_) => Taken::Last(StopReason::Word),
            _ if self.ids.len() >= self.limit => Taken::Last(StopReason::Limit),
            _ if self.ids.len() >= context => Taken::Last(StopReason::Context),
            _ => Taken::Token,
        })
    }

    /// What is told at the end.
    pub fn finished(&self, stop: StopReason) -> Finished {
        Finished { stop, timings: self.timings }
    }

    fn note_time(&mut self) {
        let now = Instant::now();
        let first = *self.first_token.get_or_insert(now);
        self.timings.predicted_seconds = (now - first).as_secs_f64();
        if self.ids.len() == self.n_prompt {
            let admitted = self.admitted.expect("a token comes after the admission");
            self.timings.prompt_n = self.n_prompt - self.timings.cached_n;
            self.timings.prompt_seconds = (first - admitted).as_secs_f64();
        }
    }
}
