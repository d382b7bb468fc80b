//! What came of requests, for tests that compare answers.

use std::ops::ControlFlow;

use firth_engine::{Event, Request, Scheduler, StopReason, Timings};
use firth_sampling::{Constraint, ConstraintError};

/// An answer that came to its end.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its tokens.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub stop: StopReason,
    /// Counts, the rows that its prompt took among them.
    pub timings: Timings,
}

/// Runs requests side by side to their ends, in their order.
pub fn answers(s: &mut Scheduler, requests: Vec<Request>) -> Vec<Answer> {
    let jobs: Vec<_> = requests.into_iter().map(|r| s.submit(r).expect("a fair request")).collect();
    let mut ids = vec![Vec::new(); jobs.len()];
    let mut ends = vec![None; jobs.len()];
    s.run_all(&mut |job, event| {
        let at = jobs.iter().position(|j| *j == job).expect("one of ours");
        match event {
            Event::Token(id) => ids[at].push(id),
            Event::Done(f) => ends[at] = Some(f),
            Event::Failed(e) => panic!("request {at}: {e}"),
            _ => {}
        }
        ControlFlow::Continue(())
    })
    .expect("the device works");
    let answer = |(ids, end): (Vec<u32>, Option<firth_engine::Finished>)| {
        let end = end.expect("an end");
        Answer { ids, stop: end.stop, timings: end.timings }
    };
    ids.into_iter().zip(ends).map(answer).collect()
}

/// Runs one request to its end.
pub fn answer(s: &mut Scheduler, request: Request) -> Answer {
    answers(s, vec![request]).pop().expect("one answer")
}

/// Allows one text and nothing else.
struct Fixed {
    ids: Vec<u32>,
    said: usize,
}

impl Constraint for Fixed {
    fn mask(&mut self, out: &mut [u32]) -> Result<(), ConstraintError> {
        out.fill(0);
        if let Some(id) = self.ids.get(self.said) {
            out[*id as usize / 32] |= 1 << (id % 32);
        }
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<(), ConstraintError> {
        match self.ids.get(self.said) == Some(&id) {
            true => self.said += 1,
            false => return Err(ConstraintError::Refused { id }),
        }
        Ok(())
    }

    fn rollback(&mut self, n: usize) {
        self.said -= n;
    }
}

/// A request whose answer is given.
pub fn fixed(mut request: Request, reply: Vec<u32>) -> Request {
    request.max_tokens = reply.len();
    request.end_ids.clear();
    request.constraint = Some(Box::new(Fixed { ids: reply, said: 0 }));
    request
}
