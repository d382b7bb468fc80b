//! What may be said: schemas and grammars of a request, made into constraints of the sampler.

use firth::text::Vocab;
use firth::text::grammar::{
    Grammar, GrammarConstraint, GrammarError, GrammarWatch, answer_grammar, tool_grammar,
};
use firth::text::output::{OutputFormat, Tool};
use firth::{Constraint, ModelText};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::conversation::ToolChoice;
use crate::error::ApiError;
use crate::fields::Fields;

/// A rule for answers; each answer has a constraint of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct Rule {
    grammar: Grammar,
    /// The field that asked for it.
    param: String,
}

/// A rule in a record.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Written {
    JsonSchema(Value),
    Regex(String),
    Gbnf(String),
    Lark(String),
}

impl From<Rule> for Written {
    fn from(rule: Rule) -> Written {
        match rule.grammar {
            Grammar::JsonSchema(schema) => Written::JsonSchema(schema),
            Grammar::Regex(text) => Written::Regex(text),
            Grammar::Gbnf(text) => Written::Gbnf(text),
            Grammar::Lark(text) => Written::Lark(text),
        }
    }
}

impl From<Written> for Rule {
    fn from(written: Written) -> Rule {
        let grammar = match written {
            Written::JsonSchema(schema) => Grammar::JsonSchema(schema),
            Written::Regex(text) => Grammar::Regex(text),
            Written::Gbnf(text) => Grammar::Gbnf(text),
            Written::Lark(text) => Grammar::Lark(text),
        };
        Rule { grammar, param: "rule".into() }
    }
}

/// What goes into a request: the constraint, and what ends the answer where nothing can follow.
pub type Parts = (Box<dyn Constraint>, GrammarWatch);

impl Rule {
    /// The rule that the fields of a request make; `None` for free text.
    ///
    /// # Errors
    /// 400 for a schema and a grammar at once, or a grammar that is none.
    pub fn of(fields: &Fields) -> Result<Option<Rule>, ApiError> {
        match (&fields.json_schema, fields.grammar.as_deref().filter(|g| !g.is_empty())) {
            (Some(_), Some(_)) => Err(ApiError::field("grammar", "either json_schema or grammar, not both")),
            (Some(schema), None) => Ok(Some(Rule::schema(schema))),
            (None, Some(text)) => {
                let grammar =
                    Grammar::from_gbnf(text).map_err(|e| ApiError::field("grammar", e.to_string()))?;
                Ok(Some(Rule { grammar, param: "grammar".into() }))
            }
            (None, None) => Ok(None),
        }
    }

    /// JSON of a schema; `{}` is any object.
    fn schema(schema: &Value) -> Rule {
        let any = schema.as_object().is_some_and(serde_json::Map::is_empty);
        let schema = if any { serde_json::json!({ "type": "object" }) } else { schema.clone() };
        Rule { grammar: Grammar::JsonSchema(schema), param: "json_schema".into() }
    }

    /// The same behind thoughts, where the format has such.
    ///
    /// # Errors
    /// 400 for a grammar that cannot be read.
    pub fn behind_thoughts(self, format: OutputFormat, vocab: &Vocab, tail: &str) -> Result<Rule, ApiError> {
        let grammar =
            answer_grammar(format, vocab, tail, &self.grammar).map_err(|e| error(&self.param, &e))?;
        Ok(Rule { grammar, ..self })
    }

    /// Calls of tools that must come; `None` where they need not.
    ///
    /// # Errors
    /// 400 for a schema that cannot be enforced.
    pub fn calls(
        format: OutputFormat,
        vocab: &Vocab,
        tail: &str,
        tools: &[Tool],
        choice: &ToolChoice,
        parallel: bool,
    ) -> Result<Option<Rule>, ApiError> {
        use firth::text::grammar::ToolChoice as Must;
        let must = match choice {
            ToolChoice::Auto | ToolChoice::None => return Ok(None),
            ToolChoice::Required => Must::Required,
            ToolChoice::Named(name) => Must::Named(name.clone()),
        };
        if !format.has_tools() {
            return Err(ApiError::unsupported_field(
                "tool_choice",
                "this model's chat template shows no way to call tools",
            ));
        }
        let grammar =
            tool_grammar(format, vocab, tail, tools, &must, parallel).map_err(|e| error("tools", &e))?;
        Ok(Some(Rule { grammar, param: "tools".into() }))
    }

    /// Constraints for `n` answers. Compiling takes time: once, and off the threads that answer.
    ///
    /// # Errors
    /// 400 with path and keyword for what cannot be enforced.
    pub async fn constraints(self, text: ModelText, n: usize) -> Result<Vec<Parts>, ApiError> {
        let compile = move || {
            let compiled = text.grammars().and_then(|g| g.constraint(&self.grammar));
            let first = compiled.map_err(|e| error(&self.param, &e))?;
            let others: Vec<_> = (1..n).map(|_| first.fork()).collect();
            let parts = |c: GrammarConstraint| {
                let watch = c.watch();
                (Box::new(c) as Box<dyn Constraint>, watch)
            };
            Ok(std::iter::once(first).chain(others).map(parts).collect())
        };
        tokio::task::spawn_blocking(compile).await.unwrap_or_else(|e| Err(ApiError::server(e.to_string())))
    }
}

fn error(param: &str, e: &GrammarError) -> ApiError {
    match e {
        GrammarError::Vocab(_) => ApiError::unsupported(e.to_string()),
        e => ApiError::field(param, e.to_string()),
    }
}
