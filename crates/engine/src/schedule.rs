//! Requests: admission, prefill in chunks beside decoding, sampling, stops, prefix reuse.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Instant;

use firth_memory::Seq;
use firth_sampling::{Constraint, Params, Verdict, Watch};

use crate::error::EngineError;
use crate::load::Engine;
use crate::sampler::Sampler;
use crate::step::{Feed, Want};

/// What to generate.
pub struct Request {
    /// The prompt.
    pub ids: Vec<u32>,
    /// Sampling.
    pub params: Params,
    /// Tokens to generate at most.
    pub max_tokens: usize,
    /// Tokens that end the text; they are not part of it.
    pub end_ids: Vec<u32>,
    /// Cache domain: sequences of different domains never share.
    pub domain: u64,
    /// Whether a cached prefix may be used and this sequence be cached.
    pub cache: bool,
    /// Limits what may be said.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Watches what was said.
    pub watch: Option<Box<dyn Watch>>,
}

impl Request {
    /// A plain request.
    pub fn new(ids: Vec<u32>, params: Params, max_tokens: usize) -> Self {
        Request {
            ids,
            params,
            max_tokens,
            end_ids: Vec::new(),
            domain: 0,
            cache: true,
            constraint: None,
            watch: None,
        }
    }
}

/// A request's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobId(pub u64);

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// An end token.
    Eos,
    /// The token limit.
    Limit,
    /// The watch said so: a stop word.
    Word,
    /// The context is full.
    Context,
}

impl StopReason {
    /// The word for output.
    pub fn as_str(self) -> &'static str {
        match self {
            StopReason::Eos => "eos",
            StopReason::Limit => "limit",
            StopReason::Word => "word",
            StopReason::Context => "context",
        }
    }
}

/// Counts and times of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timings {
    /// Prompt tokens that were computed.
    pub prompt_n: usize,
    /// Prompt tokens taken from the cache.
    pub cached_n: usize,
    /// Seconds from admission to the first token.
    pub prompt_seconds: f64,
    /// Generated tokens.
    pub predicted_n: usize,
    /// Seconds from the first token to the last.
    pub predicted_seconds: f64,
}

/// How a request ended well.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    /// Why.
    pub stop: StopReason,
    /// Counts and times.
    pub timings: Timings,
}

/// What a tick tells.
#[derive(Debug)]
pub enum Event {
    /// A token of the text.
    Token(u32),
    /// The end.
    Done(Finished),
    /// The request failed; others go on.
    Failed(EngineError),
}

/// A sequence at work.
struct Running {
    seq: Seq,
    /// Prompt and text so far.
    ids: Vec<u32>,
    /// How many of `ids` are in the sequence's memory.
    done: usize,
    sampler: Sampler,
    admitted: Instant,
    first_token: Option<Instant>,
}

struct Job {
    id: JobId,
    request: Request,
    /// Tokens generated so far; kept when a job is parked, so that it goes on with the same text.
    said: Vec<u32>,
    timings: Timings,
    running: Option<Running>,
    /// Rows in the next step.
    share: usize,
}

/// Requests over an engine.
pub struct Scheduler {
    engine: Engine,
    waiting: VecDeque<Job>,
    active: Vec<Job>,
    next: u64,
}

impl Scheduler {
    /// No requests yet.
    pub fn new(engine: Engine) -> Self {
        Scheduler { engine, waiting: VecDeque::new(), active: Vec::new(), next: 0 }
    }

    /// The engine.
    pub fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Queues a request.
    ///
    /// # Errors
    /// A prompt that is empty or does not leave room for one token, an id outside the vocabulary, parameters
    /// without meaning.
    pub fn submit(&mut self, request: Request) -> Result<JobId, EngineError> {
        request.params.validate()?;
        let (n, context) = (request.ids.len(), self.engine.ctx());
        if n == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        if n >= context {
            return Err(EngineError::Context { found: n + 1, context });
        }
        let n_vocab = self.engine.info().n_vocab;
        if let Some(&id) = request.ids.iter().find(|id| **id as usize >= n_vocab) {
            return Err(EngineError::Id { id, n_vocab });
        }
        let id = JobId(self.next);
        self.next += 1;
        let timings = Timings::default();
        self.waiting.push_back(Job { id, request, said: Vec::new(), timings, running: None, share: 0 });
        Ok(id)
    }

    /// Drops a request, waiting or at work.
    pub fn cancel(&mut self, id: JobId) {
        self.waiting.retain(|j| j.id != id);
        if let Some(i) = self.active.iter().position(|j| j.id == id) {
            let job = self.active.remove(i);
            self.end(job);
        }
    }

    /// Whether anything waits or works.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.active.is_empty()
    }

    /// One step: admit, compute, sample. `on` hears of tokens and ends; `Break` cancels that request.
    ///
    /// # Errors
    /// The device is lost. What concerns one request alone reaches it as [`Event::Failed`].
    pub fn tick(&mut self, on: &mut dyn FnMut(JobId, Event) -> ControlFlow<()>) -> Result<(), EngineError> {
        self.admit(on);
        loop {
            self.share_rows();
            self.fill(on);
            match self.engine.run() {
                Ok(()) => {
                    self.advance(on);
                    return Ok(());
                }
                // The oldest is never parked: when it alone does not fit, it fails.
                Err(EngineError::Full { .. }) if self.active.len() > 1 => self.park(),
                Err(e @ EngineError::Lost(_)) => return Err(e),
                Err(e) => {
                    let Some(job) = self.active.pop() else { return Ok(()) };
                    let _ = on(job.id, Event::Failed(e));
                    self.end(job);
                    return Ok(());
                }
            }
        }
    }

    /// Runs until nothing is left.
    pub fn run_all(
        &mut self,
        on: &mut dyn FnMut(JobId, Event) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        while !self.is_idle() {
            self.tick(on)?;
        }
        Ok(())
    }

    fn admit(&mut self, on: &mut dyn FnMut(JobId, Event) -> ControlFlow<()>) {
        while self.active.len() < self.engine.bounds().s {
            let Some(mut job) = self.waiting.pop_front() else { return };
            match self.start(&mut job) {
                Ok(()) => self.active.push(job),
                Err(EngineError::Full { .. }) if !self.active.is_empty() => {
                    self.waiting.push_front(job);
                    return;
                }
                Err(e) => {
                    let _ = on(job.id, Event::Failed(e));
                }
            }
        }
    }

    /// Opens a job's sequence, from the longest cached prefix where there is one.
    fn start(&mut self, job: &mut Job) -> Result<(), EngineError> {
        let r = &job.request;
        let mut ids = r.ids.clone();
        ids.extend(&job.said);
        let mut sampler = Sampler::new(r.params.clone(), 0, 0);
        if !self.engine.sampler_fits(&sampler) {
            return Err(EngineError::Option {
                option: "logit bias",
                found: "more ids than a step holds".into(),
                expected: "fewer".into(),
            });
        }
        if r.constraint.is_some() {
            sampler.mask = Some(vec![0; self.engine.info().n_vocab.div_ceil(32)]);
        }
        ids.iter().for_each(|id| sampler.push(*id));
        let seq = self.engine.open(r.domain)?;
        let mut done = 0;
        // At least the last token is computed: its logits are what the cache does not hold.
        if r.cache
            && let Some((snapshot, len)) = self.engine.memory.find(r.domain, &ids[..ids.len() - 1])
        {
            self.engine.memory.attach(seq, snapshot, len).expect("a snapshot just found is there");
            done = len;
        }
        job.timings.cached_n = done.min(r.ids.len());
        let admitted = Instant::now();
        job.running = Some(Running { seq, ids, done, sampler, admitted, first_token: None });
        Ok(())
    }

    /// Rows of each active job in the next step: one for those that decode, the rest of the batch for prompts,
    /// oldest first.
    fn share_rows(&mut self) {
        let left = |j: &Job| j.running.as_ref().map_or(0, |r| r.ids.len() - r.done);
        let decoding = self.active.iter().filter(|j| left(j) == 1).count();
        let mut free = self.engine.bounds().t.saturating_sub(decoding);
        for j in &mut self.active {
            j.share = match left(j) {
                1 => 1,
                n => n.min(free),
            };
            if j.share > 1 || left(j) > 1 {
                free -= j.share;
            }
        }
    }

    /// Feeds the shares of all jobs to a step. A job that cannot go on fails alone.
    fn fill(&mut self, on: &mut dyn FnMut(JobId, Event) -> ControlFlow<()>) {
        self.engine.begin();
        let mut i = 0;
        while i < self.active.len() {
            match feed(&mut self.engine, &mut self.active[i]) {
                Ok(()) => i += 1,
                Err(e) => {
                    let job = self.active.remove(i);
                    let _ = on(job.id, Event::Failed(e));
                    self.end(job);
                }
            }
        }
    }

    /// Notes what the step computed and takes the sampled tokens.
    fn advance(&mut self, on: &mut dyn FnMut(JobId, Event) -> ControlFlow<()>) {
        let mut jobs = std::mem::take(&mut self.active);
        for (feed, job) in jobs.iter_mut().filter(|j| j.share > 0).enumerate() {
            let n = job.share;
            let r = job.running.as_mut().expect("an active job has a sequence");
            r.done += n;
            if r.done <= job.request.ids.len() {
                job.timings.prompt_n += n;
            }
            let cache_point = r.done + 1 == job.request.ids.len() || r.done == job.request.ids.len();
            if job.request.cache && cache_point {
                self.engine.memory.snapshot(r.seq);
            }
            let sampled = (r.done == r.ids.len()).then(|| self.engine.sampled(feed, 0));
            let Some(sampled) = sampled else { continue };
            let end = match sampled {
                Ok(id) => self.take(job, id, on),
                Err(e) => Some(Event::Failed(e)),
            };
            if let Some(end) = end {
                let _ = on(job.id, end);
                if job.request.cache {
                    self.engine.memory.snapshot(job.running.as_ref().expect("still open").seq);
                }
                self.engine.close(job.running.take().expect("still open").seq);
            }
        }
        jobs.retain(|j| j.running.is_some());
        self.active = jobs;
    }

    /// A sampled token: the event that ends the request, if it does.
    fn take(
        &mut self,
        job: &mut Job,
        id: u32,
        on: &mut dyn FnMut(JobId, Event) -> ControlFlow<()>,
    ) -> Option<Event> {
        let now = Instant::now();
        let context = self.engine.ctx();
        let r = job.running.as_mut().expect("an active job has a sequence");
        let first = *r.first_token.get_or_insert(now);
        if job.said.is_empty() {
            job.timings.prompt_seconds = (first - r.admitted).as_secs_f64();
        }
        job.timings.predicted_seconds = (now - first).as_secs_f64();
        let done = |job: &Job, stop| Some(Event::Done(Finished { stop, timings: job.timings }));
        if job.request.end_ids.contains(&id) {
            return done(job, StopReason::Eos);
        }
        if let Some(c) = &mut job.request.constraint
            && let Err(e) = c.accept(id)
        {
            return Some(Event::Failed(e.into()));
        }
        r.ids.push(id);
        r.sampler.push(id);
        let full = r.ids.len() >= context;
        job.said.push(id);
        job.timings.predicted_n += 1;
        let heard = on(job.id, Event::Token(id));
        let word = job.request.watch.as_mut().is_some_and(|w| w.push(&[id]) != Verdict::Continue);
        if word || heard.is_break() {
            return done(job, StopReason::Word);
        }
        if job.said.len() >= job.request.max_tokens {
            return done(job, StopReason::Limit);
        }
        if full {
            return done(job, StopReason::Context);
        }
        None
    }

    /// Puts the youngest job back into the queue; it will be computed again, with the same bits.
    fn park(&mut self) {
        let Some(mut job) = self.active.pop() else { return };
        if let Some(r) = job.running.take() {
            self.engine.close(r.seq);
        }
        self.waiting.push_front(job);
    }

    fn end(&mut self, mut job: Job) {
        if let Some(r) = job.running.take() {
            self.engine.close(r.seq);
        }
    }
}

/// Adds a job's share of rows to the engine's step.
fn feed(engine: &mut Engine, job: &mut Job) -> Result<(), EngineError> {
    let r = job.running.as_mut().expect("an active job has a sequence");
    if job.share == 0 {
        return Ok(());
    }
    let end = r.done + job.share;
    let last = end == r.ids.len();
    if let (true, Some(c), Some(mask)) = (last, &mut job.request.constraint, &mut r.sampler.mask) {
        c.mask(mask)?;
    }
    engine.feed(&Feed {
        seq: r.seq,
        ids: &r.ids[r.done..end],
        embeds: None,
        want: if last { Want::Last } else { Want::None },
        sampler: last.then_some(&r.sampler),
    })
}
