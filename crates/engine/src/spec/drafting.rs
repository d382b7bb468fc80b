//! A scheduler's drafter: asks it, times it, and notes what came of its drafts.

use std::time::Instant;

use crate::error::EngineError;
use crate::job::Job;
use crate::load::Engine;
use crate::spec::{DraftModel, Drafter, Pool, SpecMode, SpecOptions, StepCost};

/// Runs of tokens that an n-gram pool remembers.
const POOL: usize = 1 << 16;

enum Source {
    Nobody,
    Ngram(Pool),
    Custom(Box<dyn Drafter>),
    /// The head lies in the engine.
    Head,
    Model(Box<DraftModel>),
}

/// The drafter of a scheduler and its record.
pub(crate) struct Drafting {
    options: SpecOptions,
    source: Source,
    step: StepCost,
    /// Seconds that a drafted token took lately.
    seconds: f64,
}

impl Drafting {
    /// The drafter that the engine was loaded for.
    pub fn new(engine: &Engine) -> Drafting {
        let options = engine.spec();
        let source = match options.mode {
            SpecMode::Ngram => Source::Ngram(Pool::new(POOL)),
            SpecMode::Mtp => Source::Head,
            _ => Source::Nobody,
        };
        Drafting { options, source, step: StepCost::default(), seconds: 0.0 }
    }

    /// Uses a drafter of the caller's.
    pub fn set_custom(&mut self, drafter: Box<dyn Drafter>) {
        assert_eq!(self.options.mode, SpecMode::Custom, "the engine was loaded for another drafter");
        self.source = Source::Custom(drafter);
    }

    /// Uses a draft model.
    pub fn set_model(&mut self, model: Engine) {
        assert_eq!(self.options.mode, SpecMode::Draft, "the engine was loaded for another drafter");
        self.source = Source::Model(Box::new(DraftModel::new(model)));
    }

    /// A job lost its sequence: its mirror ends too, and a head has nothing to go on from.
    pub fn close(&mut self, job: &mut Job) {
        job.guesses.hidden.clear();
        if let (Source::Model(model), Some(mirror)) = (&mut self.source, job.guesses.mirror.take()) {
            model.close(mirror);
        }
    }

    /// How many tokens, of `most`, are to be guessed for a job, in a step where `decoding` jobs decode.
    pub fn choose(&self, job: &mut Job, most: usize, decoding: usize) -> usize {
        let most = most.min(self.options.longest());
        match self.source {
            Source::Nobody => 0,
            // Until a step has given the hidden row of its last token.
            Source::Head if job.guesses.hidden.is_empty() => 0,
            _ if most == 0 => 0,
            _ => job.guesses.acceptance.choose(self.options.length, most, &self.step, decoding, self.seconds),
        }
    }

    /// Makes the drafts of the next step, each within its job's room.
    ///
    /// # Errors
    /// A device is lost.
    pub fn propose(&mut self, engine: &mut Engine, jobs: &mut [Job]) -> Result<(), EngineError> {
        let start = Instant::now();
        jobs.iter_mut().for_each(|j| j.guesses.draft.clear());
        let drafted = match &mut self.source {
            Source::Nobody => return Ok(()),
            Source::Ngram(pool) => {
                jobs.iter_mut().for_each(|j| by_ngrams(pool, j));
                Ok(())
            }
            Source::Custom(drafter) => {
                jobs.iter_mut().for_each(|j| by_caller(&mut **drafter, j));
                Ok(())
            }
            Source::Head => by_head(engine, jobs),
            Source::Model(model) => model.propose(jobs),
        };
        if matches!(self.source, Source::Head | Source::Model(_)) {
            jobs.iter_mut().for_each(Job::settle);
        }
        drafted?;
        let n_vocab = engine.info().n_vocab;
        for g in jobs.iter_mut().map(|j| &mut j.guesses) {
            let known = g.draft.iter().take(g.room).take_while(|id| (**id as usize) < n_vocab).count();
            g.draft.truncate(known);
        }
        self.note_draft(jobs, start.elapsed().as_secs_f64());
        Ok(())
    }

    fn note_draft(&mut self, jobs: &[Job], seconds: f64) {
        let drafted = drafted(jobs);
        if drafted > 0 {
            let each = seconds / drafted as f64;
            self.seconds = if self.seconds == 0.0 { each } else { self.seconds * 0.9 + each * 0.1 };
        }
    }

    /// Notes how long a step took in which nothing but decoding was done.
    pub fn note_step(&mut self, jobs: &[Job], seconds: f64) {
        if jobs.iter().all(|j| j.share == 1 && j.left() == 1 && j.has_said()) {
            self.step.note(jobs.len() + drafted(jobs), seconds);
        }
    }
}

fn drafted(jobs: &[Job]) -> usize {
    jobs.iter().map(|j| j.guesses.draft.len()).sum()
}

fn by_ngrams(pool: &mut Pool, job: &mut Job) {
    let g = &mut job.guesses;
    let index = g.index.as_mut().expect("made with the job");
    index.note(&job.ids, job.domain, pool);
    index.propose(&job.ids, job.domain, pool, g.room, &mut g.draft);
}

fn by_caller(drafter: &mut dyn Drafter, job: &mut Job) {
    if job.guesses.room > 0 {
        drafter.propose(&job.ids, job.guesses.room, &mut job.guesses.draft);
    }
}

/// One guess for every job a run, as long as one has room.
fn by_head(engine: &mut Engine, jobs: &mut [Job]) -> Result<(), EngineError> {
    let head = engine.head.as_mut().expect("an engine that drafts by its head");
    let memory = &engine.memory;
    let longest = jobs.iter().map(|j| j.guesses.room).max().unwrap_or(0);
    for depth in 0..longest {
        let goes_on = |j: &Job| j.guesses.room > depth && j.guesses.draft.len() == depth;
        head.begin();
        for j in jobs.iter_mut().filter(|j| goes_on(j)) {
            if !j.may_guess() {
                continue;
            }
            let id = *j.guesses.draft.last().or(j.ids.last()).expect("a prompt has tokens");
            let pages = memory.page_table(j.seq(), head.group);
            head.feed(id, j.ids.len() - 1 + depth, pages, &j.guesses.hidden, &j.sampler)?;
        }
        if !head.run()? {
            return Ok(());
        }
        // Those that may not guess have no room any more.
        for (row, j) in jobs.iter_mut().filter(|j| goes_on(j)).enumerate() {
            if let Some((id, hidden)) = head.guess(row) {
                j.guesses.set_hidden(hidden);
                j.guess(id);
            }
        }
    }
    Ok(())
}
