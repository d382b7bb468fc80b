//! What may be said: schemas and grammars of a request, made into constraints of the sampler.

use firth::Constraint;
use serde_json::Value;

use crate::error::ApiError;

/// A rule for answers; each answer has a constraint of its own.
pub struct Rule(Box<dyn Fn() -> Result<Box<dyn Constraint>, ApiError> + Send + Sync>);

/// What a request asks for, before it is checked.
#[derive(Clone, Debug)]
pub enum Asked<'a> {
    /// A JSON schema, `{}` for any object, found at a path of the request.
    Schema(&'a Value, &'static str),
    /// A grammar in GBNF.
    Grammar(&'a str),
}

impl Rule {
    /// A new constraint.
    ///
    /// # Errors
    /// What it needs is not there.
    pub fn constraint(&self) -> Result<Box<dyn Constraint>, ApiError> {
        (self.0)()
    }

    /// Makes a rule.
    ///
    /// # Errors
    /// 400 with path and keyword for what has no meaning, 501 for what cannot be enforced.
    pub fn new(asked: &Asked<'_>) -> Result<Rule, ApiError> {
        let param = match asked {
            Asked::Schema(_, path) => path,
            Asked::Grammar(text) if text.trim_start().starts_with('{') => {
                return Err(ApiError::field("grammar", "grammar looks like JSON; use json_schema"));
            }
            Asked::Grammar(_) => "grammar",
        };
        Err(ApiError::unsupported_field(param, "constrained output is not available in this version"))
    }
}
