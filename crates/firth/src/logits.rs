//! Logits of given tokens, however the steps are cut and whoever shares them.

use firth_engine::{Engine, EngineError, Feed, Want};

/// How to compute logits.
#[derive(Clone, Debug, Default)]
pub struct LogitsOptions {
    /// Step sizes, the last repeats; all that fits at once when empty.
    pub cuts: Vec<usize>,
    /// Other sequences that decode in the same steps.
    pub mates: usize,
}

/// Runs `ids` as one sequence and hands each row `[vocab]` to `on`, in order.
///
/// Mates are sequences of their own, fed with other tokens in the same steps; they never show in the result.
pub fn logits(
    engine: &mut Engine,
    ids: &[u32],
    options: &LogitsOptions,
    on: &mut dyn FnMut(usize, &[f32]),
) -> Result<(), EngineError> {
    engine.require_logits()?;
    let seq = engine.open(0)?;
    let mut mates = Vec::new();
    for _ in 0..options.mates {
        mates.push(engine.open(0)?);
    }
    let result = run(engine, seq, &mates, ids, options, on);
    mates.into_iter().chain([seq]).for_each(|s| engine.close(s));
    result
}

fn run(
    engine: &mut Engine,
    seq: firth_engine::Seq,
    mates: &[firth_engine::Seq],
    ids: &[u32],
    options: &LogitsOptions,
    on: &mut dyn FnMut(usize, &[f32]),
) -> Result<(), EngineError> {
    let bounds = engine.bounds();
    let most = bounds.o.min(bounds.t.saturating_sub(mates.len())).max(1);
    let mut done = 0;
    for step in 0.. {
        if done >= ids.len() {
            break;
        }
        let cut = options.cuts.get(step).or(options.cuts.last()).copied().unwrap_or(most);
        let n = cut.clamp(1, most).min(ids.len() - done);
        // A mate says something else than the sequence, and each mate its own.
        let other = |m: usize| [ids[(done + 7 * m + 3) % ids.len()]];
        let rows: Vec<[u32; 1]> = (0..mates.len()).map(other).collect();
        let mut feeds: Vec<Feed> = Vec::with_capacity(mates.len() + 1);
        let mine = Feed { seq, ids: &ids[done..done + n], embeds: None, want: Want::All, sampler: None };
        for (m, mate) in mates.iter().enumerate() {
            let room = engine.len(*mate) < engine.ctx();
            if room {
                feeds.push(Feed { seq: *mate, ids: &rows[m], embeds: None, want: Want::None, sampler: None });
            }
        }
        // The sequence's place among its mates moves from step to step.
        let place = if feeds.is_empty() { 0 } else { step % (feeds.len() + 1) };
        feeds.insert(place, mine);
        engine.step(&feeds)?;
        for o in 0..n {
            on(done + o, engine.logits(place, o));
        }
        done += n;
    }
    Ok(())
}
