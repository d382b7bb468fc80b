//! A loaded model with its text.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use firth_engine::{
    Engine, EngineError, EngineOptions, Event, Feed, Finished, JobId, Request, Scheduler, Seq, SpecOptions,
    Want,
};
use firth_gguf::Gguf;
use firth_graph::Device;
use firth_sampling::Params;
use firth_text::grammar::{Grammar, LazyGrammars};
use firth_text::output::OutputFormat;
use firth_text::{ChatTemplate, Encode, TextStream, Vocab};
use serde_json::{Map, Value, json};

use crate::defaults::sampling_defaults;
use crate::error::Error;
use crate::structured;

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
    file: Arc<Gguf>,
    vocab: Vocab,
    template: Option<ChatTemplate>,
    grammars: LazyGrammars,
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
        let vocab = Vocab::from_metadata(file.metadata())?;
        let [bos, eos] = marks(&vocab);
        let template = ChatTemplate::from_metadata(file.metadata(), &bos, &eos)?;
        let engine = Engine::load(&file, devices, options, on)?;
        Ok(Model {
            file,
            vocab,
            template,
            grammars: LazyGrammars::default(),
            scheduler: Scheduler::new(engine),
        })
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
        same_vocabulary(&self.vocab, &vocab)?;
        let options = EngineOptions {
            ctx: Some(self.engine().ctx()),
            // One for each sequence, and a fork of it for the guesses.
            parallel: 2 * options.parallel,
            spec: SpecOptions::default(),
            cache_bytes: 0,
            ..options.clone()
        };
        let draft = Engine::load(&file, devices, &options, &mut |_| ControlFlow::Continue(()))?;
        self.scheduler.set_draft_model(draft);
        Ok(())
    }

    /// The file.
    pub fn file(&self) -> &Arc<Gguf> {
        &self.file
    }

    /// The vocabulary.
    pub fn vocab(&self) -> &Vocab {
        &self.vocab
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
        self.template.is_some()
    }

    /// How the template's answers are read; plain text without one.
    pub fn output_format(&self) -> OutputFormat {
        self.template.as_ref().map_or(OutputFormat::PLAIN, |t| OutputFormat::detect(t.source()))
    }

    /// Uses another chat template.
    pub fn set_template(&mut self, source: &str) -> Result<(), Error> {
        let [bos, eos] = marks(&self.vocab);
        self.template = Some(ChatTemplate::new(source, &bos, &eos)?);
        Ok(())
    }

    /// A prompt of plain text, with the model's own start.
    pub fn raw_prompt(&self, text: &str) -> Result<Prompt, Error> {
        Ok(Prompt { ids: self.vocab.encode(text, Encode { add_special: true, parse_special: true })? })
    }

    /// A prompt of a conversation, rendered by the template.
    pub fn chat_prompt(&self, messages: &[Message], options: &ChatOptions) -> Result<Prompt, Error> {
        let template = self.template.as_ref().ok_or(Error::NoTemplate)?;
        let list: Vec<Value> =
            messages.iter().map(|m| json!({"role": m.role, "content": m.content})).collect();
        let rendered = template.render(&Value::Array(list), None, true, &options.extra)?;
        // Most templates write the start token themselves; a second one would be seen by the model.
        let how = Encode { add_special: !rendered.has_bos, parse_special: true };
        let ids = self.vocab.encode(&rendered.text, how)?;
        Ok(Prompt { ids })
    }

    /// The file's sampling defaults.
    pub fn default_params(&self) -> Result<Params, Error> {
        sampling_defaults(self.file.metadata())
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

    /// What [`generate`](Self::generate) asks of the scheduler: with the marks of the prompt's messages, the model's
    /// end tokens, and without the tokens that it must never say.
    pub fn request(&self, prompt: Prompt, options: &GenerateOptions) -> Result<Request, Error> {
        let params = options.params.clone().map_or_else(|| self.default_params(), Ok)?;
        let max_tokens = options.max_tokens.unwrap_or(usize::MAX);
        let marks = message_ends(&self.vocab, &prompt.ids);
        let mut request = Request::new(prompt.ids, params, max_tokens);
        request.marks = marks;
        match options.ignore_eos {
            true => {
                request.params.bias.extend(self.vocab.end_tokens().iter().map(|id| (*id, f32::NEG_INFINITY)))
            }
            false => request.end_ids = self.vocab.end_tokens().to_vec(),
        }
        let suppressed = self.vocab.suppressed().iter().map(|id| (*id, f32::NEG_INFINITY));
        request.params.bias.extend(suppressed);
        if let Some(grammar) = &options.grammar {
            structured::constrain(&self.vocab, &self.grammars, &mut request, grammar, options.format)?;
        }
        if max_tokens == 0 {
            return Err(Error::Argument("0 tokens were asked for; use -n 1 or more".into()));
        }
        Ok(request)
    }

    /// Saves what follows from `ids`, computing what the cache does not hold.
    ///
    /// # Errors
    /// The ids do not fit the context, or the file cannot be written.
    pub fn save_state(&mut self, ids: &[u32], path: &Path) -> Result<(), Error> {
        let seq = self.engine().open(0)?;
        let saved = self.prefill(seq, ids).and_then(|()| Ok(self.engine().save(seq, path)?));
        let engine = self.engine();
        if saved.is_ok() {
            engine.memory().snapshot(seq);
        }
        engine.close(seq);
        saved
    }

    /// Takes what was saved into the cache, where prompts that begin with its ids find it; the ids.
    ///
    /// # Errors
    /// The file is damaged, or of another model or other settings.
    pub fn load_state(&mut self, path: &Path) -> Result<Vec<u32>, Error> {
        let engine = self.engine();
        let seq = engine.load_state(0, path)?;
        let ids = engine.memory().tokens(seq).to_vec();
        engine.memory().snapshot(seq);
        engine.close(seq);
        Ok(ids)
    }

    fn prefill(&mut self, seq: Seq, ids: &[u32]) -> Result<(), Error> {
        let engine = self.engine();
        let mut done = 0;
        if let Some((snapshot, len)) = engine.memory().find(0, ids) {
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
            let vocab = &self.vocab;
            let ticked = self.scheduler.tick(&mut |id, event| {
                match event {
                    _ if id != job => return ControlFlow::Continue(()),
                    Event::Token(id) => return answer.push(vocab, id, on),
                    Event::Done(finished) => end = Some(Ok(finished)),
                    Event::Failed(e) => end = Some(Err(e)),
                    Event::Prompt(_) | Event::PromptLogprobs(_) | Event::Logprobs(_) => {}
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

/// Where messages end in a prompt: behind each end token. A later turn of the conversation has the same text up to
/// there, whatever its template does to the rest.
fn message_ends(vocab: &Vocab, ids: &[u32]) -> Vec<usize> {
    let ends = vocab.end_tokens();
    (0..ids.len()).filter(|i| ends.contains(&ids[*i])).map(|i| i + 1).collect()
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

/// The texts of the start and end tokens, for templates.
fn marks(vocab: &Vocab) -> [String; 2] {
    [vocab.bos(), vocab.eos()]
        .map(|id| id.map_or(String::new(), |id| String::from_utf8_lossy(vocab.token_text(id)).into_owned()))
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
