//! A request at work: its tokens, its sampling, its place in memory. Made when it is submitted, with room for
//! all that it may come to say, so that no later step allocates for it.

use std::time::Instant;

use firth_memory::Seq;
use firth_sampling::{Constraint, Verdict, Watch};

use crate::error::EngineError;
use crate::load::Engine;
use crate::request::{Finished, JobId, Request, StopReason, Timings};
use crate::sampler::Sampler;
use crate::step::{Feed, Want};

/// A sequence of the engine and how much of its job it holds.
#[derive(Clone, Copy)]
pub(crate) struct Running {
    pub seq: Seq,
    /// How many of the job's tokens are in the sequence's memory.
    pub done: usize,
}

/// A request, waiting or at work. A job that is parked loses its sequence and nothing else.
pub(crate) struct Job {
    pub id: JobId,
    pub domain: u64,
    pub cache: bool,
    /// Prompt and text so far.
    ids: Vec<u32>,
    n_prompt: usize,
    /// The length of prompt and text at which the request has what it asked for; it may lie past the context.
    limit: usize,
    end_ids: Vec<u32>,
    constraint: Option<Box<dyn Constraint>>,
    watch: Option<Box<dyn Watch>>,
    sampler: Sampler,
    timings: Timings,
    admitted: Option<Instant>,
    first_token: Option<Instant>,
    pub running: Option<Running>,
    /// Rows in the next step.
    pub share: usize,
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
    /// A prompt that is empty or does not leave room for one token, an id outside the vocabulary, parameters
    /// without meaning or with more penalties or biases than a step holds.
    pub fn new(id: JobId, mut request: Request, engine: &Engine) -> Result<Job, EngineError> {
        request.params.validate()?;
        let (n_prompt, context) = (request.ids.len(), engine.ctx());
        if n_prompt == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        if n_prompt >= context {
            return Err(EngineError::Context { found: n_prompt + 1, context });
        }
        let n_vocab = engine.info().n_vocab;
        if let Some(&id) = request.ids.iter().find(|id| **id as usize >= n_vocab) {
            return Err(EngineError::Id { id, n_vocab });
        }
        // No sequence has more tokens than the context, so a longer window sees the same.
        request.params.penalty_last_n = request.params.penalty_last_n.min(context as u32);
        let mut sampler = Sampler::new(request.params, 0, 0);
        engine.check_sampler(&sampler)?;
        if request.constraint.is_some() {
            sampler.mask = Some(vec![0; n_vocab.div_ceil(32)]);
        }
        request.ids.iter().for_each(|id| sampler.push(*id));
        let limit = n_prompt.saturating_add(request.max_tokens.max(1));
        let mut ids = request.ids;
        ids.reserve_exact(limit.min(context) - n_prompt);
        Ok(Job {
            id,
            domain: request.domain,
            cache: request.cache,
            ids,
            n_prompt,
            limit,
            end_ids: request.end_ids,
            constraint: request.constraint,
            watch: request.watch,
            sampler,
            timings: Timings::default(),
            admitted: None,
            first_token: None,
            running: None,
            share: 0,
        })
    }

    /// Opens the job's sequence, from the longest cached prefix where there is one.
    pub fn start(&mut self, engine: &mut Engine) -> Result<(), EngineError> {
        let seq = engine.open(self.domain)?;
        let mut done = 0;
        // At least the last token is computed: its logits are what the cache does not hold.
        let prefix = &self.ids[..self.ids.len() - 1];
        if self.cache
            && let Some((snapshot, len)) = engine.memory().find(self.domain, prefix)
        {
            engine.memory().attach(seq, snapshot, len).expect("a snapshot just found is there");
            done = len;
        }
        self.running = Some(Running { seq, done });
        self.admitted.get_or_insert_with(Instant::now);
        if self.first_token.is_none() {
            self.timings.cached_n = done;
        }
        Ok(())
    }

    /// Ends the job's sequence; `keep` puts it into the cache where the request allows it.
    pub fn stop(&mut self, engine: &mut Engine, keep: bool) {
        let Some(r) = self.running.take() else { return };
        if self.cache && keep {
            engine.memory().snapshot(r.seq);
        }
        engine.close(r.seq);
    }

    /// Tokens that are not in memory yet.
    pub fn left(&self) -> usize {
        self.running.map_or(0, |r| self.ids.len() - r.done)
    }

    /// Adds the job's share of rows to the engine's step.
    pub fn feed(&mut self, engine: &mut Engine) -> Result<(), EngineError> {
        let Running { seq, done } = self.running.expect("an active job has a sequence");
        let end = done + self.share;
        let last = end == self.ids.len();
        if let (true, Some(c), Some(mask)) = (last, &mut self.constraint, &mut self.sampler.mask) {
            c.mask(mask)?;
        }
        engine.feed(&Feed {
            seq,
            ids: &self.ids[done..end],
            embeds: None,
            want: if last { Want::Last } else { Want::None },
            sampler: last.then_some(&self.sampler),
        })
    }

    /// Notes that the job's share was computed; whether a token was sampled.
    pub fn advance(&mut self, engine: &mut Engine) -> bool {
        let r = self.running.as_mut().expect("an active job has a sequence");
        r.done += self.share;
        let cache_point = r.done + 1 == self.n_prompt || r.done == self.n_prompt;
        if self.cache && cache_point {
            engine.memory().snapshot(r.seq);
        }
        r.done == self.ids.len()
    }

    /// Takes a sampled token.
    ///
    /// # Errors
    /// The constraint refuses it.
    pub fn take(&mut self, id: u32, context: usize) -> Result<Taken, EngineError> {
        self.note_time();
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
