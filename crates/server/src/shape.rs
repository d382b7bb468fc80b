//! Members that several dialects share: usage, timings, logprobs, ids.

use std::time::{SystemTime, UNIX_EPOCH};

use firth::text::Vocab;
use firth::{Logprobs, StopReason, Timings};
use serde_json::{Map, Value, json};

use crate::fields::random;

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// An id: `prefix` and 32 letters and digits.
pub fn new_id(prefix: &str) -> String {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut id = String::from(prefix);
    for _ in 0..4 {
        let mut bits = random();
        for _ in 0..8 {
            id.push(char::from(LETTERS[(bits % 62) as usize]));
            bits /= 62;
        }
    }
    id
}

/// OpenAI's `usage`.
pub fn usage(n_prompt: usize, n_cached: usize, n_said: usize) -> Value {
    json!({
        "completion_tokens": n_said,
        "prompt_tokens": n_prompt,
        "total_tokens": n_prompt + n_said,
        "prompt_tokens_details": { "cached_tokens": n_cached },
    })
}

/// llama-server's `timings` of an answer to the prompt `ids`, with the time in the queue and what the cache did.
pub fn timings(t: &Timings, ids: &[u32], vocab: &Vocab) -> Value {
    let rate = |n: usize, s: f64| if s > 0.0 { n as f64 / s } else { 0.0 };
    let each = |n: usize, s: f64| if n > 0 { s * 1e3 / n as f64 } else { 0.0 };
    let mut v = json!({
        "cache_n": t.cached_n,
        "prompt_n": t.prompt_n,
        "prompt_ms": t.prompt_seconds * 1e3,
        "prompt_per_token_ms": each(t.prompt_n, t.prompt_seconds),
        "prompt_per_second": rate(t.prompt_n, t.prompt_seconds),
        "predicted_n": t.predicted_n,
        "predicted_ms": t.predicted_seconds * 1e3,
        "predicted_per_token_ms": each(t.predicted_n, t.predicted_seconds),
        // The first token comes with the prompt; the time counts from it.
        "predicted_per_second": rate(t.predicted_n.saturating_sub(1), t.predicted_seconds),
        "queue_ms": t.queue_seconds * 1e3,
        "cache": cache(t, ids, vocab),
    });
    if t.draft_n > 0 {
        v["draft_n"] = t.draft_n.into();
        v["draft_n_accepted"] = t.draft_n_accepted.into();
    }
    v
}

/// `timings.cache`: what was reused, and why it was not more.
fn cache(t: &Timings, ids: &[u32], vocab: &Vocab) -> Value {
    let n = ids.len();
    let mut v = json!({ "reused": t.cached_n, "known": t.known_n });
    let reason = match (t.cached_n, t.known_n) {
        (cached, _) if cached + 1 >= n => "whole prompt",
        (_, 0) => "nothing known begins like this prompt",
        (cached, known) if cached < known => "known further, but no snapshot nearer serves this length",
        _ => "diverged",
    };
    v["reason"] = reason.into();
    if t.known_n + 1 < n {
        let tail = &ids[t.known_n..n.min(t.known_n + 12)];
        v["diverged_at"] = t.known_n.into();
        v["diverged_text"] = vocab.decode_text(tail, true).into();
    }
    v
}

/// A token as text and bytes.
fn token(vocab: &Vocab, id: u32, logprob: f32) -> Map<String, Value> {
    let bytes = vocab.piece(id, true);
    let whole = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(e) => std::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap_or_default(),
    };
    let mut o = Map::new();
    o.insert("id".into(), id.into());
    o.insert("token".into(), whole.into());
    o.insert("bytes".into(), bytes.into());
    o.insert("logprob".into(), f64::from(logprob).into());
    o
}

/// One entry of `logprobs.content`.
pub fn logprob(vocab: &Vocab, p: &Logprobs) -> Value {
    let mut o = token(vocab, p.id, p.logprob);
    let top = p.top.iter().map(|(id, ln)| Value::Object(token(vocab, *id, *ln))).collect();
    o.insert("top_logprobs".into(), Value::Array(top));
    Value::Object(o)
}

/// Entries of `logprobs.content`.
pub fn logprobs(vocab: &Vocab, list: &[Logprobs]) -> Value {
    list.iter().map(|p| logprob(vocab, p)).collect()
}

/// OpenAI's older form of log probabilities: parallel lists over tokens.
#[derive(Default)]
pub struct Legacy {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top: Vec<Value>,
    offsets: Vec<Value>,
    offset: usize,
}

impl Legacy {
    /// A token that nothing was thought of: the first of a prompt.
    pub fn unknown(&mut self, vocab: &Vocab, id: u32) {
        self.put(vocab, id);
        self.token_logprobs.push(Value::Null);
        self.top.push(Value::Null);
    }

    /// A token.
    pub fn add(&mut self, vocab: &Vocab, p: &Logprobs) {
        self.put(vocab, p.id);
        self.token_logprobs.push(f64::from(p.logprob).into());
        let mut top = Map::new();
        for (id, ln) in &p.top {
            // Two tokens of one text: the likelier is named.
            top.entry(text(vocab, *id)).or_insert_with(|| f64::from(*ln).into());
        }
        self.top.push(Value::Object(top));
    }

    fn put(&mut self, vocab: &Vocab, id: u32) {
        let text = text(vocab, id);
        self.offsets.push(self.offset.into());
        self.offset += text.chars().count();
        self.tokens.push(text.into());
    }

    /// The lists, with the newer form beside them.
    pub fn finish(self, content: Value) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top,
            "text_offset": self.offsets,
            "content": content,
        })
    }
}

fn text(vocab: &Vocab, id: u32) -> String {
    String::from_utf8_lossy(vocab.piece(id, true)).into_owned()
}

/// OpenAI's `finish_reason`. An answer that was cut is not to be acted on: its last call may be half of one.
pub fn finish_reason(stop: StopReason, has_calls: bool) -> &'static str {
    match stop {
        StopReason::Limit | StopReason::Context => "length",
        StopReason::Eos | StopReason::Word if has_calls => "tool_calls",
        StopReason::Eos | StopReason::Word => "stop",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_cut_is_not_acted_on() {
        assert_eq!(finish_reason(StopReason::Eos, true), "tool_calls");
        assert_eq!(finish_reason(StopReason::Limit, true), "length");
        assert_eq!(finish_reason(StopReason::Context, true), "length");
        assert_eq!(finish_reason(StopReason::Word, false), "stop");
    }
}
