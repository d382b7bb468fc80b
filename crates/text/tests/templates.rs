//! Chat templates of published models against what Python renders.

mod common;

use firth_text::{ChatTemplate, TemplateError};
use serde_json::{Map, Value};

fn read(path: &std::path::Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// The text of a case, or its error as Python names it.
fn render(template: &ChatTemplate, case: &Value) -> Result<String, TemplateError> {
    let known = ["messages", "tools", "add_generation_prompt"];
    let mut extra = case.as_object().unwrap().clone();
    extra.retain(|key, _| !known.contains(&key.as_str()));
    let prompt = case["add_generation_prompt"].as_bool().unwrap();
    template.render(&case["messages"], case.get("tools"), prompt, &extra).map(|r| r.text)
}

/// Why a case differs, or `None`. A refusal must have the template's words; other errors only have to be errors.
fn difference(found: Result<String, TemplateError>, expected: &Value) -> Option<String> {
    match (found, expected["text"].as_str(), expected["error"].as_str()) {
        (Ok(found), Some(text), _) if found == text => None,
        (Ok(found), Some(text), _) => {
            let at = found.bytes().zip(text.bytes()).take_while(|(a, b)| a == b).count();
            let near = |s: &str| {
                String::from_utf8_lossy(&s.as_bytes()[at.saturating_sub(60)..(at + 80).min(s.len())])
                    .into_owned()
            };
            Some(format!("found {:?}\n  expected {:?}", near(&found), near(text)))
        }
        (Err(TemplateError::Raised(found)), _, Some(error)) => {
            let expected = error.strip_prefix("TemplateError: ");
            (expected != Some(&found)).then(|| format!("raised {found:?}, expected {error:?}"))
        }
        (Err(found), _, Some(error)) => {
            error.starts_with("TemplateError: ").then(|| format!("failed by `{found}`, expected {error:?}"))
        }
        (found, _, _) => Some(format!("found {found:?}, expected {expected}")),
    }
}

#[test]
fn published_templates() {
    let Some(folder) = common::shared("fixtures/templates") else { return };
    let cases: Value = serde_json::from_str(&read(&folder.join("CASES.json"))).unwrap();
    let now = cases["context"]["now"].as_str().unwrap();
    let mut paths = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect::<Vec<_>>();
    paths.retain(|path| path.extension().is_some_and(|e| e == "jinja"));
    paths.sort();
    assert_eq!(paths.len(), 48);
    let mut failures = Vec::new();
    let mut n_cases = 0;
    for path in &paths {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let expected: Value = serde_json::from_str(&read(&path.with_extension("json"))).unwrap();
        let mut template = match ChatTemplate::new(&read(path), "<s>", "</s>") {
            Ok(template) => template,
            Err(e) => {
                failures.push(format!("{name}: {e}"));
                continue;
            }
        };
        template.set_now(now).unwrap();
        for (case, expected) in expected.as_object().unwrap() {
            let found = render(&template, &cases["cases"][case]);
            n_cases += 1;
            failures.extend(difference(found, expected).map(|why| format!("{name} {case}: {why}")));
        }
    }
    assert_eq!(n_cases, 432);
    assert!(failures.is_empty(), "{} cases differ:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn refusals_keep_their_words() {
    let template = ChatTemplate::new("{{ raise_exception('No system ' ~ 'role') }}", "", "").unwrap();
    let error = template.render(&Value::Array(vec![]), None, true, &Map::new()).unwrap_err();
    assert!(matches!(&error, TemplateError::Raised(m) if m == "No system role"), "{error:?}");
    let error = ChatTemplate::new("a\n{% if %}", "", "").unwrap_err();
    assert!(matches!(error, TemplateError::Syntax { line: 2, .. }), "{error:?}");
}

#[track_caller]
fn check_hostile(source: &str) {
    let source = source.to_owned();
    let shown = source.clone();
    // A stack as small as any that a server gives its threads.
    let run = move || {
        let template = ChatTemplate::new(&source, "", "");
        template.and_then(|t| t.render(&Value::Array(vec![]), None, true, &Map::new()))
    };
    let started = std::time::Instant::now();
    let result = std::thread::Builder::new().stack_size(2 << 20).spawn(run).unwrap().join().unwrap();
    eprintln!("{:?} {:.100}", started.elapsed(), shown);
    assert!(result.is_err(), "{result:?}");
    // Far above what it takes: a bound that only a hang or quadratic growth meets, on any machine.
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
}

#[test]
fn hostile_templates_end_in_errors() {
    check_hostile("{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}");
    check_hostile(
        "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    );
    check_hostile(
        "{% set ns = namespace(x=['x']) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
    );
    for end in [
        "|tojson",
        "|list|length",
        "|join",
        "|string",
        "|length * ns.x",
        "|map('upper')|list",
        "|reverse|first",
        "|sort",
    ] {
        let doubled = "{% set ns = namespace(x=['x']) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}";
        check_hostile(&format!("{doubled}{{{{ ns.x{end} }}}}"));
    }
    check_hostile("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}");
    check_hostile(&"{{ (x) }}".replace("(x)", &format!("{}x{}", "(".repeat(5000), ")".repeat(5000))));
    check_hostile(&"{% if x %}".repeat(5000));
    // As deep as the parser can be sent by a template of the most bytes.
    let fill = |start: &str, unit: &str, end: &str| {
        format!("{start}{}{end}", unit.repeat(((1 << 17) - start.len() - end.len()) / unit.len()))
    };
    check_hostile(&fill("{{ ", "-", "''}}"));
    check_hostile(&fill("{{ -'' and ", "not ", "x}}"));
    check_hostile(&fill("{{ x", ".a", "}}"));
    check_hostile(&fill("{{ x", "|abs", "}}"));
    check_hostile(&fill("{{ -''", "+1", "}}"));
    check_hostile(&fill("{{ -''", "**1", "}}"));
    check_hostile(&fill("{{ -''", "[0]", "}}"));
    check_hostile(&fill("{{ '' if x", " else x if x", " else nothing()}}"));
    check_hostile(&fill("{% if x %}", "{%elif x%}", "{% endif %}{{ nothing() }}"));
    check_hostile("{{ 'x' * 1000000000000 }}");
    check_hostile("{{ strftime_now('%') }}");
    check_hostile(
        "{% set ns = namespace(x=[]) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x|tojson }}",
    );
    check_hostile(
        "{% set ns = namespace(x=[]) %}{% for i in range(90000) %}{% set ns.x = {'a': ns.x} %}{% endfor %}{{ ns.x }}",
    );
    // Nested as deep as the steps go, while the value goes away.
    let nested = "{% for i in range(99999) %}{% for j in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}{% endfor %}";
    check_hostile(&format!("{{% set ns = namespace(x=[]) %}}{nested}"));
}

#[test]
fn long_messages_have_more_steps_and_stack() {
    let nested = "{% for i in range(99999) %}{% for j in range(99999) %}{% set ns.x = {'a': ns.x} %}{% endfor %}{% endfor %}";
    let source = format!("{{% set ns = namespace(x=[]) %}}{nested}");
    let template = ChatTemplate::new(&source, "", "").unwrap();
    let messages = Value::Array(vec![Value::Bool(true); 100_000]);
    let error = template.render(&messages, None, true, &Map::new()).unwrap_err();
    assert!(matches!(error, TemplateError::Limit { .. }), "{error:?}");
    let template = ChatTemplate::new("{% for m in messages %}{{ m }}{% endfor %}", "", "").unwrap();
    let text = template.render(&messages, None, true, &Map::new()).unwrap().text;
    assert_eq!(text, "True".repeat(100_000));
}
