//! Speculation: drafters guess tokens, the next step verifies them as ordinary rows, and what the sampler draws
//! decides. So it never shows in the output; it only saves steps.

mod drafting;
mod guesses;
mod head;
mod length;
mod model;
mod ngram;

pub(crate) use drafting::Drafting;
pub(crate) use guesses::Guesses;
pub(crate) use head::Head;
pub use length::DraftLength;
pub(crate) use length::{Acceptance, StepCost};
pub(crate) use model::DraftModel;
pub(crate) use ngram::{Index, Pool};

use firth_models::ModelInfo;

use crate::error::EngineError;

/// Who drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpecMode {
    /// Nobody.
    #[default]
    None,
    /// The model's own head where the file has one, else nobody.
    Auto,
    /// The model's own multi-token head.
    Mtp,
    /// Text that was there before.
    Ngram,
    /// Another, smaller model.
    Draft,
    /// What the caller brings ([`Scheduler::set_drafter`](crate::Scheduler::set_drafter)).
    Custom,
}

/// Longest draft that can be asked for.
const MAX_DRAFT: usize = 64;

/// How a model is loaded to speculate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpecOptions {
    /// Who drafts.
    pub mode: SpecMode,
    /// The longest draft.
    pub max: usize,
    /// How lengths are chosen.
    pub length: DraftLength,
}

impl Default for SpecOptions {
    fn default() -> Self {
        SpecOptions { mode: SpecMode::None, max: 3, length: DraftLength::Adaptive }
    }
}

impl SpecOptions {
    /// What it comes to for a model.
    ///
    /// # Errors
    /// The model has no head that could draft.
    pub(crate) fn resolve(self, info: &ModelInfo) -> Result<SpecOptions, EngineError> {
        let mode = match (self.mode, info.draft) {
            (SpecMode::Auto, Some(_)) => SpecMode::Mtp,
            (SpecMode::Auto, None) => SpecMode::None,
            (SpecMode::Mtp, None) => {
                return Err(EngineError::Option {
                    option: "spec",
                    found: format!("mtp, and this {} has no multi-token head", info.arch),
                    expected: "none, ngram or draft".into(),
                });
            }
            (mode, _) => mode,
        };
        if !(1..=MAX_DRAFT).contains(&self.max) {
            let (found, expected) = (self.max.to_string(), format!("1 to {MAX_DRAFT}"));
            return Err(EngineError::Option { option: "spec-max", found, expected });
        }
        Ok(SpecOptions { mode, ..self })
    }

    /// The longest draft that a step verifies.
    pub fn longest(&self) -> usize {
        if self.mode == SpecMode::None { 0 } else { self.max }
    }
}

/// Guesses how a sequence goes on, by its tokens alone.
pub trait Drafter: Send {
    /// Appends up to `n` tokens to `draft` that may follow `ids`.
    fn propose(&mut self, ids: &[u32], n: usize, draft: &mut Vec<u32>);
}
