//! Requests: admission, prefill in chunks beside decoding, parking, ends.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use crate::error::EngineError;
use crate::job::{Job, Taken};
use crate::load::Engine;
use crate::request::{Event, Finished, JobId, Request, StopReason};

/// Told of tokens and ends; `Break` ends that request.
type On<'a> = &'a mut dyn FnMut(JobId, Event) -> ControlFlow<()>;

/// Requests over an engine. Memory is taken when a request is submitted; a tick allocates nothing.
pub struct Scheduler {
    engine: Engine,
    waiting: VecDeque<Job>,
    /// Oldest first.
    active: Vec<Job>,
    /// Whether a job was parked and none has ended since: nothing is admitted until one does.
    crowded: bool,
    parked: u64,
    next: u64,
}

impl Scheduler {
    /// No requests yet.
    pub fn new(engine: Engine) -> Self {
        let active = Vec::with_capacity(engine.bounds().s);
        Scheduler { engine, waiting: VecDeque::new(), active, crowded: false, parked: 0, next: 0 }
    }

    /// The engine.
    pub fn engine(&mut self) -> &mut Engine {
        &mut self.engine
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
        let finished = self.active[i].finished(StopReason::Word);
        self.end(i, true);
        Some(finished)
    }

    /// Requests in the queue, parked ones among them.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How often a request was put back into the queue for want of pages, so far.
    pub fn parked(&self) -> u64 {
        self.parked
    }

    /// Whether anything waits or works.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.active.is_empty()
    }

    /// One step: admit, compute, sample. `on` hears of tokens and ends; `Break` cancels that request.
    ///
    /// # Errors
    /// The step failed for all, as when the device is lost. What concerns one request alone reaches it as
    /// [`Event::Failed`].
    pub fn tick(&mut self, on: On) -> Result<(), EngineError> {
        self.admit(on);
        loop {
            self.share_rows();
            self.fill(on);
            match self.engine.run() {
                Ok(()) => {
                    self.advance(on);
                    return Ok(());
                }
                // The youngest gives its pages up. The oldest never does: when it does not fit alone, it fails.
                Err(EngineError::Full { .. }) if self.active.len() > 1 => self.park(),
                Err(e @ EngineError::Full { .. }) if self.active.len() == 1 => self.fail(0, e, on),
                Err(e) => return Err(e),
            }
        }
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

    fn admit(&mut self, on: On) {
        while self.active.len() < self.engine.bounds().s {
            if self.crowded && !self.active.is_empty() {
                return;
            }
            let Some(mut job) = self.waiting.pop_front() else { return };
            match job.start(&mut self.engine) {
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

    /// Rows of each active job in the next step: one for those that decode, the rest of the batch for prompts,
    /// oldest first. A step has a row and an output for every sequence, so none is left out for want of them.
    fn share_rows(&mut self) {
        let decoding = self.active.iter().filter(|j| j.left() == 1).count();
        let mut free = self.engine.bounds().t.saturating_sub(decoding);
        for j in &mut self.active {
            j.share = match j.left() {
                1 => 1,
                n => n.min(free),
            };
            if j.left() > 1 {
                free -= j.share;
            }
        }
    }

    /// Feeds the shares of all jobs to a step. A job that cannot go on fails alone; one whose penalties, biases
    /// or mask find no room beside those of older jobs waits for the next step.
    fn fill(&mut self, on: On) {
        self.engine.begin();
        let mut i = 0;
        while i < self.active.len() {
            let job = &mut self.active[i];
            let fed = if job.share > 0 { job.feed(&mut self.engine) } else { Ok(()) };
            match fed {
                Ok(()) => i += 1,
                Err(EngineError::Room { .. }) if i > 0 => {
                    job.share = 0;
                    i += 1;
                }
                Err(e) => self.fail(i, e, on),
            }
        }
    }

    /// Notes what the step computed and takes the sampled tokens.
    fn advance(&mut self, on: On) {
        let (mut i, mut feed) = (0, 0);
        while i < self.active.len() {
            let job = &mut self.active[i];
            if job.share == 0 {
                i += 1;
                continue;
            }
            let ended = match job.advance(&mut self.engine) {
                true => take(&self.engine, job, feed, on),
                false => None,
            };
            feed += 1;
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
        self.waiting.push_front(job);
        (self.crowded, self.parked) = (true, self.parked + 1);
    }

    fn fail(&mut self, i: usize, e: EngineError, on: On) {
        let _ = on(self.active[i].id, Event::Failed(e));
        self.end(i, false);
    }

    fn end(&mut self, i: usize, keep: bool) {
        let mut job = self.active.remove(i);
        job.stop(&mut self.engine, keep);
        self.crowded = false;
    }
}

/// Takes what was sampled for a job; the event that ends the request, if one does.
fn take(engine: &Engine, job: &mut Job, feed: usize, on: On) -> Option<Event> {
    let taken = engine.sampled(feed, 0).and_then(|id| Ok((id, job.take(id, engine.ctx())?)));
    let done = |job: &Job, stop| Some(Event::Done(job.finished(stop)));
    let (id, stop) = match taken {
        Ok((id, Taken::Token)) => (id, None),
        Ok((id, Taken::Last(stop))) => (id, Some(stop)),
        Ok((_, Taken::Before(stop))) => return done(job, stop),
        Err(e) => return Some(Event::Failed(e)),
    };
    match (on(job.id, Event::Token(id)), stop) {
        (_, Some(stop)) => done(job, stop),
        (ControlFlow::Break(()), None) => done(job, StopReason::Word),
        (ControlFlow::Continue(()), None) => None,
    }
}
