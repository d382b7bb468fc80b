//! What templates call beyond the template language itself.

use jiff::Zoned;
use jiff::civil::DateTime;
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::{objects, python, sums};

/// What a template said by `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Raised(pub String);

/// Adds filters, functions, methods and the printing of values.
pub(super) fn add(environment: &mut Environment<'static>) {
    environment.add_filter("tojson", python::to_json);
    environment.add_filter("string", |state: &State, value: &Value| {
        let mut out = String::new();
        python::write_str(state, value, &mut out).map(|()| out)
    });
    environment.add_function(sums::NAME, sums::count);
    environment.add_filter(sums::ESCAPE, sums::escape);
    objects::add_generators(environment);
    objects::add_tests(environment);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        let error = Error::new(ErrorKind::InvalidOperation, message.clone());
        Err(error.with_source(Raised(message)))
    });
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.set_formatter(print);
    add_clock(environment, None);
}

/// Prints a value as Python prints it.
fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    let written = match value.as_str() {
        Some(text) => out.write_str(text),
        None => {
            let mut text = String::new();
            python::write_str(state, value, &mut text)?;
            out.write_str(&text)
        }
    };
    written.map_err(|_| Error::new(ErrorKind::WriteFailure, "output is full"))
}

/// Adds `strftime_now`, of the present or of a fixed time.
pub(super) fn add_clock(environment: &mut Environment<'static>, now: Option<DateTime>) {
    environment.add_function("strftime_now", move |format: &str| -> Result<String, Error> {
        let text = match now {
            Some(now) => jiff::fmt::strtime::format(format, now),
            None => jiff::fmt::strtime::format(format, &Zoned::now()),
        };
        text.map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {e}")))
    });
}

/// Replaces `{% generation %}` and `{% endgeneration %}`, which mark what an assistant wrote, by a plain block.
///
/// What is inside prints as before, and the blocks' white space control stays.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        rest = tag;
        let body = tag.trim_start_matches(['-', '+']);
        let word = body.trim_start();
        for (name, plain) in [("generation", "if true"), ("endgeneration", "endif")] {
            let after = word.strip_prefix(name).filter(|after| {
                let end = after.trim_start();
                ["%}", "-%}", "+%}"].iter().any(|close| end.starts_with(close))
            });
            if let Some(after) = after {
                out.push_str(&tag[..tag.len() - word.len()]);
                out.push_str(plain);
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags() {
        let found = without_generation_tags("a{%- generation -%} b {% endgeneration %}{% if generation %}");
        assert_eq!(found, "a{%- if true -%} b {% endif %}{% if generation %}");
    }
}
