//! `/slots` and `/metrics`: what the engine is doing.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::app::{App, By};
use crate::body::read;
use crate::error::ApiError;

/// `?fail_on_no_slot=1`.
#[derive(Deserialize)]
pub struct SlotsQuery {
    fail_on_no_slot: Option<String>,
}

/// `GET /slots`.
///
/// # Errors
/// 503 where none is free and that was to be said.
pub async fn slots(
    State(app): State<Arc<App>>,
    Query(q): Query<SlotsQuery>,
) -> Result<Json<Value>, ApiError> {
    let slots = app.service.slots();
    if q.fail_on_no_slot.is_some_and(|v| v != "0") && slots.iter().all(|s| s.busy) {
        return Err(ApiError::unavailable("no slot is free"));
    }
    let slot = |(i, s): (usize, &firth::SlotStatus)| {
        let mut v = json!({
            "id": i,
            "n_ctx": app.service.ctx(),
            "speculative": false,
            "is_processing": s.busy,
        });
        if s.task > 0 {
            v["id_task"] = s.task.into();
            v["n_prompt_tokens"] = s.n_prompt.into();
            v["n_prompt_tokens_processed"] = s.n_done.min(s.n_prompt).saturating_sub(s.n_cached).into();
            v["n_prompt_tokens_cache"] = s.n_cached.into();
            v["next_token"] = json!([{ "has_next_token": s.busy, "n_decoded": s.n_said }]);
        }
        v
    };
    Ok(Json(slots.iter().enumerate().map(slot).collect()))
}

/// `?action=`.
#[derive(Deserialize)]
pub struct Action {
    action: Option<String>,
}

/// The body of an action.
#[derive(Debug, Default, Deserialize, Serialize, utoipa::ToSchema)]
pub struct SlotFile {
    /// A bare name in the server's folder.
    pub filename: Option<String>,
}

/// `POST /slots/{id}?action=save|restore|erase`.
///
/// # Errors
/// 501 without a folder, 400 for a bad id, name or action, or a file that cannot be restored.
pub async fn act(
    State(app): State<Arc<App>>,
    axum::Extension(caller): By,
    Path(id): Path<String>,
    Query(q): Query<Action>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let id: usize = id.parse().map_err(|_| ApiError::field("id_slot", "Invalid slot ID"))?;
    if id >= app.service.parallel() {
        return Err(ApiError::field("id_slot", "Invalid slot ID"));
    }
    let file: SlotFile = if body.is_empty() { SlotFile::default() } else { read(&body)? };
    match q.action.as_deref() {
        Some("save") => save(&app, id, path(&app, file)?).await,
        Some("restore") => restore(&app, id, path(&app, file)?, caller.domain(None)).await,
        Some("erase") => {
            let n = app.service.call(move |desk| std::mem::take(&mut desk.slots[id].ids).len()).await?;
            Ok(Json(json!({ "id_slot": id, "n_erased": n })))
        }
        _ => Err(ApiError::field("action", "Invalid action; expected save, restore or erase")),
    }
}

/// The file of a slot: its name has no folder in it.
fn path(app: &App, file: SlotFile) -> Result<(String, PathBuf), ApiError> {
    let Some(folder) = &app.options.slot_path else {
        return Err(ApiError::unsupported("start the server with --slot-save-path FOLDER to save slots"));
    };
    let name = file.filename.unwrap_or_default();
    let fair = |c: char| c.is_alphanumeric() || "-_. ".contains(c);
    if name.is_empty() || name.len() > 200 || name.starts_with('.') || !name.chars().all(fair) {
        return Err(ApiError::field("filename", "Invalid filename; expected a bare name"));
    }
    Ok((name.clone(), folder.join(name)))
}

/// The file of the state at the end of the prompt.
fn of_prompt(path: &std::path::Path) -> PathBuf {
    path.with_added_extension("prompt")
}

async fn save(app: &App, id: usize, (name, path): (String, PathBuf)) -> Result<Json<Value>, ApiError> {
    let start = Instant::now();
    let saved = app.service.call(move |desk| {
        let held = desk.slots[id].clone();
        // The last token's keys are not computed yet.
        let ids = &held.ids[..held.ids.len().saturating_sub(1)];
        if ids.is_empty() {
            return Err(ApiError::field("id_slot", "the slot is empty"));
        }
        desk.model.save_state(held.domain, ids, &path)?;
        // A recurrent state cannot be cut back: the same prompt again needs the state that it had there.
        let prompt = &ids[..held.n_prompt.saturating_sub(1).min(ids.len())];
        let cut = !desk.model.engine().memory().spec().serves_all_prefixes();
        if cut && !prompt.is_empty() {
            desk.model.save_state(held.domain, prompt, &of_prompt(&path))?;
        } else {
            let _ = std::fs::remove_file(of_prompt(&path));
        }
        let bytes = |path: &std::path::Path| std::fs::metadata(path).map_or(0, |m| m.len());
        Ok((ids.len(), bytes(&path) + bytes(&of_prompt(&path))))
    });
    let (n, bytes) = saved.await??;
    let ms = start.elapsed().as_secs_f64() * 1e3;
    Ok(Json(json!({ "id_slot": id, "filename": name, "n_saved": n, "n_written": bytes,
        "timings": { "save_ms": ms } })))
}

async fn restore(
    app: &App,
    id: usize,
    (name, path): (String, PathBuf),
    domain: u64,
) -> Result<Json<Value>, ApiError> {
    let start = Instant::now();
    let bytes = std::fs::metadata(&path).map_or(0, |m| m.len());
    let restored = app.service.call(move |desk| {
        desk.slots[id].ids.clear();
        let failed = |e: firth::Error| ApiError::field("filename", format!("Unable to restore slot: {e}"));
        let mut n_prompt = 0;
        if of_prompt(&path).exists() {
            n_prompt = desk.model.load_state(domain, &of_prompt(&path)).map_err(failed)?.len() + 1;
        }
        let ids = desk.model.load_state(domain, &path).map_err(failed)?;
        let n = ids.len();
        desk.slots[id] = firth::Held { domain, ids, n_prompt };
        Ok::<_, ApiError>(n)
    });
    let n = restored.await??;
    let ms = start.elapsed().as_secs_f64() * 1e3;
    Ok(Json(json!({ "id_slot": id, "filename": name, "n_restored": n, "n_read": bytes,
        "timings": { "restore_ms": ms } })))
}

/// `GET /metrics`.
pub async fn metrics(State(app): State<Arc<App>>) -> Response {
    let mut out = String::new();
    engine(&app, &mut out);
    app.metrics.write(&app.options.metrics_prefix, &mut out);
    let start = HeaderValue::from(app.created);
    let kind = HeaderValue::from_static("text/plain; version=0.0.4");
    let name = HeaderName::from_static("process-start-time-unix");
    ([(header::CONTENT_TYPE, kind), (name, start)], out).into_response()
}

/// Tokens of a page.
const PAGE: usize = 64;

fn engine(app: &App, out: &mut String) {
    let prefix = &app.options.metrics_prefix;
    let c = app.service.counts();
    let seconds = |micros: u64| micros as f64 / 1e6;
    let rate = |n: u64, micros: u64| if micros > 0 { n as f64 / seconds(micros) } else { 0.0 };
    let get = |n: &std::sync::atomic::AtomicU64| n.load(Relaxed);
    let (prompt, prompt_t) = (get(&c.prompt_tokens), get(&c.prompt_micros));
    let (said, said_t) = (get(&c.predicted_tokens), get(&c.predicted_micros));
    let (waiting, active) = (c.waiting.load(Relaxed) as f64, c.active.load(Relaxed) as f64);
    let used = get(&c.pages[0]) as f64 / get(&c.pages[1]).max(1) as f64;
    let steps = get(&c.steps);
    let counters = [
        ("prompt_tokens_total", "Prompt tokens computed.", prompt as f64),
        ("prompt_tokens_cached_total", "Prompt tokens taken from the cache.", get(&c.cached_tokens) as f64),
        ("prompt_seconds_total", "Time spent on prompts.", seconds(prompt_t)),
        ("tokens_predicted_total", "Tokens generated.", said as f64),
        ("tokens_predicted_seconds_total", "Time spent on generating.", seconds(said_t)),
        ("n_decode_total", "Steps.", steps as f64),
        ("n_tokens_max", "Longest sequence so far.", get(&c.most_tokens) as f64),
        ("spec_decode_num_draft_tokens_total", "Tokens guessed.", get(&c.draft_tokens) as f64),
        ("spec_decode_num_accepted_tokens_total", "Guesses that were right.", get(&c.draft_accepted) as f64),
        ("spec_decode_num_drafts_total", "Times that tokens were guessed.", get(&c.drafts) as f64),
        ("plan_changes_total", "Plans made since the model was loaded.", app.service.plan_changes() as f64),
        (
            "allocations_total",
            "Heap allocations of steps on the engine's thread, those of a GPU's library too.",
            get(&c.allocations) as f64,
        ),
        (
            "text_allocations_total",
            "Heap allocations of grammars and stop texts within steps.",
            get(&c.text_allocations) as f64,
        ),
        ("requests_parked_total", "Requests put back for want of memory.", get(&c.parked) as f64),
        ("cache_evictions_total", "Snapshots dropped from the cache.", get(&c.evictions) as f64),
    ];
    let gauges = [
        ("prompt_tokens_seconds", "Prompt tokens a second.", rate(prompt, prompt_t)),
        ("predicted_tokens_seconds", "Generated tokens a second and request.", rate(said, said_t)),
        ("requests_processing", "Requests at work.", active),
        ("requests_deferred", "Requests in the queue.", waiting),
        (
            "n_busy_slots_per_decode",
            "Sequences at work in a step.",
            get(&c.busy_in_steps) as f64 / steps.max(1) as f64,
        ),
        ("cache_bytes", "Bytes that only the cache holds.", get(&c.cache_bytes) as f64),
        ("cache_snapshots", "Snapshots in the cache.", get(&c.snapshots) as f64),
        ("kv_cache_usage_perc", "Share of pages in use.", used),
        (
            "num_requests_waiting",
            "Requests in the queue, as a scheduler of several servers reads it.",
            waiting,
        ),
        ("num_requests_running", "Requests at work, as a scheduler of several servers reads it.", active),
    ];
    let rows = counters.iter().map(|c| (c, "counter")).chain(gauges.iter().map(|g| (g, "gauge")));
    for ((name, help, value), kind) in rows {
        let name = format!("{prefix}:{name}");
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    }
    let name = format!("{prefix}:spec_decode_num_accepted_tokens_per_pos_total");
    let _ =
        writeln!(out, "# HELP {name} Guesses that were right, by place in the draft.\n# TYPE {name} counter");
    for (position, n) in c.draft_accepted_at.iter().enumerate() {
        let _ = writeln!(out, "{name}{{position=\"{position}\"}} {}", get(n));
    }
    // What a scheduler of several servers reads to know how much of a prefix a server may hold.
    let (name, pages) = (format!("{prefix}:cache_config_info"), get(&c.pages[1]));
    let _ = writeln!(
        out,
        "# HELP {name} Pages of keys and values.\n# TYPE {name} gauge\n\
         {name}{{block_size=\"{PAGE}\",num_gpu_blocks=\"{pages}\"}} 1"
    );
}
