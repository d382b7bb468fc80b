//! What speculation is worth: an oracle that knows the answer, a drafter that is always wrong, the model's own head.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use firth::{DraftLength, Gguf, Params, SpecMode, SpecOptions};
use firth_conformance::{fixture, models};
use firth_cpu::Level;
use firth_engine::{Drafter, EngineOptions, Event, Request, Scheduler};

/// Rates of decoding with several drafters, as ratios to none.
#[derive(clap::Args)]
pub struct Args {
    /// The model
    model: PathBuf,
    /// Tokens of an answer
    #[arg(short, default_value_t = 96)]
    n: usize,
    /// Repetitions, of which the median counts
    #[arg(short, default_value_t = 5)]
    repeat: usize,
    /// Threads
    #[arg(short, default_value_t = 2)]
    threads: usize,
    /// Prompts for the acceptance of the head
    #[arg(long, default_value_t = 50)]
    prompts: usize,
}

/// Replays an answer, right or shifted by one id.
struct Replay {
    text: Vec<u32>,
    wrong: bool,
}

impl Drafter for Replay {
    fn propose(&mut self, ids: &[u32], n: usize, draft: &mut Vec<u32>) {
        let rest = self.text.get(ids.len()..).unwrap_or_default();
        draft.extend(rest.iter().take(n).map(|id| if self.wrong { id ^ 1 } else { *id }));
    }
}

/// What an answer came to.
struct Run {
    ids: Vec<u32>,
    /// Tokens after the first, a second.
    rate: f64,
    drafted: usize,
    accepted: usize,
}

fn run(s: &mut Scheduler, prompt: &[u32], n: usize) -> Result<Run> {
    let params = Params { temperature: 0.0, ..Params::default() };
    let mut request = Request::new(prompt.to_vec(), params, n);
    request.cache = false;
    s.submit(request)?;
    let mut out = Run { ids: prompt.to_vec(), rate: 0.0, drafted: 0, accepted: 0 };
    let mut first = None;
    while !s.is_idle() {
        s.tick(&mut |_, event| {
            match event {
                Event::Token(id) => out.ids.push(id),
                Event::Done(f) => {
                    (out.drafted, out.accepted) = (f.timings.draft_n, f.timings.draft_n_accepted)
                }
                Event::Failed(e) => eprintln!("{e}"),
                _ => {}
            }
            ControlFlow::Continue(())
        })?;
        // A step may give several tokens: the clock starts behind the first, which comes alone.
        if out.ids.len() == prompt.len() + 1 {
            first.get_or_insert_with(Instant::now);
        }
    }
    let seconds = first.map_or(0.0, |t| t.elapsed().as_secs_f64());
    out.rate = (out.ids.len() - prompt.len()).saturating_sub(1) as f64 / seconds.max(1e-9);
    Ok(out)
}

fn scheduler(file: &Arc<Gguf>, spec: SpecOptions, threads: usize) -> Scheduler {
    let options =
        EngineOptions { ctx: Some(1024), batch: 128, cache_bytes: 0, spec, ..EngineOptions::default() };
    Scheduler::new(models::engine(file, &options, Level::detect(), threads))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The beginnings of as many stretches of a novel, in the model's tokens.
fn prompts(file: &Gguf, n: usize) -> Result<Vec<Vec<u32>>> {
    let shared = fixture::shared().context("no folder of fixtures; set FIRTH_SHARED")?;
    let text = std::fs::read_to_string(shared.join("fixtures/text/austen-64k.txt"))?;
    let vocab = firth_text::Vocab::from_metadata(file.metadata())?;
    let ids = vocab.encode(&text, firth_text::Encode { add_special: false, parse_special: false })?;
    Ok((0..n).map(|i| ids[i * (ids.len() / n)..][..24].to_vec()).collect())
}

/// Runs the task.
pub fn main(a: &Args) -> Result<bool> {
    let file = Arc::new(Gguf::open(&a.model)?);
    let info = firth_models::load(&file)?.info();
    let prompts = prompts(&file, a.prompts.max(1))?;
    let spec = |mode, length| SpecOptions { mode, max: 3, length };
    let mut plain = scheduler(&file, SpecOptions::default(), a.threads);
    let text = run(&mut plain, &prompts[0], a.n)?.ids;
    let mut others = vec![
        ("oracle, drafts of 3", scheduler(&file, spec(SpecMode::Custom, DraftLength::Fixed), a.threads)),
        (
            "always wrong, adaptive",
            scheduler(&file, spec(SpecMode::Custom, DraftLength::Adaptive), a.threads),
        ),
    ];
    for (i, (_, s)) in others.iter_mut().enumerate() {
        s.set_drafter(Box::new(Replay { text: text.clone(), wrong: i == 1 }));
    }
    if info.draft.is_some() {
        others.push((
            "head, adaptive",
            scheduler(&file, spec(SpecMode::Mtp, DraftLength::Adaptive), a.threads),
        ));
    }
    let mut equal = true;
    for (name, s) in &mut others {
        let (mut ratios, mut rates) = (Vec::new(), Vec::new());
        let (mut drafted, mut accepted) = (0, 0);
        for _ in 0..a.repeat {
            // In turns, so that what else the machine does meets both.
            let base = run(&mut plain, &prompts[0], a.n)?;
            let found = run(s, &prompts[0], a.n)?;
            equal &= base.ids == found.ids;
            ratios.push(found.rate / base.rate);
            rates.push(base.rate);
            (drafted, accepted) = (found.drafted, found.accepted);
        }
        let (low, high) = ratios.iter().fold((f64::MAX, 0.0f64), |(l, h), r| (l.min(*r), h.max(*r)));
        println!(
            "{name}: {:.3} of plain decode ({low:.3} to {high:.3}), plain {:.2} tokens/s; {accepted} of {drafted} accepted",
            median(&mut ratios),
            median(&mut rates),
        );
    }
    if info.draft.is_some() {
        let mut head = scheduler(&file, spec(SpecMode::Mtp, DraftLength::Fixed), a.threads);
        let (mut drafted, mut accepted) = (0, 0);
        for prompt in &prompts {
            let found = run(&mut head, prompt, a.n)?;
            (drafted, accepted) = (drafted + found.drafted, accepted + found.accepted);
        }
        println!("head, {} prompts, greedy, drafts of 3: {accepted} of {drafted} accepted", prompts.len());
    }
    println!("ids {}", if equal { "equal" } else { "DIFFER" });
    Ok(equal)
}
