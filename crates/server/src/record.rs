//! Generations in files, to be run again: the same fingerprint, seed and prompt give the same tokens.

use std::path::Path;
use std::sync::Arc;

use firth::{Params, StopReason};
use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{Generation, Reading};
use crate::structured::Rule;

/// A generation and its answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// `system_fingerprint` of the server.
    pub fingerprint: String,
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Which of the answers to one prompt it was.
    pub choice: u32,
    /// The seed of its random numbers.
    pub seed: u64,
    /// How it was sampled, with all defaults filled in.
    pub fields: Fields,
    /// What it was kept to.
    pub rule: Option<Rule>,
    /// How it was read: the end of the prompt's text where thoughts and calls were told from the answer.
    pub tail: Option<String>,
    /// Tokens of the answer.
    pub answer: Vec<u32>,
    /// How it ended.
    pub stop_type: String,
}

impl Record {
    /// Of a generation that has no answer yet.
    pub fn new(app: &App, g: &Generation, choice: u32) -> Record {
        Record {
            fingerprint: app.fingerprint.clone(),
            prompt: g.ids.clone(),
            choice,
            seed: g.sampling.params.seed,
            fields: g.sampling.fields(),
            rule: g.rule.clone(),
            tail: g.reading.as_ref().map(|r| r.tail.clone()),
            answer: Vec::new(),
            stop_type: String::new(),
        }
    }

    /// The generation, to be run again.
    ///
    /// # Errors
    /// Fields that mean nothing to this model.
    fn generation(&self, app: &App) -> Result<Generation, ApiError> {
        let vocab = app.service.text().vocab();
        let mut sampling = self.fields.sampling(vocab, &Params::default(), 1)?;
        sampling.params.seed = self.seed;
        sampling.cache = false;
        let reading = |tail: &String| Reading { format: app.format, tail: tail.clone(), tools: Vec::new() };
        Ok(Generation {
            reading: self.tail.as_ref().map(reading),
            rule: self.rule.clone(),
            first_choice: self.choice,
            ..Generation::new(self.prompt.clone(), sampling)
        })
    }

    /// An answer has ended. One that the clock ended is as long as it was, whatever the clock says next time.
    pub fn end(&mut self, stop: StopReason, by_clock: bool) {
        self.stop_type = stop.as_str().to_owned();
        if by_clock {
            self.fields.n_predict = Some(self.answer.len() as i64);
        }
    }

    /// Writes the record into a folder, under a name of its own.
    pub fn write(&self, folder: &Path, task: u64) {
        let name = format!("{}-{task:06}.json", crate::shape::now());
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        if let Err(e) = std::fs::write(folder.join(&name), text) {
            tracing::warn!("{name} cannot be recorded: {e}");
        }
    }
}

/// What came of running a record again.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// The text of the answer.
    pub text: String,
    /// What differs from the record; `None` where all is the same.
    pub difference: Option<String>,
}

/// Runs a record again.
///
/// # Errors
/// The engine refuses it.
pub async fn replay(app: &Arc<App>, record: &Record) -> Result<Replayed, ApiError> {
    let mut choices = app.start(record.generation(app)?).await?;
    let whole = choices.remove(0).whole().await?;
    let text = app.service.text().vocab().decode_text(&whole.ids, false);
    let same = whole.ids.iter().zip(&record.answer).take_while(|(a, b)| a == b).count();
    let difference = if record.fingerprint != app.fingerprint {
        let (found, expected) = (&app.fingerprint, &record.fingerprint);
        Some(format!("the fingerprint is {found}, the record's {expected}"))
    } else if same < whole.ids.len().max(record.answer.len()) {
        Some(format!("the answers differ from token {same} on"))
    } else if whole.end.stop.as_str() != record.stop_type {
        Some(format!("it ended by {}, the record by {}", whole.end.stop.as_str(), record.stop_type))
    } else {
        None
    };
    Ok(Replayed { text, difference })
}
