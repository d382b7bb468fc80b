//! How Python writes values: `json.dumps`, `str` and `repr`, which templates of the field rely on.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::objects;

/// Values nested deeper than this are refused: the stack is finite.
const MAX_DEPTH: usize = 128;

/// The layout of `json.dumps`.
struct Json<'a> {
    /// Pays for every value, since a list in few steps can be longer than memory.
    state: &'a State<'a, 'a>,
    ascii: bool,
    sorted: bool,
    indent: Option<usize>,
    comma: String,
    colon: String,
}

/// `tojson` as Hugging Face defines it: `json.dumps` without escapes for HTML.
pub(super) fn to_json(
    state: &State,
    value: &Value,
    indent: Option<Value>,
    args: Kwargs,
) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => args.get::<Option<Value>>("indent")?,
    };
    let indent = indent.filter(|v| !v.is_none()).map(usize::try_from).transpose()?.map(|n| n.min(32));
    let separators = args.get::<Option<Vec<String>>>("separators")?;
    let (comma, colon) = match separators.as_deref() {
        Some([comma, colon]) => (comma.clone(), colon.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "separators are a pair of strings")),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let json = Json {
        state,
        ascii: args.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sorted: args.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent,
        comma,
        colon,
    };
    args.assert_all_used()?;
    let mut out = String::new();
    json.value(value, 0, &mut out)?;
    Ok(Value::from(out))
}

impl Json<'_> {
    fn value(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        check(self.state, value, depth)?;
        match value.kind() {
            _ if objects::is_none(value) => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            // A sum of lists is a list to Python, and an iterable to the template engine.
            ValueKind::Seq | ValueKind::Iterable if !objects::is_generator(value) => {
                let mut items = Vec::new();
                for item in value.try_iter()? {
                    self.state.consume_fuel(1)?;
                    items.push((None, item));
                }
                self.list('[', items, ']', depth, out)?;
            }
            ValueKind::Map => {
                let mut items = Vec::new();
                for key in value.try_iter()? {
                    self.state.consume_fuel(1)?;
                    items.push((Some(self.key(&key)?), value.get_item(&key)?));
                }
                if self.sorted {
                    items.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.list('{', items, '}', depth, out)?;
            }
            kind => {
                let message = format!("a value of kind {kind} is not JSON serializable");
                return Err(Error::new(ErrorKind::BadSerialization, message));
            }
        }
        Ok(())
    }

    fn key(&self, key: &Value) -> Result<String, Error> {
        match key.kind() {
            ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
            ValueKind::Bool | ValueKind::Number | ValueKind::None => {
                let mut out = String::new();
                self.value(key, 0, &mut out)?;
                Ok(out)
            }
            kind => Err(Error::new(ErrorKind::BadSerialization, format!("keys cannot be of kind {kind}"))),
        }
    }

    fn list(
        &self,
        open: char,
        items: Vec<(Option<String>, Value)>,
        close: char,
        depth: usize,
        out: &mut String,
    ) -> Result<(), Error> {
        let empty = items.is_empty();
        out.push(open);
        for (i, (key, item)) in items.into_iter().enumerate() {
            if i > 0 {
                out.push_str(&self.comma);
            }
            self.new_line(depth + 1, out);
            if let Some(key) = key {
                self.string(&key, out);
                out.push_str(&self.colon);
            }
            self.value(&item, depth + 1, out)?;
        }
        if !empty {
            self.new_line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn new_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.ascii && (c as u32) > 0x7E) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// Refuses values that are nested too deep and pays for one value.
fn check(state: &State, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("value is nested deeper than {MAX_DEPTH}"),
        ));
    }
    state.consume_fuel(1 + value.as_str().map_or(0, str::len) as u64 / 64)
}

/// A number as Python's `repr` has it.
fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => float_repr(float),
        _ => value.to_string(),
    }
}

/// The shortest digits that read back, with an exponent below 1e-4 and from 1e16.
fn float_repr(float: f64) -> String {
    if float.is_nan() {
        return "NaN".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let size = float.abs();
    if float != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{float:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |e| ('-', e));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{float:?}")
}

/// `str(value)`: what a template prints.
pub(super) fn write_str(state: &State, value: &Value, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::String => out.push_str(value.as_str().unwrap_or_default()),
        ValueKind::Undefined => {}
        _ => write_repr(state, value, 0, out)?,
    }
    Ok(())
}

fn write_repr(state: &State, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    check(state, value, depth)?;
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => quote(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable if !objects::is_generator(value) => {
            out.push('[');
            for (i, item) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                write_repr(state, &item, depth + 1, out)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                write_repr(state, &key, depth + 1, out)?;
                out.push_str(": ");
                write_repr(state, &value.get_item(&key)?, depth + 1, out)?;
            }
            out.push('}');
        }
        ValueKind::Undefined => out.push_str("Undefined"),
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// A string in quotes: single ones unless only double ones need no escape.
fn quote(text: &str, out: &mut String) {
    let mark = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(mark);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == mark => out.extend(['\\', c]),
            c if (c as u32) < 0x20 || (0x7F..0xA1).contains(&(c as u32)) => {
                out.push_str(&format!("\\x{:02x}", c as u32));
            }
            c => out.push(c),
        }
    }
    out.push(mark);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, str_text: &str, json_text: &str) {
        let environment = minijinja::Environment::new();
        let state = &environment.empty_state();
        let value =
            Value::from(minijinja::value::Serde(serde_json::from_str::<serde_json::Value>(json).unwrap()));
        let mut out = String::new();
        write_str(state, &value, &mut out).unwrap();
        assert_eq!(out, str_text);
        let found = to_json(state, &value, None, Kwargs::from_iter(Vec::<(String, Value)>::new())).unwrap();
        assert_eq!(found.as_str().unwrap(), json_text);
    }

    #[test]
    fn values_print_as_in_python() {
        check(r#"{"b":[1,1.0,true,null],"a":"x'<é"}"#, r#"{'b': [1, 1.0, True, None], 'a': "x'<é"}"#, {
            r#"{"b": [1, 1.0, true, null], "a": "x'<é"}"#
        });
        check("1e20", "1e+20", "1e+20");
        check("0.00001", "1e-05", "1e-05");
        check("[]", "[]", "[]");
        check("18446744073709551615", "18446744073709551615", "18446744073709551615");
    }
}
