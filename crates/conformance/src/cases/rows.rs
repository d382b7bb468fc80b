//! Rows by index, embeddings, sampling.

use firth_graph::op::*;
use firth_graph::{Extents, Shape, Sym};
use firth_quant::Dtype;
use firth_sampling::{Params, RowParams};

use super::{WIDTHS, floats, rows, shape, weight, wide};
use crate::data::Rng;
use crate::harness::{Ask, Case, Values};

/// All of them.
pub fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    for n in WIDTHS {
        out.push(select(n));
        out.push(write(n));
        out.push(concat(n));
    }
    out.extend(windows());
    out.extend(embeddings());
    out.extend(sampling());
    out
}

const BOUNDS: Extents = Extents { t: 13, o: 9, p: 0, s: 0 };

fn steps(case: Case) -> Case {
    let at = |t, o| Extents { t, o, ..BOUNDS };
    case.steps(&[BOUNDS, at(1, 1), at(7, 0), at(5, 9), at(0, 0)])
}

/// Indices below `limit`, often repeated.
fn indices(ask: &Ask, limit: usize, rng: &mut Rng) -> Option<Values> {
    Some(Values::I((0..ask.n()).map(|_| rng.below(limit) as i32).collect()))
}

fn select(n: usize) -> Case {
    let case = Case::new(format!("row_select of {n}"), BOUNDS, |g| {
        let (x, idx) = (floats(g, "x", wide(n)), g.input("idx", Dtype::I32, shape(&[Sym::O.into()])));
        let y = g.push(RowSelect, &[x, idx]);
        g.output("y", y);
    });
    steps(case).fill(|ask, rng| if ask.input == "idx" { indices(ask, ask.x.t, rng) } else { None })
}

fn write(n: usize) -> Case {
    let case = Case::new(format!("row_write of {n}"), BOUNDS, |g| {
        let idx = g.input("idx", Dtype::I32, shape(&[Sym::O.into()]));
        let (base, new) = (floats(g, "base", wide(n)), floats(g, "rows", shape(&[n.into(), Sym::O.into()])));
        let y = g.push(RowWrite, &[base, new, idx]);
        g.output("y", y);
    });
    steps(case).fill(|ask, rng| if ask.input == "idx" { indices(ask, ask.x.t, rng) } else { None })
}

/// Two inputs and a view of one of them, with heads.
fn concat(n: usize) -> Case {
    let case = Case::new(format!("concat of {n}"), rows(13), |g| {
        let heads = |n: usize| shape(&[n.into(), 3.into(), Sym::T.into()]);
        let (a, b) = (floats(g, "a", heads(n)), floats(g, "b", heads(5)));
        let middle = g.slice(b, 1, 3);
        let y = g.push(Concat, &[a, b, middle]);
        g.output("y", y);
    });
    case.steps(&[rows(13), rows(0), rows(1)])
}

/// What a convolution keeps after a draft, as one write: overlapping windows of its inputs, oldest first, to rows
/// that an index names newest first. Rows that no window reaches stay.
fn windows() -> Vec<Case> {
    let one = |taps: usize, channels: usize, tokens: usize, slots: usize| {
        let (columns, windows) = (taps - 1 + tokens, slots.min(tokens + 1));
        let name = format!("windows of {taps} taps, {channels} channels, {tokens} tokens, {slots} slots");
        let case = Case::new(name, rows(1), |g| {
            let x = floats(g, "x", Shape::fixed(&[columns, channels]));
            let kept = floats(g, "kept", Shape::fixed(&[(taps - 1) * channels, slots]));
            let idx = g.input("idx", Dtype::I32, Shape::fixed(&[windows]));
            // The window that ends at token `t` starts at column `t`; neighbours share all columns but one.
            let shape = Shape::fixed(&[taps - 1, channels, windows]);
            let start = (tokens - (windows - 1)) * 4;
            let view = g.view(x, shape, [4, 4 * columns, 4, 4 * windows], start);
            let dense = g.push(Copy, &[view]);
            let flat = g.merge_heads(dense);
            let y = g.push(RowWrite, &[kept, flat, idx]);
            g.output("y", y);
        });
        case.fill(move |ask, _| (ask.input == "idx").then(|| Values::I((0..windows as i32).rev().collect())))
    };
    vec![one(4, 33, 4, 4), one(4, 1, 2, 4), one(2, 5, 9, 3), one(3, 64, 1, 4), one(4, 16, 6, 1)]
}

/// Every type as a table, with ids and ready rows; some tied to a product.
fn embeddings() -> Vec<Case> {
    let mut out = Vec::new();
    for dtype in super::products::types() {
        for (tied, scale) in [(false, 1.0), (false, 5.5), (true, 1.0)] {
            let n = if dtype.block_len() == 1 { 33 } else { 2 * dtype.block_len() };
            let what = if tied { "tied" } else { "plain" };
            let case = Case::new(format!("embed {} {what} x{scale}", dtype.name()), rows(13), |g| {
                let table = weight(g, "table", dtype, &[n, 70]);
                let tokens = g.input("tokens", Dtype::I32, shape(&[Sym::T.into()]));
                let ready = floats(g, "ready", wide(n));
                let y = g.push(Embed { scale }, &[table, tokens, ready]);
                g.output("y", y);
                if tied {
                    let logits = g.push(MatMul, &[table, y]);
                    g.output("logits", logits);
                }
            });
            out.push(case.steps(&[rows(13), rows(0), rows(1), rows(9)]).fill(|ask, rng| {
                let id = |_| rng.below(75) as i32;
                (ask.input == "tokens").then(|| {
                    Values::I((0..ask.n()).map(id).map(|i| if i < 70 { i } else { READY_ROW }).collect())
                })
            }));
        }
    }
    out
}

const VOCAB: usize = 211;

fn sampling() -> Vec<Case> {
    let bounds = Extents { t: 0, o: 24, p: 0, s: 0 };
    let at = |o| Extents { o, ..bounds };
    [("sample", false), ("sample of ties and -inf", true)]
        .map(|(name, hard)| {
            let case = sample_case(name, bounds).steps(&[bounds, at(0), at(1), at(17)]);
            case.fill(move |ask, rng| sample_input(ask, rng, hard))
        })
        .into()
}

/// Rows of every stage: greedy, top-k, top-p, min-p, penalties, biases, masks, all forbidden, NaN.
fn sample_case(name: &str, bounds: Extents) -> Case {
    Case::new(name, bounds, |g| {
        let o = Sym::O.into();
        let logits = floats(g, "logits", shape(&[VOCAB.into(), o]));
        let words = |g: &mut firth_graph::Graph, name: &str, axes: &[firth_graph::Extent]| {
            g.input(name, Dtype::I32, shape(axes))
        };
        let params = words(g, "params", &[RowParams::WORDS.into(), o]);
        let penalties = words(g, "penalties", &[2.into(), 40.into()]);
        let biases = words(g, "biases", &[2.into(), 12.into()]);
        let masks = words(g, "masks", &[VOCAB.div_ceil(32).into(), 3.into()]);
        let ids = g.push(Sample, &[logits, params, penalties, biases, masks]);
        g.output("ids", ids);
    })
}

/// Rows of parameters at random, over logits with ties and -inf: for a device whose sampler is other code than the host's.
pub(super) fn many_samples(rows: usize) -> Case {
    let bounds = Extents { t: 0, o: rows, p: 0, s: 0 };
    sample_case("many samples", bounds).steps(&[bounds]).fill(|ask, rng| match ask.input {
        "params" => Some(Values::I(
            (0..ask.dims[1]).flat_map(|r| any_params(r, rng).to_words().map(|w| w as i32)).collect(),
        )),
        _ => sample_input(ask, rng, true),
    })
}

fn any_params(row: usize, rng: &mut Rng) -> RowParams {
    let p = Params {
        seed: rng.bits(),
        temperature: [0.0, 0.05, 0.7, 1.0, 1.3, 9.0][rng.below(6)],
        top_k: [0, 1, 2, 5, 40, VOCAB as u32, 1 + VOCAB as u32, 1_000_000][rng.below(8)],
        top_p: [1.0, 0.0, 1e-7, 0.3, 0.9, 0.999][rng.below(6)],
        min_p: [0.0, 0.0, 1.0, 0.05, 0.6][rng.below(5)],
        repeat_penalty: [1.0, 1.2][rng.below(2)],
        frequency_penalty: [0.0, 0.1][rng.below(2)],
        presence_penalty: [0.0, -0.2][rng.below(2)],
        ..Params::default()
    };
    let mut out = RowParams::new(&p, row as u32 + 3, rng.below(2) as u32);
    out.set_penalties(rng.below(4) as u32 * 10, rng.below(11) as u32);
    let start = rng.below(12) as u32;
    out.set_biases(start, rng.below(13 - start as usize) as u32);
    out.set_mask([RowParams::NO_MASK, RowParams::NO_MASK, 0, 1, 2][rng.below(5)]);
    out
}

fn sample_input(ask: &Ask, rng: &mut Rng, hard: bool) -> Option<Values> {
    let n = ask.n();
    Some(match ask.input {
        "logits" if hard => Values::F((0..n).map(|i| hard_logit(i / VOCAB, rng)).collect()),
        "logits" => return None,
        "params" => {
            Values::I((0..ask.dims[1]).flat_map(|r| params(r, rng).to_words().map(|w| w as i32)).collect())
        }
        // Each row's pairs have ids of their own.
        "penalties" => {
            Values::I((0..40).flat_map(|i| [(i % 10) * 21 + 1, 1 + rng.below(3) as i32]).collect())
        }
        "biases" => Values::I((0..12).flat_map(|_| [rng.below(VOCAB + 3) as i32, bias(rng)]).collect()),
        "masks" => Values::I((0..n).map(|i| mask_word(i / VOCAB.div_ceil(32), rng)).collect()),
        other => panic!("no input `{other}`"),
    })
}

fn bias(rng: &mut Rng) -> i32 {
    let v = if rng.once_in(3) { f32::NEG_INFINITY } else { rng.value() };
    v.to_bits() as i32
}

/// Mask 0 allows all, mask 1 some, mask 2 nothing.
fn mask_word(mask: usize, rng: &mut Rng) -> i32 {
    match mask {
        0 => -1,
        1 => rng.bits() as i32,
        _ => 0,
    }
}

/// Ties among few values, -inf; row 3 all -inf, row 5 with a NaN.
fn hard_logit(row: usize, rng: &mut Rng) -> f32 {
    match (row, rng.below(8)) {
        (3, _) | (_, 0..2) => f32::NEG_INFINITY,
        (5, 2) => f32::NAN,
        (_, v) => v as f32 * 0.5,
    }
}

fn params(row: usize, rng: &mut Rng) -> RowParams {
    let p = Params {
        seed: rng.bits(),
        temperature: [0.0, 0.7, 1.3, 0.05][row % 4],
        top_k: [0, 1, 5, 300][row / 4 % 4],
        top_p: [1.0, 0.9, 0.3][row % 3],
        min_p: [0.0, 0.05, 0.6][row / 2 % 3],
        repeat_penalty: [1.0, 1.2][row / 3 % 2],
        frequency_penalty: [0.0, 0.1][row / 5 % 2],
        presence_penalty: [0.0, -0.2][row / 7 % 2],
        ..Params::default()
    };
    let mut out = RowParams::new(&p, row as u32 + 3, rng.below(2) as u32);
    out.set_penalties(rng.below(4) as u32 * 10, rng.below(11) as u32);
    let start = rng.below(12) as u32;
    out.set_biases(start, rng.below(13 - start as usize) as u32);
    out.set_mask([RowParams::NO_MASK, 0, 1, 2, 1][row % 5]);
    out
}
