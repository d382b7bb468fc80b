//! `firth perplexity`.

use anyhow::{Context, Result, bail};
use firth::PerplexityOptions;
use firth_text::Encode;
use serde_json::json;

use crate::args::Perplexity;
use crate::devices::engine_options;

/// Runs the command.
pub fn perplexity(a: Perplexity) -> Result<()> {
    let text = std::fs::read_to_string(&a.file).with_context(|| format!("reading {}", a.file.display()))?;
    let file = super::open(Some(&a.model), &a.common.override_kv)?;
    let mut options = engine_options(&a.common);
    options.ctx = Some(a.c);
    options.outputs = Some((a.c / 2).max(1));
    options.cache_bytes = 0;
    let mut model = super::load(file, &a.common, &options)?;
    let ids = model.vocab().encode(&text, Encode { add_special: true, parse_special: false })?;
    if a.c < 4 || ids.len() < a.c {
        bail!("{} tokens do not fill one chunk of {}", ids.len(), a.c);
    }
    let bos = if model.vocab().add_bos() { model.vocab().bos() } else { None };
    let options = PerplexityOptions { ctx: a.c, chunks: a.chunks, bos };
    let p = firth::perplexity(model.engine(), &ids, &options, &mut |chunk, ppl| {
        if !a.json {
            println!("chunk {}: {ppl:.4}", chunk + 1);
        }
    })?;
    match a.json {
        true => super::print_json(&json!({"ppl": p.ppl, "nll": p.nll, "n": p.n, "chunks": p.chunks})),
        false => {
            println!("perplexity {:.4} over {} predictions in {} chunks", p.ppl, p.n, p.chunks);
            Ok(())
        }
    }
}
