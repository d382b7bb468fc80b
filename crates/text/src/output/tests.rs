//! Recorded forms of every family, and the law of cuts.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn tools() -> Vec<Tool> {
    Tool::list(&json!([
        {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
            "city": {"type": "string"}, "unit": {"enum": ["c", "f"]}, "days": {"type": "integer"}}}}},
        {"type": "function", "function": {"name": "now"}},
        {"type": "web_search"},
    ]))
    .unwrap()
}

fn format(template: &str) -> OutputFormat {
    OutputFormat::detect(template)
}

const HERMES: &str = "<tool_call> <think></think>";
const XML: &str = "<tool_call><function=x><parameter=y> <think>";
const GLM: &str = "<tool_call><arg_key> <think>";
const LLAMA: &str = "<|start_header_id|> {\"name\": x, \"parameters\": y}";
const MISTRAL: &str = "[TOOL_CALLS] [THINK]";
const DEEPSEEK: &str = "<｜tool▁calls▁begin｜> </think>";
const HARMONY: &str = "<|channel|> <|message|> <|start|>";
const LFM2: &str = "<|tool_call_start|>";
const GEMMA: &str = "<|tool_call>call: <|channel>thought";

/// Neighbours of one kind joined.
fn joined(events: Vec<OutputEvent>) -> Vec<OutputEvent> {
    let mut out: Vec<OutputEvent> = Vec::new();
    for e in events {
        match (out.last_mut(), e) {
            (Some(OutputEvent::Content(a)), OutputEvent::Content(b)) => a.push_str(&b),
            (Some(OutputEvent::Reasoning(a)), OutputEvent::Reasoning(b)) => a.push_str(&b),
            (
                Some(OutputEvent::CallArguments { index: i, delta: a }),
                OutputEvent::CallArguments { index, delta: b },
            ) if *i == index => a.push_str(&b),
            (_, e) => out.push(e),
        }
    }
    out
}

fn events<'a>(template: &str, prompt: &str, pieces: impl IntoIterator<Item = &'a str>) -> Vec<OutputEvent> {
    let mut parser = OutputParser::new(format(template), prompt, tools(), 7);
    let mut all: Vec<OutputEvent> = pieces.into_iter().flat_map(|p| parser.push(p)).collect();
    all.extend(parser.finish());
    joined(all)
}

/// Parses `text` whole, by the character and cut in two at every place; all must be equal.
#[track_caller]
fn all_cuts(template: &str, prompt: &str, text: &str) -> Vec<OutputEvent> {
    let whole = events(template, prompt, [text]);
    let singles = text.char_indices().map(|(i, c)| &text[i..i + c.len_utf8()]);
    assert_eq!(events(template, prompt, singles), whole, "{text}");
    for (at, _) in text.char_indices() {
        assert_eq!(events(template, prompt, [&text[..at], &text[at..]]), whole, "{text} cut at {at}");
    }
    whole
}

/// Checks thoughts, content and calls `(name, arguments)`.
#[track_caller]
fn check(template: &str, prompt: &str, text: &str, reasoning: &str, content: &str, calls: &[(&str, Value)]) {
    let found = Output::of(all_cuts(template, prompt, text));
    let parsed: Vec<(&str, Value)> =
        found.calls.iter().map(|c| (c.name.as_str(), serde_json::from_str(&c.arguments).unwrap())).collect();
    assert_eq!((found.reasoning.as_str(), found.content.as_str()), (reasoning, content), "{text}");
    assert_eq!(parsed, calls, "{text}");
}

fn weather() -> (&'static str, Value) {
    ("get_weather", json!({"city": "Zürich", "unit": "c"}))
}

#[test]
fn hermes() {
    let call = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich\", \"unit\": \"c\"}}\n</tool_call>";
    check(HERMES, "", call, "", "", &[weather()]);
    check(HERMES, "", &format!("Let me see.\n\n{call}\n{call}"), "", "Let me see.", &[weather(), weather()]);
    check(HERMES, "", &format!("<think>\nHm.\n</think>\n\n{call}"), "Hm.", "", &[weather()]);
    check(HERMES, "<think>\n", &format!("Hm.\n</think>\n\nSo. {call}"), "Hm.", "So.", &[weather()]);
    // Without the closing mark, without thoughts being closed, several in one mark, keys in another order.
    check(HERMES, "", call.trim_end_matches("</tool_call>"), "", "", &[weather()]);
    check(HERMES, "<think>\n", &format!("Hm.\n{call}"), "Hm.", "", &[weather()]);
    let swapped = "<tool_call>[{\"arguments\": {\"city\": \"Zürich\", \"unit\": \"c\"}, \"name\": \"get_weather\"}, {\"name\":\"now\"}]</tool_call>";
    check(HERMES, "", swapped, "", "", &[weather(), ("now", json!({}))]);
    let text = "<tool_call>{\"name\": \"get_weather\", \"arguments\": \"{\\\"city\\\": \\\"Zürich\\\", \\\"unit\\\": \\\"c\\\"}\"}</tool_call>";
    check(HERMES, "", text, "", "", &[weather()]);
    // A raw line break in a string.
    let lines = "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"a\nb\"}}</tool_call>";
    check(HERMES, "", lines, "", "", &[("get_weather", json!({"city": "a\nb"}))]);
    check(
        HERMES,
        "",
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "",
        "",
        &[("now", json!({}))],
    );
}

#[test]
fn what_does_not_parse_is_content() {
    for text in [
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": Zürich}}\n</tool_call> and so on",
        "<tool_call>nothing</tool_call>",
        "<tool_call>",
        "<tool_ca",
        "<tool_call></tool_call>",
        "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zü",
        "<tool_call>{\"name\": 5}</tool_call>",
        "a < b <think> c",
        "  ",
        "x \n ",
    ] {
        check(HERMES, "", text, "", text, &[]);
    }
    check(
        HERMES,
        "<think>",
        "I could use <tool_call>, or\n<tool_call>x",
        "I could use <tool_call>, or\n<tool_call>x",
        "",
        &[],
    );
    let cut = "<function=get_weather>\n<parameter=city>\nZü";
    check(XML, "", cut, "", cut, &[]);
    // A good call before a broken one stays.
    let call = "<tool_call>{\"name\": \"now\"}</tool_call>";
    let found = Output::of(all_cuts(
        HERMES,
        "",
        &format!("{call}\n<tool_call>{{\"name\": \"now\", \"arguments\": {{x"),
    ));
    assert_eq!(
        (found.calls.len(), found.content.as_str()),
        (1, "<tool_call>{\"name\": \"now\", \"arguments\": {x")
    );
    // Without tools, calls are text.
    let mut parser = OutputParser::new(format(HERMES), "", vec![], 0);
    let mut all = parser.push(call);
    all.extend(parser.finish());
    assert_eq!(Output::of(all).content, call);
}

#[test]
fn tagged() {
    let call = "<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich\n</parameter>\n<parameter=unit>\nc\n</parameter>\n</function>\n</tool_call>";
    check(XML, "<think>\n", &format!("Hm.\n</think>\n\n{call}"), "Hm.", "", &[weather()]);
    check(XML, "", call.trim_start_matches("<tool_call>\n"), "", "", &[weather()]);
    check(
        XML,
        "",
        &call.replace("</parameter>\n</f", "</parameter>\n</parameter>\n</f"),
        "",
        "",
        &[weather()],
    );
    check(XML, "", call.split("</function>").next().unwrap(), "", "", &[weather()]);
    let typed = "<tool_call>\n<function=get_weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=x>\n[1, \"a\"]\n</parameter>\n<parameter=y>\na \"b\"\n\nc\n</parameter>\n</function>\n</tool_call>";
    let expected = json!({"city": "12", "days": 3, "x": [1, "a"], "y": "a \"b\"\n\nc"});
    check(XML, "", typed, "", "", &[("get_weather", expected)]);
    let text =
        "<function=get_weather>\n<parameter=city>\n\na <b>\n</para> \"c\"\\\n\n</parameter>\n</function>";
    check(XML, "", text, "", "", &[("get_weather", json!({"city": "\na <b>\n</para> \"c\"\\\n"}))]);
    let glm = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Zürich</arg_value>\n<arg_key>unit</arg_key>\n<arg_value>c</arg_value>\n</tool_call>";
    check(GLM, "", &format!("\n<think></think>\n{glm}\n{glm}"), "", "", &[weather(), weather()]);
    check(GLM, "", "<tool_call>now</tool_call>", "", "", &[("now", json!({}))]);
    let dsml = "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Zürich</｜DSML｜parameter>\n<｜DSML｜parameter name=\"unit\" string=\"true\">c</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
    check(
        "｜DSML｜",
        "",
        &format!("Now.{dsml}"),
        "",
        "Now.",
        &[("get_weather", json!({"city": "Zürich", "unit": "c", "days": 2}))],
    );
    let named = "<function name=\"get_weather\"><param name=\"city\">Zürich</param><param name=\"unit\">c</param></function>";
    check("<function name= <param name=", "", named, "", "", &[weather()]);
    check(
        "<function=",
        "",
        "<function=get_weather>{\"city\": \"Zürich\", \"unit\": \"c\"}</function>",
        "",
        "",
        &[weather()],
    );
}

#[test]
fn names_before_json() {
    let arguments = "{\"city\": \"Zürich\", \"unit\": \"c\"}";
    let one = format!("[TOOL_CALLS]get_weather[ARGS]{arguments}");
    check(MISTRAL, "", &one, "", "", &[weather()]);
    check(MISTRAL, "", &format!("{one}{one}"), "", "", &[weather(), weather()]);
    check(MISTRAL, "", &format!("[THINK]Hm.[/THINK]So.{one}"), "Hm.", "So.", &[weather()]);
    check(
        MISTRAL,
        "",
        &format!("[TOOL_CALLS][{{\"name\": \"get_weather\", \"arguments\": {arguments}}}]"),
        "",
        "",
        &[weather()],
    );
    let with_id = Output::of(all_cuts(
        MISTRAL,
        "",
        &format!("[TOOL_CALLS]get_weather[CALL_ID]abc123456[ARGS]{arguments}"),
    ));
    assert_eq!(with_id.calls[0].id, "abc123456");
    let v3 = format!(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{arguments}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{{}}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    );
    check(
        DEEPSEEK,
        "<think>\n",
        &format!("Hm.\n</think>\n{v3}"),
        "Hm.",
        "",
        &[weather(), ("now", json!({}))],
    );
    let v31 = format!(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    );
    check(DEEPSEEK, "", &v31, "", "", &[weather()]);
    let kimi = format!(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{arguments}<|tool_call_end|><|tool_calls_section_end|>"
    );
    let found = Output::of(all_cuts("<|tool_calls_section_begin|>", "", &kimi));
    assert_eq!(
        (found.calls[0].name.as_str(), found.calls[0].id.as_str()),
        ("get_weather", "functions.get_weather:0")
    );
}

#[test]
fn llama() {
    let call = "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Zürich\", \"unit\": \"c\"}}";
    check(LLAMA, "", call, "", "", &[weather()]);
    check(LLAMA, "", &format!("\n{call}; {call}"), "", "", &[weather(), weather()]);
    check(LLAMA, "", &format!("<|python_tag|>{call}"), "", "", &[weather()]);
    for text in ["{\"name\": \"Bob\", \"parameters\": {}}", "{\"a\": 1}", "See {\"name\": \"now\"}", "{"] {
        check(LLAMA, "", text, "", text, &[]);
    }
}

#[test]
fn languages() {
    let call = "<|tool_call_start|>[get_weather(city='Zürich', unit=\"c\")]<|tool_call_end|>";
    check(LFM2, "", &format!("{call}Checking."), "", "Checking.", &[weather()]);
    let nested = "<|tool_call_start|>[now(), get_weather(a='it\\'s', b=[1, (2,), {'k': None}], c=True, d=-1.5e3, e={\"x\": [ ]})]<|tool_call_end|>";
    let expected = json!({"a": "it's", "b": [1, [2], {"k": null}], "c": true, "d": -1.5e3, "e": {"x": []}});
    check(LFM2, "", nested, "", "", &[("now", json!({})), ("get_weather", expected)]);
    for text in [
        "<|tool_call_start|>[f(1)]<|tool_call_end|>",
        "<|tool_call_start|>[f(a=b)]",
        "<|tool_call_start|>[f(a=[)]",
    ] {
        check(LFM2, "", text, "", text, &[]);
    }
    let gemma = "<|tool_call>call:get_weather{city:<|\"|>Zürich<|\"|>,unit:<|\"|>c<|\"|>}<tool_call|>";
    check(
        GEMMA,
        "",
        &format!("<|channel>thought\nHm.<channel|>{gemma}{gemma}"),
        "Hm.",
        "",
        &[weather(), weather()],
    );
    let typed = "<|tool_call>call:now{a:[1,<|\"|>x, {y}<|\"|>],b:{c:true,d:null}}<tool_call|>";
    check(GEMMA, "", typed, "", "", &[("now", json!({"a": [1, "x, {y}"], "b": {"c": true, "d": null}}))]);
}

#[test]
fn harmony() {
    let start = "<|start|>assistant";
    let analysis = "<|channel|>analysis<|message|>Hm.<|end|>";
    let call = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Zürich\", \"unit\": \"c\"}";
    check(HARMONY, start, &format!("{analysis}{start}<|channel|>final<|message|>So.\n"), "Hm.", "So.\n", &[]);
    check(HARMONY, start, &format!("{analysis}{start}{call}"), "Hm.", "", &[weather()]);
    let other = " to=functions.get_weather<|channel|>commentary <|constrain|> json<|message|>{\"city\": \"Zürich\", \"unit\": \"c\"}<|call|>";
    check(
        HARMONY,
        start,
        &format!("<|channel|>commentary<|message|>I look.<|end|>{start}{other}"),
        "",
        "I look.",
        &[weather()],
    );
    check(HARMONY, &format!("{start}<|channel|>final<|message|>"), "So.", "", "So.", &[]);
    check(HARMONY, &format!("{start}<|channel|>analysis<|message|>"), "Hm.<|end|>", "Hm.", "", &[]);
    check(HARMONY, start, "Just words.", "", "Just words.", &[]);
    check(HARMONY, start, "<|channel|>final<|message|>{\"a\": 1} <|x|> < b", "", "{\"a\": 1} <|x|> < b", &[]);
    check(
        HARMONY,
        start,
        &format!("{}oops", call.replace("\"c\"}", "")),
        "",
        "{\"city\": \"Zürich\", \"unit\": oops",
        &[],
    );
}

#[test]
fn calls_go_out_as_they_come() {
    let text = "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zür";
    let mut parser = OutputParser::new(format(HERMES), "", tools(), 7);
    let events = parser.push(text);
    assert!(
        matches!(&events[..], [OutputEvent::CallStart { index: 0, id, name }, OutputEvent::CallArguments { index: 0, delta }]
        if id.len() == 24 && name == "get_weather" && delta == "{\"city\": \"Zür"),
        "{events:?}"
    );
    let mut parser = OutputParser::new(format(XML), "", tools(), 7);
    let events = joined(parser.push("<function=get_weather>\n<parameter=city>\nZür"));
    assert!(
        matches!(&events[1..], [OutputEvent::CallArguments { delta, .. }] if delta == "{\"city\":\"Zür"),
        "{events:?}"
    );
    let ids = |seed| {
        let mut parser = OutputParser::new(format(MISTRAL), "", tools(), seed);
        Output::of(parser.push("[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]now[ARGS]{}"))
            .calls
            .iter()
            .map(|c| c.id.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(1), ids(1));
    assert!(ids(1)[0] != ids(2)[0] && ids(1)[0] != ids(1)[1] && ids(1)[0].len() == 9);
}

#[test]
fn lists_of_tools() {
    for (tools, path) in [
        (json!({}), "tools"),
        (json!([{"type": "function", "function": {}}]), "tools[0].function.name"),
        (json!([{"name": "a", "parameters": 5}]), "tools[0].parameters"),
        (json!([{"name": "a"}, {"name": "a"}]), "tools[1].name"),
        (json!([5]), "tools[0].name"),
    ] {
        assert_eq!(Tool::list(&tools).unwrap_err().path, path);
    }
}

/// Texts made of the marks of all families and of what stands between them.
fn text() -> impl Strategy<Value = String> {
    let parts = vec![
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<function=get_weather>",
        "<function=",
        ">",
        "</function>",
        "<parameter=city>",
        "</parameter>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "get_weather",
        "now",
        "{",
        "}",
        "[",
        "]",
        "\"name\"",
        "\"arguments\"",
        ":",
        "\"now\"",
        ",",
        "{}",
        "\"",
        "\n",
        " ",
        "x",
        "é",
        "<",
        "<|",
        "|>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁begin｜>",
        "```json",
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        "(",
        ")",
        "a=",
        "'",
        "\\",
        "1",
        "<|tool_call>",
        "call:",
        "<|\"|>",
        "<tool_call|>",
        "<|channel|>",
        "analysis",
        "final",
        "<|message|>",
        "<|end|>",
        "<|start|>",
        "assistant",
        " to=functions.now",
        "<|call|>",
        "<|channel>thought",
        "<channel|>",
        "{\"name\": \"now\", \"arguments\": {}}",
    ];
    prop::collection::vec(prop::sample::select(parts), 0..24).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any text, any cut: the same events; arguments of whole calls parse; no letter is lost.
    #[test]
    fn cuts(text in text(), cuts in prop::collection::vec(0usize..400, 0..6), opened in any::<bool>()) {
        for template in [HERMES, XML, GLM, LLAMA, MISTRAL, DEEPSEEK, HARMONY, LFM2, GEMMA] {
            let prompt = match template {
                HARMONY => "<|start|>assistant",
                _ if opened => "<think>",
                _ => "",
            };
            let whole = events(template, prompt, [text.as_str()]);
            let mut at: Vec<usize> = cuts.iter().map(|c| c % (text.len() + 1)).filter(|c| text.is_char_boundary(*c)).collect();
            at.extend([0, text.len()]);
            at.sort_unstable();
            let pieces = at.windows(2).map(|w| &text[w[0]..w[1]]);
            prop_assert_eq!(&events(template, prompt, pieces), &whole);
            let output = Output::of(whole);
            for call in &output.calls {
                prop_assert!(serde_json::from_str::<Value>(&call.arguments).is_ok_and(|v| v.is_object()), "{:?}", call);
            }
            if output.calls.is_empty() && template != HARMONY {
                let letters = |s: &str| s.matches(['x', 'é', '1', '\\', '(']).count();
                prop_assert_eq!(letters(&text), letters(&output.reasoning) + letters(&output.content), "{}", template);
            }
        }
    }
}
