//! Grammars of calls that must come, in the form of each family; and of thoughts that may come before an answer.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::{Grammar, GrammarError, gbnf_to_lark, schema};
use crate::output::{Family, OutputFormat, Tool};
use crate::vocab::Vocab;

/// Which tools must be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// One of them, or more.
    Required,
    /// This one.
    Named(String),
}

/// The grammar of an answer that calls tools: thoughts, where the format has such, and one call, or any number of them.
/// `prompt` is the prompt, of which the end suffices.
///
/// Text between tags is kept to the schema's type, `enum`, `const` and lengths; arguments in JSON to all of it.
///
/// # Errors
/// A name that no tool has, a format without calls, a schema that cannot be enforced.
pub fn tool_grammar(
    format: OutputFormat,
    vocab: &Vocab,
    prompt: &str,
    tools: &[Tool],
    choice: &ToolChoice,
    parallel: bool,
) -> Result<Grammar, GrammarError> {
    let tools: Vec<&Tool> = match choice {
        ToolChoice::Required => tools.iter().collect(),
        ToolChoice::Named(name) => tools.iter().filter(|t| t.name == *name).collect(),
    };
    if tools.is_empty() {
        return Err(GrammarError::Compile("no tool of the request is the one to be called".into()));
    }
    if !format.has_tools() {
        return Err(GrammarError::Compile("the model's chat template shows no way to call tools".into()));
    }
    let mut w = Writer { vocab, out: String::new(), n_rules: 0, format };
    let start = w.thoughts(prompt, false);
    let mut calls = Vec::new();
    for (i, tool) in tools.into_iter().enumerate() {
        let parameters = schema::prepare(&tool.parameters).map_err(|e| within(e, &tool.name))?;
        let parameters = if parameters == json!({}) { json!({"type": "object"}) } else { parameters };
        let call = w.call(&tool.name, &parameters);
        let _ = writeln!(w.out, "call{i}: {call}");
        calls.push(format!("call{i}"));
    }
    let one = format!("({})", calls.join(" | "));
    let [open, between, close] = w.around();
    let more = if parallel && format.family() != Family::Harmony {
        format!(" ({between} {one})*")
    } else {
        String::new()
    };
    let _ = writeln!(w.out, "start: {start} {open} {one}{more} {close}");
    Ok(Grammar::Lark(w.out))
}

/// The grammar of an answer of which thoughts are no part: they may come before it, where the format has such.
///
/// # Errors
/// A grammar that cannot be read. One in Lark holds for the whole text and is left as it is.
pub fn answer_grammar(
    format: OutputFormat,
    vocab: &Vocab,
    prompt: &str,
    grammar: &Grammar,
) -> Result<Grammar, GrammarError> {
    if !format.has_reasoning() {
        return Ok(grammar.clone());
    }
    let mut w = Writer { vocab, out: String::new(), n_rules: 0, format };
    let start = w.thoughts(prompt, true);
    let body = match grammar {
        Grammar::Lark(_) => return Ok(grammar.clone()),
        Grammar::JsonSchema(value) => {
            let value = schema::prepare(value)?;
            format!("body: %json {}\n", schema::with_options(&value))
        }
        Grammar::Regex(text) => format!("body: /{}/\n", super::compile::lark_regex(text)),
        Grammar::Gbnf(text) => gbnf_to_lark(text)?.replacen("start:", "body:", 1),
    };
    Ok(Grammar::Lark(format!("{}{body}start: {start} body\n", w.out)))
}

/// The path of an error begins with the tool.
fn within(e: GrammarError, tool: &str) -> GrammarError {
    match e {
        GrammarError::Schema { path, keyword, reason } => {
            GrammarError::Schema { path: format!("of tool `{tool}` {path}"), keyword, reason }
        }
        e => e,
    }
}

struct Writer<'a> {
    vocab: &'a Vocab,
    out: String,
    n_rules: usize,
    format: OutputFormat,
}

/// A text in Lark.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

impl Writer<'_> {
    /// A mark: the control token where it is one, else its text.
    fn mark(&self, mark: &str) -> String {
        match self.vocab.id_of(mark.as_bytes()) {
            Some(id) if self.vocab.piece(id, false).is_empty() => format!("<[{id}]>"),
            _ => quoted(mark),
        }
    }

    /// Text in which marks stand between `⟦` and `⟧`.
    fn text(&self, text: &str) -> String {
        let mut parts = Vec::new();
        for (i, part) in text.split(['⟦', '⟧']).enumerate().filter(|(_, part)| !part.is_empty()) {
            parts.push(if i % 2 == 1 { self.mark(part) } else { quoted(part) });
        }
        parts.join(" ")
    }

    /// Any text up to a mark, and the mark.
    fn until(&mut self, mark: &str) -> String {
        let spelt = self.mark(mark.trim_matches(['⟦', '⟧']));
        self.n_rules += 1;
        let n = self.n_rules;
        // Text holds no control token, so it ends by itself.
        let _ = match spelt.starts_with('<') {
            true => writeln!(self.out, "text{n}: /(?s:.*)/ {spelt}"),
            false => writeln!(self.out, "text{n}[suffix={spelt}]: /(?s:.*)/"),
        };
        format!("text{n}")
    }

    fn json(&mut self, schema: &Value, root: &Value) -> String {
        self.n_rules += 1;
        let n = self.n_rules;
        let schema = schema::with_options(&schema::with_definitions(schema, root));
        let schema = if schema.is_object() { schema } else { json!({}) };
        let _ = writeln!(self.out, "json{n}: %json {schema}");
        format!("json{n}")
    }

    /// What may come before the answer.
    fn thoughts(&mut self, prompt: &str, answer: bool) -> String {
        if self.format.family() == Family::Harmony {
            let analysis = self.text("⟦<|channel|>⟧analysis⟦<|message|>⟧");
            let end = self.until("<|end|>");
            let next = self.text("⟦<|start|>⟧assistant");
            let last =
                if answer { self.text("⟦<|channel|>⟧final⟦<|message|>⟧") } else { String::new() };
            return format!("({analysis} {end} {next})? {last}");
        }
        let Some([open, close]) = self.format.thoughts() else { return String::new() };
        let rest = self.until(close);
        match self.format.opens_thoughts(prompt) {
            true => format!("{rest} /\\s{{0,4}}/"),
            false => format!("({} {rest} /\\s{{0,4}}/)?", self.mark(open)),
        }
    }

    /// What stands before, between and after calls.
    fn around(&self) -> [String; 3] {
        let texts = match self.format.family() {
            Family::DeepSeek => ["⟦<｜tool▁calls▁begin｜>⟧", "\n", "⟦<｜tool▁calls▁end｜>⟧"],
            Family::Dsml => ["<｜DSML｜tool_calls>\n", "", "</｜DSML｜tool_calls>"],
            Family::Kimi => ["⟦<|tool_calls_section_begin|>⟧", "", "⟦<|tool_calls_section_end|>⟧"],
            Family::Lfm2 => ["⟦<|tool_call_start|>⟧[", ", ", "]⟦<|tool_call_end|>⟧"],
            Family::Cohere => ["⟦<|START_ACTION|>⟧[\n    ", ",\n    ", "\n]⟦<|END_ACTION|>⟧"],
            Family::ToolCalls => ["⟦<tool_calls>⟧[", ", ", "]⟦</tool_calls>⟧"],
            Family::Nemotron => ["⟦<TOOLCALL>⟧[", ", ", "]⟦</TOOLCALL>⟧"],
            Family::Granite => ["⟦<|tool_call|>⟧[", ", ", "]"],
            Family::Hermes | Family::Xml | Family::Seed | Family::Glm | Family::NamedXml => ["", "\n", ""],
            Family::Llama3 => ["", "; ", ""],
            _ => ["", "", ""],
        };
        texts.map(|t| self.text(t))
    }

    fn call(&mut self, name: &str, schema: &Value) -> String {
        let before = |keys: [&str; 2]| format!("{{\"{}\": {}, \"{}\": ", keys[0], quoted(name), keys[1]);
        let object = before(["name", "arguments"]);
        match self.format.family() {
            Family::Hermes => self.framed(&format!("⟦<tool_call>⟧\n{object}"), schema, "}\n⟦</tool_call>⟧"),
            Family::Llama3 => self.framed(&before(["name", "parameters"]), schema, "}"),
            Family::ToolCalls | Family::Nemotron | Family::Granite => self.framed(&object, schema, "}"),
            Family::GigaChat => self.framed(&format!("⟦<|function_call|>⟧{object}"), schema, "}"),
            Family::Cohere => {
                let id = format!("{} /[0-9]{{1,3}}/ {}", quoted("{\"tool_call_id\": \""), quoted("\", "));
                let rest = before(["tool_name", "parameters"]);
                format!("{id} {}", self.framed(&rest[1..], schema, "}"))
            }
            Family::Mistral => self.framed(&format!("⟦[TOOL_CALLS]⟧{name}⟦[ARGS]⟧"), schema, ""),
            Family::DeepSeek if self.format.ticks() => {
                let open = format!("⟦<｜tool▁call▁begin｜>⟧function⟦<｜tool▁sep｜>⟧{name}\n```json\n");
                self.framed(&open, schema, "\n```⟦<｜tool▁call▁end｜>⟧")
            }
            Family::DeepSeek => self.framed(
                &format!("⟦<｜tool▁call▁begin｜>⟧{name}⟦<｜tool▁sep｜>⟧"),
                schema,
                "⟦<｜tool▁call▁end｜>⟧",
            ),
            Family::Kimi => {
                let open = self.text(&format!("⟦<|tool_call_begin|>⟧functions.{name}:"));
                let rest = self.framed("⟦<|tool_call_argument_begin|>⟧", schema, "⟦<|tool_call_end|>⟧");
                format!("{open} /[0-9]{{1,3}}/ {rest}")
            }
            Family::Harmony => {
                let open =
                    format!("⟦<|channel|>⟧commentary to=functions.{name} ⟦<|constrain|>⟧json⟦<|message|>⟧");
                self.framed(&open, schema, "")
            }
            Family::Functionary => self.framed(&format!("<function={name}>"), schema, "</function>"),
            Family::Xml | Family::Seed => {
                let mark = if self.format.family() == Family::Xml { "tool_call" } else { "seed:tool_call" };
                let open = format!("⟦<{mark}>⟧\n<function={name}>\n");
                let tags = |key: &str, _: bool| [format!("<parameter={key}>\n"), "\n</parameter>\n".into()];
                self.tagged(&open, schema, tags, &format!("</function>\n⟦</{mark}>⟧"))
            }
            Family::NamedXml => {
                let tags = |key: &str, _: bool| [format!("<param name=\"{key}\">"), "</param>".into()];
                self.tagged(&format!("<function name=\"{name}\">"), schema, tags, "</function>")
            }
            Family::Glm => {
                let tags = |key: &str, _: bool| {
                    [format!("⟦<arg_key>⟧{key}⟦</arg_key>⟧\n⟦<arg_value>⟧"), "⟦</arg_value>⟧".into()]
                };
                self.tagged(&format!("⟦<tool_call>⟧{name}\n"), schema, tags, "⟦</tool_call>⟧")
            }
            Family::Dsml => {
                let tags = |key: &str, text: bool| {
                    let open = format!("<｜DSML｜parameter name=\"{key}\" string=\"{text}\">");
                    [open, "</｜DSML｜parameter>\n".into()]
                };
                self.tagged(
                    &format!("<｜DSML｜invoke name=\"{name}\">\n"),
                    schema,
                    tags,
                    "</｜DSML｜invoke>\n",
                )
            }
            Family::Lfm2 => {
                let arguments = self.listed(schema, "=", ", ", &mut |w, s, root| w.json(s, root));
                format!("{} {arguments} {}", quoted(&format!("{name}(")), quoted(")"))
            }
            Family::Gemma | Family::FunctionGemma => self.gemma(name, schema),
            Family::Plain => unreachable!("it has no calls"),
        }
    }

    /// Arguments as JSON between two texts.
    fn framed(&mut self, open: &str, schema: &Value, close: &str) -> String {
        let arguments = self.json(schema, schema);
        format!("{} {arguments} {}", self.text(open), self.text(close))
    }

    /// Arguments between tags, in the order of the schema.
    fn tagged(
        &mut self,
        open: &str,
        schema: &Value,
        tags: impl Fn(&str, bool) -> [String; 2],
        close: &str,
    ) -> String {
        let mut out = self.text(open);
        for (key, value, required) in properties(schema) {
            let tool = Tool { name: String::new(), parameters: schema.clone() };
            let text = tool.takes_text(key);
            let [before, after] = tags(key, text);
            let before = self.text(&before);
            let inner = match text {
                true => self.value(value, &after),
                false => format!("{} {}", self.json(value, schema), self.text(&after)),
            };
            let _ = write!(out, " ({before} {inner}){}", if required { "" } else { "?" });
        }
        format!("{out} {}", self.text(close))
    }

    /// A string's value and the tag behind it.
    fn value(&mut self, schema: &Value, after: &str) -> String {
        let one = schema.get("const").cloned().map(|c| vec![c]);
        if let Some(list) = one.or_else(|| schema.get("enum").and_then(Value::as_array).cloned()) {
            let list: Vec<String> = list.iter().filter_map(Value::as_str).map(quoted).collect();
            return format!("({}) {}", list.join(" | "), self.text(after));
        }
        match (schema.get("minLength"), schema.get("maxLength")) {
            (None, None) => self.until(after),
            (least, most) => {
                let most = most.map(Value::to_string).unwrap_or_default();
                let least = least.map_or("0".into(), Value::to_string);
                // What closes the value is no part of it.
                self.n_rules += 1;
                let (n, close) =
                    (self.n_rules, super::compile::lark_regex(&regex_text(&after.replace(['⟦', '⟧'], ""))));
                let _ = writeln!(self.out, "V{n}: /(?s:.{{{least},{most}}})/ & ~/(?s:.*){close}(?s:.*)/");
                format!("V{n} {}", self.text(after))
            }
        }
    }

    /// Arguments in a row, required ones in the order of the schema, each other one or not.
    fn listed(
        &mut self,
        schema: &Value,
        is: &str,
        comma: &str,
        value: &mut dyn FnMut(&mut Self, &Value, &Value) -> String,
    ) -> String {
        let mut items = Vec::new();
        for (key, inner, required) in properties(schema) {
            let inner = value(self, inner, schema);
            items.push((format!("{} {inner}", quoted(&format!("{key}{is}"))), required));
        }
        items.sort_by_key(|(_, required)| !required);
        let n_required = items.iter().filter(|(_, required)| *required).count();
        let optional = |from: usize| {
            let items = items[from..].iter().map(|(item, _)| format!("({} {item})?", quoted(comma)));
            items.collect::<Vec<_>>().join(" ")
        };
        if n_required > 0 {
            let first: Vec<&str> = items[..n_required].iter().map(|(item, _)| item.as_str()).collect();
            return format!("{} {}", first.join(&format!(" {} ", quoted(comma))), optional(n_required));
        }
        let from = |i: usize| format!("({} {})", items[i].0, optional(i + 1));
        let starts: Vec<String> = (0..items.len().min(64)).map(from).collect();
        if starts.is_empty() { String::new() } else { format!("({})?", starts.join(" | ")) }
    }

    fn gemma(&mut self, name: &str, schema: &Value) -> String {
        let function = self.format.family() == Family::FunctionGemma;
        let [open, close, quote] = match function {
            true => ["⟦<start_function_call>⟧", "⟦<end_function_call>⟧", "<escape>"],
            false => ["⟦<|tool_call>⟧", "⟦<tool_call|>⟧", "<|\"|>"],
        };
        if self.n_rules == 0 || !self.out.contains("gvalue:") {
            let (mark, text) = (self.mark(quote), self.until(quote));
            let _ = writeln!(
                self.out,
                "gtext: {mark} {text}\ngnumber: /-?(0|[1-9][0-9]{{0,15}})(\\.[0-9]{{1,15}})?/\n\
                 gword: \"true\" | \"false\" | \"null\"\n\
                 glist: \"[\" (gvalue (\",\" gvalue)*)? \"]\"\n\
                 gobject: \"{{\" (/[A-Za-z_][A-Za-z0-9_]*/ \":\" gvalue (\",\" /[A-Za-z_][A-Za-z0-9_]*/ \":\" gvalue)*)? \"}}\"\n\
                 gvalue: gtext | gnumber | gword | glist | gobject"
            );
        }
        let mark = self.mark(quote);
        let mut value = |w: &mut Self, schema: &Value, _: &Value| {
            let kind = schema.get("type").and_then(Value::as_str);
            let texts = schema.get("enum").and_then(Value::as_array);
            match (kind, texts) {
                (_, Some(list)) if list.iter().all(Value::is_string) => {
                    let list: Vec<String> = list.iter().filter_map(Value::as_str).map(quoted).collect();
                    format!("{mark} ({}) {mark}", list.join(" | "))
                }
                (Some("string"), _) if schema.get("minLength").or(schema.get("maxLength")).is_some() => {
                    format!("{mark} {}", w.value(schema, &format!("⟦{quote}⟧")))
                }
                (Some("string"), _) => "gtext".into(),
                (Some("integer" | "number" | "boolean" | "null"), _) => w.json(schema, schema),
                (Some("array"), _) => "glist".into(),
                (Some("object"), _) => "gobject".into(),
                _ => "gvalue".into(),
            }
        };
        let arguments = self.listed(schema, ":", ",", &mut value);
        let open = self.text(&format!("{open}call:{name}{{"));
        format!("{open} {arguments} {} {}", quoted("}"), self.text(close))
    }
}

/// A text as a regular expression.
fn regex_text(text: &str) -> String {
    let escaped = text
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_string() } else { format!("\\x{{{:X}}}", c as u32) });
    escaped.collect()
}

/// Name, schema and whether it is required, of each property.
fn properties(schema: &Value) -> Vec<(&str, &Value, bool)> {
    static NONE: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
    let all = schema.get("properties").and_then(Value::as_object).unwrap_or(&NONE);
    let required = |key: &str| {
        let list = schema.get("required").and_then(Value::as_array);
        list.is_some_and(|list| list.iter().any(|r| r == key))
    };
    all.iter().map(|(key, value)| (key.as_str(), value, required(key))).collect()
}

#[cfg(test)]
mod tests {
    use firth_gguf::{Array, Metadata, Strings, Value as Field};

    use super::*;

    /// Marks that are control tokens are named by their ids, before and behind every kind of argument.
    #[test]
    fn marks_are_control_tokens_where_they_are_such() {
        let marks =
            ["a", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"];
        let mut m = Metadata::new();
        m.insert("tokenizer.ggml.model", Field::Str("gpt2".into()));
        m.insert("tokenizer.ggml.pre", Field::Str("gpt-2".into()));
        let mut tokens = Strings::new();
        marks.iter().for_each(|t| tokens.push(t));
        m.insert("tokenizer.ggml.tokens", Field::Array(Array::Str(tokens)));
        m.insert("tokenizer.ggml.merges", Field::Array(Array::Str(Strings::new())));
        m.insert("tokenizer.ggml.token_type", Field::Array(Array::I32(vec![1, 3, 3, 3, 3, 3, 3])));
        let vocab = Vocab::from_metadata(&m).unwrap();
        let parameters = json!({"type": "object", "required": ["s", "e", "n"], "properties": {
            "s": {"type": "string"}, "e": {"enum": ["x"]}, "n": {"type": "integer"},
        }});
        let tool = Tool { name: "f".into(), parameters };
        let format = OutputFormat::detect("<arg_key> <tool_call>");
        let grammar = tool_grammar(format, &vocab, "", &[tool], &ToolChoice::Required, false).unwrap();
        let Grammar::Lark(text) = grammar else { panic!("{grammar:?}") };
        assert_eq!(text.matches("<[5]>").count(), 3, "{text}");
        assert_eq!(text.matches("<[6]>").count(), 3, "{text}");
        assert!(!text.contains("arg_value"), "{text}");
    }
}
