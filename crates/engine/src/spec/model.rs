//! A second, smaller model that drafts. It follows the tokens that are certain; its guesses run on a fork of its
//! sequence that is dropped afterwards, so a draft model of any kind serves.

use firth_memory::Seq;

use crate::error::EngineError;
use crate::job::Job;
use crate::load::Engine;
use crate::step::{Feed, Want};

/// The draft model.
pub(crate) struct DraftModel {
    engine: Engine,
    forks: Vec<(usize, Seq)>,
}

impl DraftModel {
    /// A model loaded for twice as many sequences as the main one.
    pub fn new(engine: Engine) -> DraftModel {
        let forks = Vec::with_capacity(engine.bounds().s);
        DraftModel { engine, forks }
    }

    /// Ends the mirror of a sequence.
    pub fn close(&mut self, mirror: Seq) {
        self.engine.close(mirror);
    }

    /// Drafts for every job that has room. Where the model's memory does not suffice, nothing is drafted.
    ///
    /// # Errors
    /// The device is lost.
    pub fn propose(&mut self, jobs: &mut [Job]) -> Result<(), EngineError> {
        for j in jobs.iter_mut() {
            j.guesses.room = j.guesses.room.min(self.engine.ctx().saturating_sub(j.ids.len()));
            if j.guesses.room > 0 && j.guesses.mirror.is_none() {
                j.guesses.mirror = self.engine.open(j.domain).ok();
            }
        }
        let drafted = self.catch_up(jobs).and_then(|()| self.run_on(jobs));
        for (_, fork) in self.forks.drain(..) {
            self.engine.close(fork);
        }
        match drafted {
            Err(e @ EngineError::Lost(_)) => Err(e),
            _ => Ok(()),
        }
    }

    /// Computes the certain tokens that the mirrors lack; the last gives the first guess.
    fn catch_up(&mut self, jobs: &mut [Job]) -> Result<(), EngineError> {
        loop {
            let bounds = self.engine.bounds();
            let mut rows = bounds.t;
            self.engine.begin();
            for j in jobs.iter_mut() {
                j.guesses.mirrored = 0;
                let wanted = j.guesses.room > 0 && j.guesses.draft.is_empty();
                let Some(seq) = j.guesses.mirror.filter(|_| wanted) else { continue };
                j.guesses.mirrored = (j.ids.len() - self.engine.len(seq)).min(rows);
                rows -= j.guesses.mirrored;
            }
            if rows == bounds.t {
                return Ok(());
            }
            for j in jobs.iter_mut().filter(|j| j.guesses.mirrored > 0) {
                j.may_guess();
                let seq = j.guesses.mirror.expect("it was given rows");
                let from = self.engine.len(seq);
                let to = from + j.guesses.mirrored;
                let last = to == j.ids.len();
                let want = if last { Want::Last } else { Want::None };
                let (ids, sampler) = (&j.ids[from..to], last.then_some(&j.sampler));
                self.engine.feed(&Feed { seq, ids, embeds: None, want, sampler })?;
            }
            self.engine.run()?;
            for (feed, j) in jobs.iter_mut().filter(|j| j.guesses.mirrored > 0).enumerate() {
                let caught_up = self.engine.len(j.guesses.mirror.expect("it was given rows")) == j.ids.len();
                if caught_up && j.guesses.room > 0 {
                    // What cannot be drawn here ends the draft; the main model has its own say.
                    match self.engine.sampled(feed, 0) {
                        Ok(id) => j.guess(id),
                        Err(_) => j.guesses.room = 0,
                    }
                }
            }
        }
    }

    /// Goes on from the first guesses, on forks.
    fn run_on(&mut self, jobs: &mut [Job]) -> Result<(), EngineError> {
        for (i, j) in jobs.iter().enumerate().filter(|(_, j)| j.guesses.room > 1) {
            if let (Some(seq), false) = (j.guesses.mirror, j.guesses.draft.is_empty()) {
                self.forks.push((i, self.engine.fork(seq)?));
            }
        }
        let longest = jobs.iter().map(|j| j.guesses.room).max().unwrap_or(0);
        for depth in 1..longest {
            let goes_on = |j: &Job| j.guesses.room > depth && j.guesses.draft.len() == depth;
            self.engine.begin();
            let mut any = false;
            for &(i, seq) in &self.forks {
                if !goes_on(&jobs[i]) || !jobs[i].may_guess() {
                    continue;
                }
                let (ids, sampler) = (&jobs[i].guesses.draft[depth - 1..], Some(&jobs[i].sampler));
                self.engine.feed(&Feed { seq, ids, embeds: None, want: Want::Last, sampler })?;
                any = true;
            }
            if !any {
                return Ok(());
            }
            self.engine.run()?;
            let mut feed = 0;
            for (i, _) in &self.forks {
                if goes_on(&jobs[*i]) {
                    if let Ok(id) = self.engine.sampled(feed, 0) {
                        jobs[*i].guess(id);
                    }
                    feed += 1;
                }
            }
        }
        Ok(())
    }
}
