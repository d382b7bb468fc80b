//! Goldens of embedding models: small models with random weights and what Hugging Face transformers makes of a text.
//! `cargo xtask embedding-goldens` writes them.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use firth::{Dtype, EngineOptions, Event, Pooling, Request};
use firth_cpu::Level;
use firth_engine::{Engine, EngineError, Scheduler};
use firth_gguf::Gguf;
use serde_json::Value as Json;

use crate::{fixture, models};

/// A model, a text, and its embeddings by pooling.
pub struct Golden {
    /// The model file.
    pub file: Arc<Gguf>,
    /// Tokens of the text.
    pub tokens: Vec<u32>,
    /// What each pooling gives: rows as they are, an embedding of length 1, scores.
    pub outputs: Vec<(Pooling, Vec<f32>)>,
}

/// Where they lie.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens/embeddings")
}

impl Golden {
    /// Reads `NAME.json` and `NAME.f32` of a folder.
    pub fn read(dir: &Path, name: &str) -> Golden {
        let text = std::fs::read_to_string(dir.join(format!("{name}.json"))).expect("a description");
        let json: Json = serde_json::from_str(&text).expect("a golden is JSON");
        let fixture::Fixture { file, tokens, logits: numbers } = fixture::read(dir, name);
        let mut rest = &numbers[..];
        let output = |o: &Json| {
            let pooling = o["pooling"].as_str().and_then(Pooling::by_name).expect("a pooling");
            let (these, others) = rest.split_at(o["n"].as_u64().expect("a count") as usize);
            rest = others;
            (pooling, these.to_vec())
        };
        let outputs = json["outputs"].as_array().expect("outputs").iter().map(output).collect();
        assert!(rest.is_empty(), "{name}: numbers that no output lists");
        Golden { file, tokens, outputs }
    }

    /// Settings for its text.
    pub fn options(&self, pooling: Pooling) -> EngineOptions {
        EngineOptions {
            ctx: Some(self.tokens.len() + 8),
            embeddings: true,
            pooling: Some(pooling),
            kv: Dtype::F32,
            cache_bytes: 0,
            ..EngineOptions::default()
        }
    }

    /// The largest distance of a number from the golden's, and which pooling it comes of.
    ///
    /// # Errors
    /// The model does not load or run.
    pub fn error(&self) -> Result<(f32, Pooling), EngineError> {
        let mut worst = (0.0f32, Pooling::None);
        for (pooling, expected) in &self.outputs {
            let engine = models::try_engine(&self.file, &self.options(*pooling), Level::detect(), 2)?;
            let mut found = embed(engine, &[&self.tokens])?.remove(0);
            if !matches!(pooling, Pooling::None | Pooling::Rank) {
                firth::Normalize::Euclidean.apply(&mut found);
            }
            assert_eq!(found.len(), expected.len(), "numbers of {}", pooling.name());
            for (a, b) in found.iter().zip(expected) {
                let e = (a - b).abs();
                if e > worst.0 || e.is_nan() {
                    worst = (e, *pooling);
                }
            }
        }
        Ok(worst)
    }
}

/// Embeddings of texts, unscaled.
///
/// # Errors
/// What the engine says of a text.
pub fn embed(engine: Engine, texts: &[&[u32]]) -> Result<Vec<Vec<f32>>, EngineError> {
    let mut scheduler = Scheduler::new(engine);
    let mut jobs = Vec::new();
    for text in texts {
        jobs.push(scheduler.submit(Request::embedding(text.to_vec()))?);
    }
    let mut out = vec![Vec::new(); texts.len()];
    let mut failed = None;
    scheduler.run_all(&mut |job, event| {
        let at = jobs.iter().position(|j| *j == job).expect("a job of these");
        match event {
            Event::Embedding(numbers) => out[at] = numbers,
            Event::Failed(e) => failed = Some(e),
            _ => {}
        }
        ControlFlow::Continue(())
    })?;
    failed.map_or(Ok(out), Err)
}
