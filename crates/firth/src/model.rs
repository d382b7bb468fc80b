//! A loaded model with its text.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use firth_engine::{
    Engine, EngineError, EngineOptions, Event, Feed, Finished, JobId, Request, Scheduler, Seq, SpecOptions,
    Want,
};
use firth_gguf::Gguf;
use firth_graph::Device;
use firth_sampling::Params;
use firth_text::grammar::Grammar;
use firth_text::output::OutputFormat;
use firth_text::{TextStream, Vocab};
use serde_json::{Map, Value, json};

use crate::error::Error;
use crate::model_text::ModelText;

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// Its text.
    pub content: String,
}

impl Message {
    /// A turn of the user.
    pub fn user(content: impl Into<String>) -> Self {
        Message { role: "user".into(), content: content.into() }
    }
}

/// What a template may be told besides messages.
#[derive(Clone, Debug, Default)]
pub struct ChatOptions {
    /// Variables for the template.
    pub extra: Map<String, Value>,
}

/// A prompt ready to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Its tokens.
    pub ids: Vec<u32>,
}

/// How to generate.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// Sampling; the file's defaults when `None`.
    pub params: Option<Params>,
    /// Tokens at most; up to the context when `None`.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// Go on past end tokens.
    pub ignore_eos: bool,
    /// What the answer is kept to.
    pub grammar: Option<Grammar>,
    /// Where thoughts may come before what the grammar keeps: the format of the prompt's template.
    pub format: OutputFormat,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its text, without stop words.
    pub text: String,
    /// Its tokens.
    pub ids: Vec<u32>,
    /// How it ended.
    pub finished: Finished,
}

/// A model, its vocabulary and its template.
pub struct Model {
    text: ModelText,
    scheduler: Scheduler,
}

impl Model {
    /// Loads onto devices. `on` is told bytes of the file consumed and may stop the load.
    pub fn load(
        file: Arc<Gguf>,
        devices: Vec<Arc<dyn Device>>,
        options: &EngineOptions,
        on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Model, Error> {
        let (text, engine) = with_text(&file, |no_text| {
            Engine::load(&file, devices, options, &mut |bytes| match no_text.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => on(bytes),
            })
        })?;
        Ok(Model { text, scheduler: Scheduler::new(engine?) })
    }

    /// Uses a second model to draft, on devices of its own choice; the model must have been loaded with
    /// [`SpecMode::Draft`](firth_engine::SpecMode).
    ///
    /// # Errors
    /// The file does not load, or its vocabulary is another.
    pub fn set_draft(
        &mut self,
        file: Arc<Gguf>,
        devices: Vec<Arc<dyn Device>>,
        options: &EngineOptions,
    ) -> Result<(), Error> {
        let vocab = Vocab::from_metadata(file.metadata())?;
        same_vocabulary(self.vocab(), &vocab)?;
        let options = EngineOptions {
            ctx: Some(self.engine().ctx()),
            // One for each sequence, and a fork of it for the guesses.
            parallel: 2 * options.parallel,
            spec: SpecOptions::default(),
            cache_bytes: 0,
            embeddings: false,
            ..options.clone()
        };
        let draft = Engine::load(&file, devices, &options, &mut |_| ControlFlow::Continue(()))?;
        self.scheduler.set_draft_model(draft);
        Ok(())
    }

    /// The model's text half, which may be had apart from what runs it.
    pub fn text(&self) -> &ModelText {
        &self.text
    }

    /// The file.
    pub fn file(&self) -> &Arc<Gguf> {
        self.text.file()
    }

    /// The vocabulary.
    pub fn vocab(&self) -> &Vocab {
        self.text.vocab()
    }

    /// The engine, for measurements.
    pub fn engine(&mut self) -> &mut Engine {
        self.scheduler.engine()
    }

    /// Requests of this model.
    pub fn scheduler(&mut self) -> &mut Scheduler {
        &mut self.scheduler
    }

    /// Whether the model has a chat template.
    pub fn has_template(&self) -> bool {
        self.text.template().is_some()
    }

    /// How the template's answers are read; plain text without one.
    pub fn output_format(&self) -> OutputFormat {
        self.text.output_format()
    }

    /// Uses another chat template.
    pub fn set_template(&mut self, source: &str) -> Result<(), Error> {
        self.text.set_template(source)
    }

    /// A prompt of plain text, with the model's own start.
    pub fn raw_prompt(&self, text: &str) -> Result<Prompt, Error> {
        self.text.raw_prompt(text)
    }

    /// A prompt of a conversation, rendered by the template.
    pub fn chat_prompt(&self, messages: &[Message], options: &ChatOptions) -> Result<Prompt, Error> {
        let list: Vec<Value> =
            messages.iter().map(|m| json!({"role": m.role, "content": m.content})).collect();
        let rendered = self.text.render(&Value::Array(list), None, true, &options.extra)?;
        self.text.rendered_prompt(&rendered)
    }

    /// The file's sampling defaults.
    pub fn default_params(&self) -> Result<Params, Error> {
        self.text.default_params()
    }

    /// Generates an answer; `on` gets its text as it comes, whole characters only, and may end it. It is asked
    /// after every step, with an empty text where none came, so that a long prompt can be ended, too.
    pub fn generate(
        &mut self,
        prompt: Prompt,
        options: &GenerateOptions,
        on: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, Error> {
        let request = self.request(prompt, options)?;
        let job = self.scheduler.submit(request)?;
        let mut answer =
            Collected { stream: TextStream::new(options.stop.clone()), text: String::new(), ids: vec![] };
        let finished = self.finish(job, &mut answer, on)?;
        let rest = answer.stream.finish();
        let _ = answer.emit(&rest, on);
        Ok(Answer { text: answer.text, ids: answer.ids, finished })
    }

    /// Decodes one token in a sequence of its own, between two steps of the scheduler. Where all sequences are at work
    /// there is none to spare, and their steps are what shows that the engine works.
    ///
    /// # Errors
    /// The step fails, or gives a logit that is no number.
    pub fn decode_one(&mut self) -> Result<(), Error> {
        let id = self.text.vocab().bos().unwrap_or(0);
        let engine = self.scheduler.engine();
        let seq = match engine.open(0) {
            Ok(seq) => seq,
            Err(EngineError::Full { .. }) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        let speaks = engine.info().logits;
        let want = if speaks { Want::Last } else { Want::None };
        let ran = engine.step(&[Feed { seq, ids: &[id], embeds: None, want, sampler: None }]);
        let logits = if ran.is_ok() && speaks { engine.logits(0, 0) } else { &[] };
        let finite = logits.iter().all(|l| !l.is_nan());
        engine.close(seq);
        match ran {
            Err(EngineError::Full { .. }) => Ok(()),
            Err(e) => Err(e.into()),
            Ok(()) if finite => Ok(()),
            Ok(()) => Err(EngineError::Nan.into()),
        }
    }

    /// What [`generate`](Self::generate) asks of the scheduler: with the marks of the prompt's messages, the model's
    /// end tokens, and without the tokens that it must never say.
    ///
    /// # Errors
    /// No token is asked for.
    pub fn request(&self, prompt: Prompt, options: &GenerateOptions) -> Result<Request, Error> {
        if options.max_tokens == Some(0) {
            return Err(Error::Argument("0 tokens were asked for; use -n 1 or more".into()));
        }
        self.text.request(prompt, options)
    }

    /// Saves what follows from `ids` in a cache domain, computing what the cache does not hold.
    ///
    /// # Errors
    /// The ids do not fit the context, or the file cannot be written.
    pub fn save_state(&mut self, domain: u64, ids: &[u32], path: &Path) -> Result<(), Error> {
        let seq = self.engine().open(domain)?;
        let saved = self.prefill(seq, domain, ids).and_then(|()| Ok(self.engine().save(seq, path)?));
        let engine = self.engine();
        if saved.is_ok() {
            engine.memory().snapshot(seq);
        }
        engine.close(seq);
        saved
    }

    /// Takes what was saved into the cache of a domain, where prompts that begin with its ids find it; the ids.
    ///
    /// # Errors
    /// The file is damaged, or of another model or other settings.
    pub fn load_state(&mut self, domain: u64, path: &Path) -> Result<Vec<u32>, Error> {
        let engine = self.engine();
        let seq = engine.load_state(domain, path)?;
        let ids = engine.memory().tokens(seq).to_vec();
        engine.memory().snapshot(seq);
        engine.close(seq);
        Ok(ids)
    }

    fn prefill(&mut self, seq: Seq, domain: u64, ids: &[u32]) -> Result<(), Error> {
        let engine = self.engine();
        let mut done = 0;
        if let Some((snapshot, len)) = engine.memory().find(domain, ids) {
            engine.memory().attach(seq, snapshot, len).expect("a snapshot just found is there");
            done = len;
        }
        let rows = engine.bounds().t;
        for ids in ids[done..].chunks(rows) {
            engine.step(&[Feed { seq, ids, embeds: None, want: Want::None, sampler: None }])?;
        }
        Ok(())
    }

    /// Runs steps until a job has ended.
    fn finish(
        &mut self,
        job: JobId,
        answer: &mut Collected,
        on: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Finished, Error> {
        loop {
            let mut end: Option<Result<Finished, EngineError>> = None;
            let vocab = self.text.vocab();
            let ticked = self.scheduler.tick(&mut |id, event| {
                match event {
                    _ if id != job => return ControlFlow::Continue(()),
                    Event::Token(id) => return answer.push(vocab, id, on),
                    Event::Done(finished) => end = Some(Ok(finished)),
                    Event::Failed(e) => end = Some(Err(e)),
                    Event::Prompt(_)
                    | Event::PromptLogprobs(_)
                    | Event::Logprobs(_)
                    | Event::Embedding(_) => {}
                }
                ControlFlow::Continue(())
            });
            if let Err(e) = ticked {
                self.scheduler.cancel(job);
                return Err(e.into());
            }
            if let Some(end) = end {
                return Ok(end?);
            }
            if on("").is_break()
                && let Some(finished) = self.scheduler.cancel(job)
            {
                return Ok(finished);
            }
        }
    }
}

/// Makes the text half of a model beside `load`, which takes as long for a large vocabulary as for the weights; `load` is
/// told when there will be none.
fn with_text<T>(file: &Arc<Gguf>, load: impl FnOnce(&AtomicBool) -> T) -> Result<(ModelText, T), Error> {
    let no_text = AtomicBool::new(false);
    let (text, loaded) = std::thread::scope(|s| {
        let text = s.spawn(|| {
            let text = ModelText::new(file.clone());
            no_text.store(text.is_err(), Ordering::Relaxed);
            text
        });
        let loaded = load(&no_text);
        (text.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), loaded)
    });
    Ok((text?, loaded))
}

/// Fails unless two vocabularies have the same tokens; their ends may differ by what models pad them with.
fn same_vocabulary(a: &Vocab, b: &Vocab) -> Result<(), Error> {
    let (n_a, n_b) = (a.len(), b.len());
    if n_a.abs_diff(n_b) > 128 {
        return Err(Error::Argument(format!("the draft model has {n_b} tokens, expected the model's {n_a}")));
    }
    let differs = |id: &u32| a.token_text(*id) != b.token_text(*id);
    match (0..n_a.min(n_b) as u32).find(differs) {
        None => Ok(()),
        Some(id) => {
            let text = |v: &Vocab| String::from_utf8_lossy(v.token_text(id)).into_owned();
            Err(Error::Argument(format!(
                "token {id} is `{}` in the draft model, expected the model's `{}`",
                text(b),
                text(a)
            )))
        }
    }
}

/// Text and ids of an answer as they come.
struct Collected {
    stream: TextStream,
    text: String,
    ids: Vec<u32>,
}

impl Collected {
    fn push(
        &mut self,
        vocab: &Vocab,
        id: u32,
        on: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.ids.push(id);
        let delta = self.stream.push(vocab.piece(id, false));
        self.emit(&delta, on)?;
        if self.stream.stopped().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn emit(&mut self, delta: &str, on: &mut dyn FnMut(&str) -> ControlFlow<()>) -> ControlFlow<()> {
        if delta.is_empty() {
            return ControlFlow::Continue(());
        }
        self.text.push_str(delta);
        on(delta)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use firth_gguf::Value as Key;

    use super::*;

    #[test]
    fn a_load_is_told_that_there_is_no_vocabulary() {
        let mut file = Arc::into_inner(crate::bundled().unwrap()).unwrap();
        file.metadata_mut().insert("tokenizer.ggml.model", Key::Str("none of them".into()));
        let mut told = false;
        let loaded = with_text(&Arc::new(file), |no_text| {
            let start = Instant::now();
            while !told && start.elapsed() < Duration::from_secs(60) {
                told = no_text.load(Ordering::Relaxed);
                std::thread::yield_now();
            }
        });
        assert!(told);
        assert!(loaded.is_err_and(|e| e.to_string().contains("none of them")));
    }
}
