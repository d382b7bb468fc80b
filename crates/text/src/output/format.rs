//! How families of models write thoughts and calls, and how a template shows which it is.

use super::json_call::{KEYS, Keys};
use super::literal::{GEMMA, PYTHON};
use super::section::{Body, Section};
use super::tagged::Tags;

/// How a model writes its thoughts and its tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Family {
    /// Text and nothing else.
    Plain,
    /// `<tool_call>` around JSON objects: Hermes, Qwen 2.5 and 3, Granite 4.
    Hermes,
    /// `<tool_call>`, `<function=…>`, `<parameter=…>`: Qwen3-Coder, Qwen3.5, Step, Nemotron 3.
    Xml,
    /// `<seed:tool_call>` around the same.
    Seed,
    /// `<function=name>` around JSON: Functionary 3.1.
    Functionary,
    /// `<function name="…"><param name="…">`: MiniCPM 5.
    NamedXml,
    /// `<tool_call>name`, `<arg_key>`, `<arg_value>`: GLM 4.5 and later.
    Glm,
    /// A bare JSON object with `name` and `parameters`: Llama 3.
    Llama3,
    /// `[TOOL_CALLS]`, with a list of objects or name and arguments: Mistral.
    Mistral,
    /// `<｜tool▁calls▁begin｜>`: DeepSeek V3, R1, V3.1.
    DeepSeek,
    /// `<｜DSML｜tool_calls>`: DeepSeek V3.2 and later.
    Dsml,
    /// `<|tool_calls_section_begin|>`: Kimi K2.
    Kimi,
    /// Channels and recipients: gpt-oss.
    Harmony,
    /// `<|tool_call_start|>[f(a='x')]<|tool_call_end|>`: LFM2.
    Lfm2,
    /// `<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|>`: Gemma 4.
    Gemma,
    /// `<start_function_call>` around the same: FunctionGemma.
    FunctionGemma,
    /// `<|START_ACTION|>` around a list: Command R7B and later.
    Cohere,
    /// `<tool_calls>` around JSON: MiniMax M1, Apriel.
    ToolCalls,
    /// `<TOOLCALL>` around a list: Nemotron Nano 2.
    Nemotron,
    /// `<|tool_call|>` before a list: Granite 3, Phi 4.
    Granite,
    /// `<|function_call|>` before an object: GigaChat 3.1.
    GigaChat,
}

impl Family {
    /// The family of a chat template, by the marks that its source names: the most telling ones first.
    pub fn detect(template: &str) -> Family {
        let has = |mark: &str| template.contains(mark);
        let marks: &[(&[&str], Family)] = &[
            (&["<|channel|>", "<|message|>", "<|start|>"], Family::Harmony),
            (&["｜DSML｜"], Family::Dsml),
            (&["<｜tool▁calls▁begin｜>"], Family::DeepSeek),
            (&["<|tool_calls_section_begin|>"], Family::Kimi),
            (&["<|tool_call>call:"], Family::Gemma),
            (&["<|tool_call>", "<tool_call|>"], Family::Gemma),
            (&["<start_function_call>"], Family::FunctionGemma),
            (&["<|tool_call_start|>"], Family::Lfm2),
            (&["<|tool_list_start|>"], Family::Lfm2),
            (&["keep_past_thinking", "List of tools: "], Family::Lfm2),
            (&["[TOOL_CALLS]"], Family::Mistral),
            (&["<|START_ACTION|>"], Family::Cohere),
            (&["<seed:tool_call>"], Family::Seed),
            (&["<arg_key>", "<tool_call>"], Family::Glm),
            (&["<parameter=", "<function="], Family::Xml),
            (&["<function name=", "<param name="], Family::NamedXml),
            (&["<function="], Family::Functionary),
            (&["<tool_calls>"], Family::ToolCalls),
            (&["<TOOLCALL>"], Family::Nemotron),
            (&["<|function_call|>"], Family::GigaChat),
            (&["<tool_call>"], Family::Hermes),
            (&["<|tool_call|>"], Family::Granite),
            (&["<|start_header_id|>", "\"parameters\""], Family::Llama3),
        ];
        marks.iter().find(|(all, _)| all.iter().all(|m| has(m))).map_or(Family::Plain, |(_, family)| *family)
    }

    pub(super) fn section(self) -> Option<&'static Section> {
        Some(match self {
            Family::Plain | Family::Harmony => return None,
            Family::Hermes => &HERMES,
            Family::Xml => &XML,
            Family::Seed => &SEED,
            Family::Functionary => &FUNCTIONARY,
            Family::NamedXml => &NAMED_XML,
            Family::Glm => &GLM,
            Family::Llama3 => &LLAMA3,
            Family::Mistral => &MISTRAL,
            Family::DeepSeek => &DEEPSEEK,
            Family::Dsml => &DSML,
            Family::Kimi => &KIMI,
            Family::Lfm2 => &LFM2,
            Family::Gemma => &GEMMA4,
            Family::FunctionGemma => &FUNCTION_GEMMA,
            Family::Cohere => &COHERE,
            Family::ToolCalls => &TOOL_CALLS,
            Family::Nemotron => &NEMOTRON,
            Family::Granite => &GRANITE,
            Family::GigaChat => &GIGACHAT,
        })
    }

    /// Characters of an id that the model's templates accept.
    pub(super) fn id_len(self) -> u32 {
        if self == Family::Mistral { 9 } else { 24 }
    }
}

/// Marks around thoughts that templates use.
pub(super) const THOUGHTS: [[&str; 2]; 9] = [
    ["<think>", "</think>"],
    ["[THINK]", "[/THINK]"],
    ["<|START_THINKING|>", "<|END_THINKING|>"],
    ["<|channel>thought", "<channel|>"],
    ["<seed:think>", "</seed:think>"],
    ["<mm:think>", "</mm:think>"],
    ["<think:opensource>", "</think:opensource>"],
    ["<|inner_prefix|>", "<|inner_suffix|>"],
    ["Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"],
];

const OBJECT: Body = Body::Object(KEYS);

const FUNCTION: Tags = Tags {
    call: ["<function=", ">", ""],
    call_close: "</function>",
    argument: ["<parameter=", ">", ""],
    argument_close: "</parameter>",
    trim: true,
    last: false,
};
const NAMED: Tags = Tags {
    call: ["<function name=\"", "\"", ">"],
    argument: ["<param name=\"", "\"", ">"],
    argument_close: "</param>",
    trim: false,
    ..FUNCTION
};
const ARG_KEY: Tags = Tags {
    call: ["", "", ""],
    call_close: "</tool_call>",
    argument: ["<arg_key>", "</arg_key>", "<arg_value>"],
    argument_close: "</arg_value>",
    trim: false,
    last: true,
};
const DSML_TAGS: Tags = Tags {
    call: ["<｜DSML｜invoke name=\"", "\"", ">"],
    call_close: "</｜DSML｜invoke>",
    argument: ["<｜DSML｜parameter name=\"", "\"", ">"],
    argument_close: "</｜DSML｜parameter>",
    trim: false,
    last: false,
};

static HERMES: Section = Section {
    open: &["<tool_call>"],
    close: &["</tool_call>"],
    between: &[],
    bodies: &[OBJECT, Body::Tagged(&FUNCTION)],
};
static XML: Section = Section { open: &["<tool_call>", "<function="], ..HERMES };
static SEED: Section = Section { open: &["<seed:tool_call>"], close: &["</seed:tool_call>"], ..HERMES };
static FUNCTIONARY: Section =
    Section { open: &["<function="], close: &[], between: &[], bodies: &[Body::Tagged(&FUNCTION)] };
static NAMED_XML: Section =
    Section { open: &["<function name=\""], close: &[], between: &[], bodies: &[Body::Tagged(&NAMED)] };
static GLM: Section =
    Section { bodies: &[OBJECT, Body::Tagged(&FUNCTION), Body::Tagged(&ARG_KEY)], ..HERMES };
static LLAMA3: Section = Section {
    open: &["<|python_tag|>"],
    close: &[],
    between: &[],
    bodies: &[Body::Object(Keys { known_only: true, ..KEYS })],
};
static MISTRAL: Section = Section {
    open: &["[TOOL_CALLS]"],
    close: &[],
    between: &[],
    bodies: &[OBJECT, Body::Header(mistral_header)],
};
static DEEPSEEK: Section = Section {
    open: &["<｜tool▁calls▁begin｜>"],
    close: &["<｜tool▁calls▁end｜>"],
    between: &["<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "```"],
    bodies: &[Body::Header(deepseek_header)],
};
static DSML: Section = Section {
    open: &["<｜DSML｜tool_calls>", "<｜DSML｜function_calls>"],
    close: &["</｜DSML｜tool_calls>", "</｜DSML｜function_calls>"],
    between: &[],
    bodies: &[Body::Tagged(&DSML_TAGS)],
};
static KIMI: Section = Section {
    open: &["<|tool_calls_section_begin|>"],
    close: &["<|tool_calls_section_end|>"],
    between: &["<|tool_call_begin|>", "<|tool_call_end|>"],
    bodies: &[Body::Header(kimi_header)],
};
static LFM2: Section = Section {
    open: &["<|tool_call_start|>"],
    close: &["<|tool_call_end|>"],
    between: &[],
    bodies: &[OBJECT, Body::Literal(PYTHON)],
};
static GEMMA4: Section = Section {
    open: &["<|tool_call>"],
    close: &["<tool_call|>"],
    between: &[],
    bodies: &[Body::Literal(GEMMA)],
};
static FUNCTION_GEMMA: Section =
    Section { open: &["<start_function_call>"], close: &["<end_function_call>"], ..GEMMA4 };
static COHERE: Section =
    Section { open: &["<|START_ACTION|>"], close: &["<|END_ACTION|>"], between: &[], bodies: &[OBJECT] };
static TOOL_CALLS: Section = Section { open: &["<tool_calls>"], close: &["</tool_calls>"], ..COHERE };
static NEMOTRON: Section = Section { open: &["<TOOLCALL>"], close: &["</TOOLCALL>"], ..COHERE };
static GRANITE: Section = Section { open: &["<|tool_call|>"], close: &["<|/tool_call|>"], ..COHERE };
static GIGACHAT: Section = Section { open: &["<|function_call|>"], close: &[], ..COHERE };

type Header = Option<(String, Option<String>)>;

/// A name with no more around it.
fn plain_name(name: &str, id: Option<&str>) -> Header {
    let name = name.trim();
    let ok = !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || "<>[]{}|\"".contains(c));
    ok.then(|| (name.to_owned(), id.map(|id| id.trim().to_owned())))
}

/// `name[ARGS]`, `name[CALL_ID]id[ARGS]`, `name`.
fn mistral_header(text: &str) -> Header {
    let text = text.trim_end();
    let text = text.strip_suffix("[ARGS]").unwrap_or(text);
    match text.split_once("[CALL_ID]") {
        Some((name, id)) => plain_name(name, Some(id)),
        None => plain_name(text, None),
    }
}

/// `function<｜tool▁sep｜>name` and a line with three ticks, or `name<｜tool▁sep｜>`.
fn deepseek_header(text: &str) -> Header {
    let (first, rest) = text.split_once("<｜tool▁sep｜>")?;
    let rest = rest.trim().trim_end_matches("json").trim_end_matches("```");
    plain_name(if rest.is_empty() { first } else { rest }, None)
}

/// `functions.name:0<|tool_call_argument_begin|>`: all of it is the id.
fn kimi_header(text: &str) -> Header {
    let id = text.trim_end().strip_suffix("<|tool_call_argument_begin|>")?.trim();
    let name = id.strip_prefix("functions.").unwrap_or(id);
    let name = name.rsplit_once(':').map_or(name, |(name, _)| name);
    plain_name(name, Some(id))
}
