//! Perplexity of a text, counted as llama-perplexity does: in chunks of the context, the second half of each.

use firth_engine::{Engine, EngineError, Feed, Want};

/// How to count.
#[derive(Clone, Debug)]
pub struct PerplexityOptions {
    /// Tokens of a chunk.
    pub ctx: usize,
    /// Chunks at most; all when `None`.
    pub chunks: Option<usize>,
    /// The token that replaces the first of each chunk, where the model adds one.
    pub bos: Option<u32>,
}

/// What was counted.
#[derive(Clone, Copy, Debug)]
pub struct Perplexity {
    /// `exp` of the mean negative log-likelihood.
    pub ppl: f64,
    /// Mean negative log-likelihood.
    pub nll: f64,
    /// Predictions counted.
    pub n: usize,
    /// Chunks used.
    pub chunks: usize,
}

/// Perplexity of `ids`; `on` hears of the value after each chunk.
pub fn perplexity(
    engine: &mut Engine,
    ids: &[u32],
    options: &PerplexityOptions,
    on: &mut dyn FnMut(usize, f64),
) -> Result<Perplexity, EngineError> {
    engine.require_logits()?;
    let chunks = (ids.len() / options.ctx).min(options.chunks.unwrap_or(usize::MAX));
    let (mut nll, mut n) = (0.0, 0);
    for chunk in 0..chunks {
        let mut part = ids[chunk * options.ctx..(chunk + 1) * options.ctx].to_vec();
        if let Some(bos) = options.bos {
            part[0] = bos;
        }
        let targets = &ids[chunk * options.ctx..(chunk + 1) * options.ctx];
        one(engine, &part, targets, &mut nll, &mut n)?;
        on(chunk, (nll / n as f64).exp());
    }
    let mean = nll / n as f64;
    Ok(Perplexity { ppl: mean.exp(), nll: mean, n, chunks })
}

fn one(
    engine: &mut Engine,
    part: &[u32],
    targets: &[u32],
    nll: &mut f64,
    n: &mut usize,
) -> Result<(), EngineError> {
    let seq = engine.open(0)?;
    let first = part.len() / 2;
    let bounds = engine.bounds();
    let mut done = 0;
    let result = loop {
        if done >= part.len() {
            break Ok(());
        }
        // The first half gives no logits, so it may fill whole steps.
        let most = if done < first { bounds.t.min(first - done) } else { bounds.t.min(bounds.o) };
        let rows = most.min(part.len() - done);
        let want = if done < first { Want::None } else { Want::All };
        let feed = Feed { seq, ids: &part[done..done + rows], embeds: None, want, sampler: None };
        if let Err(e) = engine.step(&[feed]) {
            break Err(e);
        }
        if want == Want::All {
            for o in 0..rows.min(part.len() - 1 - done) {
                *nll += surprise(engine.logits(0, o), targets[done + o + 1]);
                *n += 1;
            }
        }
        done += rows;
    };
    engine.close(seq);
    result
}

/// `-ln p(id)` in f64.
fn surprise(logits: &[f32], id: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|z| f64::from(z - max).exp()).sum();
    sum.ln() - f64::from(logits[id as usize] - max)
}
