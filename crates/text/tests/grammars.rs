//! Schemas and grammars over the vocabulary of a published model.

mod common;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use firth_gguf::Gguf;
use firth_sampling::{Constraint, ConstraintError, Verdict, Watch};
use firth_text::Vocab;
use firth_text::grammar::{
    Grammar, GrammarConstraint, GrammarError, Grammars, ToolChoice, answer_grammar, tool_grammar,
};
use serde_json::{Value, json};

/// A vocabulary, `FIRTH_GRAMMAR_VOCAB` or one of the fixtures.
fn vocab() -> Option<&'static (Vocab, Grammars)> {
    static VOCAB: OnceLock<Option<(Vocab, Grammars)>> = OnceLock::new();
    VOCAB
        .get_or_init(|| {
            let path = std::env::var_os("FIRTH_GRAMMAR_VOCAB").map(Into::into);
            let path = path.or_else(|| common::shared("fixtures/tokenizer/ggml-vocab-gpt-2.gguf"))?;
            let vocab = Vocab::from_metadata(Gguf::open(&path).unwrap().metadata()).unwrap();
            let started = Instant::now();
            let grammars = Grammars::new(&vocab).unwrap();
            eprintln!("{} tokens prepared in {:?}", vocab.len(), started.elapsed());
            Some((vocab, grammars))
        })
        .as_ref()
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// One run of a constraint.
struct Run {
    text: Vec<u8>,
    ended: bool,
    masks: Vec<Duration>,
}

fn allowed(mask: &[u32]) -> Vec<u32> {
    let bits = |(i, w): (usize, &u32)| {
        let w = *w;
        (0..32u32).filter(move |b| w >> b & 1 == 1).map(move |b| i as u32 * 32 + b)
    };
    mask.iter().enumerate().flat_map(bits).collect()
}

/// Draws tokens until the grammar is complete or `max` have come. In the last half of them, an end is taken where it may
/// come, then quotes and brackets that close, then short tokens.
fn draw(
    vocab: &Vocab,
    c: &mut GrammarConstraint,
    max: usize,
    random: &mut Random,
) -> Result<Run, ConstraintError> {
    let mut run = Run { text: Vec::new(), ended: false, masks: Vec::new() };
    let mut mask = vec![0u32; vocab.len().div_ceil(32)];
    let mut watch = c.watch();
    for n in 0..max {
        let started = Instant::now();
        c.mask(&mut mask)?;
        run.masks.push(started.elapsed());
        let ids = allowed(&mask);
        assert!(!ids.is_empty());
        let end = ids.iter().any(|id| vocab.is_end(*id));
        if end && (ids.len() == 1 || 2 * n > max || random.next().is_multiple_of(4)) {
            run.ended = true;
            return Ok(run);
        }
        let words: Vec<u32> = ids.into_iter().filter(|id| !vocab.is_end(*id)).collect();
        let closing = |id: &&u32| matches!(vocab.piece(**id, false), b"\"" | b"]" | b"}" | b"," | b"null");
        let closer =
            (2 * n > max || random.next().is_multiple_of(8)).then(|| words.iter().find(closing)).flatten();
        let id = closer.copied().unwrap_or_else(|| words[random.next() as usize % words.len()]);
        c.accept(id)?;
        run.text.extend_from_slice(vocab.piece(id, false));
        if watch.push(&[id]) != Verdict::Continue {
            run.ended = true;
            return Ok(run);
        }
    }
    Ok(run)
}

/// Schemas that leave values open.
const ANYTHING: [&str; 5] = ["true", "empty", "any object", "any array", "additionalProperties open"];

fn corpus() -> Vec<Value> {
    let text = include_str!("data/schemas.json");
    serde_json::from_str::<Vec<Value>>(text).unwrap()
}

#[test]
fn schemas() {
    let Some((vocab, grammars)) = vocab() else { return };
    let corpus = corpus();
    assert_eq!(corpus.len(), 200);
    let runs: u64 = std::env::var("FIRTH_GRAMMAR_RUNS").map_or(1, |n| n.parse().unwrap());
    let mut masks: Vec<Duration> = Vec::new();
    let (mut refused, mut unfinished, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
    let mut slowest = (Duration::ZERO, String::new());
    let mut outputs = Vec::new();
    for case in &corpus {
        let (name, schema) = (case["name"].as_str().unwrap(), &case["schema"]);
        let started = Instant::now();
        let made = grammars.constraint(&Grammar::JsonSchema(schema.clone()));
        slowest = slowest.max((started.elapsed(), name.to_owned()));
        if let Err(e) = made {
            assert!(matches!(&e, GrammarError::Schema { path, .. } if path.starts_with('#')), "{name}: {e}");
            refused.push(format!("{name}: {e}"));
            continue;
        }
        let validator = jsonschema::options().should_validate_formats(true).build(schema).unwrap();
        let mut ended = false;
        for seed in 1..=runs {
            let mut c = grammars.constraint(&Grammar::JsonSchema(schema.clone())).unwrap();
            let run = draw(vocab, &mut c, 6000, &mut Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
            let run = run.unwrap_or_else(|e| panic!("{name}: {e}"));
            if started.elapsed() > Duration::from_secs(2) {
                eprintln!("{:?} {name}: {} masks, {} ended", started.elapsed(), run.masks.len(), run.ended);
            }
            masks.extend(&run.masks);
            if !run.ended {
                continue;
            }
            ended = true;
            let text = String::from_utf8(run.text).unwrap();
            outputs.push(json!({"schema": schema, "text": text}));
            match serde_json::from_str::<Value>(&text) {
                Ok(value) if validator.is_valid(&value) => {}
                Ok(value) => {
                    let error = validator.validate(&value).unwrap_err().to_string();
                    wrong.push(format!("{name}: {error:.200}: {text:.200}"));
                }
                // Where anything may come, a number may be one that this reader has no room for.
                Err(e) if e.to_string().contains("out of range") && ANYTHING.contains(&name) => {}
                Err(e) => wrong.push(format!("{name}: {e}: {text:.200}")),
            }
        }
        if !ended {
            unfinished.push(name);
        }
    }
    if let Some(path) = std::env::var_os("FIRTH_GRAMMAR_OUT") {
        std::fs::write(path, Value::Array(outputs).to_string()).unwrap();
    }
    masks.sort();
    let at = |q: f64| masks[((masks.len() - 1) as f64 * q) as usize];
    eprintln!(
        "{} masks: p50 {:?}, p90 {:?}, p99 {:?}, most {:?}",
        masks.len(),
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0)
    );
    eprintln!(
        "slowest compile {slowest:?}; {} refused, {} unfinished {unfinished:?}",
        refused.len(),
        unfinished.len()
    );
    eprintln!("{}", refused.join("\n"));
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(refused.len() <= 30, "{} refused", refused.len());
    assert!(unfinished.len() * 10 <= 200 - refused.len(), "{} unfinished", unfinished.len());
}

/// Whether a grammar takes a text, and may end behind it.
fn takes(grammars: &Grammars, vocab: &Vocab, grammar: &Grammar, text: &str) -> bool {
    let mut c = grammars.constraint(grammar).unwrap_or_else(|e| panic!("{e}: {grammar:?}"));
    let mut watch = c.watch();
    let mut mask = vec![0u32; vocab.len().div_ceil(32)];
    let mut complete = false;
    for byte in text.bytes() {
        // By the byte, so that the cut into tokens does not matter.
        let id = vocab.ids().find(|id| vocab.piece(*id, false) == [byte]).unwrap();
        if complete || c.accept(id).is_err() {
            return false;
        }
        complete = watch.push(&[id]) != Verdict::Continue;
    }
    c.mask(&mut mask).is_ok() && allowed(&mask).iter().any(|id| vocab.is_end(*id))
}

#[test]
fn gbnf() {
    let Some((vocab, grammars)) = vocab() else { return };
    let json = r#"
        # a value of JSON
        root   ::= value
        value  ::= object | array | string | number | ("true" | "false" | "null") ws
        object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
        array  ::= "[" ws ( value ("," ws value)* )? "]" ws
        string ::= "\"" ( [^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
        number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
        ws     ::= [ \t\n]{0,20}
    "#;
    let sum = "root ::= term ([-+*/] term)*\nterm ::= number | name | \"(\" root \")\"\nnumber ::= [0-9]+\nname ::= [a-z] [a-z0-9_]*";
    let list = "root ::= item+\nitem ::= \"- \" [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ \"\\n\"";
    let moves = "root ::= (\"1. \" move \" \" move \"\\n\") ([1-9] [0-9]? \". \" move \" \" move \"\\n\")*\nmove ::= (pawn | piece | castle) [+#]?\npiece ::= [NBKQR] [a-h]? [1-8]? \"x\"? [a-h] [1-8]\npawn ::= ([a-h] \"x\")? [a-h] [1-8] (\"=\" [NBQR])?\ncastle ::= \"O-O\" \"-O\"?";
    let kana = "root ::= kana+ ([ \\t\\n] kana+)*\nkana ::= [ぁ-ゟ] | [ァ-ヿ] | [、-〾]";
    let code = "root ::= statement*\nstatement ::= name \" = \" value \";\\n\" | \"if (\" value \") {\\n\" statement* \"}\\n\"\nvalue ::= name | [0-9]+ | name \"(\" (value (\", \" value)*)? \")\"\nname ::= [a-zA-Z_] [a-zA-Z0-9_]*";
    for (grammar, good, bad) in [
        (
            json,
            &["{\"a\": [1, -2.5e3, null], \"b\\n\": {}}", "[]", "\"\\u00e9\"", "true "][..],
            &["{a: 1}", "[1,]", "01", "\"\n\"", ""][..],
        ),
        (sum, &["1+2*(x3-4)", "a", "((1))"], &["1+", "(1", "1 + 2", ""]),
        (list, &["- one\n- two\n", "- é\n"], &["one\n", "- one", ""]),
        (moves, &["1. e4 e5\n2. Nf3 Nc6\n3. O-O exd4+\n"], &["1. e4\n", "2. e4 e5\n"]),
        (kana, &["こんにちは", "カタ カナ。"], &["abc", "こ "]),
        (code, &["x = 1;\nif (f(x, g())) {\ny = x;\n}\n", ""], &["x = ;\n", "if (1) {\n"]),
        ("root ::= \"a\"{5,5}", &["aaaaa"], &["aaaa", "aaaaaa"]),
        ("root ::= \"a\"{2,} \"b\"{0,2} \"c\"{1}", &["aac", "aaaabbc"], &["ac", "aabbbc", "aab"]),
        ("root ::= [^\\n]* \"\\n\" (\"yes\"|\"no\")", &["who knows\nyes", "\nno"], &["yes", "a\nmaybe"]),
        (
            "root ::= . \"-\" [^a] \"-\" [a\\-\\]]+ \"\\x41\\u00e9\\U0001F600\"",
            &["é-b-a-]Aé😀", "\n-\n-]Aé😀"],
            &["é-a-aAé😀"],
        ),
        ("root ::=\n  \"a\" |\n  \"b\"\n  | \"c\" # last\nother ::= \"d\"", &["a", "b", "c"], &["d", ""]),
        ("root ::= \"x\"? | root \"y\" ", &["", "x", "yy", "xy"], &["yx"]),
        ("root ::= a b\r\na ::= \"1\" (\r\n \"2\"\r\n)\r\nb ::= \"3\"\r\n", &["123"], &["12"]),
        ("root ::= \"(\" root \")\" | \"\"", &["", "(())"], &["(()"]),
    ] {
        let grammar = Grammar::Gbnf(grammar.into());
        for text in good {
            assert!(takes(grammars, vocab, &grammar, text), "{grammar:?} refuses {text:?}");
        }
        for text in bad {
            assert!(!takes(grammars, vocab, &grammar, text), "{grammar:?} takes {text:?}");
        }
    }
}

#[test]
fn gbnf_that_is_none() {
    let stars = |n: usize| format!("root ::= \"a\"{}", "*".repeat(n));
    assert!(firth_text::grammar::gbnf_to_lark(&stars(100)).is_ok());
    for (text, line, found) in [
        ("", 1, "root"),
        ("start ::= \"a\"", 1, "root"),
        ("root ::= a\n", 1, "`a` is used"),
        ("root ::= \"a\"\n\nroot ::= \"b\"", 3, "twice"),
        ("root ::= \"a", 1, "`\"`"),
        ("root ::= \"a\n\"", 1, "`\"`"),
        ("root ::= [a", 1, "`]`"),
        ("root ::= []", 1, "not empty"),
        ("root ::= [z-a]", 1, "ascends"),
        ("root ::= (\"a\"", 1, "`)`"),
        ("root ::= \"a\")", 1, "end of the rule"),
        ("root ::= \"\\q\"", 1, "escape"),
        ("root ::= \"\\ud800\"", 1, "code point"),
        ("root ::= \"a\"{3,2}", 1, "below the least"),
        ("root ::= \"a\"{,2}", 1, "a number"),
        ("root ::= \"a\"{99999}", 1, "10000"),
        (&stars(101), 1, "100 repetitions"),
        ("root = \"a\"", 1, "`::=`"),
        ("\nroot ::= !<[5]>", 2, "excluded"),
        ("root ::= <a", 1, "token"),
        ("root ::= \"a\"\n= b", 2, "name of a rule"),
    ] {
        match firth_text::grammar::gbnf_to_lark(text) {
            Err(GrammarError::Syntax { line: at, reason }) => {
                assert!(at == line && reason.contains(found), "{text:?}: {at}: {reason}")
            }
            other => panic!("{text:?}: {other:?}"),
        }
    }
    let e = Grammar::from_gbnf(" {\"type\": \"object\"}").unwrap_err().to_string();
    assert!(e.contains("json_schema"), "{e}");
}

#[test]
fn expressions_and_lark() {
    let Some((vocab, grammars)) = vocab() else { return };
    let regex = Grammar::Regex("[a-z]+/\\/[0-9]{2,3}\n?".into());
    assert!(takes(grammars, vocab, &regex, "ab//12") && takes(grammars, vocab, &regex, "a//123\n"));
    assert!(!takes(grammars, vocab, &regex, "ab//1") && !takes(grammars, vocab, &regex, "ab/12"));
    let lark = Grammar::Lark("start: \"a\" b+\nb: /[0-9]/ | \"(\" b \")\"".into());
    assert!(takes(grammars, vocab, &lark, "a(1)2") && !takes(grammars, vocab, &lark, "a"));
}

/// A number needs no bounds of its own, and those it has may lie anywhere.
#[test]
fn numbers_of_a_schema() {
    let Some((vocab, grammars)) = vocab() else { return };
    let schemas = [
        json!({"type": "number"}),
        json!({"type": "integer"}),
        json!({"type": "number", "minimum": 2.5}),
        json!({"type": "number", "minimum": 1e16}),
        json!({"type": "number", "exclusiveMinimum": 1e15}),
        json!({"type": "number", "maximum": -1e16}),
        json!({"type": "number", "minimum": -1e18, "maximum": 1e18}),
        json!({"type": "integer", "minimum": 20_000_000_000_000_000u64}),
        json!({"type": "integer", "minimum": 1, "maximum": 9}),
        json!({"type": "number", "enum": [1e16, -1e16]}),
    ];
    for schema in schemas {
        let c = grammars.constraint(&Grammar::JsonSchema(schema.clone())).unwrap();
        for seed in 1..9 {
            let run = draw(vocab, &mut c.fork(), 200, &mut Random(seed)).unwrap();
            let text = String::from_utf8(run.text).unwrap();
            assert!(run.ended, "{schema}: {text}");
            assert!(jsonschema::is_valid(&schema, &serde_json::from_str(&text).unwrap()), "{schema}: {text}");
        }
    }
    for (schema, good) in [
        (json!({"type": "number", "minimum": 1e16}), "20000000000000000"),
        (json!({"type": "number", "minimum": 0, "maximum": 1e16}), "9000000000000000.5"),
        (json!({"type": "integer", "maximum": 9_100_000_000_000_000i64}), "9007199254740999"),
        (json!({"type": "number", "enum": [1e16, 1]}), "10000000000000000"),
    ] {
        assert!(takes(grammars, vocab, &Grammar::JsonSchema(schema), good), "{good}");
    }
}

/// What is refused says where and which keyword.
#[test]
fn refusals() {
    let Some((_, grammars)) = vocab() else { return };
    let inner =
        |schema: Value| json!({"type": "object", "properties": {"a/b": {"type": "array", "items": schema}}});
    for (schema, path, keyword) in [
        (json!({"not": {}}), "#", "not"),
        (inner(json!({"uniqueItems": true})), "#/properties/a~1b/items", "uniqueItems"),
        (inner(json!({"type": "string", "pattern": "(?=a)b"})), "#/properties/a~1b/items", "pattern"),
        (inner(json!({"type": "string", "pattern": "(["})), "#/properties/a~1b/items", "pattern"),
        (inner(json!({"type": "string", "format": "idn-email"})), "#/properties/a~1b/items", "format"),
        (
            inner(json!({"oneOf": [{"type": "integer"}, {"type": "number"}]})),
            "#/properties/a~1b/items",
            "oneOf",
        ),
        (json!({"anyOf": [{"type": "integer"}, {"$ref": "urn:x"}]}), "#/anyOf/1", "$ref"),
        (json!({"$ref": "#/$defs/none"}), "#", "$ref"),
        (json!({"type": "string", "maxLength": 1e9}), "#", "maxLength"),
        (json!({"type": "string", "maxLength": -1}), "#", "maxLength"),
        (json!({"properties": {"x": 5}}), "#/properties/x", "schema"),
        (json!(5), "#", "schema"),
        (json!(false), "#", "schema"),
    ] {
        match grammars.constraint(&Grammar::JsonSchema(schema.clone())).map(drop) {
            Err(GrammarError::Schema { path: p, keyword: k, reason }) => {
                assert_eq!((p.as_str(), k.as_str()), (path, keyword), "{schema}: {reason}");
            }
            other => panic!("{schema}: {other:?}"),
        }
    }
}

/// Nothing here ends in a panic, a hang or without bound.
#[test]
fn hostile() {
    let Some((vocab, grammars)) = vocab() else { return };
    let mut deep = json!({});
    for _ in 0..2000 {
        deep = json!({"items": deep});
    }
    let many = |n: usize| {
        (0..n).map(|i| (format!("p{i}"), json!({"type": "integer"}))).collect::<serde_json::Map<_, _>>()
    };
    let alternation: Vec<Value> =
        (0..2000).map(|i| json!({"type": "object", "properties": {format!("k{i}"): {"const": i}}})).collect();
    let nested = format!("root ::= {}\"a\"{}", "(".repeat(90_000), ")".repeat(90_000));
    let chain: String = (0..1500)
        .map(|i| format!("r{i} ::= \"a\" r{} | {}\"b\"{}\n", i + 1, "(".repeat(60), ")".repeat(60)))
        .collect();
    let chain = format!("root ::= r0\n{chain}r1500 ::= \"c\"");
    let doubling: String = (0..40).map(|i| format!("r{i} ::= r{0} r{0}\n", i + 1)).collect();
    let doubling = format!("root ::= r0\n{doubling}r40 ::= \"c\"");
    let bombs = [
        Grammar::JsonSchema(deep.clone()),
        Grammar::JsonSchema(json!({"type": "object", "properties": many(1900)})),
        Grammar::JsonSchema(json!({"type": "object", "properties": many(5000)})),
        Grammar::JsonSchema(json!({"anyOf": alternation})),
        Grammar::JsonSchema(json!({"$ref": "#"})),
        Grammar::JsonSchema(
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        ),
        Grammar::JsonSchema(json!({"allOf": [{"$ref": "#"}, {"$ref": "#"}], "type": "object"})),
        Grammar::JsonSchema(
            json!({"type": "string", "pattern": "^(((((a{1,100}){1,100}){1,100}){1,100}){1,100})$"}),
        ),
        Grammar::JsonSchema(json!({"type": "string", "pattern": "^(a|aa)*(b|bb)*(.*x.{200}y.*)*$"})),
        Grammar::JsonSchema(json!({"type": "string", "pattern": "(".repeat(50_000)})),
        Grammar::JsonSchema(json!({"type": "string", "pattern": "a".repeat(200_000)})),
        Grammar::JsonSchema(
            json!({"type": "array", "minItems": 100_000, "items": {"type": "array", "minItems": 100_000}}),
        ),
        Grammar::JsonSchema(json!({"enum": (0..20_000).map(|i| i.to_string()).collect::<Vec<_>>()})),
        Grammar::JsonSchema(json!({"x-guidance": {"whitespace_pattern": "(("}, "type": "null"})),
        Grammar::JsonSchema(json!({"x-guidance": 5})),
        Grammar::JsonSchema(json!({"type": 5, "required": "x", "minimum": "1"})),
        Grammar::JsonSchema(
            json!({"type": "number", "minimum": 1e308, "maximum": 1.7e308, "multipleOf": 1e-300}),
        ),
        Grammar::Gbnf(nested.clone()),
        Grammar::Gbnf(chain),
        Grammar::Gbnf(doubling),
        Grammar::Gbnf("root ::= root".into()),
        Grammar::Gbnf("root ::= \"\"".into()),
        Grammar::Gbnf("root ::= (\"\"*)* root | root root".into()),
        Grammar::Gbnf(format!("root ::= {}\"b\"", "\"a\"? ".repeat(100))),
        Grammar::Gbnf(format!("root ::= (((\"a\"{{0,{0}}}){{0,{0}}}){{0,{0}}}){{0,{0}}}", 9999)),
        Grammar::Gbnf("root ::= <[999999999]>".into()),
        Grammar::Gbnf("root ::= <no-such-token>".into()),
        Grammar::Lark(nested.replace("root ::=", "start:")),
        Grammar::Lark("start: start | \"a\"{1,99999999}".into()),
        Grammar::Lark("{".repeat(260_000)),
        Grammar::Lark("start: %json {\"a\"".into()),
        Grammar::Lark("start: @other\n%import common.X\n%llguidance {\"x\": }".into()),
        Grammar::Lark("\u{0}\u{feff}\r\n\t".into()),
        Grammar::Regex("(".repeat(100_000)),
        Grammar::Regex("((((.*)*)*)*)*x{5000}{5000}".into()),
        Grammar::Regex("\\".into()),
        Grammar::Regex(String::new()),
    ];
    for grammar in bombs {
        let started = Instant::now();
        let shown = format!("{grammar:?}").chars().take(80).collect::<String>();
        let result = match grammars.constraint(&grammar) {
            Ok(mut c) => {
                draw(vocab, &mut c, 40, &mut Random(5)).map(|run| run.text.len()).map_err(|e| e.to_string())
            }
            Err(e) => Err(e.to_string()),
        };
        if let Err(e) = &result {
            assert!(e.len() < 3000, "{e}");
        }
        let result = format!("{result:?}").chars().take(120).collect::<String>();
        eprintln!("{:?} {shown}: {result}", started.elapsed());
        // Far above what it takes: a bound that only a hang meets, on any machine.
        assert!(started.elapsed().as_secs() < 120, "{shown}");
    }
    // Dropping a deep value recurses; it is taken apart instead.
    while let Some(inner) = deep.get_mut("items").map(Value::take) {
        deep = inner;
    }
}

/// Trying tokens and taking them back changes no mask.
#[test]
fn masks_under_speculation() {
    let Some((vocab, grammars)) = vocab() else { return };
    let schema = json!({"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}}, "maxItems": 3});
    let gbnf = "root ::= \"(\" root \")\" root | [a-z ]*";
    for grammar in [Grammar::JsonSchema(schema), Grammar::Gbnf(gbnf.into())] {
        let (mut plain, mut tried) =
            (grammars.constraint(&grammar).unwrap(), grammars.constraint(&grammar).unwrap());
        let n = vocab.len().div_ceil(32);
        let (mut a, mut b) = (vec![0u32; n], vec![0u32; n]);
        let mut random = Random(11);
        let mut guess = |c: &mut GrammarConstraint, b: &mut [u32], path: &mut Vec<u32>| {
            c.mask(b).is_ok_and(|()| {
                let ids: Vec<u32> = allowed(b).into_iter().filter(|id| !vocab.is_end(*id)).collect();
                let id = ids.get(random.next() as usize % ids.len().max(1)).copied();
                id.is_some_and(|id| {
                    path.push(id);
                    c.accept(id).is_ok()
                })
            })
        };
        // A copy goes its own way.
        let mut forks = Vec::new();
        for step in 0..150 {
            let mut draft = Vec::new();
            while draft.len() < step % 9 && guess(&mut tried, &mut b, &mut draft) {}
            tried.rollback(draft.len());
            // What no grammar takes leaves everything as it was.
            assert!(matches!(tried.accept(u32::MAX), Err(ConstraintError::Refused { .. })));
            plain.mask(&mut a).unwrap();
            tried.mask(&mut b).unwrap();
            assert_eq!(a, b, "step {step}");
            if step % 10 == 0 {
                forks.push((plain.fork(), a.clone()));
            }
            let mut path = Vec::new();
            if !guess(&mut tried, &mut b, &mut path) {
                break;
            }
            plain.accept(path[0]).unwrap();
            // Half of the steps keep more than one guess.
            if step % 2 == 0 && guess(&mut tried, &mut b, &mut path) {
                plain.mask(&mut a).unwrap();
                plain.accept(path[1]).unwrap();
            }
        }
        for (mut fork, mask) in forks {
            fork.mask(&mut b).unwrap();
            assert_eq!(mask, b);
        }
    }
}

#[test]
fn tools_that_must_be_called() {
    use firth_text::output::{Family, Output, OutputFormat, OutputParser, Tool};
    let Some((vocab, grammars)) = vocab() else { return };
    let Some(folder) = common::shared("fixtures/templates") else { return };
    let tools = json!([
        {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "maxLength": 12}, "unit": {"type": "string", "enum": ["c", "f"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city"], "additionalProperties": false}}},
        {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": false}}},
    ]);
    let list = Tool::list(&tools).unwrap();
    let mut families = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "jinja") {
            continue;
        }
        // Without the marks of thoughts: no random text would come to close them.
        let mut source = std::fs::read_to_string(&path).unwrap();
        for mark in [
            "think>",
            "[THINK]",
            "[/THINK]",
            "_THINKING|>",
            "channel>thought",
            "<channel|>",
            "think:opensource>",
            "reasoning steps:",
            "[BEGIN FINAL RESPONSE]",
        ] {
            source = source.replace(mark, "");
        }
        let format = OutputFormat::detect(&source);
        if !format.has_tools() || families.contains(&format) {
            continue;
        }
        families.push(format);
        let prompt = if format.family() == Family::Harmony { "<|start|>assistant" } else { "" };
        for (choice, parallel) in
            [(ToolChoice::Required, true), (ToolChoice::Named("get_weather".into()), false)]
        {
            let grammar = tool_grammar(format, vocab, prompt, &list, &choice, parallel).unwrap();
            let mut finished = 0;
            for seed in 1..4u64 {
                let mut c =
                    grammars.constraint(&grammar).unwrap_or_else(|e| panic!("{format:?}: {e}\n{grammar:?}"));
                let run =
                    draw(vocab, &mut c, 800, &mut Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))).unwrap();
                if !run.ended {
                    continue;
                }
                finished += 1;
                let text = String::from_utf8(run.text).unwrap();
                let mut parser = OutputParser::new(format, prompt, list.clone(), seed);
                let mut events = parser.push(&text);
                events.extend(parser.finish());
                let found = Output::of(events);
                assert!(
                    !found.calls.is_empty() && found.content.trim().is_empty(),
                    "{format:?}: {text}: {found:?}"
                );
                for call in &found.calls {
                    let schema = list.iter().find(|t| t.name == call.name).unwrap().parameters.clone();
                    let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
                    assert!(jsonschema::is_valid(&schema, &arguments), "{format:?}: {text}: {arguments}");
                }
                assert!(parallel || found.calls.len() == 1, "{text}");
            }
            assert!(finished > 0, "{format:?}: {grammar:?}");
        }
    }
    assert!(families.len() > 18, "{}", families.len());
}

/// Thoughts come before an answer that is kept to a schema, and are no part of it.
#[test]
fn thoughts_before_an_answer() {
    use firth_text::output::{Output, OutputFormat, OutputParser};
    let Some((vocab, grammars)) = vocab() else { return };
    let schema = Grammar::JsonSchema(
        json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false}),
    );
    // Numbers of a schema are no repetitions of the grammar that it becomes a part of.
    let numbers = Grammar::JsonSchema(json!({"enum": [1, 20000, 3]}));
    let numbers = answer_grammar(OutputFormat::detect("<think>"), vocab, "", &numbers).unwrap();
    assert!(takes(grammars, vocab, &numbers, "<think>Hm</think>20000"));
    for (template, prompt, text) in [
        ("<think>", "<think>\n", "Hm {\n</think>\n\n{\"a\":1}"),
        ("<think>", "", "<think>Hm</think>{\"a\":1}"),
        ("<think>", "", "{\"a\":1}"),
        ("", "", "{\"a\":1}"),
        (
            "<|channel|> <|message|> <|start|>",
            "<|start|>assistant",
            "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>{\"a\":1}",
        ),
    ] {
        let format = OutputFormat::detect(template);
        let grammar = answer_grammar(format, vocab, prompt, &schema).unwrap();
        assert!(takes(grammars, vocab, &grammar, text), "{text}");
        assert!(!takes(grammars, vocab, &grammar, &text.replace("\"a\"", "\"b\"")), "{text}");
        let mut parser = OutputParser::new(format, prompt, vec![], 0);
        let mut events = parser.push(text);
        events.extend(parser.finish());
        assert_eq!(Output::of(events).content, "{\"a\":1}");
    }
}

/// Thoughts that reach their limit end in what the grammar of the answer goes on from: a call, or the answer itself.
#[test]
fn thoughts_of_a_limited_length_lead_to_the_answer() {
    use firth_text::output::{Output, OutputFormat, OutputParser, ThoughtBudget, Tool};
    let Some(shared) = common::shared("fixtures/tokenizer/ggml-vocab-gpt-2.gguf") else { return };
    let Some((_, grammars)) = vocab() else { return };
    let vocab = Arc::new(Vocab::from_metadata(Gguf::open(&shared).unwrap().metadata()).unwrap());
    let tools = Tool::list(&json!([{"type": "function", "function": {"name": "now", "parameters":
        {"type": "object", "properties": {}, "additionalProperties": false}}}]))
    .unwrap();
    let answer = Grammar::JsonSchema(json!({"const": 7}));
    for (template, prompt) in [
        ("<tool_call> <think></think>", "<think>\n"),
        ("<tool_call><function=x><parameter=y> <think>", "<think>\n"),
        ("[TOOL_CALLS] [THINK]", "[THINK]"),
        ("<|channel|> <|message|> <|start|>", "<|start|>assistant"),
    ] {
        let format = OutputFormat::detect(template);
        let calls = tool_grammar(format, &vocab, prompt, &tools, &ToolChoice::Required, false).unwrap();
        let says = answer_grammar(format, &vocab, prompt, &answer).unwrap();
        for (grammar, wanted) in [(calls, ("", 1)), (says, ("7", 0))] {
            let inner = grammars.constraint(&grammar).unwrap();
            let mut watch = inner.watch();
            let budget = ThoughtBudget::new(vocab.clone(), format, prompt, 3, "", Some(Box::new(inner)));
            let mut c = budget.ok().unwrap();
            let mut parser = OutputParser::new(format, prompt, tools.clone(), 1);
            let (mut mask, mut text, mut ended) = (vec![0; vocab.len().div_ceil(32)], Vec::new(), false);
            for _ in 0..400 {
                c.mask(&mut mask).unwrap();
                let ids = allowed(&mask);
                // An end where it may come, thoughts where there is a choice, and no end of them by chance.
                let opens = ids.iter().find(|id| b"<|channel|>".starts_with(vocab.piece(**id, false)));
                let plain = ids.iter().find(|id| vocab.piece(**id, false) == b" a");
                let end = ids.iter().any(|id| vocab.is_end(*id));
                let id = *opens.or(plain).unwrap_or(&ids[0]);
                ended = end && ids.len() == 1;
                if ended {
                    break;
                }
                c.accept(id).unwrap_or_else(|e| panic!("{template}: {e} behind {text:?}"));
                text.extend_from_slice(vocab.piece(id, false));
                ended = watch.push(&[id]) != Verdict::Continue;
                if ended {
                    break;
                }
            }
            let text = String::from_utf8(text).unwrap();
            let mut events = parser.push(&text);
            events.extend(parser.finish());
            let found = Output::of(events);
            assert!(ended && !found.reasoning.is_empty(), "{template}: {text}");
            assert_eq!((found.content.trim(), found.calls.len()), wanted, "{template}: {text}");
        }
    }
}
