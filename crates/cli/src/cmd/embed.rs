//! `firth embed`: embeddings of texts, or the scores that a classifier gives pairs of query and document.

use std::io::{BufWriter, Read, Write};

use anyhow::{Context, Result, bail};
use firth::{EngineOptions, Model, Pooling, relevance};
use serde::Serialize;

use crate::args::{Embed, EmbedOutput};
use crate::devices::engine_options;
use crate::progress;

/// Texts whose rows share steps.
const TEXTS: usize = 8;

/// Runs the command.
pub fn embed(a: Embed) -> Result<()> {
    let texts = texts(&a)?;
    let file = super::open(Some(&a.model), &a.common.override_kv)?;
    let options = EngineOptions {
        embeddings: true,
        pooling: a.pooling,
        parallel: TEXTS.min(texts.len()).max(1),
        cache_bytes: 0,
        ..engine_options(&a.common)
    };
    let mut model = super::load(file, &a.common, &options)?;
    let kind = model.engine().embedding().context("a model loaded for embeddings has them")?;
    let scores = kind.pooling == Pooling::Rank;
    if a.dimensions.is_some_and(|n| n == 0 || n > kind.width) {
        bail!("--dimensions is {}, expected 1 to {}", a.dimensions.unwrap_or_default(), kind.width);
    }
    let ids = texts.iter().map(|text| prompt(&model, text, scores)).collect::<Result<Vec<_>>>()?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    for (i, e) in model.embed(ids, &mut progress::go_on)?.into_iter().enumerate() {
        let e = if scores { e } else { e.shaped(a.dimensions, a.normalize) };
        if a.output == EmbedOutput::Raw {
            e.numbers.iter().try_for_each(|x| out.write_all(&x.to_le_bytes()))?;
            continue;
        }
        let mut line = Line { index: i, tokens: e.n_tokens, ..Line::default() };
        match () {
            () if scores => (line.score, line.scores) = (Some(relevance(&e)), Some(&e.numbers[..])),
            () if kind.pooling == Pooling::None => line.embeddings = Some(e.rows().collect()),
            () => line.embedding = Some(&e.numbers),
        }
        serde_json::to_writer(&mut out, &line)?;
        writeln!(out)?;
    }
    out.flush().context("writing the embeddings")
}

/// What is said of a text.
#[derive(Default, Serialize)]
struct Line<'a> {
    index: usize,
    tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    embedding: Option<&'a [f32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    embeddings: Option<Vec<&'a [f32]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scores: Option<&'a [f32]>,
}

/// One text, all of a file, or the lines of stdin.
fn texts(a: &Embed) -> Result<Vec<String>> {
    if let Some(text) = &a.prompt {
        return Ok(vec![text.clone()]);
    }
    if let Some(path) = &a.file {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        return Ok(vec![text]);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("reading stdin")?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// The tokens of a text; of a query and a document with a tab between them, where they are to be judged.
fn prompt(model: &Model, text: &str, pair: bool) -> Result<Vec<u32>> {
    if !pair {
        return Ok(model.raw_prompt(text)?.ids);
    }
    let Some((query, document)) = text.split_once('\t') else {
        bail!("`{text}` is no pair: this model judges a query and a document, with a tab between them");
    };
    Ok(model.text().pair_prompt(query, document)?)
}
