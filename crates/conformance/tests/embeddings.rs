//! Embeddings: those of Hugging Face transformers, and the same bits however they are computed.

use firth::{EngineOptions, Pooling, Request};
use firth_conformance::embedding::{Golden, embed, folder};
use firth_conformance::{fixture, models};
use firth_cpu::Level;
use firth_engine::{EngineError, Feed, Scheduler, Want};

/// Largest distance of a number from transformers'.
const BOUND: f32 = 1e-5;

fn goldens() -> Vec<(String, Golden)> {
    let names = fixture::names(&folder());
    assert!(names.len() >= 11, "goldens: {names:?}");
    names.into_iter().map(|name| (name.clone(), Golden::read(&folder(), &name))).collect()
}

#[test]
fn as_transformers_computes_them() {
    for (name, golden) in goldens() {
        let (error, pooling) = golden.error().unwrap_or_else(|e| panic!("{name}: {e}"));
        println!("{name}: {error:.1e} ({})", pooling.name());
        assert!(error <= BOUND, "{name}: {error:.1e} with pooling {}", pooling.name());
    }
}

/// Bits of the golden's text among others, at a level, with threads, in steps of so many rows.
fn bits(g: &Golden, level: Level, threads: usize, mates: usize, batch: usize) -> Vec<u32> {
    let pooling = g.outputs.last().expect("an output").0;
    let options = EngineOptions { parallel: mates + 1, batch, ..g.options(pooling) };
    let engine = models::engine(&g.file, &options, level, threads);
    // Mates are other texts of other lengths; the text's own place is in their middle.
    let n = g.tokens.len();
    let mut texts: Vec<&[u32]> = (0..mates).map(|m| &g.tokens[m * 3 + 1..n - m * 19]).collect();
    texts.insert(mates / 2, &g.tokens);
    let found = embed(engine, &texts).expect("texts of the context").swap_remove(mates / 2);
    found.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn bits_are_the_same_alone_among_mates_and_on_any_number_of_threads() {
    for (name, g) in goldens() {
        let own = Level::detect();
        let base = bits(&g, own, 1, 0, 512);
        assert_eq!(bits(&g, own, 2, 3, 512), base, "{name}: among mates");
        // A text of a model that attends both ways is in one step whatever is asked.
        assert_eq!(bits(&g, own, 3, 2, 7), base, "{name}: in short steps");
    }
}

#[test]
fn bits_are_the_same_at_every_instruction_set() {
    for (name, mut g) in goldens() {
        if !["bert", "t5", "nomic-bert-moe", "qwen3"].contains(&&name[..]) {
            continue;
        }
        g.tokens.truncate(20);
        let base = bits(&g, Level::Scalar, 1, 0, 512);
        for level in Level::available() {
            assert_eq!(bits(&g, level, 2, 0, 512), base, "{name}: {level}");
        }
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let golden = |name: &str| Golden::read(&folder(), name);
    let load = |g: &Golden, o: &EngineOptions| models::try_engine(&g.file, o, Level::detect(), 1);
    let (bert, nomic, qwen) = (golden("bert"), golden("nomic-bert"), golden("qwen3"));

    // An encoder has no text to go on from, and always has embeddings.
    let plain = EngineOptions { embeddings: false, pooling: None, ..bert.options(Pooling::Cls) };
    let mut s = Scheduler::new(load(&bert, &plain).expect("an encoder"));
    let text = Request::new(bert.tokens.clone(), Default::default(), 4);
    assert!(matches!(s.submit(text), Err(EngineError::NoLogits { .. })));
    let long = Request::embedding(vec![5; bert.tokens.len() + 9]);
    assert!(matches!(s.submit(long), Err(EngineError::Context { .. })));
    assert!(matches!(s.submit(Request::embedding(Vec::new())), Err(EngineError::EmptyPrompt)));
    assert!(matches!(s.submit(Request::embedding(vec![100])), Err(EngineError::Id { id: 100, .. })));
    assert_eq!(s.engine().embedding().expect("an encoder's").pooling, Pooling::Cls);
    let seq = s.engine().open(0).expect("a sequence");
    let feed = |want| Feed { seq, ids: &bert.tokens[..3], embeds: None, want, sampler: None };
    assert!(matches!(s.engine().step(&[feed(Want::Last)]), Err(EngineError::NoLogits { .. })));
    s.engine().step(&[feed(Want::Hidden)]).expect("rows");
    let cut = s.engine().step(&[feed(Want::Hidden)]);
    assert!(matches!(cut, Err(EngineError::Whole { held: 3, found: 3, .. })), "{cut:?}");

    // A decoder's are had by those who ask for them at load, and text goes on beside them.
    let mut s =
        Scheduler::new(load(&qwen, &EngineOptions { ctx: Some(99), ..Default::default() }).expect("a model"));
    let asked = s.submit(Request::embedding(qwen.tokens.clone()));
    assert!(matches!(asked, Err(EngineError::NoEmbeddings)));

    // More tokens than the file has positions for.
    let beyond = EngineOptions { ctx: Some(257), ..bert.options(Pooling::Cls) };
    let beyond = load(&bert, &beyond).err().expect("a refusal").to_string();
    assert!(beyond.contains("ctx is 257, expected 1 to 256"), "{beyond}");

    // A classifier that is not there.
    let rank = load(&nomic, &nomic.options(Pooling::Rank)).err().expect("a refusal").to_string();
    assert!(rank.contains("pooling") && rank.contains("classifier"), "{rank}");
}

/// Texts that are answered and texts that are embedded share steps, and neither notices.
#[test]
fn embeddings_beside_answers() {
    let g = Golden::read(&folder(), "qwen3");
    let options = EngineOptions { ctx: Some(120), parallel: 3, batch: 16, ..g.options(Pooling::Last) };
    let run = |embeds: bool, answers: usize| {
        let mut s = Scheduler::new(models::engine(&g.file, &options, Level::detect(), 2));
        let params = firth::Params { temperature: 0.0, ..Default::default() };
        for n in 0..answers {
            s.submit(Request::new(g.tokens[n..10 + n].to_vec(), params.clone(), 20)).expect("a request");
        }
        if embeds {
            s.submit(Request::embedding(g.tokens.clone())).expect("a text");
        }
        let (mut embedding, mut said) = (Vec::new(), vec![Vec::new(); answers]);
        s.run_all(&mut |job, event| {
            match event {
                firth::Event::Embedding(e) => embedding = e,
                firth::Event::Token(id) => said[job.0 as usize].push(id),
                firth::Event::Failed(e) => panic!("{e}"),
                _ => {}
            }
            std::ops::ControlFlow::Continue(())
        })
        .expect("steps");
        (embedding, said)
    };
    let (alone, both, text) = (run(true, 0), run(true, 2), run(false, 2));
    assert_eq!(both.0, alone.0);
    assert_eq!(both.1, text.1);
    assert!(!both.0.is_empty() && both.1.iter().all(|said| said.len() == 20));
}
