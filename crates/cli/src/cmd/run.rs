//! `firth run`: one answer, streamed.

use std::io::{IsTerminal, Read, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use firth::{Answer, ChatOptions, GenerateOptions, Grammar, Message, Model, OutputFormat, Stores};
use serde_json::json;

use crate::args::Run;
use crate::progress::{go_on, listen};

/// Runs the command.
pub fn run(a: Run) -> Result<()> {
    let (model, prompt) = words(&a)?;
    let file = super::open(model.as_deref(), &a.talk.common.override_kv)?;
    let mut model = super::load_to_talk(file, &a.talk, 1)?;
    let prompt = prompt_of(&model, &a, &prompt)?;
    let prompt_ids = prompt.ids.clone();
    let options = GenerateOptions {
        params: Some(super::sampling::params(&model, &a.talk.sampling)?),
        max_tokens: a.n,
        stop: a.talk.sampling.stop.clone(),
        ignore_eos: a.talk.sampling.ignore_eos,
        grammar: grammar(&a)?,
        format: if a.raw { OutputFormat::PLAIN } else { model.output_format() },
    };
    let mut out = std::io::stdout().lock();
    let listening = listen();
    let answer = model.generate(prompt, &options, &mut |text| {
        if !a.json && !text.is_empty() {
            // A reader that has gone away ends the answer.
            if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
                return std::ops::ControlFlow::Break(());
            }
        }
        go_on()
    })?;
    drop(listening);
    match a.json {
        true => super::print_json(&to_json(&answer, &prompt_ids)),
        false => Ok(writeln!(out)?),
    }
}

/// MODEL and PROMPT from the words: two are both; one is a model when it names a file, else a prompt.
fn words(a: &Run) -> Result<(Option<String>, String)> {
    let from_file = match &a.file {
        Some(path) => {
            Some(std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?)
        }
        None => None,
    };
    match (&a.words[..], from_file) {
        ([model, prompt], None) => Ok((Some(model.clone()), prompt.clone())),
        ([_, _], Some(_)) => bail!("a prompt on the command line and one by -f; give one of them"),
        ([word], Some(text)) => Ok((Some(word.clone()), text)),
        ([word], None) if is_model(word) => Ok((Some(word.clone()), stdin()?)),
        ([word], None) => Ok((None, word.clone())),
        ([], Some(text)) => Ok((None, text)),
        ([], None) => Ok((None, stdin()?)),
        _ => bail!("expected [MODEL] [PROMPT]"),
    }
}

fn is_model(word: &str) -> bool {
    let named = || !word.contains(char::is_whitespace) && Stores::of_this_machine().find(word).is_ok();
    Path::new(word).is_file() || word.ends_with(".gguf") || named()
}

fn stdin() -> Result<String> {
    if std::io::stdin().is_terminal() {
        bail!("no prompt; give one as an argument, with -f FILE, or on stdin");
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("reading the prompt from stdin")?;
    Ok(text)
}

fn prompt_of(model: &Model, a: &Run, text: &str) -> Result<firth::Prompt> {
    if a.raw {
        return Ok(model.raw_prompt(text)?);
    }
    if !model.has_template() {
        eprintln!("firth: the model has no chat template; the prompt is used as it is");
        return Ok(model.raw_prompt(text)?);
    }
    Ok(model.chat_prompt(&[Message::user(text)], &ChatOptions::default())?)
}

/// What the answer is kept to.
fn grammar(a: &Run) -> Result<Option<Grammar>> {
    let read =
        |path: &Path| std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()));
    match (&a.json_schema, &a.grammar) {
        (Some(path), _) => {
            let schema = serde_json::from_str(&read(path)?);
            Ok(Some(Grammar::JsonSchema(schema.with_context(|| format!("{} is no JSON", path.display()))?)))
        }
        (None, Some(path)) if path.extension().is_some_and(|e| e == "lark") => {
            Ok(Some(Grammar::Lark(read(path)?)))
        }
        (None, Some(path)) => Ok(Some(Grammar::from_gbnf(&read(path)?)?)),
        (None, None) => Ok(None),
    }
}

fn to_json(a: &Answer, prompt_ids: &[u32]) -> serde_json::Value {
    let t = &a.finished.timings;
    let rate = |n: usize, seconds: f64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
    json!({
        "text": a.text,
        "prompt_ids": prompt_ids,
        "ids": a.ids,
        "stop": a.finished.stop.as_str(),
        "timings": {
            "prompt_n": t.prompt_n,
            "prompt_per_second": rate(t.prompt_n, t.prompt_seconds),
            "predicted_n": t.predicted_n,
            // The first token comes with the prompt; the time counts from it.
            "predicted_per_second": rate(t.predicted_n.saturating_sub(1), t.predicted_seconds),
            "draft_n": t.draft_n,
            "draft_n_accepted": t.draft_n_accepted,
            "cached_n": t.cached_n,
        },
    })
}
