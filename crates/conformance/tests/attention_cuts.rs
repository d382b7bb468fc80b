//! The cut law on attention: how a sequence's rows are cut into steps never shows in a bit.

use firth_conformance::cases::attention::Layer;
use firth_conformance::cases::tables;
use firth_conformance::data::Rng;
use firth_conformance::harness::{cpu, load, step};
use firth_cpu::Level;
use firth_graph::op::Sight;
use firth_graph::{Array, Extents, Graph, Policy};
use firth_quant::Dtype;

const TOKENS: usize = 200;

/// The cuts compared: lengths of steps, repeated until the tokens are used up.
const CUTS: [&[usize]; 5] = [&[TOKENS], &[1], &[17, 1, 1, 30], &[64], &[63, 2]];

/// Rows `from .. from + n` of a value made for all tokens.
fn rows(name: &str, dims: [usize; 4], from: usize) -> Array {
    let width = dims[0] * dims[1];
    let all = Rng::new(name).values(width * TOKENS);
    Array { dims, f: all[from * width..(from + dims[2]) * width].to_vec(), i: Vec::new() }
}

/// Outputs of all tokens, in steps of `cuts`. A second sequence of one row stands before or behind.
fn outputs(layer: &Layer, level: Level, threads: usize, cuts: &[usize]) -> Vec<u8> {
    let bounds = Extents { t: TOKENS + 1, s: 2, o: 0, p: 0 };
    let mut g = Graph::new(bounds);
    layer.build(&mut g);
    let g = g.finish().expect("a legal graph");
    let device = cpu("cpu", level, threads, Vec::new());
    let mut runner = load(&g, &[], tables::N_PAGES, vec![device], &Policy::FIRST).expect("it loads");
    let (mut schedule, mut out, mut from) = (Vec::new(), Vec::new(), 0);
    for (i, n) in cuts.iter().cycle().enumerate() {
        let n = (*n).min(TOKENS - from);
        // Now and then a guest shares the step.
        schedule.push(if i % 3 == 1 { vec![(1, 1), (0, n)] } else { vec![(0, n)] });
        let guest = schedule[i].len() - 1;
        let x = tables::extents(&schedule[i]);
        let value = |d: &firth_graph::InputDecl| {
            let dims = d.layout.shape.dims(&x);
            match d.name.as_str() {
                "seqs" => Array { dims, f: Vec::new(), i: tables::seqs(&schedule, i) },
                "pages" => Array { dims, f: Vec::new(), i: tables::pages(&schedule[i]) },
                "sinks" => Array { dims, f: Rng::new("sinks").values(dims[0]), i: Vec::new() },
                name => {
                    let mut own = rows(name, [dims[0], dims[1], n, 1], from);
                    let mut f = Rng::new("guest").values(dims[0] * dims[1] * guest);
                    f.append(&mut own.f);
                    Array { dims, f, i: Vec::new() }
                }
            }
        };
        let inputs: Vec<Array> = g.inputs.iter().map(value).collect();
        let y = step(&mut runner, &g, &inputs, x).expect("a step runs").remove(0);
        let row = y.len() / x.t;
        out.extend_from_slice(&y[guest * row..]);
        from += n;
        if from == TOKENS {
            return out;
        }
    }
    unreachable!("the cuts use up the tokens")
}

fn check(layer: Layer) {
    let best = Level::available().last().expect("a level");
    let expected = outputs(&layer, Level::Scalar, 1, CUTS[0]);
    for cuts in CUTS {
        for threads in [1, 2] {
            let found = outputs(&layer, best, threads, cuts);
            assert!(found == expected, "{} {:?}: cut {cuts:?}, {threads} threads", layer.name, layer.dtype);
        }
    }
}

#[test]
fn types_of_pages() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Q8_0] {
        check(Layer { dtype, ..Layer::plain("plain") });
    }
}

#[test]
fn groups() {
    for group in [1, 3, 4, 8] {
        check(Layer { group, kv_heads: 1, ..Layer::plain("groups") });
    }
}

#[test]
fn windows_sinks_and_caps() {
    for window in [1, 50, 64, 100] {
        check(Layer {
            sight: Sight::Window(window),
            sinks: true,
            softcap: 2.0,
            dtype: Dtype::F16,
            ..Layer::plain("windows")
        });
    }
}

#[test]
fn chunks_and_biases() {
    for (sight, alibi) in [(Sight::Chunk(50), 0.0), (Sight::Chunk(64), 8.0), (Sight::Past, 8.0)] {
        check(Layer { sight, alibi, group: 3, dtype: Dtype::F16, ..Layer::plain("chunks and biases") });
    }
}
