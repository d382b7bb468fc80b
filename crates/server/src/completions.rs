//! `POST /v1/completions`: text goes on, with echo and log probabilities of the prompt.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use firth::Logprobs;
use firth::text::Vocab;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::app::{App, By};
use crate::body::{prompts, read};
use crate::error::ApiError;
use crate::fields::{Fields, range};
use crate::generation::{Choice, Delta, End, Generation, Piece, Whole};
use crate::shape::{self, Legacy};
use crate::stream::{Form, event, sse};
use crate::structured::Rule;
use crate::tokens::encode;

/// A request for a completion; the fields of [`Fields`] stand beside these.
#[derive(Debug, Deserialize, Serialize, utoipa::ToSchema)]
pub struct CompletionRequest {
    /// Ignored: one model is served.
    pub model: Option<String>,
    /// Text, token ids, or several of those.
    #[schema(value_type = Object)]
    pub prompt: Value,
    /// Log probabilities, with so many of the likeliest tokens.
    pub logprobs: Option<i64>,
    /// Give the prompt back before the answer; with `logprobs`, those of its tokens, too.
    pub echo: Option<bool>,
    /// Not available: use /infill.
    pub suffix: Option<String>,
    /// Not available beyond `n`.
    pub best_of: Option<i64>,
}

/// Answers.
///
/// # Errors
/// Whatever is wrong with the request, before the first byte of the answer.
pub async fn completions(
    State(app): State<Arc<App>>,
    axum::Extension(caller): By,
    body: Bytes,
) -> Result<Response, ApiError> {
    let request: CompletionRequest = read(&body)?;
    let fields: Fields = read(&body)?;
    if request.suffix.as_deref().is_some_and(|s| !s.is_empty()) {
        return Err(ApiError::unsupported_field("suffix", "suffix is not available here; use /infill"));
    }
    if request.best_of.is_some_and(|b| b > fields.n.unwrap_or(1)) {
        return Err(ApiError::unsupported_field("best_of", "best_of beyond n is not available"));
    }
    let logprobs = range("logprobs", request.logprobs, 0, 128)?.map(|n| n as usize);
    let echo = request.echo.unwrap_or(false);
    let sampling = app.sampling(&fields)?;
    let vocab = app.service.text().vocab();
    let all = prompts(&request.prompt)?;
    let mut generations = Vec::with_capacity(all.len());
    for parts in &all {
        generations.push(Generation {
            logprobs,
            prompt_logprobs: echo && logprobs.is_some(),
            domain: caller.domain(fields.cache_salt.as_deref()),
            rule: Rule::of(&fields)?,
            ..Generation::new(encode(vocab, parts, true, true)?, sampling.clone())
        });
    }
    let mut form = CompletionForm::new(&app, &fields, logprobs.is_some(), echo);
    form.ids = generations.iter().map(|g| g.ids.clone()).collect();
    form.n = sampling.n;
    let choices = app.start_all(generations).await?;
    form.ends = vec![None; choices.len()];
    if fields.streams() {
        return Ok(sse(choices, form, app.options.ping));
    }
    let mut wholes = Vec::with_capacity(choices.len());
    for choice in choices {
        wholes.push(choice.whole().await?);
    }
    Ok(Json(form.whole(&wholes)).into_response())
}

struct CompletionForm {
    app: Arc<App>,
    id: String,
    created: u64,
    usage: bool,
    each_timings: bool,
    progress: bool,
    logprobs: bool,
    echo: bool,
    n_said: usize,
    /// Of each prompt.
    ids: Vec<Vec<u32>>,
    /// Answers to each prompt.
    n: usize,
    ends: Vec<Option<End>>,
}

impl CompletionForm {
    fn new(app: &Arc<App>, fields: &Fields, logprobs: bool, echo: bool) -> CompletionForm {
        CompletionForm {
            app: app.clone(),
            id: shape::new_id("cmpl-"),
            created: shape::now(),
            usage: fields.includes_usage(),
            each_timings: fields.timings_per_token.unwrap_or(false),
            progress: fields.return_progress.unwrap_or(false),
            logprobs,
            echo,
            n_said: 0,
            ids: Vec::new(),
            n: 1,
            ends: Vec::new(),
        }
    }

    fn vocab(&self) -> &Vocab {
        self.app.service.text().vocab()
    }

    fn head(&self) -> Map<String, Value> {
        let v = json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.app.name,
            "system_fingerprint": self.app.fingerprint,
        });
        v.as_object().cloned().unwrap_or_default()
    }

    /// Log probabilities of a part of an answer, and of the prompt before it where it is echoed.
    fn thoughts(&self, prompt: Option<(&[u32], &[Logprobs])>, said: &[Logprobs]) -> Value {
        let mut legacy = Legacy::default();
        if let Some((ids, thoughts)) = prompt {
            if let Some(first) = ids.first() {
                legacy.unknown(self.vocab(), *first);
            }
            thoughts.iter().for_each(|p| legacy.add(self.vocab(), p));
        }
        said.iter().for_each(|p| legacy.add(self.vocab(), p));
        legacy.finish(shape::logprobs(self.vocab(), said))
    }

    fn echoed(&self, index: usize) -> String {
        match self.echo {
            true => self.vocab().decode_text(&self.ids[index / self.n], false),
            false => String::new(),
        }
    }

    fn totals(&self, ends: &[&End]) -> (Value, Value) {
        let n_prompt = self.ids.iter().map(Vec::len).sum();
        let cached = ends.iter().step_by(self.n).map(|e| e.timings.cached_n).sum();
        let said = ends.iter().map(|e| e.timings.predicted_n).sum();
        let timings = shape::timings(&ends[0].timings, &self.ids[0], self.vocab());
        (shape::usage(n_prompt, cached, said), timings)
    }

    fn whole(&self, wholes: &[Whole]) -> Value {
        let choice = |(i, w): (usize, &Whole)| {
            // The prompt is thought about once, for its first answer.
            let of_prompt = &wholes[i / self.n * self.n].prompt_logprobs;
            let prompt = self.echo.then_some((&self.ids[i / self.n][..], &of_prompt[..]));
            let logprobs = match self.logprobs {
                true => self.thoughts(prompt, &w.logprobs),
                false => Value::Null,
            };
            json!({
                "text": self.echoed(i) + &w.output.content,
                "index": i,
                "logprobs": logprobs,
                "finish_reason": shape::finish_reason(w.end.stop, false),
            })
        };
        let mut v = self.head();
        v.insert("choices".into(), wholes.iter().enumerate().map(choice).collect());
        let ends: Vec<&End> = wholes.iter().map(|w| &w.end).collect();
        let (usage, timings) = self.totals(&ends);
        v.insert("usage".into(), usage);
        v.insert("timings".into(), timings);
        Value::Object(v)
    }

    fn chunk(&self, index: usize, text: &str, logprobs: Value, finish: Option<&str>) -> Map<String, Value> {
        let mut v = self.head();
        let choice = json!({ "text": text, "index": index, "logprobs": logprobs, "finish_reason": finish });
        v.insert("choices".into(), json!([choice]));
        v
    }

    fn write(&mut self, i: usize, d: &Delta, out: &mut String) {
        self.n_said += d.ids.len();
        let logprobs = if self.logprobs { self.thoughts(None, &d.logprobs) } else { Value::Null };
        let mut chunk = self.chunk(i, &d.text(), logprobs, None);
        if self.each_timings {
            chunk.insert("timings".into(), json!({ "predicted_n": self.n_said }));
        }
        event(None, &Value::Object(chunk), out);
    }
}

impl Form for CompletionForm {
    fn begin(&mut self, choices: &[Choice], out: &mut String) {
        if self.echo && !self.logprobs {
            for i in 0..choices.len() {
                event(None, &Value::Object(self.chunk(i, &self.echoed(i), Value::Null, None)), out);
            }
        }
    }

    fn piece(&mut self, i: usize, piece: Piece, choice: &Choice, out: &mut String) {
        match piece {
            Piece::Progress(done) => {
                if self.progress && i.is_multiple_of(self.n) {
                    let mut chunk = self.chunk(i, "", Value::Null, None);
                    chunk.insert("prompt_progress".into(), choice.progress(done));
                    event(None, &Value::Object(chunk), out);
                }
                if self.echo && self.logprobs && done + 1 >= choice.n_prompt && i.is_multiple_of(self.n) {
                    let ids = &self.ids[i / self.n];
                    let logprobs = self.thoughts(Some((ids, &choice.prompt_logprobs)), &[]);
                    event(None, &Value::Object(self.chunk(i, &self.echoed(i), logprobs, None)), out);
                }
            }
            Piece::Delta(d) => self.write(i, &d, out),
            Piece::End(end) => {
                let chunk = self.chunk(i, "", Value::Null, Some(shape::finish_reason(end.stop, false)));
                event(None, &Value::Object(chunk), out);
                self.ends[i] = Some(end);
            }
        }
    }

    fn end(&mut self, out: &mut String) {
        let ends: Vec<&End> = self.ends.iter().flatten().collect();
        if self.usage && !ends.is_empty() {
            let (usage, timings) = self.totals(&ends);
            let mut v = self.head();
            v.insert("choices".into(), json!([]));
            v.insert("usage".into(), usage);
            v.insert("timings".into(), timings);
            event(None, &Value::Object(v), out);
        }
        out.push_str("data: [DONE]\n\n");
    }

    fn fail(&mut self, e: &ApiError, out: &mut String) {
        event(None, &e.openai(), out);
        out.push_str("data: [DONE]\n\n");
    }
}
