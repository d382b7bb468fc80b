//! `firth imatrix`: what each weight of a model is multiplied with, for `firth quantize --imatrix`.

use anyhow::{Context, Result, bail};
use firth::{Imatrix, ImatrixOptions};
use firth_text::Encode;

use crate::args;
use crate::devices::engine_options;

/// Runs the command.
pub fn imatrix(a: args::Imatrix) -> Result<()> {
    let text = std::fs::read_to_string(&a.file).with_context(|| format!("reading {}", a.file.display()))?;
    let file = super::open(Some(&a.model), &a.common.override_kv)?;
    let mut options = engine_options(&a.common);
    options.ctx = Some(a.c);
    options.observe = true;
    options.cache_bytes = 0;
    if a.process_output {
        options.outputs = Some(a.c.min(options.batch));
    }
    let mut model = super::load(file, &a.common, &options)?;
    let ids = model.vocab().encode(&text, Encode { add_special: true, parse_special: false })?;
    if a.c < 2 || ids.len() < a.c {
        bail!("{} tokens do not fill one chunk of {}", ids.len(), a.c);
    }
    let bos = if model.vocab().add_bos() { model.vocab().bos() } else { None };
    let options = ImatrixOptions { ctx: a.c, chunks: a.chunks, bos, output: a.process_output };
    let of = (ids.len() / a.c).min(a.chunks.unwrap_or(usize::MAX));
    let collected = Imatrix::collect(model.engine(), &ids, &options, &mut |chunk| {
        eprintln!("chunk {} of {of}", chunk + 1);
    })?;
    for (name, n) in collected.unseen() {
        eprintln!("firth: warning: {name}: {n} experts met no token; a longer text may reach them");
    }
    collected
        .write(&a.output, &a.file.display().to_string())
        .with_context(|| format!("writing {}", a.output.display()))?;
    eprintln!(
        "{} weights over {} chunks of {}: {}",
        collected.len(),
        collected.chunks(),
        a.c,
        a.output.display()
    );
    Ok(())
}
