//! The cut law on recurrences and rings: how the rows of a sequence are cut into steps, which of them were guessed,
//! how many guesses were wrong, and who shares the step or the slot never shows in a bit.

use std::collections::BTreeMap;

use firth_conformance::cases::recurrent::{Layer, layers};
use firth_conformance::cases::slots::{DRAFT, Placed, SLOTS, Turn, extents, fill, place};
use firth_conformance::data::{Rng, weight};
use firth_conformance::harness::{Ask, Values, cpu, load, step};
use firth_cpu::Level;
use firth_graph::{Array, Extents, Graph, Policy};

const TOKENS: usize = 70;

/// Steps of sequence 0 up to [`TOKENS`], with guests that differ from cut to cut.
type Schedule = Vec<Vec<Turn>>;

/// Certain rows alone, lengths repeated until the tokens are used up.
fn plain(cuts: &[usize]) -> Schedule {
    let (mut out, mut from) = (Vec::new(), 0);
    for n in cuts.iter().cycle() {
        let n = (*n).min(TOKENS - from);
        out.push(vec![Turn::rows(0, n)]);
        from += n;
        if from == TOKENS {
            return out;
        }
    }
    unreachable!("the cuts use up the tokens")
}

/// Drafts of every length, right and wrong, slots shared now and then, two guests that come and go.
fn drafted(seed: &str) -> Schedule {
    let mut rng = Rng::new(seed);
    let (mut out, mut from) = (vec![vec![Turn::rows(1, 5), Turn::rows(0, 11), Turn::draft(2, 2, 1)]], 11);
    while from < TOKENS {
        let drafted = rng.below(DRAFT + 1).min(TOKENS - from - 1);
        let accepted = rng.below(drafted + 1);
        let mut turn = Turn::draft(0, drafted, accepted);
        turn.certain = (1 + rng.below(3)).min(TOKENS - from - drafted);
        turn.shared = rng.once_in(4);
        let mut now = vec![turn];
        if rng.once_in(2) {
            now.insert(0, Turn::draft(1 + rng.below(2), DRAFT, rng.below(DRAFT)));
        }
        out.push(now);
        from += turn.certain + accepted;
    }
    out
}

fn input(step: &[Placed], number: usize, layer: &Layer, d: &firth_graph::InputDecl, x: Extents) -> Array {
    let dims = d.layout.shape.dims(&x);
    let ask = Ask { input: &d.name, dims, x, step: number, round: 0 };
    match fill(step, &ask, &|name, v| layer.adjust(name, v)) {
        Values::F(f) => Array { dims, f, i: Vec::new() },
        Values::I(i) => Array { dims, f: Vec::new(), i },
    }
}

/// The output row of every right token of sequence 0, by index.
fn outputs(layer: &Layer, level: Level, threads: usize, schedule: &Schedule) -> BTreeMap<usize, Vec<u8>> {
    let bounds = Extents { t: TOKENS + 16, s: 4, o: 0, p: 0 };
    let mut g = Graph::new(bounds);
    layer.build(&mut g);
    let g = g.finish().expect("a legal graph");
    let bytes = |w: &firth_graph::WeightDecl| {
        weight(w.layout.dtype, w.layout.shape.elements(&bounds), &mut Rng::new(&w.name()))
    };
    let weights: Vec<Vec<u8>> = g.weights.iter().map(bytes).collect();
    let device = cpu("cpu", level, threads, Vec::new());
    let mut runner = load(&g, &weights, SLOTS, vec![device], &Policy::FIRST).expect("it loads");
    let mut out = BTreeMap::new();
    for (number, now) in place(schedule).iter().enumerate() {
        let x = extents(&schedule[number]);
        let inputs: Vec<Array> = g.inputs.iter().map(|d| input(now, number, layer, d, x)).collect();
        let y = step(&mut runner, &g, &inputs, x).expect("a step runs").remove(0);
        let row = y.len() / x.t;
        for p in now.iter().filter(|p| p.turn.seq == 0) {
            for r in 0..p.turn.certain + p.turn.accepted {
                let at = (p.first_row + r) * row;
                out.insert(p.first_index + r, y[at..at + row].to_vec());
            }
        }
    }
    out
}

#[test]
fn every_cut_gives_the_same_bits() {
    let best = Level::available().last().expect("a level");
    let whole = plain(&[TOKENS]);
    let mut cuts = vec![whole.clone(), plain(&[1]), plain(&[17, 1, 1, 30]), plain(&[16]), plain(&[3, 2])];
    cuts.extend(["a", "b", "c"].map(drafted));
    for layer in layers() {
        let expected = outputs(&layer, Level::Scalar, 1, &whole);
        assert_eq!(expected.len(), TOKENS);
        for (i, schedule) in cuts.iter().enumerate() {
            for threads in [1, 2] {
                let found = outputs(&layer, best, threads, schedule);
                let other = (0..TOKENS).find(|t| found[t] != expected[t]);
                assert_eq!(other, None, "{}: cut {i}, {threads} threads: first other token", layer.name());
            }
        }
    }
}
