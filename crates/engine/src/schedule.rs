//! Requests: admission, prefill in chunks beside decoding, drafts, parking, ends.

mod ahead;

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Instant;

use firth_memory::Memory;
use firth_models::SamplerBounds;

use self::ahead::Ahead;
use crate::error::EngineError;
use crate::job::{Job, Taken};
use crate::load::Engine;
use crate::pace::Pace;
use crate::probs::Logprobs;
use crate::request::{Event, Finished, JobId, Request, StopReason};
use crate::spec::{Drafter, Drafting};

/// Told of tokens and ends; `Break` ends that request.
type On<'a> = &'a mut dyn FnMut(JobId, Event) -> ControlFlow<()>;

/// Requests over an engine. Memory is taken when a request is submitted; a tick allocates nothing.
pub struct Scheduler {
    engine: Engine,
    drafting: Drafting,
    pace: Pace,
    waiting: VecDeque<Job>,
    /// Oldest first.
    active: Vec<Job>,
    /// Ended, but for a row in the step that is under way.
    leaving: Vec<Job>,
    ahead: Ahead,
    /// Whether a job was parked and none has ended since: nothing is admitted until one does.
    crowded: bool,
    parked: u64,
    next: u64,
}

impl Scheduler {
    /// No requests yet.
    pub fn new(engine: Engine) -> Self {
        let (active, leaving) = [(); 2].map(|()| Vec::with_capacity(engine.bounds().s)).into();
        let drafting = Drafting::new(&engine);
        Scheduler {
            engine,
            drafting,
            pace: Pace::default(),
            waiting: VecDeque::new(),
            active,
            leaving,
            ahead: Ahead::default(),
            crowded: false,
            parked: 0,
            next: 0,
        }
    }

    /// The sequences and the prefix tree as they are.
    pub fn memory(&self) -> &Memory {
        self.engine.books()
    }

    /// Uses a drafter of the caller's; the engine must be loaded with [`SpecMode::Custom`](crate::SpecMode).
    pub fn set_drafter(&mut self, drafter: Box<dyn Drafter>) {
        self.drafting.set_custom(drafter);
    }

    /// Uses a draft model, loaded for twice as many sequences; the engine must be loaded with
    /// [`SpecMode::Draft`](crate::SpecMode).
    pub fn set_draft_model(&mut self, model: Engine) {
        self.drafting.set_model(model);
    }

    /// Queues a request.
    ///
    /// # Errors
    /// A prompt that is empty or does not leave room for one token, an id outside the vocabulary, parameters
    /// without meaning or with more penalties or biases than a step holds.
    pub fn submit(&mut self, request: Request) -> Result<JobId, EngineError> {
        let id = JobId(self.next);
        let job = Job::new(id, request, &self.engine)?;
        // Jobs at work may be parked: they need a place in the queue, too.
        self.waiting.reserve(self.active.capacity() + 1);
        self.waiting.push_back(job);
        self.next += 1;
        Ok(id)
    }

    /// Ends a request, waiting or at work; `None` where it has ended already.
    pub fn cancel(&mut self, id: JobId) -> Option<Finished> {
        if let Some(i) = self.waiting.iter().position(|j| j.id == id) {
            return self.waiting.remove(i).map(|j| j.finished(StopReason::Word));
        }
        let i = self.active.iter().position(|j| j.id == id)?;
        Some(self.end_or_leave(i))
    }

    /// Requests in the queue, parked ones among them.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How often a request was put back into the queue for want of pages, so far.
    pub fn parked(&self) -> u64 {
        self.parked
    }

    /// What was guessed for the last step, by request at work.
    pub fn drafts(&self) -> impl Iterator<Item = (JobId, &[u32])> {
        self.active.iter().map(|j| (j.id, &j.guesses.draft[..]))
    }

    /// Whether anything waits or works.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.active.is_empty() && self.leaving.is_empty()
    }

    /// One step: admit, draft, compute, sample. `on` hears of tokens and ends; `Break` cancels that request.
    ///
    /// # Errors
    /// The step failed for all, as when the device is lost. The requests stay, and what the step spoilt of them is
    /// computed again should the device come back. What concerns one request alone reaches it as
    /// [`Event::Failed`].
    pub fn tick(&mut self, on: On) -> Result<(), EngineError> {
        let ticked = self.try_tick(on);
        if ticked.is_err() {
            self.give_up();
        }
        ticked
    }

    fn try_tick(&mut self, on: On) -> Result<(), EngineError> {
        if let Some(e) = self.ahead.failed.take() {
            return Err(e);
        }
        let under_way = std::mem::take(&mut self.ahead.flying);
        if !under_way && !self.make_step(on)? {
            return Ok(());
        }
        let start = Instant::now();
        if !under_way {
            self.engine.submit()?;
        }
        self.run_ahead()?;
        self.engine.finish()?;
        let seconds = start.elapsed().as_secs_f64();
        if !self.active.is_empty() {
            self.drafting.note_step(&self.active, seconds);
            self.note_pace(seconds);
        }
        match self.ahead.kept {
            true => self.advance_kept(on),
            false => {
                self.advance(on);
                self.let_go();
            }
        }
        Ok(())
    }

    /// Admits, plans, drafts and feeds a step; whether it has any rows.
    fn make_step(&mut self, on: On) -> Result<bool, EngineError> {
        self.tell_held(on);
        self.admit(on);
        self.plan(on)?;
        self.drafting.propose(&mut self.engine, &mut self.active)?;
        self.fill(on);
        Ok(self.active.iter().any(|j| j.share > 0))
    }

    /// Runs until nothing is left.
    ///
    /// # Errors
    /// As [`Scheduler::tick`].
    pub fn run_all(&mut self, on: On) -> Result<(), EngineError> {
        while !self.is_idle() {
            self.tick(on)?;
        }
        Ok(())
    }

    /// Puts those back into the queue that lost their sequence, the oldest first.
    fn again(&mut self) {
        while let Some(i) = self.active.iter().rposition(|j| j.running.is_none()) {
            let job = self.active.remove(i);
            self.waiting.push_front(job);
        }
    }

    /// Whether a request that waits may be taken up.
    fn may_admit(&self) -> bool {
        let room = self.active.len() < self.engine.bounds().s;
        room && !self.waiting.is_empty() && (!self.crowded || self.active.is_empty())
    }

    fn admit(&mut self, on: On) {
        while self.may_admit() {
            let Some(mut job) = self.waiting.pop_front() else { return };
            match job.start(&mut self.engine) {
                Ok(()) => {
                    let heard = on(job.id, Event::Prompt(job.done()));
                    self.active.push(job);
                    if heard.is_break() {
                        self.break_off(self.active.len() - 1, on);
                    }
                }
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

    /// Shares out the next step and reserves memory for it. Where that does not suffice drafts are given up, then
    /// the youngest gives its pages up. The oldest never does: when it does not fit alone, it fails.
    fn plan(&mut self, on: On) -> Result<(), EngineError> {
        self.share_rows();
        loop {
            self.engine.begin();
            for j in self.active.iter().filter(|j| j.share > 0) {
                let (certain, others) = j.rows();
                self.engine.reserve(j.seq(), certain, others);
            }
            let drafts = self.active.iter().any(|j| j.guesses.room > 0);
            match self.engine.plan() {
                Ok(()) => return Ok(()),
                Err(EngineError::Full { .. }) if drafts => {
                    self.active.iter_mut().for_each(|j| j.guesses.room = 0);
                    continue;
                }
                Err(EngineError::Full { .. }) if self.active.len() > 1 => self.park(),
                Err(e @ EngineError::Full { .. }) if self.active.len() == 1 => self.fail(0, e, on),
                Err(e) => return Err(e),
            }
            self.share_rows();
        }
    }

    /// Rows of each active job in the next step: one for those that decode, and their drafts; the rest of the
    /// batch for prompts, oldest first. A step has a row and an output for every sequence, so none is left out for
    /// want of them; one whose penalties, biases or mask find no room beside those of older jobs waits.
    fn share_rows(&mut self) {
        let bounds = self.engine.bounds();
        let decoding = self.active.iter().filter(|j| !j.is_prompt()).count();
        let mut rows = bounds.t.saturating_sub(decoding);
        let mut outs = bounds.o.saturating_sub(self.active.len());
        let mut lists = SamplerBounds::NONE;
        for j in &mut self.active {
            (j.share, j.guesses.room) = (0, 0);
            if j.is_prompt() || !self.engine.fits(&mut lists, &j.sampler, 1) {
                continue;
            }
            j.take_one();
            let most = j.draft_limit(self.engine.ctx()).min(rows).min(outs);
            let room = self.drafting.choose(j, most, decoding);
            if room > 0 && self.engine.fits(&mut lists, &j.sampler, 1 + room) {
                j.guesses.room = room;
                (rows, outs) = (rows - room, outs - room);
            }
        }
        self.share_prompt_rows(rows, outs, decoding > 0, lists);
    }

    /// Rows for prompts. Beside rows that decode a step stays short; the prompts have equal parts of it, and what one
    /// does not need is left to the next, so that a short prompt does not wait for a long one.
    fn share_prompt_rows(&mut self, rows: usize, outs: usize, decodes: bool, mut lists: SamplerBounds) {
        let (mut rows, mut outs) = (rows, outs);
        let mut prompts = self.active.iter().filter(|j| j.is_prompt()).count();
        let whole = self.engine.info().both_ways;
        if decodes {
            // One row each is what all of them go on by.
            rows = rows.min(self.pace.prompt_rows().max(prompts));
        }
        let log = self.engine.longest_draft() > 0 && self.engine.memory().spec().slots.is_some();
        for j in self.active.iter_mut().filter(|j| j.is_prompt()) {
            let mut most = if whole { rows } else { rows.div_ceil(prompts) };
            prompts -= 1;
            if j.wants_prompt_logprobs() {
                // One output is this job's in any case.
                most = most.min(outs + 1);
            }
            if j.embeds() || j.left() > most || self.engine.fits(&mut lists, &j.sampler, 1) {
                j.take_prompt(most, log, whole);
                rows -= j.share;
                if j.wants_prompt_logprobs() {
                    outs = outs.saturating_sub(j.share.saturating_sub(1));
                }
            }
        }
    }

    /// Notes how long the step took that was just computed.
    fn note_pace(&mut self, seconds: f64) {
        let (mut decoding, mut prompt) = (0, 0);
        for j in self.active.iter().filter(|j| j.share > 0) {
            match j.is_prompt() {
                false => decoding += 1 + j.guesses.draft.len(),
                true => prompt += j.share,
            }
        }
        self.pace.note(decoding, prompt, seconds);
    }

    /// Feeds the shares of all jobs to the planned step. A job that cannot go on fails alone.
    fn fill(&mut self, on: On) {
        let (mut i, mut feed) = (0, 0);
        while i < self.active.len() {
            let job = &mut self.active[i];
            if job.share == 0 {
                i += 1;
                continue;
            }
            job.feed = feed;
            match job.feed(&mut self.engine) {
                Ok(()) => (i, feed) = (i + 1, feed + 1),
                Err(e) => self.fail(i, e, on),
            }
        }
    }

    /// Notes what the step computed and takes the sampled tokens.
    fn advance(&mut self, on: On) {
        let mut i = 0;
        while i < self.active.len() {
            let job = &mut self.active[i];
            if job.share == 0 {
                i += 1;
                continue;
            }
            let feed = job.feed;
            let ended = match job.decodes() {
                true => verify(&mut self.engine, job, feed, on),
                false => {
                    let heard = tell_prompt(&self.engine, job, feed, on);
                    job.pool_rows(&self.engine, feed);
                    self.engine.keep(feed, job.share);
                    job.advance(&mut self.engine, job.share);
                    let told = on(job.id, Event::Prompt(job.done()));
                    match heard.is_break() || told.is_break() {
                        false => embedded(&mut self.engine, job, on),
                        true => Some(Event::Done(job.finished(StopReason::Word))),
                    }
                }
            };
            match ended {
                None => i += 1,
                Some(event) => {
                    let keep = !matches!(event, Event::Failed(_));
                    let _ = on(job.id, event);
                    self.end(i, keep);
                }
            }
        }
    }

    /// Puts the youngest job back into the queue; it will be computed again, with the same bits.
    fn park(&mut self) {
        let Some(mut job) = self.active.pop() else { return };
        job.stop(&mut self.engine, true);
        self.drafting.close(&mut job);
        self.waiting.push_front(job);
        (self.crowded, self.parked) = (true, self.parked + 1);
    }

    /// Ends an active job that its caller has had enough of.
    fn break_off(&mut self, i: usize, on: On) {
        let done = Event::Done(self.active[i].finished(StopReason::Word));
        let _ = on(self.active[i].id, done);
        self.end(i, true);
    }

    fn fail(&mut self, i: usize, e: EngineError, on: On) {
        let _ = on(self.active[i].id, Event::Failed(e));
        self.end(i, false);
    }

    fn end(&mut self, i: usize, keep: bool) {
        let mut job = self.active.remove(i);
        job.stop(&mut self.engine, keep);
        self.drafting.close(&mut job);
        self.crowded = false;
    }
}

/// Tells what the model thought of the prompt tokens behind the rows of a step, where that was asked for.
fn tell_prompt(engine: &Engine, job: &Job, feed: usize, on: On) -> ControlFlow<()> {
    if !job.wants_prompt_logprobs() {
        return ControlFlow::Continue(());
    }
    let n = job.logprobs.unwrap_or_default();
    for o in 0..job.share {
        let id = job.ids[job.done() + o + 1];
        on(job.id, Event::PromptLogprobs(Logprobs::new(engine.logits(feed, o), id, n)))?;
    }
    ControlFlow::Continue(())
}

/// Tells the embedding of a job that asked for it and has all rows; the event that ends it.
fn embedded(engine: &mut Engine, job: &mut Job, on: On) -> Option<Event> {
    match job.embedding(engine) {
        Ok(None) => None,
        Ok(Some(embedding)) => {
            let _ = on(job.id, Event::Embedding(embedding));
            Some(Event::Done(job.finished(StopReason::Limit)))
        }
        Err(e) => Some(Event::Failed(e)),
    }
}

/// Takes tokens of a job as long as the sampler draws what was guessed, and keeps the rows of those guesses; the
/// event that ends the request, if one does.
fn verify(engine: &mut Engine, job: &mut Job, feed: usize, on: On) -> Option<Event> {
    let drafted = job.guesses.draft.len();
    let (mut right, mut kept, mut end) = (0, 0, None);
    for o in 0..=drafted {
        let sampled = job.draw(engine, feed, o);
        // What fails behind a guess is left to the next step, where the row is certain.
        if o > 0 && sampled.is_err() {
            kept -= 1;
            break;
        }
        let guessed = sampled.as_ref().ok() == job.guesses.draft.get(o);
        let logits = || engine.logits(feed, o);
        end = take(job, sampled, engine.ctx(), &logits, on);
        right += usize::from(guessed);
        if !guessed || end.is_some() {
            break;
        }
        kept += 1;
    }
    engine.keep(feed, job.share + kept);
    job.note_draft(drafted, right);
    if let Some(hidden) = engine.hidden(feed, job.share + kept - 1) {
        job.guesses.set_hidden(hidden);
    }
    job.advance(engine, job.share + kept);
    // Told last, so that the counts of this step are among its own.
    end.map(|end| end.map_or_else(Event::Failed, |stop| Event::Done(job.finished(stop))))
}

/// Takes what was sampled for a job from `logits`; how the request ends, if it does.
fn take<'a>(
    job: &mut Job,
    sampled: Result<u32, EngineError>,
    context: usize,
    logits: &dyn Fn() -> &'a [f32],
    on: On,
) -> Option<Result<StopReason, EngineError>> {
    let (id, stop) = match sampled.and_then(|id| Ok((id, job.take(id, context)?))) {
        Ok((id, Taken::Token)) => (id, None),
        Ok((id, Taken::Last(stop))) => (id, Some(stop)),
        Ok((_, Taken::Before(stop))) => return Some(Ok(stop)),
        Err(e) => return Some(Err(e)),
    };
    let thought = job.logprobs.map(|n| Event::Logprobs(Logprobs::new(logits(), id, n)));
    let enough = thought.is_some_and(|thought| on(job.id, thought).is_break());
    let enough = on(job.id, Event::Token(id)).is_break() || enough;
    stop.or(enough.then_some(StopReason::Word)).map(Ok)
}
