//! The text half of a model: its file, vocabulary and template. It is cheap to clone and needs no device, so that
//! prompts are made while the engine works.

use std::sync::Arc;

use firth_engine::Request;
use firth_gguf::Gguf;
use firth_sampling::Params;
use firth_text::grammar::{GrammarError, Grammars, LazyGrammars};
use firth_text::output::OutputFormat;
use firth_text::{ChatTemplate, Encode, Rendered, Vocab};
use serde_json::{Map, Value};

use crate::defaults::sampling_defaults;
use crate::error::Error;
use crate::model::{GenerateOptions, Prompt};
use crate::structured;

/// What of a model concerns text.
#[derive(Clone)]
pub struct ModelText {
    file: Arc<Gguf>,
    vocab: Arc<Vocab>,
    template: Option<Arc<ChatTemplate>>,
    grammars: LazyGrammars,
}

impl ModelText {
    /// Of a file.
    ///
    /// # Errors
    /// A vocabulary or template that cannot be used.
    pub fn new(file: Arc<Gguf>) -> Result<ModelText, Error> {
        let vocab = Vocab::from_metadata(file.metadata())?;
        let [bos, eos] = marks(&vocab);
        let template = ChatTemplate::from_metadata(file.metadata(), &bos, &eos)?;
        Ok(ModelText {
            file,
            vocab: Arc::new(vocab),
            template: template.map(Arc::new),
            grammars: LazyGrammars::default(),
        })
    }

    /// The file.
    pub fn file(&self) -> &Arc<Gguf> {
        &self.file
    }

    /// The vocabulary.
    pub fn vocab(&self) -> &Vocab {
        &self.vocab
    }

    /// The vocabulary, to be kept.
    pub fn shared_vocab(&self) -> Arc<Vocab> {
        self.vocab.clone()
    }

    /// The vocabulary, prepared for grammars when the first one comes.
    ///
    /// # Errors
    /// A vocabulary that no grammar can work with.
    pub fn grammars(&self) -> Result<&Grammars, GrammarError> {
        self.grammars.of(&self.vocab)
    }

    /// The chat template, where there is one.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_deref()
    }

    /// How the template's answers are read; plain text without one.
    pub fn output_format(&self) -> OutputFormat {
        self.template().map_or(OutputFormat::PLAIN, |t| OutputFormat::detect(t.source()))
    }

    /// Uses another chat template.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn set_template(&mut self, source: &str) -> Result<(), Error> {
        let [bos, eos] = marks(&self.vocab);
        self.template = Some(Arc::new(ChatTemplate::new(source, &bos, &eos)?));
        Ok(())
    }

    /// A prompt of plain text, with the model's own start.
    ///
    /// # Errors
    /// The text cannot be encoded.
    pub fn raw_prompt(&self, text: &str) -> Result<Prompt, Error> {
        Ok(Prompt { ids: self.vocab.encode(text, Encode { add_special: true, parse_special: true })? })
    }

    /// The text of a conversation, as the template writes it.
    ///
    /// # Errors
    /// There is no template, or it refuses the messages.
    pub fn render(
        &self,
        messages: &Value,
        tools: Option<&Value>,
        add_generation_prompt: bool,
        extra: &Map<String, Value>,
    ) -> Result<Rendered, Error> {
        let template = self.template().ok_or(Error::NoTemplate)?;
        Ok(template.render(messages, tools, add_generation_prompt, extra)?)
    }

    /// The prompt of a rendered conversation.
    ///
    /// # Errors
    /// The text cannot be encoded.
    pub fn rendered_prompt(&self, rendered: &Rendered) -> Result<Prompt, Error> {
        // Most templates write the start token themselves; a second one would be seen by the model.
        let how = Encode { add_special: !rendered.has_bos, parse_special: true };
        Ok(Prompt { ids: self.vocab.encode(&rendered.text, how)? })
    }

    /// The file's sampling defaults.
    ///
    /// # Errors
    /// A key of the wrong type.
    pub fn default_params(&self) -> Result<Params, Error> {
        sampling_defaults(self.file.metadata())
    }

    /// What is asked of the scheduler: with the marks of the prompt's messages, the model's end tokens, and without
    /// the tokens that it must never say. Stop texts are the caller's to watch for.
    ///
    /// # Errors
    /// The file's sampling defaults cannot be read, or the grammar cannot be kept to.
    pub fn request(&self, prompt: Prompt, options: &GenerateOptions) -> Result<Request, Error> {
        let params = options.params.clone().map_or_else(|| self.default_params(), Ok)?;
        let marks = message_ends(&self.vocab, &prompt.ids);
        let mut request = Request::new(prompt.ids, params, options.max_tokens.unwrap_or(usize::MAX));
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
        Ok(request)
    }
}

/// Where messages end in a prompt: behind each end token. A later turn of the conversation has the same text up to
/// there, whatever its template does to the rest.
fn message_ends(vocab: &Vocab, ids: &[u32]) -> Vec<usize> {
    let ends = vocab.end_tokens();
    (0..ids.len()).filter(|i| ends.contains(&ids[*i])).map(|i| i + 1).collect()
}

/// The texts of the start and end tokens, for templates.
fn marks(vocab: &Vocab) -> [String; 2] {
    [vocab.bos(), vocab.eos()]
        .map(|id| id.map_or(String::new(), |id| String::from_utf8_lossy(vocab.token_text(id)).into_owned()))
}
