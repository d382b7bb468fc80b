//! Chat templates: from messages to the text of a prompt, as Hugging Face renders them.

mod functions;
mod limit;
mod objects;
mod python;
mod sums;

use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use firth_gguf::{KeyError, Metadata};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, Value};
use serde_json::Map;

/// Why a template gives no text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template cannot be read.
    #[error("chat template cannot be read, line {line}: {message}")]
    Syntax {
        /// Where, counted from 1; 0 where it is not known.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// The template itself refused the messages, in its own words.
    #[error("{0}")]
    Raised(String),
    /// The template failed on these messages.
    #[error("chat template failed, line {line}: {message}")]
    Render {
        /// Where, counted from 1; 0 where it is not known.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// The template took more steps or wrote more than it may.
    #[error("chat template went over its limit of {limit}")]
    Limit {
        /// What was used up.
        limit: String,
    },
    /// The date to show is no date.
    #[error("`{found}` is no date and time, expected such as `2026-11-30 09:30`")]
    Date {
        /// What was given.
        found: String,
    },
    /// The file's template is no text.
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// A prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// Its text, to be encoded with control tokens read.
    pub text: String,
    /// The text starts with the start token's text, so encoding must not add that token once more.
    pub has_bos: bool,
}

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
}

const NAME: &str = "chat_template";
/// A template is a few thousand bytes; the parser needs stack and time for each.
const MAX_SOURCE: usize = 1 << 17;
/// Stack of the parser, for each byte of a template. It calls itself for every sign, `not`, `elif` and the like.
const STACK_PER_BYTE: usize = 4 << 10;
/// The parser's time grows with the square of an expression's length. A real template takes milliseconds.
const MAX_PARSE: Duration = Duration::from_secs(5);
/// Stack depth of macros, in the template engine's units (a call is about ten). Fits a stack of 1 MiB.
const MAX_CALLS: usize = 200;

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos` are the texts of the start and end tokens.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`] where the template cannot be read; nothing else is used in its place.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<ChatTemplate, TemplateError> {
        if source.len() > MAX_SOURCE {
            let message = format!("it has {} bytes, expected at most {MAX_SOURCE}", source.len());
            return Err(TemplateError::Syntax { line: 0, message });
        }
        let environment = compile(functions::without_generation_tags(source))?;
        Ok(ChatTemplate { environment, source: source.to_owned(), bos: bos.to_owned(), eos: eos.to_owned() })
    }

    /// Compiles the template of a file, `tokenizer.chat_template`; `None` where it has none.
    ///
    /// # Errors
    /// A value that is no string, or a template that cannot be read.
    pub fn from_metadata(m: &Metadata, bos: &str, eos: &str) -> Result<Option<ChatTemplate>, TemplateError> {
        let source = m.str("tokenizer.chat_template")?;
        source.map(|source| ChatTemplate::new(source, bos, eos)).transpose()
    }

    /// The template's own text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Fixes the local date and time that the template sees, written `2026-11-30 09:30`.
    ///
    /// # Errors
    /// [`TemplateError::Date`].
    pub fn set_now(&mut self, now: &str) -> Result<(), TemplateError> {
        let date = now.parse().map_err(|_| TemplateError::Date { found: now.to_owned() })?;
        functions::add_clock(&mut self.environment, Some(date));
        Ok(())
    }

    /// Renders messages, an array of objects with `role` and `content` in the form the template expects.
    ///
    /// `extra` adds variables, such as `enable_thinking`, and may overwrite the others.
    ///
    /// # Errors
    /// The template's own refusal in its own words, its failure, or a limit it went over.
    pub fn render(
        &self,
        messages: &serde_json::Value,
        tools: Option<&serde_json::Value>,
        add_generation_prompt: bool,
        extra: &Map<String, serde_json::Value>,
    ) -> Result<Rendered, TemplateError> {
        let mut context = vec![
            ("messages", json(messages)),
            ("tools", tools.map_or_else(|| objects::absent(&self.source), json)),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
            ("bos_token", Value::from(self.bos.as_str())),
            ("eos_token", Value::from(self.eos.as_str())),
        ];
        context.extend(extra.iter().map(|(key, value)| (key.as_str(), json(value))));
        let size = limit::size(messages)
            + tools.map_or(0, limit::size)
            + extra.values().map(limit::size).sum::<usize>();
        let context = Value::from_pairs(context);
        let text = limit::render(&self.environment, NAME, context, size)?;
        let has_bos = !self.bos.is_empty() && text.starts_with(&self.bos);
        Ok(Rendered { text, has_bos })
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("source", &self.source).finish_non_exhaustive()
    }
}

/// An environment that is set up as Hugging Face sets jinja2 up.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax =
        SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(false).build();
    environment.set_syntax(syntax.expect("only the treatment of white space differs from the default"));
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_recursion_limit(MAX_CALLS);
    functions::add(&mut environment);
    environment
}

/// Parses a template on a stack that is deep enough for any of its length, within [`MAX_PARSE`].
fn compile(source: String) -> Result<Environment<'static>, TemplateError> {
    let stack = (1 << 21) + STACK_PER_BYTE * source.len();
    let parse = move || {
        let mut environment = environment();
        let source = sums::counted(&source, environment.syntax()).map_err(|e| syntax(&e))?;
        environment.add_template_owned(NAME, source).map_err(|e| syntax(&e))?;
        Ok(environment)
    };
    // There are no threads on the web, where running out of stack ends the page and not a server.
    if cfg!(target_family = "wasm") {
        return parse();
    }
    let failed = |message: String| TemplateError::Syntax { line: 0, message };
    let (done, result) = std::sync::mpsc::sync_channel(1);
    let thread = move || done.send(parse());
    let thread = std::thread::Builder::new().stack_size(stack).spawn(thread);
    thread.map_err(|e| failed(format!("no thread to parse it: {e}")))?;
    match result.recv_timeout(MAX_PARSE) {
        Ok(result) => result,
        // The thread ends some time later, on its own: its work is finite.
        Err(RecvTimeoutError::Timeout) => {
            Err(TemplateError::Limit { limit: format!("{} seconds to be read", MAX_PARSE.as_secs()) })
        }
        Err(RecvTimeoutError::Disconnected) => Err(failed("the parser gave up".to_owned())),
    }
}

fn syntax(error: &minijinja::Error) -> TemplateError {
    TemplateError::Syntax { line: error.line().unwrap_or(0), message: message(error) }
}

/// What went wrong, without the place.
fn message(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

fn json(value: &serde_json::Value) -> Value {
    Value::from(Serde(value))
}
