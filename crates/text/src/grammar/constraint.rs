//! A grammar at work on one sequence.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use firth_sampling::{Constraint, ConstraintError, Verdict, Watch};
use llguidance::Matcher;

/// How far back masks are kept: beyond the longest draft.
const KEPT: usize = 64;

/// Keeps a sequence to a grammar.
///
/// Masks of the last tokens are kept, so that a draft, which is tried, taken back and verified, costs each mask once.
/// They are functions of the tokens so far: the same with and without drafts.
pub struct GrammarConstraint {
    matcher: Matcher,
    n_vocab: usize,
    /// The prefixes of the last tokens, and those of a draft that was taken back.
    kept: Vec<Kept>,
    /// The present prefix, in `kept`.
    at: usize,
    /// Words that no mask uses.
    spare: Vec<Vec<u32>>,
    failed: Option<String>,
    complete: Arc<AtomicBool>,
}

/// A prefix: the token it ends with, and its mask once that was asked for.
struct Kept {
    id: u32,
    mask: Option<Vec<u32>>,
}

#[derive(Debug, thiserror::Error)]
#[error("grammar: {0}")]
struct Failure(String);

impl GrammarConstraint {
    pub(super) fn new(matcher: Matcher, n_vocab: usize) -> GrammarConstraint {
        let kept = vec![Kept { id: u32::MAX, mask: None }];
        GrammarConstraint {
            matcher,
            n_vocab,
            kept,
            at: 0,
            spare: Vec::new(),
            failed: None,
            complete: Arc::new(AtomicBool::new(false)),
        }
    }

    /// A constraint of its own, after the same tokens: as for several answers to one request.
    pub fn fork(&self) -> GrammarConstraint {
        let mut fork = GrammarConstraint::new(self.matcher.deep_clone(), self.n_vocab);
        fork.failed.clone_from(&self.failed);
        fork.note_end();
        fork
    }

    /// Ends the generation where the grammar is complete and nothing can follow, without an end token.
    pub fn watch(&self) -> GrammarWatch {
        GrammarWatch { complete: self.complete.clone() }
    }

    fn fail(&mut self, reason: String) -> ConstraintError {
        // Reasons can be as long as the grammar, and hold traces.
        let first: String = reason.lines().next().unwrap_or_default().chars().take(400).collect();
        self.failed = Some(first.clone());
        ConstraintError::Failed(Box::new(Failure(first)))
    }

    fn check(&self) -> Result<(), ConstraintError> {
        match &self.failed {
            Some(reason) => Err(ConstraintError::Failed(Box::new(Failure(reason.clone())))),
            None => Ok(()),
        }
    }

    /// Forgets prefixes that no draft goes back to.
    fn trim(&mut self) {
        if self.at < 2 * KEPT {
            return;
        }
        let n = self.at - KEPT;
        self.spare.extend(self.kept.drain(..n).filter_map(|k| k.mask));
        self.spare.truncate(KEPT);
        self.at -= n;
    }

    fn forget_after(&mut self) {
        let gone = self.kept.drain(self.at + 1..);
        self.spare.extend(gone.filter_map(|k| k.mask));
    }

    fn note_end(&mut self) {
        self.complete.store(self.matcher.is_stopped() && !self.matcher.is_error(), Ordering::Relaxed);
    }
}

impl Constraint for GrammarConstraint {
    fn mask(&mut self, out: &mut [u32]) -> Result<(), ConstraintError> {
        self.check()?;
        if let Some(mask) = &self.kept[self.at].mask {
            copy(mask, out);
        } else {
            let mask = match self.matcher.compute_mask_or_eos() {
                Ok(mask) => mask,
                Err(e) if is_dead_end(&self.matcher) => {
                    self.fail(e.to_string());
                    return Err(ConstraintError::NoContinuation);
                }
                Err(e) => return Err(self.fail(e.to_string())),
            };
            let mut words = self.spare.pop().unwrap_or_default();
            words.clear();
            words.extend_from_slice(mask.as_slice());
            copy(&words, out);
            self.kept[self.at].mask = Some(words);
        }
        match out.iter().all(|w| *w == 0) {
            true => Err(ConstraintError::NoContinuation),
            false => Ok(()),
        }
    }

    fn accept(&mut self, id: u32) -> Result<(), ConstraintError> {
        self.check()?;
        if id as usize >= self.n_vocab {
            return Err(ConstraintError::Refused { id });
        }
        match self.matcher.try_consume_tokens(&[id]) {
            Ok(1) => {}
            Ok(_) => return Err(ConstraintError::Refused { id }),
            Err(e) => return Err(self.fail(e.to_string())),
        }
        if self.kept.get(self.at + 1).is_none_or(|next| next.id != id) {
            self.forget_after();
            self.kept.push(Kept { id, mask: None });
        }
        self.at += 1;
        self.trim();
        self.note_end();
        Ok(())
    }

    fn rollback(&mut self, n: usize) {
        if n == 0 || self.failed.is_some() {
            return;
        }
        if let Err(e) = self.matcher.rollback(n) {
            self.fail(e.to_string());
            return;
        }
        if n <= self.at {
            self.at -= n;
        } else {
            self.at = 0;
            self.kept.clear();
            self.kept.push(Kept { id: u32::MAX, mask: None });
        }
        self.note_end();
    }
}

/// Whether a matcher that failed did so because nothing can follow.
fn is_dead_end(matcher: &Matcher) -> bool {
    matcher.get_error().is_some_and(|e| e.contains("NoExtension"))
}

/// A vocabulary may have fewer tokens than the model has rows.
fn copy(mask: &[u32], out: &mut [u32]) {
    let n = mask.len().min(out.len());
    out[..n].copy_from_slice(&mask[..n]);
    out[n..].fill(0);
}

/// Ends a generation whose grammar is complete.
pub struct GrammarWatch {
    complete: Arc<AtomicBool>,
}

impl Watch for GrammarWatch {
    fn push(&mut self, ids: &[u32]) -> Verdict {
        // Constraints take tokens one by one, and watches see each right after.
        match self.complete.load(Ordering::Relaxed) {
            true => Verdict::StopAfter(ids.len()),
            false => Verdict::Continue,
        }
    }
}
