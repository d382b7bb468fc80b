//! Rendering within bounds of steps, memory and output.

use std::io::{self, Write};

use minijinja::{Environment, ErrorKind, Value};
use serde_json::Value as Json;

use super::functions::Raised;
use super::{TemplateError, message};

/// Steps for a template that has nothing to say; one step also pays for 64 bytes of a result.
const BASE_FUEL: u64 = 1 << 20;
/// Steps for each value and each 64 bytes of the messages: about ten times what real templates take.
const FUEL_PER_UNIT: u64 = 2000;
/// The most steps of all, about a second.
const MAX_FUEL: u64 = 1 << 25;
/// Stack for each step. A template can wrap a value once in about six steps, and each wrap costs stack when the
/// value goes away. What is not used is only reserved.
const STACK_PER_STEP: u64 = 64;
/// A prompt is at most this much longer than what went into it.
const BASE_OUTPUT: usize = 1 << 22;
const OUTPUT_FACTOR: usize = 16;

/// Values in a JSON value, and one more for each 64 bytes of its strings.
pub(super) fn size(value: &Json) -> usize {
    match value {
        Json::String(text) => 1 + text.len() / 64,
        Json::Array(items) => 1 + items.iter().map(size).sum::<usize>(),
        Json::Object(items) => 1 + items.iter().map(|(key, v)| 1 + key.len() / 64 + size(v)).sum::<usize>(),
        _ => 1,
    }
}

/// Text that takes no more than `limit` bytes.
struct Limited {
    text: Vec<u8>,
    limit: usize,
    full: bool,
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.limit - self.text.len() < bytes.len() {
            self.full = true;
            return Err(io::Error::other("output is full"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Renders a template with bounds that grow with the `size` of what goes in, on a stack of its own.
pub(super) fn render(
    environment: &Environment<'static>,
    name: &str,
    context: Value,
    size: usize,
) -> Result<String, TemplateError> {
    let fuel = (size as u64).saturating_mul(FUEL_PER_UNIT).saturating_add(BASE_FUEL).min(MAX_FUEL);
    let limit = size.saturating_mul(64 * OUTPUT_FACTOR).saturating_add(BASE_OUTPUT);
    let work = || render_within(environment, name, context, fuel, limit);
    // There are no threads on the web, where running out of stack ends the page and not a server.
    if cfg!(target_family = "wasm") {
        return work();
    }
    let failed = |message: String| TemplateError::Render { line: 0, message };
    std::thread::scope(|scope| {
        let stack = (1 << 21) + STACK_PER_STEP * fuel;
        let thread = std::thread::Builder::new().stack_size(stack as usize).spawn_scoped(scope, work);
        let thread = thread.map_err(|e| failed(format!("no thread to render it: {e}")))?;
        thread.join().unwrap_or_else(|_| Err(failed("the template engine gave up".to_owned())))
    })
}

fn render_within(
    environment: &Environment<'static>,
    name: &str,
    context: Value,
    fuel: u64,
    limit: usize,
) -> Result<String, TemplateError> {
    // A clone shares the compiled template; only the bound is its own.
    let mut environment = environment.clone();
    environment.set_fuel(Some(fuel));
    let mut out = Limited { text: Vec::new(), limit, full: false };
    let template = environment.get_template(name).map_err(|e| failure(&e, fuel))?;
    if let Err(error) = template.render_captured_to(context, &mut out) {
        return Err(match out.full {
            true => TemplateError::Limit { limit: format!("{limit} bytes of output") },
            false => failure(&error, fuel),
        });
    }
    let line = |e: std::string::FromUtf8Error| TemplateError::Render { line: 0, message: e.to_string() };
    String::from_utf8(out.text).map_err(line)
}

/// Sorts an error of the template engine: the template's own words, a limit, or a failure.
fn failure(error: &minijinja::Error, fuel: u64) -> TemplateError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = cause {
        if let Some(Raised(message)) = inner.downcast_ref::<Raised>() {
            return TemplateError::Raised(message.clone());
        }
        if inner.downcast_ref::<minijinja::Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel) {
            return TemplateError::Limit { limit: format!("{fuel} steps") };
        }
        cause = inner.source();
    }
    TemplateError::Render { line: error.line().unwrap_or(0), message: message(error) }
}
