//! llama-server's own shapes: `/completion` and `/infill`.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use firth::{Params, StopReason};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::app::{App, By, Caller};
use crate::body::{Part, prompts, read};
use crate::error::ApiError;
use crate::fields::{Fields, Sampling, range};
use crate::generation::{Choice, Delta, End, Generation, Piece, Whole};
use crate::shape;
use crate::stream::{Form, event, sse};
use crate::structured::Rule;
use crate::tokens::encode;

/// A request for `/completion`; the fields of [`Fields`] stand beside these.
#[derive(Debug, Deserialize, Serialize, utoipa::ToSchema)]
pub struct NativeRequest {
    /// Text, token ids, a mixture of both, or several of those.
    #[schema(value_type = Object)]
    pub prompt: Value,
    /// Log probabilities of so many of the likeliest tokens.
    pub n_probs: Option<i64>,
    /// The same.
    pub logprobs: Option<i64>,
    /// Tell token ids, too.
    pub return_tokens: Option<bool>,
    /// Members of the answer to keep; a path such as `generation_settings/n_predict` becomes a key.
    pub response_fields: Option<Vec<String>>,
}

/// A request for `/infill`.
#[derive(Debug, Deserialize, Serialize, utoipa::ToSchema)]
pub struct InfillRequest {
    /// Text before the gap.
    pub input_prefix: String,
    /// Text behind the gap.
    pub input_suffix: String,
    /// Other files of the project.
    pub input_extra: Option<Vec<InfillExtra>>,
    /// What the filling begins with.
    pub prompt: Option<String>,
    /// As in `/completion`.
    pub n_probs: Option<i64>,
    /// As in `/completion`.
    pub return_tokens: Option<bool>,
    /// As in `/completion`.
    pub response_fields: Option<Vec<String>>,
}

/// A file beside the one with the gap.
#[derive(Debug, Deserialize, Serialize, utoipa::ToSchema)]
pub struct InfillExtra {
    /// Its name.
    pub filename: Option<String>,
    /// Its text.
    pub text: String,
}

/// `generation_settings`, as far as they are of the sampler.
pub fn settings(p: &Params) -> Value {
    let f = |v: f32| f64::from(v);
    json!({
        "seed": p.seed,
        "temperature": f(p.temperature),
        "dynatemp_range": f(p.dynatemp_range),
        "dynatemp_exponent": f(p.dynatemp_exponent),
        "top_k": p.top_k,
        "top_p": f(p.top_p),
        "min_p": f(p.min_p),
        "top_n_sigma": f(p.top_n_sigma),
        "xtc_probability": f(p.xtc_probability),
        "xtc_threshold": f(p.xtc_threshold),
        "typical_p": f(p.typical_p),
        "repeat_last_n": p.penalty_last_n,
        "repeat_penalty": f(p.repeat_penalty),
        "presence_penalty": f(p.presence_penalty),
        "frequency_penalty": f(p.frequency_penalty),
        "dry_multiplier": f(p.dry.multiplier),
        "mirostat": p.mirostat.map_or(0, |m| 1 + u32::from(m.version == firth::MirostatVersion::V2)),
        "adaptive_target": f(p.adaptive_target),
    })
}

fn all_settings(s: &Sampling, stream: bool, n_probs: usize) -> Value {
    let mut v = settings(&s.params);
    let n_predict = s.max_tokens.map_or(-1, |n| n as i64);
    let bias: Vec<Value> = s.params.bias.iter().map(|(t, b)| json!({"token": t, "bias": b})).collect();
    v["stop"] = json!(s.stop);
    v["n_predict"] = n_predict.into();
    v["max_tokens"] = n_predict.into();
    v["ignore_eos"] = s.ignore_eos.into();
    v["logit_bias"] = bias.into();
    v["n_probs"] = n_probs.into();
    v["stream"] = stream.into();
    v
}

/// `POST /completion`.
///
/// # Errors
/// Whatever is wrong with the request, before the first byte of the answer.
pub async fn completion(
    State(app): State<Arc<App>>,
    axum::Extension(caller): By,
    body: Bytes,
) -> Result<Response, ApiError> {
    let request: NativeRequest = read(&body)?;
    let fields: Fields = read(&body)?;
    let n_probs = range("n_probs", request.n_probs.or(request.logprobs), 0, 1024)?.unwrap_or(0) as usize;
    let all = prompts(&request.prompt)?;
    let several = all.len() > 1 || request.prompt.as_array().is_some_and(|p| p.iter().all(Value::is_array));
    let how = How {
        n_probs,
        tokens: request.return_tokens.unwrap_or(false),
        keep: request.response_fields.filter(|f| !f.is_empty()),
    };
    answer(&app, &caller, &fields, all, several, how).await
}

/// `POST /infill`.
///
/// # Errors
/// 501 where the model has no tokens for it.
pub async fn infill(
    State(app): State<Arc<App>>,
    axum::Extension(caller): By,
    body: Bytes,
) -> Result<Response, ApiError> {
    let request: InfillRequest = read(&body)?;
    let fields: Fields = read(&body)?;
    let n_probs = range("n_probs", request.n_probs, 0, 1024)?.unwrap_or(0) as usize;
    let parts = infill_parts(&app, &request, fields.n_predict.unwrap_or(-1))?;
    let how = How {
        n_probs,
        tokens: request.return_tokens.unwrap_or(false),
        keep: request.response_fields.filter(|f| !f.is_empty()),
    };
    answer(&app, &caller, &fields, vec![parts], false, how).await
}

/// The prompt around a gap: other files, prefix, suffix, and the middle's mark last. Prefix and suffix are cut to a half
/// of the context, three quarters of it before the gap.
fn infill_parts(app: &App, r: &InfillRequest, n_predict: i64) -> Result<Vec<Part>, ApiError> {
    let vocab = app.service.text().vocab();
    let s = vocab.special_ids();
    let (Some(pre), Some(suf), Some(mid)) = (s.fim_pre, s.fim_suf, s.fim_mid) else {
        return Err(ApiError::unsupported("this model has no tokens for infill (prefix, suffix, middle)"));
    };
    let ids = |text: &str| encode(vocab, &[Part::Text(text.into())], false, false);
    let (mut prefix, mut suffix) = (ids(&r.input_prefix)?, ids(&r.input_suffix)?);
    let middle = ids(r.prompt.as_deref().unwrap_or_default())?;
    let said = usize::try_from(n_predict).unwrap_or(0).min(app.service.ctx() / 4);
    let room = (app.service.ctx() / 2).saturating_sub(said + middle.len() + 8);
    suffix.truncate(room / 4);
    prefix.drain(..prefix.len().saturating_sub(room - room / 4));
    let mut out: Vec<u32> = vocab.bos().filter(|_| vocab.add_bos()).into_iter().collect();
    let mut extra = Vec::new();
    if let (Some(repo), Some(_)) = (s.fim_rep, s.fim_sep) {
        extra.push(repo);
        extra.extend(ids("myproject\n")?);
    }
    for file in r.input_extra.iter().flatten() {
        if let Some(sep) = s.fim_sep {
            extra.push(sep);
            extra.extend(ids(&format!("{}\n", file.filename.as_deref().unwrap_or("tmp")))?);
        }
        extra.extend(ids(&file.text)?);
    }
    if let Some(sep) = s.fim_sep.filter(|_| s.fim_rep.is_some()) {
        extra.push(sep);
        extra.extend(ids("filename\n")?);
    }
    let beside = (app.service.ctx() / 4).min(extra.len());
    out.extend(&extra[extra.len() - beside..]);
    out.push(pre);
    out.extend(prefix);
    out.push(suf);
    out.extend(suffix);
    out.push(mid);
    out.extend(middle);
    Ok(out.into_iter().map(Part::Id).collect())
}

/// What an answer tells besides its text.
struct How {
    n_probs: usize,
    tokens: bool,
    keep: Option<Vec<String>>,
}

async fn answer(
    app: &Arc<App>,
    caller: &Caller,
    fields: &Fields,
    all: Vec<Vec<Part>>,
    several: bool,
    how: How,
) -> Result<Response, ApiError> {
    let sampling = app.sampling(fields)?;
    let vocab = app.service.text().vocab();
    let mut generations = Vec::with_capacity(all.len());
    for parts in &all {
        generations.push(Generation {
            logprobs: (how.n_probs > 0).then_some(how.n_probs),
            domain: caller.domain(fields.cache_salt.as_deref()),
            rule: Rule::of(fields)?,
            ..Generation::new(encode(vocab, parts, true, true)?, sampling.clone())
        });
    }
    let ids = generations.iter().map(|g| g.ids.clone()).collect();
    let choices = app.start_all(generations).await?;
    let form = NativeForm {
        app: app.clone(),
        how,
        ids,
        n_said: vec![0; choices.len()],
        has_new_line: vec![false; choices.len()],
        sampling,
        each_timings: fields.timings_per_token.unwrap_or(false),
        progress: fields.return_progress.unwrap_or(false),
        stream: fields.streams(),
    };
    if fields.streams() {
        return Ok(sse(choices, form, app.options.ping));
    }
    let mut out = Vec::with_capacity(choices.len());
    for (i, choice) in choices.into_iter().enumerate() {
        let w = choice.whole().await?;
        out.push(form.whole(i, &w));
    }
    match several || out.len() > 1 {
        true => Ok(Json(Value::Array(out)).into_response()),
        false => Ok(Json(out.remove(0)).into_response()),
    }
}

struct NativeForm {
    app: Arc<App>,
    how: How,
    ids: Vec<Vec<u32>>,
    n_said: Vec<usize>,
    has_new_line: Vec<bool>,
    sampling: Sampling,
    each_timings: bool,
    progress: bool,
    stream: bool,
}

impl NativeForm {
    fn prompt(&self, i: usize) -> &[u32] {
        &self.ids[i / self.sampling.n]
    }

    /// The last object of an answer.
    fn last(
        &self,
        i: usize,
        content: &str,
        ids: &[u32],
        has_new_line: bool,
        end: &End,
    ) -> Map<String, Value> {
        let vocab = self.app.service.text().vocab();
        let prompt = self.prompt(i);
        let kind = match end.stop {
            StopReason::Eos => "eos",
            StopReason::Word if end.word.is_some() => "word",
            StopReason::Word => "none",
            StopReason::Limit | StopReason::Context => "limit",
        };
        let v = json!({
            "index": i,
            "content": content,
            "tokens": if self.how.tokens { ids } else { &[] },
            "id_slot": end.slot,
            "stop": true,
            "model": self.app.name,
            "tokens_predicted": end.timings.predicted_n,
            "tokens_evaluated": prompt.len(),
            "generation_settings": all_settings(&self.sampling, self.stream, self.how.n_probs),
            "prompt": vocab.decode_text(prompt, true),
            "has_new_line": has_new_line,
            "truncated": end.stop == StopReason::Context,
            "stop_type": kind,
            "stopping_word": end.word.as_deref().unwrap_or_default(),
            "tokens_cached": prompt.len() + end.timings.predicted_n,
            "timings": shape::timings(&end.timings, prompt, vocab),
        });
        v.as_object().cloned().unwrap_or_default()
    }

    fn whole(&self, i: usize, w: &Whole) -> Value {
        let content = &w.output.content;
        let mut v = self.last(i, content, &w.ids, content.contains('\n'), &w.end);
        if self.how.n_probs > 0 {
            let vocab = self.app.service.text().vocab();
            v.insert("completion_probabilities".into(), shape::logprobs(vocab, &w.logprobs));
        }
        self.kept(v)
    }

    /// The members that were asked for.
    fn kept(&self, v: Map<String, Value>) -> Value {
        let Some(keep) = &self.how.keep else { return Value::Object(v) };
        let v = Value::Object(v);
        let mut out = Map::new();
        for path in keep {
            let found = path.split('/').try_fold(&v, |at, key| at.get(key));
            if let Some(found) = found {
                out.insert(path.clone(), found.clone());
            }
        }
        Value::Object(out)
    }

    fn delta(&mut self, i: usize, slot: usize, d: &Delta, out: &mut String) {
        self.n_said[i] += d.ids.len();
        let content = d.text();
        self.has_new_line[i] |= content.contains('\n');
        let mut v = json!({
            "index": i,
            "content": content,
            "tokens": d.ids,
            "stop": false,
            "id_slot": slot,
            "tokens_predicted": self.n_said[i],
            "tokens_evaluated": self.prompt(i).len(),
        });
        if self.how.n_probs > 0 {
            let vocab = self.app.service.text().vocab();
            v["completion_probabilities"] = shape::logprobs(vocab, &d.logprobs);
        }
        if self.each_timings {
            v["timings"] = json!({ "predicted_n": self.n_said[i] });
        }
        event(None, &v, out);
    }
}

impl Form for NativeForm {
    fn piece(&mut self, i: usize, piece: Piece, choice: &Choice, out: &mut String) {
        match piece {
            Piece::Progress(done) if self.progress => {
                let v = json!({ "index": i, "content": "", "tokens": [], "stop": false,
                    "prompt_progress": choice.progress(done) });
                event(None, &v, out);
            }
            Piece::Progress(_) => {}
            Piece::Delta(d) => self.delta(i, choice.slot(), &d, out),
            Piece::End(end) => {
                let last = self.last(i, "", &[], self.has_new_line[i], &end);
                event(None, &self.kept(last), out);
            }
        }
    }

    fn fail(&mut self, e: &ApiError, out: &mut String) {
        event(None, &e.openai(), out);
    }
}
