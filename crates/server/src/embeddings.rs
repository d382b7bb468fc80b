//! Embeddings, in the shapes of OpenAI, llama-server and Ollama.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use firth::{Embedded, EmbeddingKind, Event, Normalize, PieceOf, Pooling, Request};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::app::App;
use crate::body::{OneOrMany, Part, parts, read};
use crate::error::ApiError;
use crate::tokens::encode;

/// Texts of one request at most.
const MAX_INPUTS: usize = 2048;

/// A request for `/v1/embeddings` or llama-server's `/embedding`.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub struct EmbeddingsRequest {
    /// Text, token ids, a mixture of both, or a list of such.
    #[schema(value_type = Option<Object>)]
    pub input: Option<Value>,
    /// The same, as llama-server names it.
    #[schema(value_type = Option<Object>)]
    pub content: Option<Value>,
    /// Ignored: one model is served.
    pub model: Option<String>,
    /// `float` or `base64`: little-endian f32.
    pub encoding_format: Option<String>,
    /// The first numbers alone, for models that were trained for that.
    pub dimensions: Option<i64>,
    /// How embeddings are scaled: -1 not at all, 0 to 32767, 1 taxicab, 2 Euclidean, or the p of a norm.
    pub embd_normalize: Option<i64>,
}

impl App {
    /// What the model's embeddings are.
    ///
    /// # Errors
    /// 501 where the server was started without.
    pub(crate) fn embedding_kind(&self) -> Result<EmbeddingKind, ApiError> {
        self.service
            .embedding()
            .ok_or_else(|| ApiError::unsupported("this server was started without embeddings"))
    }

    /// As [`embedding_kind`](Self::embedding_kind), of a model whose embeddings are no scores.
    fn embeds(&self) -> Result<EmbeddingKind, ApiError> {
        let kind = self.embedding_kind()?;
        match kind.pooling {
            Pooling::Rank => Err(ApiError::unsupported(
                "this model judges documents and makes no embeddings; /v1/rerank asks it, or start the server with --pooling",
            )),
            _ => Ok(kind),
        }
    }

    /// Embeddings of tokens, in order, or the scores of a classifier.
    ///
    /// # Errors
    /// A text without tokens, or with more than the context; whatever the engine says of one.
    pub(crate) async fn embed_all(&self, texts: Vec<Vec<u32>>) -> Result<Vec<Embedded>, ApiError> {
        let (width, ctx) = (self.embedding_kind()?.width, self.service.ctx());
        if let Some(long) = texts.iter().find(|ids| ids.len() > ctx) {
            return Err(ApiError::context(long.len(), ctx));
        }
        let piece: PieceOf = Arc::new(|vocab, id| vocab.piece(id, false));
        // So many that steps are full; the queue keeps room for others.
        let at_once = (2 * self.service.parallel()).clamp(1, self.service.capacity());
        let mut out = Vec::with_capacity(texts.len());
        for texts in texts.chunks(at_once) {
            let requests = texts.iter().map(|ids| Request::embedding(ids.clone())).collect();
            let streams = self.service.submit(requests, &[], &piece, None)?;
            for (mut events, ids) in streams.into_iter().zip(texts) {
                let numbers = loop {
                    match events.next().await {
                        Some(Event::Embedding(numbers)) => break numbers,
                        Some(Event::Failed(e)) => return Err(e.into()),
                        Some(_) => {}
                        None => return Err(ApiError::unavailable("the request was cut off")),
                    }
                };
                out.push(Embedded { numbers, width, n_tokens: ids.len() });
            }
        }
        Ok(out)
    }

    fn encode_all(&self, inputs: &[Vec<Part>]) -> Result<Vec<Vec<u32>>, ApiError> {
        let vocab = self.service.text().vocab();
        inputs.iter().map(|parts| encode(vocab, parts, true, true)).collect()
    }
}

/// The texts of a request in any of its forms.
///
/// # Errors
/// 400 for any other form, none, or too many.
fn inputs(input: Option<&Value>) -> Result<Vec<Vec<Part>>, ApiError> {
    let wrong = || {
        let expected = "expected text, token ids, a mixture of both, or a list of such";
        ApiError::field("input", format!("input: {expected}"))
    };
    let one = |v: &Value| match v.get("content").and_then(Value::as_array) {
        Some(content) => content_text(content).map(|text| vec![Part::Text(text)]),
        None => parts(v).filter(|p| !p.is_empty()).ok_or_else(wrong),
    };
    let all = match input.filter(|i| !i.is_null()).ok_or_else(wrong)? {
        Value::Array(items) if items.is_empty() => return Err(wrong()),
        Value::Array(items)
            if items.iter().any(|i| i.is_array() || i.is_object()) || items.iter().all(Value::is_string) =>
        {
            if items.len() > MAX_INPUTS {
                let message = format!("{} texts, expected at most {MAX_INPUTS}", items.len());
                return Err(ApiError::field("input", message));
            }
            items.iter().map(one).collect::<Result<_, _>>()?
        }
        v => vec![one(v)?],
    };
    match all.iter().flatten().any(|p| matches!(p, Part::Text(t) if t.is_empty())) {
        true => Err(ApiError::field("input", "input: a text is empty")),
        false => Ok(all),
    }
}

/// The text of parts as conversations have them.
fn content_text(content: &[Value]) -> Result<String, ApiError> {
    let text = |part: &Value| match (part["type"].as_str(), part["text"].as_str()) {
        (Some("text"), Some(text)) => Ok(text.to_owned()),
        (Some("text") | None, _) => Err(ApiError::field("input", "input: expected parts with `text`")),
        (Some(kind), _) => {
            Err(ApiError::field("input", format!("{kind} input is not supported by this model")))
        }
    };
    content.iter().map(text).collect()
}

impl EmbeddingsRequest {
    fn inputs(&self) -> Result<Vec<Vec<Part>>, ApiError> {
        inputs(self.input.as_ref().or(self.content.as_ref()))
    }

    /// `default` where nothing is said.
    fn normalize(&self, default: Normalize) -> Result<Normalize, ApiError> {
        let Some(n) = self.embd_normalize else { return Ok(default) };
        let wrong =
            || ApiError::field("embd_normalize", format!("embd_normalize is {n}, expected -1 to 1024"));
        Normalize::by_number(n).ok_or_else(wrong)
    }
}

/// `dimensions` within the model's.
fn dimensions(asked: Option<i64>, width: usize) -> Result<Option<usize>, ApiError> {
    let wrong = |n: i64| {
        ApiError::field("dimensions", format!("dimensions is {n}, expected 1 to the model's {width}"))
    };
    let within = |n: i64| usize::try_from(n).ok().filter(|n| (1..=width).contains(n)).ok_or_else(|| wrong(n));
    asked.map(within).transpose()
}

/// The answer of `/v1/embeddings`, written without a tree of values between.
#[derive(Serialize)]
pub struct Reply {
    object: &'static str,
    model: String,
    data: Vec<Entry>,
    usage: Usage,
}

#[derive(Serialize)]
struct Entry {
    object: &'static str,
    index: usize,
    embedding: Numbers,
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding_format: Option<&'static str>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Numbers {
    Plain(Vec<f32>),
    Bytes(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// `POST /v1/embeddings`.
///
/// # Errors
/// 400 for what has no meaning, 501 where the model makes none.
pub async fn embeddings(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Reply>, ApiError> {
    let r: EmbeddingsRequest = read(&body)?;
    let kind = app.embeds()?;
    if kind.pooling == Pooling::None {
        let message = "every token has an embedding of its own here; /embedding gives them, or start the server with --pooling";
        return Err(ApiError::invalid(message));
    }
    let as_bytes = match r.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let message = format!("encoding_format is `{other}`, expected float or base64");
            return Err(ApiError::field("encoding_format", message));
        }
    };
    let (normalize, cut) = (r.normalize(Normalize::Euclidean)?, dimensions(r.dimensions, kind.width)?);
    let all = app.embed_all(app.encode_all(&r.inputs()?)?).await?;
    let tokens: usize = all.iter().map(|e| e.n_tokens).sum();
    let entry = |(index, e): (usize, &Embedded)| {
        let numbers = e.shaped(cut, normalize).numbers;
        let embedding = match as_bytes {
            false => Numbers::Plain(numbers),
            true => Numbers::Bytes(
                STANDARD.encode(numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>()),
            ),
        };
        Entry { object: "embedding", index, embedding, encoding_format: as_bytes.then_some("base64") }
    };
    let data = all.iter().enumerate().map(entry).collect();
    let model = r.model.unwrap_or_else(|| app.name.clone());
    Ok(Json(Reply {
        object: "list",
        model,
        data,
        usage: Usage { prompt_tokens: tokens, total_tokens: tokens },
    }))
}

/// `POST /embedding` of llama-server: rows of rows, one for each token where nothing is pooled, and then not scaled.
///
/// # Errors
/// As [`embeddings`].
pub async fn native(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Vec<NativeEntry>>, ApiError> {
    let r: EmbeddingsRequest = read(&body)?;
    let kind = app.embeds()?;
    let usual = if kind.pooling == Pooling::None { Normalize::None } else { Normalize::Euclidean };
    let (normalize, cut) = (r.normalize(usual)?, dimensions(r.dimensions, kind.width)?);
    let all = app.embed_all(app.encode_all(&r.inputs()?)?).await?;
    let entry = |(index, e): (usize, &Embedded)| {
        let e = e.shaped(cut, normalize);
        NativeEntry { index, embedding: e.rows().map(<[f32]>::to_vec).collect() }
    };
    Ok(Json(all.iter().enumerate().map(entry).collect()))
}

/// One of the answers of `/embedding`.
#[derive(Serialize)]
pub struct NativeEntry {
    index: usize,
    embedding: Vec<Vec<f32>>,
}

/// A request for `/api/embed` or `/api/embeddings`.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub struct OllamaEmbedRequest {
    /// Ignored: one model is served.
    pub model: Option<String>,
    /// A text or several, for `/api/embed`.
    pub input: Option<OneOrMany>,
    /// The text, for `/api/embeddings`.
    pub prompt: Option<String>,
    /// Whether what is longer than the context loses its end; true by default.
    pub truncate: Option<bool>,
    /// The first numbers alone, for models that were trained for that.
    pub dimensions: Option<i64>,
}

impl App {
    /// The tokens of texts, cut to the context where that is wished; the mark at the end stays.
    fn encode_within(&self, texts: Vec<String>, cut: bool) -> Result<Vec<Vec<u32>>, ApiError> {
        let (vocab, ctx) = (self.service.text().vocab(), self.service.ctx());
        let mut all = Vec::with_capacity(texts.len());
        for text in texts {
            let marks = encode(vocab, &[Part::Text(String::new())], true, true)?;
            let mut ids = encode(vocab, &[Part::Text(text)], true, true)?;
            if cut && ids.len() > ctx {
                let end = marks.last().filter(|end| ids.last() == Some(end)).copied();
                ids.truncate(ctx - usize::from(end.is_some()));
                ids.extend(end);
            }
            all.push(ids);
        }
        Ok(all)
    }
}

/// `POST /api/embed`.
///
/// # Errors
/// As [`embeddings`].
pub async fn ollama(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<OllamaReply>, ApiError> {
    let start = Instant::now();
    let r: OllamaEmbedRequest = read(&body)?;
    let kind = pooled(app.embeds()?)?;
    let cut = dimensions(r.dimensions.filter(|n| *n != 0), kind.width)?;
    let texts = r.input.map(OneOrMany::list).unwrap_or_default();
    if texts.len() > MAX_INPUTS {
        let message = format!("{} texts, expected at most {MAX_INPUTS}", texts.len());
        return Err(ApiError::field("input", message));
    }
    let all = app.embed_all(app.encode_within(texts, r.truncate.unwrap_or(true))?).await?;
    Ok(Json(OllamaReply {
        model: r.model.unwrap_or_else(|| app.name.clone()),
        embeddings: all.iter().map(|e| e.shaped(cut, Normalize::Euclidean).numbers).collect(),
        total_duration: start.elapsed().as_nanos() as u64,
        load_duration: 0,
        prompt_eval_count: all.iter().map(|e| e.n_tokens).sum(),
    }))
}

/// The answer of `/api/embed`; times in nanoseconds.
#[derive(Serialize)]
pub struct OllamaReply {
    model: String,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

/// `POST /api/embeddings`, the older path: one text, and its embedding as it is.
///
/// # Errors
/// As [`embeddings`].
pub async fn ollama_one(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let r: OllamaEmbedRequest = read(&body)?;
    pooled(app.embeds()?)?;
    let Some(text) = r.prompt.filter(|p| !p.is_empty()) else { return Ok(Json(json!({ "embedding": [] }))) };
    let all = app.embed_all(app.encode_within(vec![text], true)?).await?;
    Ok(Json(json!({ "embedding": all[0].numbers })))
}

/// Fails where every token has an embedding of its own.
fn pooled(kind: EmbeddingKind) -> Result<EmbeddingKind, ApiError> {
    match kind.pooling {
        Pooling::None => {
            Err(ApiError::invalid("every token has an embedding of its own here; /embedding gives them"))
        }
        _ => Ok(kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_inputs() {
        let text = |s: &str| vec![Part::Text(s.into())];
        for (input, expected) in [
            (json!("a"), Some(vec![text("a")])),
            (json!(["a", "b"]), Some(vec![text("a"), text("b")])),
            (json!([1, 2]), Some(vec![vec![Part::Id(1), Part::Id(2)]])),
            (json!([[1], "b"]), Some(vec![vec![Part::Id(1)], text("b")])),
            (
                json!([{"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]),
                Some(vec![text("ab")]),
            ),
            (json!([{"content": [{"type": "image_url"}]}]), None),
            (json!({"a": 1}), None),
            (json!(""), None),
            (json!(["a", ""]), None),
            (json!([]), None),
            (json!([[]]), None),
            (json!(null), None),
            (json!(vec!["a"; MAX_INPUTS + 1]), None),
        ] {
            assert_eq!(inputs(Some(&input)).ok(), expected, "{input}");
        }
    }
}
