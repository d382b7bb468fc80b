//! Answers as published templates write them, read back.

mod common;

use firth_text::ChatTemplate;
use firth_text::output::{Family, Output, OutputFormat, OutputParser, Tool};
use serde_json::{Map, Value, json};

/// Which family each template is of. Those of `Plain` show no calls, or in a form that no parser here reads.
const FAMILIES: [(&str, Family); 37] = [
    ("Apriel-1.6-15b-Thinker-fixed", Family::ToolCalls),
    ("ByteDance-Seed-OSS", Family::Seed),
    ("Cohere2MoE", Family::Cohere),
    ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", Family::Cohere),
    ("GLM-4.6", Family::Glm),
    ("GigaChat3.1-10B-A1.8B", Family::GigaChat),
    ("Kimi-K2-Instruct", Family::Kimi),
    ("Kimi-K2-Thinking", Family::Kimi),
    ("LFM2-8B-A1B", Family::Lfm2),
    ("LFM2.5-8B-A1B", Family::Lfm2),
    ("MiMo-VL", Family::Hermes),
    ("MiniMax-M1", Family::ToolCalls),
    ("Mistral-Small-3.2-24B-Instruct-2506", Family::Mistral),
    ("NVIDIA-Nemotron-Nano-v2", Family::Nemotron),
    ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", Family::Hermes),
    ("Qwen-QwQ-32B", Family::Hermes),
    ("Qwen-Qwen2.5-7B-Instruct", Family::Hermes),
    ("Qwen3-Coder", Family::Xml),
    ("Qwen3.5-4B", Family::Xml),
    ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", Family::DeepSeek),
    ("deepseek-ai-DeepSeek-V3.1", Family::DeepSeek),
    ("deepseek-ai-DeepSeek-V4", Family::Dsml),
    ("deepseek-ai-DeepSeek-V4-Flash-0731", Family::Dsml),
    ("google-gemma-2-2b-it", Family::Plain),
    ("google-gemma-4-31B-it-interleaved", Family::Gemma),
    ("ibm-granite-granite-4.0", Family::Hermes),
    ("inclusionai-ling-3.0-flash", Family::Glm),
    ("llm-jp-llm-jp-4.1-8b-thinking", Family::Harmony),
    ("meetkai-functionary-medium-v3.1", Family::Functionary),
    ("meta-llama-Llama-3.1-8B-Instruct", Family::Llama3),
    ("meta-llama-Llama-3.2-3B-Instruct", Family::Llama3),
    ("mistralai-Ministral-3-14B-Reasoning-2512", Family::Mistral),
    ("moonshotai-Kimi-K2", Family::Kimi),
    ("openbmb-MiniCPM5-1B", Family::NamedXml),
    ("poolside-Laguna-S-2.1", Family::Glm),
    ("poolside-Laguna-XS.2", Family::Glm),
    ("unsloth-mistral-Devstral-Small-2507", Family::Mistral),
];

struct Fixture {
    template: ChatTemplate,
    tools: Value,
    messages: Value,
}

impl Fixture {
    fn render(&self, messages: &[Value], prompt: bool) -> Option<String> {
        let messages = Value::Array(messages.to_vec());
        self.template.render(&messages, Some(&self.tools), prompt, &Map::new()).ok().map(|r| r.text)
    }

    /// The answer with a call as the template writes it into a later prompt, and the prompt before it.
    fn answer(&self) -> Option<(String, String)> {
        let messages = self.messages.as_array().unwrap();
        let whole = self.render(&messages[..2], false)?;
        let prompt = self.render(&messages[..1], true)?;
        // A prompt may open thoughts that history leaves out: the answer begins where both part.
        let at = whole.bytes().zip(prompt.bytes()).take_while(|(a, b)| a == b).count();
        let at = (0..=at).rev().find(|at| whole.is_char_boundary(*at) && prompt.is_char_boundary(*at))?;
        // Not within a mark.
        let at = whole[..at].rfind('<').filter(|open| !whole[*open..at].contains('>')).unwrap_or(at);
        Some((prompt[..at].to_owned(), whole[at..].to_owned()))
    }
}

fn fixtures() -> Option<Vec<(String, Family, Fixture)>> {
    let folder = common::shared("fixtures/templates")?;
    let cases: Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("CASES.json")).unwrap()).unwrap();
    let case = &cases["cases"]["tool_result"];
    let fixture = |(name, family): &(&str, Family)| {
        let source = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
        let mut template = ChatTemplate::new(&source, "<s>", "</s>").unwrap();
        template.set_now("2026-11-30 09:30").unwrap();
        let fixture = Fixture { template, tools: case["tools"].clone(), messages: case["messages"].clone() };
        (name.to_string(), *family, fixture)
    };
    Some(FAMILIES.iter().map(fixture).collect())
}

#[test]
fn templates_show_their_family() {
    for (name, family, fixture) in fixtures().unwrap_or_default() {
        assert_eq!(OutputFormat::detect(fixture.template.source()).family(), family, "{name}");
    }
}

#[test]
fn calls_in_history_are_read_back() {
    let mut failures = Vec::new();
    let mut n = 0;
    for (name, family, fixture) in fixtures().unwrap_or_default() {
        // Two templates leave the call of this history out.
        if family == Family::Plain || name == "LFM2-8B-A1B" {
            continue;
        }
        // Some refuse a history that ends with a call.
        let Some((prompt, answer)) = fixture.answer() else { continue };
        let format = OutputFormat::detect(fixture.template.source());
        let mut parser = OutputParser::new(format, &prompt, Tool::list(&fixture.tools).unwrap(), 1);
        let mut events: Vec<_> =
            answer.chars().flat_map(|c| parser.push(c.encode_utf8(&mut [0; 4]))).collect();
        events.extend(parser.finish());
        let found = Output::of(events);
        let calls: Vec<(&str, Value)> = found
            .calls
            .iter()
            .map(|c| (c.name.as_str(), serde_json::from_str(&c.arguments).unwrap()))
            .collect();
        n += 1;
        if calls != [("get_weather", json!({"city": "Zürich", "unit": "c"}))] {
            failures.push(format!("{name}: {answer:?} is {found:?}"));
        }
    }
    assert!(n == 0 || n == 33, "{n}");
    assert!(failures.is_empty(), "{} of {n}:\n{}", failures.len(), failures.join("\n"));
}
