//! Generations in files, to be run again: the same fingerprint, seed and prompt give the same tokens.

use std::path::Path;
use std::sync::Arc;

use firth::Params;
use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Sampling;
use crate::generation::{Generation, Reading};

/// A generation and its answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// `system_fingerprint` of the server.
    pub fingerprint: String,
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Which of the answers to one prompt it was.
    pub choice: u32,
    /// Whether thoughts and calls were read.
    pub reads: bool,
    /// Tokens at most.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// Whether end tokens were passed over.
    pub ignore_eos: bool,
    seed: u64,
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    repeat_penalty: f32,
    frequency_penalty: f32,
    presence_penalty: f32,
    penalty_last_n: u32,
    /// Ids with the bits of their biases, of which some are infinite.
    bias: Vec<(u32, u32)>,
    /// Whether a grammar held or samplers of the host took part, which are not recorded.
    pub constrained: bool,
    /// Tokens of the answer.
    pub answer: Vec<u32>,
    /// How it ended.
    pub stop_type: String,
}

impl Record {
    /// Of a generation that has no answer yet.
    pub fn new(app: &App, g: &Generation, choice: u32) -> Record {
        let (s, p) = (&g.sampling, &g.sampling.params);
        Record {
            fingerprint: app.fingerprint.clone(),
            prompt: g.ids.clone(),
            choice,
            reads: g.reading.is_some(),
            max_tokens: s.max_tokens,
            stop: s.stop.clone(),
            ignore_eos: s.ignore_eos,
            seed: p.seed,
            temperature: p.temperature,
            top_k: p.top_k,
            top_p: p.top_p,
            min_p: p.min_p,
            repeat_penalty: p.repeat_penalty,
            frequency_penalty: p.frequency_penalty,
            presence_penalty: p.presence_penalty,
            penalty_last_n: p.penalty_last_n,
            bias: p.bias.iter().map(|(id, b)| (*id, b.to_bits())).collect(),
            constrained: g.rule.is_some() || p.needs_host(),
            answer: Vec::new(),
            stop_type: String::new(),
        }
    }

    /// The generation, to be run again.
    fn generation(&self, app: &App) -> Generation {
        let params = Params {
            seed: self.seed,
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            penalty_last_n: self.penalty_last_n,
            bias: self.bias.iter().map(|(id, bits)| (*id, f32::from_bits(*bits))).collect(),
            ..Params::default()
        };
        let sampling = Sampling {
            params,
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
            n: 1,
            cache: false,
        };
        let reading = || Reading { format: app.format, tail: String::new(), tools: Vec::new() };
        Generation {
            reading: self.reads.then(reading),
            first_choice: self.choice,
            ..Generation::new(self.prompt.clone(), sampling)
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
/// It was made under a grammar, or the engine refuses.
pub async fn replay(app: &Arc<App>, record: &Record) -> Result<Replayed, ApiError> {
    if record.constrained {
        return Err(ApiError::unsupported(
            "the record was made under a grammar or by samplers of the host, which it does not hold",
        ));
    }
    let mut choices = app.start(record.generation(app)).await?;
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
