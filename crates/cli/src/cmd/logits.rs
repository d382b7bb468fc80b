//! `firth logits`: f32 logits of given ids.

use std::io::{BufWriter, Write};

use anyhow::{Context, Result};
use firth::LogitsOptions;

use crate::args::Logits;
use crate::devices::engine_options;

/// Runs the command.
pub fn logits(a: Logits) -> Result<()> {
    let text =
        std::fs::read_to_string(&a.tokens).with_context(|| format!("reading {}", a.tokens.display()))?;
    let ids: Vec<u32> = serde_json::from_str(&text)
        .with_context(|| format!("{} is no JSON array of ids", a.tokens.display()))?;
    let file = super::open(Some(&a.model), &a.common.override_kv)?;
    let mut options = engine_options(&a.common);
    let largest = a.cuts.iter().copied().max().unwrap_or(options.batch);
    options.parallel = 1 + a.mates;
    options.batch = options.batch.max(largest.min(ids.len().max(1))) + a.mates;
    options.outputs = Some(largest.clamp(1, ids.len().max(1)));
    options.cache_bytes = 0;
    let mut model = super::load(file, &a.common, &options)?;
    let out = std::fs::File::create(&a.out).with_context(|| format!("creating {}", a.out.display()))?;
    let mut out = BufWriter::new(out);
    let mut written = Ok(());
    firth::logits(model.engine(), &ids, &LogitsOptions { cuts: a.cuts, mates: a.mates }, &mut |_, row| {
        for z in row {
            if written.is_ok() {
                written = out.write_all(&z.to_le_bytes());
            }
        }
    })?;
    written.and_then(|()| out.flush()).with_context(|| format!("writing {}", a.out.display()))
}
