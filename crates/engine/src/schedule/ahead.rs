//! The step after the next: started before the host has read what the one before it sampled, where every row decodes and
//! nothing on the host has a say in what it samples.
//!
//! Between two ticks one step may then be under way, of all jobs at work. A job that ends meanwhile has a row in it that is
//! of no use to it: it leaves once the step is over, and the row stays behind its text in the cache.

use super::{On, Scheduler, take};
use crate::error::EngineError;
use crate::load::Engine;
use crate::request::{Event, Finished, StopReason};

/// What is under way between two ticks and within one.
#[derive(Default)]
pub(super) struct Ahead {
    /// Whether a step is under way that the next tick finishes.
    pub flying: bool,
    /// Whether the rows of the step to be finished next are in memory's books already.
    pub kept: bool,
    /// A step failed that was finished between two ticks.
    pub failed: Option<EngineError>,
}

impl Scheduler {
    /// The engine. A step that is under way is finished first; what it sampled is told by the next tick.
    pub fn engine(&mut self) -> &mut Engine {
        if std::mem::take(&mut self.ahead.flying) {
            match self.engine.finish() {
                Ok(()) => self.hold_samples(),
                Err(e) => {
                    self.give_up();
                    self.ahead.failed = Some(e);
                }
            }
        }
        &mut self.engine
    }

    /// After a step that was finished between two ticks: its rows stay, its samples wait.
    fn hold_samples(&mut self) {
        for j in &mut self.active {
            j.sampled = Some(self.engine.sampled(j.feed, 0));
            self.engine.keep(j.feed, 1);
            j.advance(&mut self.engine, 1);
        }
        self.let_go();
    }

    /// Tells what was sampled by a step that was finished between two ticks.
    pub(super) fn tell_held(&mut self, on: On) {
        let mut i = 0;
        while i < self.active.len() {
            let job = &mut self.active[i];
            let Some(sampled) = job.sampled.take() else {
                i += 1;
                continue;
            };
            match take(job, sampled, self.engine.ctx(), &|| &[], on) {
                None => i += 1,
                Some(end) => self.end_with(i, end, on),
            }
        }
    }

    fn end_with(&mut self, i: usize, end: Result<StopReason, EngineError>, on: On) {
        let keep = end.is_ok();
        let event = end.map_or_else(Event::Failed, |stop| Event::Done(self.active[i].finished(stop)));
        let _ = on(self.active[i].id, event);
        self.end(i, keep);
    }

    /// Starts the step after the one that is under way, if it needs nothing that the host learns of that one.
    ///
    /// # Errors
    /// A device is lost.
    pub(super) fn run_ahead(&mut self) -> Result<(), EngineError> {
        let ctx = self.engine.ctx();
        let whole = self.engine.memory().spec().serves_all_prefixes();
        let may = self.engine.runs_ahead()
            && !self.may_admit()
            && self.leaving.is_empty()
            && !self.active.is_empty()
            && self.active.iter().all(|j| j.may_run_ahead(ctx, whole));
        if !may {
            return Ok(());
        }
        for j in &mut self.active {
            self.engine.keep(j.feed, 1);
            j.advance(&mut self.engine, 1);
        }
        self.ahead.kept = true;
        self.engine.begin();
        for j in &self.active {
            self.engine.reserve(j.seq(), 1, 0);
        }
        match self.engine.plan() {
            Ok(()) => {}
            Err(EngineError::Full { .. }) => return Ok(()),
            Err(e) => return Err(e),
        }
        for j in &self.active {
            self.engine.feed_carried(j.seq(), j.feed, &j.sampler, j.ids.len() + 1)?;
        }
        self.engine.submit()?;
        self.ahead.flying = true;
        Ok(())
    }

    /// Takes what a step sampled whose rows are kept already, and says it to the step after it, where that is under way.
    pub(super) fn advance_kept(&mut self, on: On) {
        self.ahead.kept = false;
        let (mut i, mut feed) = (0, 0);
        while i < self.active.len() {
            let job = &mut self.active[i];
            let sampled = self.engine.sampled_row(std::mem::replace(&mut job.feed, feed));
            if let (true, Ok(id)) = (self.ahead.flying, &sampled) {
                self.engine.name(feed, *id);
            }
            feed += 1;
            match take(job, sampled, self.engine.ctx(), &|| &[], on) {
                None => i += 1,
                Some(Ok(stop)) if self.ahead.flying => {
                    let job = self.active.remove(i);
                    let _ = on(job.id, Event::Done(job.finished(stop)));
                    self.leaving.push(job);
                }
                Some(end) => self.end_with(i, end, on),
            }
        }
    }

    /// Ends a job at work, at once or when the step is over that it has a row in.
    pub(super) fn end_or_leave(&mut self, i: usize) -> Finished {
        let finished = self.active[i].finished(StopReason::Word);
        match self.ahead.flying {
            true => self.leaving.push(self.active.remove(i)),
            false => self.end(i, true),
        }
        finished
    }

    /// Ends those that waited for the step which is now over; their rows in it stay.
    pub(super) fn let_go(&mut self) {
        while let Some(mut job) = self.leaving.pop() {
            self.engine.keep(job.feed, 1);
            job.advance(&mut self.engine, 1);
            job.stop(&mut self.engine, true);
            self.drafting.close(&mut job);
            self.crowded = false;
        }
    }

    /// After a failure: what no step has computed is no longer in memory's books, and is computed again.
    pub(super) fn give_up(&mut self) {
        self.engine.abandon();
        if std::mem::take(&mut self.ahead.kept) {
            self.active.iter_mut().for_each(|j| j.take_back(&mut self.engine));
        }
        self.ahead.flying = false;
        for mut job in self.leaving.drain(..) {
            job.stop(&mut self.engine, false);
        }
        self.active.iter_mut().for_each(|j| j.look_back(&mut self.engine));
        self.again();
    }
}
