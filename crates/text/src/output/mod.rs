//! What a model generates, read: thoughts, answer, tool calls.
//!
//! [`OutputFormat::detect`] tells from a chat template how its model writes; an [`OutputParser`] splits the text of one
//! answer as it comes.

mod budget;
mod events;
mod format;
mod harmony;
mod json;
mod json_call;
mod literal;
mod message;
mod parser;
mod section;
mod tagged;

#[cfg(test)]
mod tests;

pub use budget::ThoughtBudget;
pub use events::{OutputEvent, Tool, ToolError};
pub use format::Family;
pub use message::{Output, ToolCall};
pub use parser::{OutputFormat, OutputParser};
