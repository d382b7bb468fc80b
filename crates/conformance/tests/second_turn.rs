//! The second turn of a conversation costs what is new in it, also where the template strips the thoughts of the
//! first and the model keeps states in slots.

use std::ops::ControlFlow;
use std::sync::Arc;

use firth::{
    ChatOptions, Dtype, EngineOptions, GenerateOptions, Message, Model, Params, SpecMode, SpecOptions,
};
use firth_conformance::answers::{Answer, answer, fixed};
use firth_conformance::cut_law::ids;
use firth_conformance::{fixture, models};
use firth_cpu::Level;
use firth_engine::{Request, Scheduler};
use firth_gguf::Gguf;

/// The second turn against the same prompt in a scheduler that has seen nothing: at most a tenth of the rows, and the
/// same ids.
fn check(name: &str, warm: Answer, cold: Answer) {
    let (found, of) = (warm.timings.prompt_n, cold.timings.prompt_n);
    eprintln!("{name}: {found} rows of {of} ({:.1}%)", 100.0 * found as f64 / of as f64);
    assert_eq!((cold.timings.cached_n, found + warm.timings.cached_n), (0, of), "{name}");
    assert!(found * 10 <= of, "{name}: {found} rows of {of} were computed");
    assert_eq!(warm.ids, cold.ids, "{name}: ids of the second turn");
    assert!(!warm.ids.is_empty(), "{name}: an answer");
}

const TEXT: &str = "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be \
in want of a wife. However little known the feelings or views of such a man may be on his first entering a \
neighbourhood, this truth is so well fixed in the minds of the surrounding families. ";

/// A text of about `n` tokens.
fn text(model: &Model, n: usize) -> String {
    let mut text = TEXT.repeat(n / 40 + 1);
    while model.raw_prompt(&text).expect("plain text").ids.len() > n {
        text.truncate(text.trim_end().rfind(' ').expect("words"));
    }
    text
}

fn params() -> Params {
    Params { temperature: 0.7, seed: 11, ..Params::default() }
}

fn check_chat(name: &str, mode: SpecMode) {
    let Some(shared) = fixture::shared() else { return };
    let file = Arc::new(Gguf::open(&shared.join("fixtures/tiny").join(name)).expect("a tiny model"));
    let template =
        std::fs::read_to_string(shared.join("fixtures/templates/Qwen3.5-4B.jinja")).expect("a template");
    let load = || {
        let spec = SpecOptions { mode, ..SpecOptions::default() };
        let options = EngineOptions { ctx: Some(2048), batch: 256, spec, ..EngineOptions::default() };
        let devices = vec![models::cpu(Level::detect(), 2)];
        let mut model = Model::load(file.clone(), devices, &options, &mut |_| ControlFlow::Continue(()))
            .expect("a tiny model loads");
        model.set_template(&template).expect("the template is whole");
        model
    };
    let mut model = load();
    let system = text(&model, 1000);
    // 200 tokens, most of them thoughts, which later turns do not see.
    let reply = format!("{}\n</think>\n\n{}", text(&model, 150), text(&model, 40));
    let reply_ids = model.raw_prompt(&reply).expect("plain text").ids;
    assert!((190..210).contains(&reply_ids.len()), "{} tokens", reply_ids.len());
    let message = |role: &str, content: &str| Message { role: role.into(), content: content.into() };
    let mut messages = vec![message("system", &system), message("user", "What is the truth?")];
    let options = GenerateOptions { params: Some(params()), max_tokens: Some(16), ..Default::default() };
    let request = |model: &Model, messages: &[Message]| {
        let prompt = model.chat_prompt(messages, &ChatOptions::default()).expect("a prompt");
        model.request(prompt, &options).expect("a request")
    };

    let first = fixed(request(&model, &messages), reply_ids.clone());
    assert_eq!(answer(model.scheduler(), first).ids, reply_ids, "the reply is fixed");
    messages.extend([message("assistant", &reply), message("user", "And how little is known of it?")]);
    let second = request(&model, &messages);
    let warm = answer(model.scheduler(), second);
    let mut model = load();
    let second = request(&model, &messages);
    let cold = answer(model.scheduler(), second);
    assert!(cold.timings.prompt_n > 1000, "a system prompt of 1,000 tokens");
    check(&format!("{name}, {mode:?}"), warm, cold);
}

#[test]
fn attention() {
    check_chat("qwen3-tiny-Q8_0.gguf", SpecMode::None);
}

#[test]
fn delta_rule() {
    check_chat("qwen35-tiny-mtp-Q4_0.gguf", SpecMode::None);
    check_chat("qwen35-tiny-mtp-Q4_0.gguf", SpecMode::Mtp);
}

#[test]
fn delta_rule_and_experts() {
    check_chat("qwen35moe-tiny-mtp-F16.gguf", SpecMode::None);
    check_chat("qwen35moe-tiny-mtp-F16.gguf", SpecMode::Mtp);
}

#[test]
fn convolutions() {
    check_chat("lfm2-tiny-F32.gguf", SpecMode::None);
    check_chat("lfm2-tiny-F32.gguf", SpecMode::Ngram);
}

/// No text and no attention: ids alone, and a context beyond the model's.
#[test]
fn scan() {
    let Some(shared) = fixture::shared() else { return };
    let file = fixture::read(&shared.join("fixtures/arch"), "mamba2-dense").file;
    let load = || {
        let options =
            EngineOptions { ctx: Some(2048), batch: 256, kv: Dtype::F32, ..EngineOptions::default() };
        Scheduler::new(models::engine(&file, &options, Level::detect(), 2))
    };
    let system = ids(1000, 128);
    let [user, thoughts, said, next] = [20, 150, 50, 30].map(|n| ids(n, 128));
    let request = |prompt: Vec<u32>, marks: Vec<usize>| {
        let mut request = Request::new(prompt, params(), 16);
        request.marks = marks;
        request
    };
    let first = [&system[..], &user].concat();
    let second = [&first[..], &said, &next].concat();
    let marks = vec![system.len(), first.len()];
    let mut s = load();
    let mut turn = request([&first[..], &[1, 2, 3]].concat(), marks.clone());
    turn.max_tokens = 200;
    answer(&mut s, fixed(turn, [&thoughts[..], &said].concat()));
    let marks = [&marks[..], &[first.len() + said.len(), second.len()]].concat();
    let again = || request([&second[..], &[1, 2, 3]].concat(), marks.clone());
    let warm = answer(&mut s, again());
    let cold = answer(&mut load(), again());
    check("mamba2", warm, cold);
}
